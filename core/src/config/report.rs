//! All settings, as a table for people and as a file.

use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64;

use super::kinds::Unit;
use super::knobs::{Config, KNOBS, Knob};
use super::origin::Origin;

impl Config {
    /// All knobs, with their topic: name, value, where the value came from, meaning. Secrets are masked.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, [String; 4])> {
        KNOBS.iter().map(|knob| {
            let value = knob.value(self);
            let value = if value.is_empty() { "-".to_owned() } else { value };
            (knob.topic, [knob.name.to_owned(), value, self.origin(knob.name).to_string(), knob.doc.to_owned()])
        })
    }

    /// [`rows`](Self::rows) as a text, one line a knob.
    pub fn report(&self) -> String {
        let rows: Vec<[String; 4]> = self.rows().map(|(_, row)| row).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (names, values, origins) = (width(0), width(1), width(2));
        let mut text = String::new();
        for (index, (knob, [name, value, origin, doc])) in KNOBS.iter().zip(&rows).enumerate() {
            if index == 0 || KNOBS[index - 1].topic != knob.topic {
                let gap = if index == 0 { "" } else { "\n" };
                writeln!(text, "{gap}{}", knob.topic).expect("a String takes all");
            }
            writeln!(text, "  {name:names$}  {value:values$}  {origin:origins$}  {doc}").expect("a String takes all");
        }
        text
    }

    /// The settings that somebody gave: name, value, where the value came from. Secrets are masked. Left out is what differs between the processes
    /// of a job because they are several: their places and addresses, and
    /// how they find each other.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, String, String)> {
        let is_own = |knob: &Knob| knob.topic == "Place" || OWN.contains(&knob.name);
        KNOBS.iter().filter(move |knob| !is_own(knob)).filter_map(|knob| {
            let origin = self.origins.get(knob.name)?;
            Some((knob.name, knob.value(self), origin.to_string()))
        })
    }

    /// What [`given`](Self::given) says as one number, without origins: processes with equal settings have the same.
    pub fn fingerprint(&self) -> u64 {
        let given: Vec<String> = self.given().map(|(name, value, _)| format!("{name}={value}\n")).collect();
        xxh3_64(given.concat().as_bytes())
    }

    /// A file that produces these settings again. Settings of this process only are written as comments: secrets, and the place that a
    /// launcher or the cluster file assigned.
    pub fn to_toml(&self) -> String {
        let mut text = String::from(
            "# Gradlane's settings. What is commented out has no value, is secret, or is said by the launcher or the cluster file.\n",
        );
        let mut topic = "";
        for knob in KNOBS {
            if topic != knob.topic {
                topic = knob.topic;
                writeln!(text, "\n# {topic}").expect("a String takes all");
            }
            let value = knob.value(self);
            let own =
                knob.unit.is_secret() || matches!(self.origin(knob.name), Origin::Launcher(_) | Origin::Cluster(_));
            let comment = if own || value.is_empty() { "# " } else { "" };
            let value = if own { String::new() } else { value };
            writeln!(text, "\n# {}\n{comment}{} = {}", knob.doc, knob.name, literal(knob, value))
                .expect("a String takes all");
        }
        text
    }
}

/// A value in TOML: numbers and flags without quotes, everything else quoted.
fn literal(knob: &Knob, value: String) -> String {
    match knob.unit {
        Unit::Count | Unit::Flag if !value.is_empty() => value,
        Unit::Count
        | Unit::Flag
        | Unit::Bytes
        | Unit::Indices
        | Unit::Duration
        | Unit::Text
        | Unit::Choice(_)
        | Unit::Path
        | Unit::Secret
        | Unit::SharedSecret => toml::Value::String(value).to_string(),
    }
}

/// Settings that tell the processes of a job apart, besides the topic `Place`, or one job from another; and where a report goes, which its reader
/// knows.
const OWN: [&str; 10] = [
    "role",
    "join",
    "join_file",
    "coordinator_host",
    "coordinator_port",
    "bind",
    "advertise",
    "metrics_bind",
    "metrics_public",
    "report",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::load::File;

    const SECRET: &str = "mrswmz3infvgw3dnnzxxa4lsom";
    const JOIN: &str =
        "gradlane1.n1:7000.aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypq.mrswmz3infvgw3dnnzxxa4lsom";

    #[test]
    fn the_report_shows_value_origin_and_meaning_and_no_secret() {
        let report = config().report();
        let line = |name: &str| report.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
        for shown in ["8 MiB", "GRADLANE_PARTITION_BYTES", "larger tensors are split"] {
            assert!(line("partition_bytes ").contains(shown), "{report}");
        }
        assert!(line("rank ").contains("torchrun"), "{report}");
        assert!(line("join ").contains("gradlane1.n1:7000."), "{report}");
        assert!(line("advertise ").contains(" - "), "{report}");
        assert!(!report.contains(SECRET), "{report}");
        assert_eq!(report.lines().filter(|line| line.starts_with("  ")).count(), KNOBS.len());
    }

    #[test]
    fn the_exported_file_gives_the_same_settings_but_for_what_this_process_alone_has() {
        let exported = config().to_toml();
        assert!(!exported.contains(SECRET), "{exported}");
        let file = File { path: "g.toml".to_owned(), text: exported };
        let (read, _) = Config::load(&BTreeMap::new(), environment("RANK=0 WORLD_SIZE=2"), Some(&file)).unwrap();
        let expected = Config { join: None, rank: Some(0), node_rank: Some(0), ..config() };
        assert_eq!(Config { origins: BTreeMap::new(), ..read }, Config { origins: BTreeMap::new(), ..expected });
    }

    #[test]
    fn processes_of_a_job_have_one_fingerprint_wherever_they_are() {
        let with = |variables: &str| Config::load(&BTreeMap::new(), environment(variables), None).unwrap().0;
        let one = with("RANK=1 WORLD_SIZE=2 GRADLANE_CREDIT_BYTES=8MiB GRADLANE_METRICS_BIND=127.0.0.1:9401");
        let given: Vec<_> = one.given().map(|(name, value, _)| format!("{name}={value}")).collect();
        assert_eq!(given, ["credit_bytes=8 MiB"]);
        let other = with("GRADLANE_RANK=0 GRADLANE_SIZE=2 GRADLANE_CREDIT_BYTES=8192KiB");
        assert_eq!(one.fingerprint(), other.fingerprint());
        assert_ne!(one.fingerprint(), with("GRADLANE_CREDIT_BYTES=9MiB").fingerprint());
    }

    fn config() -> Config {
        let variables = format!(
            "RANK=1 WORLD_SIZE=2 HOME=/home/a GRADLANE_PARTITION_BYTES=8MiB GRADLANE_JOIN={JOIN} BYTEPS_LOG_LEVEL=INFO"
        );
        Config::load(&BTreeMap::new(), environment(&variables), None).unwrap().0
    }

    fn environment(variables: &str) -> Vec<(String, String)> {
        let pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}
