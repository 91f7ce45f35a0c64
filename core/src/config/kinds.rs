//! The kinds of values that knobs have: how each kind is written, read and compared with its limits.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::units::{parse_bytes, parse_duration, print_bytes, print_duration};
use crate::error::Error;
use crate::types::{CodecSpec, JoinString, SharedSecret};

/// A kind of value. Types that implement it are named in the table of knobs; no value of these types is ever made.
pub trait Kind {
    /// The type of the configuration field.
    type Value;
    /// How to write the value, for the documentation and for hints.
    const UNIT: Unit;

    /// # Errors
    /// A description of the fault, as the end of a sentence that begins with the text.
    fn parse(text: &str) -> Result<Self::Value, String>;

    /// The text that [`Kind::parse`] reads back. For a secret it is only a mask.
    fn print(value: &Self::Value) -> String;

    /// The number that is compared with the limits of the knob; `None` if the kind has no order.
    fn quantity(_value: &Self::Value) -> Option<u128> {
        None
    }
}

/// How the values of a knob are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes; a plain number or a number with a unit.
    Bytes,
    /// A length of time; a plain number is seconds.
    Duration,
    /// A whole number.
    Count,
    /// Positions, separated by commas.
    Indices,
    /// Yes or no.
    Flag,
    /// Any text.
    Text,
    /// One of these.
    Choice(&'static [&'static str]),
    /// A file or directory; `~` is the home directory.
    Path,
    /// A text that is masked wherever it is shown.
    Secret,
    /// As [`Secret`](Self::Secret), chosen by a site and not by a coordinator.
    SharedSecret,
}

impl Unit {
    /// Whether values are masked wherever they are shown.
    pub fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::SharedSecret)
    }
}

impl fmt::Display for Unit {
    /// The end of the sentence "give …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.write_str("bytes, such as 4194304 or 4 MiB"),
            Self::Duration => f.write_str("seconds, such as 10, or a time such as 250 ms or 2 min"),
            Self::Count => f.write_str("a whole number"),
            Self::Indices => f.write_str("positions from 0 with commas between them, such as 0,2"),
            Self::Flag => f.write_str("true or false"),
            Self::Text => f.write_str("a text"),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::Path => f.write_str("a path"),
            Self::Secret => f.write_str("the whole string that the coordinator printed"),
            Self::SharedSecret => f.write_str("at least 16 bytes, such as `openssl rand -hex 32` prints"),
        }
    }
}

/// A number of bytes.
#[derive(Debug)]
pub struct Bytes;

impl Kind for Bytes {
    type Value = u64;
    const UNIT: Unit = Unit::Bytes;

    fn parse(text: &str) -> Result<u64, String> {
        parse_bytes(text)
    }

    fn print(value: &u64) -> String {
        print_bytes(*value)
    }

    fn quantity(value: &u64) -> Option<u128> {
        Some(u128::from(*value))
    }
}

/// A length of time.
#[derive(Debug)]
pub struct TimeSpan;

impl Kind for TimeSpan {
    type Value = Duration;
    const UNIT: Unit = Unit::Duration;

    fn parse(text: &str) -> Result<Duration, String> {
        parse_duration(text)
    }

    fn print(value: &Duration) -> String {
        print_duration(*value)
    }

    fn quantity(value: &Duration) -> Option<u128> {
        Some(value.as_nanos())
    }
}

/// A whole number of type `N`.
#[derive(Debug)]
pub struct Count<N = u32>(N);

impl<N: FromStr + Copy + fmt::Display + Into<u64>> Kind for Count<N> {
    type Value = N;
    const UNIT: Unit = Unit::Count;

    fn parse(text: &str) -> Result<N, String> {
        text.trim().parse().map_err(|_| "is no whole number of the right size".to_owned())
    }

    fn print(value: &N) -> String {
        value.to_string()
    }

    fn quantity(value: &N) -> Option<u128> {
        Some(u128::from((*value).into()))
    }
}

/// Positions from 0, separated by commas; possibly none.
#[derive(Debug)]
pub struct Indices;

impl Kind for Indices {
    type Value = Vec<u32>;
    const UNIT: Unit = Unit::Indices;

    fn parse(text: &str) -> Result<Vec<u32>, String> {
        let words = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
        words.map(|word| word.parse().map_err(|_| format!("has {word:?}, which is no position"))).collect()
    }

