//! The report at the end of a job: what it did, who held it up, and what to compare with another run.
//!
//! | file | does |
//! |---|---|
//! | this one | what is in a report, as it is written and read |
//! | `making` | a report from what the coordinator knows at the end |
//! | `times` | the mean and the quantiles of a histogram |
//! | `page` | a report as a page of text |
//! | `files` | the directory of the setting `report`, and reading |
//! | `alike` | which processes have something in common, in words |
//! | `compare` | what two reports have different |
//! | `utc` | a date |

mod alike;
pub(crate) mod compare;
pub(crate) mod files;
pub(crate) mod making;
mod page;
mod times;
mod utc;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use gradlane_core::types::{self, GivenSetting, printable};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::times::Times;

/// A job at its end. An elastic job that forms again has a report for each formation, because ranks and steps begin anew.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// [`FORM`].
    pub(crate) form: String,
    /// [`SCHEMA`].
    pub(crate) schema: u64,
    pub(crate) job: String,
    /// How often the job had formed, with this time: 1 for the first. 0 if it never formed.
    pub(crate) formation: u32,
    /// The last epoch.
    pub(crate) epoch: String,
    /// When the job formed, or the coordinator started if it never formed or was started again; in UTC, by the coordinator's clock.
    pub(crate) began: String,
    pub(crate) began_unix_ns: u64,
    /// From then to the end.
    pub(crate) duration_ns: u64,
    /// Whether that is all of the time since the job formed. It is not if another coordinator led the job before.
    pub(crate) whole: bool,
    pub(crate) end: End,
    /// Who held the job up, in words.
    pub(crate) verdict: String,
    /// The rounds of the tensor that was reduced most often.
    pub(crate) steps: u64,
    /// The share of the time in which workers waited for handles, on average.
    pub(crate) exposed: Option<f64>,
    /// The share of the time in which trainings waited for their data, on average; `None` if no script told of such a wait.
    pub(crate) data: Option<f64>,
    /// The time of an operation, of all workers.
    pub(crate) push_pull: Times,
    /// The time of a round of a part, from its first byte to its sum, of all servers.
    pub(crate) round: Times,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) servers: Vec<Server>,
    /// The members that were given up, and why; the first [`LOSSES_MAX`].
    pub(crate) losses: Vec<String>,
    /// The members that told no metrics.
    pub(crate) silent: Vec<String>,
    /// Of the process of the coordinator.
    pub(crate) setup: Setup,
    pub(crate) members: Vec<Member>,
}

/// How a job ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct End {
    /// `ended`, `failed`, `forms again`.
    pub(crate) how: String,
    /// The error, if there is one.
    pub(crate) reason: Option<String>,
}

/// A worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) host: String,
    /// How long its threads waited for handles; `None` if it told nothing.
    pub(crate) blocked_ns: Option<u64>,
    /// As a share of the time until it told that.
    pub(crate) blocked: Option<f64>,
    pub(crate) push_bytes: Option<u64>,
    pub(crate) pull_bytes: Option<u64>,
    /// For how long only it was missing, by cause. Without the causes that never were.
    pub(crate) late_ns: BTreeMap<String, u64>,
    /// The same in a step, on average.
    pub(crate) late_in_step_ns: Option<u64>,
    /// What held its worst link for most of the time.
    pub(crate) limit: Option<String>,
    /// The longest round trip to a server, at the end.
    pub(crate) rtt_ns: Option<u64>,
    /// The highest share of packets to a server that was lost.
    pub(crate) loss: Option<f64>,
}

/// A server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) index: u32,
    pub(crate) host: String,
    pub(crate) received_bytes: Option<u64>,
    pub(crate) sent_bytes: Option<u64>,
    /// Sums of parts.
    pub(crate) sums: u64,
    /// The share of the time in which a lane worked, on average.
    pub(crate) lanes_busy: Option<f64>,
    /// How long workers waited for its additions, in all rounds together.
    pub(crate) behind_ns: u64,
    /// Bytes of the parts that it sums.
    pub(crate) placed_bytes: u64,
}

/// What a process runs, and its settings that somebody gave.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Of software, and the models of hardware, by name.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) settings: BTreeMap<String, Setting>,
}

/// The value of a setting, and where it came from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) value: String,
    pub(crate) origin: String,
}

/// A member, and what it told last.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) role: String,
    pub(crate) index: u32,
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// What became of it: alive, suspect, dead, left.
    pub(crate) health: String,
    /// How long before the end it told its metrics; `None` if it told none.
    pub(crate) told_before_end_ns: Option<u64>,
    /// `None` if it told none.
    pub(crate) setup: Option<Setup>,
    /// Under the names by which metrics travel, such as `late_nanoseconds{3,submit}`.
    pub(crate) metrics: BTreeMap<String, u64>,
}

impl Setup {
    /// The setup that a process tells.
    pub(crate) fn of(told: &types::Setup) -> Self {
        let shown = |[name, text]: [&String; 2]| (printable(name), printable(text));
        let setting = |GivenSetting { name, value, origin }: &GivenSetting| {
            let (name, value) = shown([name, value]);
            (name, Setting { value, origin: printable(origin) })
        };
        Self {
            versions: told.versions.iter().map(|(name, version)| shown([name, version])).collect(),
            settings: told.settings.iter().map(setting).collect(),
        }
    }
}

impl Report {
    /// The report in a text.
    ///
    /// # Errors
    /// Why it is none that this version can read, as the end of a sentence that begins with the name of the file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| match error.is_eof() {
            true => "is cut off; copy it again".to_owned(),
            false => format!("is no report: {error}"),
        })?;
        if value.get("form").and_then(Value::as_str) != Some(FORM) {
            return Err("is no report: it does not say so".to_owned());
        }
        let version = value.pointer("/setup/versions/gradlane").and_then(Value::as_str).unwrap_or("that wrote it");
        match value.get("schema").and_then(Value::as_u64) {
            Some(SCHEMA) => serde_json::from_value(value).map_err(|error| format!("is no whole report: {error}")),
            Some(schema) => {
                let version: String = printable(version).chars().take(VERSION_CHARS_MAX).collect();
                Err(format!("has schema {schema}, and this is {SCHEMA}; compare it with Gradlane {version}"))
            }
            None => Err("is no report: it names no schema".to_owned()),
        }
    }

    /// The report as text, which [`parse`](Self::parse) reads.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("it has only names and numbers") + "\n"
    }

    /// How long a step took, on average.
    pub(crate) fn step_ns(&self) -> Option<u64> {
        self.duration_ns.checked_div(self.steps)
    }
}

/// What a report says that it is.
pub(crate) const FORM: &str = "gradlane report";
/// The version of its fields. A reader of another one refuses it.
pub(crate) const SCHEMA: u64 = 2;
/// Characters of a version that a file names.
const VERSION_CHARS_MAX: usize = 40;
/// A job that loses many members does so for one reason, mostly.
pub(crate) const LOSSES_MAX: usize = 32;