    fn print(value: &Vec<u32>) -> String {
        let words: Vec<String> = value.iter().map(u32::to_string).collect();
        words.join(",")
    }
}

/// Yes or no.
#[derive(Debug)]
pub struct Flag;

impl Kind for Flag {
    type Value = bool;
    const UNIT: Unit = Unit::Flag;

    fn parse(text: &str) -> Result<bool, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err("is neither true nor false".to_owned()),
        }
    }

    fn print(value: &bool) -> String {
        value.to_string()
    }
}

/// Any text but an empty one.
#[derive(Debug)]
pub struct Text;

impl Kind for Text {
    type Value = String;
    const UNIT: Unit = Unit::Text;

    fn parse(text: &str) -> Result<String, String> {
        match text.trim() {
            "" => Err("is empty".to_owned()),
            text => Ok(text.to_owned()),
        }
    }

    fn print(value: &String) -> String {
        value.clone()
    }
}

/// A codec with its parameters.
#[derive(Debug)]
pub struct Codec;

impl Kind for Codec {
    type Value = CodecSpec;
    const UNIT: Unit = Unit::Text;

    fn parse(text: &str) -> Result<CodecSpec, String> {
        text.trim().parse().map_err(|error: Error| format!("is no codec: {error}"))
    }

    fn print(value: &CodecSpec) -> String {
        value.to_string()
    }
}

/// The name of a job, which is also the name of a directory.
#[derive(Debug)]
pub struct Name;

impl Kind for Name {
    type Value = String;
    const UNIT: Unit = Unit::Text;

    fn parse(text: &str) -> Result<String, String> {
        let text = Text::parse(text)?;
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if text.len() > 64 || text.starts_with('.') || !text.chars().all(plain) {
            return Err("is no name of at most 64 letters, digits, -, _ and .".to_owned());
        }
        Ok(text)
    }

    fn print(value: &String) -> String {
        value.clone()
    }
}

/// Texts, separated by commas; possibly none.
#[derive(Debug)]
pub struct Names;

impl Kind for Names {
    type Value = Vec<String>;
    const UNIT: Unit = Unit::Text;

    fn parse(text: &str) -> Result<Vec<String>, String> {
        let words: Vec<&str> = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()).collect();
        if words.contains(&"") {
            return Err("has a comma with nothing before or behind it".to_owned());
        }
        Ok(words.into_iter().map(str::to_owned).collect())
    }

    fn print(value: &Vec<String>) -> String {
        value.join(",")
    }
}

/// `host:port`.
#[derive(Debug)]
pub struct Address;

impl Kind for Address {
    type Value = String;
    const UNIT: Unit = Unit::Text;

    fn parse(text: &str) -> Result<String, String> {
        match text.trim().rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.trim().to_owned()),
            Some(_) | None => Err("is no host:port".to_owned()),
        }
    }

    fn print(value: &String) -> String {
        value.clone()
    }
}

/// A filter of log events: a level, or `tracing`'s directives such as `info,gradlane_core::sched=trace`.
#[derive(Debug)]
pub struct LogFilter;

impl Kind for LogFilter {
    type Value = String;
    const UNIT: Unit = Unit::Text;

    /// Also accepts BytePS's names of the levels.
    fn parse(text: &str) -> Result<String, String> {
        let text = Text::parse(text)?;
        Ok(match text.to_ascii_uppercase().as_str() {
            "WARNING" => "warn".to_owned(),
            "FATAL" => "error".to_owned(),
            level @ ("TRACE" | "DEBUG" | "INFO" | "WARN" | "ERROR" | "OFF") => level.to_ascii_lowercase(),
            _ => text,
        })
    }

    fn print(value: &String) -> String {
        value.clone()
    }
}

/// A file or directory.
#[derive(Debug)]
pub struct Path;

impl Kind for Path {
    type Value = PathBuf;
    const UNIT: Unit = Unit::Path;

    fn parse(text: &str) -> Result<PathBuf, String> {
        Text::parse(text).map(PathBuf::from)
    }

    fn print(value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// A join string.
#[derive(Debug)]
pub struct Join;

impl Kind for Join {
    type Value = JoinString;
    const UNIT: Unit = Unit::Secret;

    fn parse(text: &str) -> Result<JoinString, String> {
        text.parse().map_err(|error: Error| error.to_string())
    }

    fn print(value: &JoinString) -> String {
        value.masked()
    }
}

/// A secret that all hosts of a job were given.
#[derive(Debug)]
pub struct PreShared;

impl Kind for PreShared {
    type Value = SharedSecret;
    const UNIT: Unit = Unit::SharedSecret;

    fn parse(text: &str) -> Result<SharedSecret, String> {
        text.parse()
    }

    fn print(_: &SharedSecret) -> String {
        "****".to_owned()
    }
}

/// What a process does in its job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessRole {
    /// Trains.
    Worker,
    /// Sums.
    Server,
    /// Decides membership and placement.
    Coordinator,
    /// A coordinator and a server in one process.
    Both,
}

impl ProcessRole {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Server => "server",
            Self::Coordinator => "coordinator",
            Self::Both => "both",
        }
    }
}

/// A role.
#[derive(Debug)]
pub struct Role;

impl Kind for Role {
    type Value = ProcessRole;
    const UNIT: Unit = Unit::Choice(&["worker", "server", "coordinator", "both"]);

    /// `scheduler` is what ps-lite and BytePS call a coordinator.
    fn parse(text: &str) -> Result<ProcessRole, String> {
        match text.trim() {
            "worker" => Ok(ProcessRole::Worker),
            "server" => Ok(ProcessRole::Server),
            "coordinator" | "scheduler" => Ok(ProcessRole::Coordinator),
            "both" => Ok(ProcessRole::Both),
            _ => Err("is no role".to_owned()),
        }
    }

    fn print(value: &ProcessRole) -> String {
        value.name().to_owned()
    }
}

/// A value that may be absent, which is written as an empty text.
#[derive(Debug)]
pub struct Optional<K>(K);

impl<K: Kind> Kind for Optional<K> {
    type Value = Option<K::Value>;
    const UNIT: Unit = K::UNIT;

    fn parse(text: &str) -> Result<Self::Value, String> {
        if text.trim().is_empty() { Ok(None) } else { K::parse(text).map(Some) }
    }

    fn print(value: &Self::Value) -> String {
        value.as_ref().map_or_else(String::new, K::print)
    }

    fn quantity(value: &Self::Value) -> Option<u128> {
        value.as_ref().and_then(K::quantity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_the_words_people_use() {
        for (text, value) in [("1", true), ("true", true), ("ON", true), ("no", false), ("0", false), ("off", false)] {
            assert_eq!(Flag::parse(text), Ok(value));
        }
        assert!(Flag::parse("2").is_err());
    }

    #[test]
    fn a_scheduler_is_a_coordinator() {
        assert_eq!(Role::parse("scheduler"), Ok(ProcessRole::Coordinator));
    }

    #[test]
    fn levels_of_byteps_become_ours() {
        assert_eq!(LogFilter::parse("WARNING").unwrap(), "warn");
        assert_eq!(LogFilter::parse("FATAL").unwrap(), "error");
        assert_eq!(LogFilter::parse("info,gradlane_core=TRACE").unwrap(), "info,gradlane_core=TRACE");
    }

    #[test]
    fn a_job_is_named_as_a_directory_can_be() {
        assert!(Name::parse("resnet50-run_7.b").is_ok());
        for text in ["", "..", "a/b", "a b", "é", &"a".repeat(65)] {
            assert!(Name::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        assert!(Address::parse("0.0.0.0:0").is_ok());
        assert!(Address::parse("[::]:7000").is_ok());
        assert!(Address::parse("n1").is_err());
        assert!(Address::parse(":7000").is_err());
        assert!(Address::parse("n1:70000").is_err());
    }

    #[test]
    fn positions_are_separated_by_commas() {
        assert_eq!(Indices::parse(" 0, 2"), Ok(vec![0, 2]));
        assert_eq!(Indices::print(&vec![0, 2]), "0,2");
        assert_eq!(Indices::parse(""), Ok(Vec::new()));
        for text in ["0,", "a", "-1", "0 2"] {
            assert!(Indices::parse(text).unwrap_err().contains("no position"), "{text}");
        }
    }

    #[test]
    fn nothing_is_written_as_nothing() {
        assert_eq!(Optional::<Bytes>::parse(""), Ok(None));
        assert_eq!(Optional::<Bytes>::print(&None), "");
    }
}
