//! `gradlane doctor`: what this machine has for the job, and what to change.
//!
//! [`machine`] reads, [`diagnosis`] judges, and this file prints. Reading starts at a root directory, so that tests can describe a machine
//! with files; it loads, starts and changes nothing. Only [`devices`] comes from loaded libraries, because only the CUDA driver itself can
//! tell whether it is usable.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use gradlane_core::cuda;

mod diagnosis;
mod finding;
mod machine;

pub use finding::{Finding, Level};
pub use machine::Expectations;

/// What the file system tells about the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Examined {
    /// All but those about NVIDIA's libraries.
    pub findings: Vec<Finding>,
    /// The number of GPUs.
    pub gpus: usize,
    /// Where the CUDA driver's library lies.
    pub libcuda: Option<PathBuf>,
    /// Where NCCL lies, PyTorch's before others.
    pub libnccl: Option<PathBuf>,
}

/// Examines the machine below `root`, which is `/` except in tests.
pub fn examine(root: &Path, expectations: &Expectations) -> Examined {
    let machine = machine::Machine::read(root, expectations);
    let findings = diagnosis::findings(&machine, expectations);
    Examined { findings, gpus: machine.gpus.len(), libcuda: machine.libcuda, libnccl: machine.libnccl }
}

/// The findings about devices from the libraries that this program has loaded. The driver is missed on a machine with `gpus`, and NCCL on
/// one with several.
pub fn devices(lines: Vec<cuda::Line>, gpus: usize) -> impl Iterator<Item = Finding> {
    lines.into_iter().map(move |cuda::Line { usable, subject, found, advice }| {
        let is_missed = match subject.as_str() {
            "cuda" => gpus > 0,
            "nccl" => gpus > 1,
            _ => false,
        };
        let level = match (usable, is_missed) {
            (true, _) => Level::Ok,
            (false, true) => Level::Warn,
            (false, false) => Level::Info,
        };
        Finding { level, subject, found, advice }
    })
}

/// The report for people: one line for each finding, with its advice below it.
pub fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { level, subject, found, advice } in findings {
        let _ = writeln!(text, "{:<4}  {subject:<width$}  {found}", level.name());
        if !advice.is_empty() {
            let _ = writeln!(text, "      {:<width$}  -> {advice}", "");
        }
    }
    text
}

/// The report for programs: a list of objects with `level`, `subject`, `found` and `advice`.
pub fn json(findings: &[Finding]) -> String {
    let object = |finding: &Finding| {
        serde_json::json!({
            "level": finding.level.name(),
            "subject": finding.subject,
            "found": finding.found,
            "advice": finding.advice,
        })
    };
    serde_json::Value::Array(findings.iter().map(object).collect()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_a_line_a_finding_and_its_advice_below() {
        let findings = [finding(Level::Ok, "cores", "2", ""), finding(Level::Warn, "open files", "20", "raise it")];
        assert_eq!(text(&findings), "ok    cores       2\nwarn  open files  20\n                  -> raise it\n");
    }

    #[test]
    fn programs_read_the_same_as_json() {
        let read: serde_json::Value = serde_json::from_str(&json(&[finding(Level::Warn, "a", "b", "c")])).unwrap();
        assert_eq!(read, serde_json::json!([{"level": "warn", "subject": "a", "found": "b", "advice": "c"}]));
    }

    #[test]
    fn a_device_that_can_be_used_is_good_and_one_that_cannot_is_a_fact() {
        let line = |usable, subject: &str| cuda::Line {
            usable,
            subject: subject.to_owned(),
            found: "f".to_owned(),
            advice: "a".to_owned(),
        };
        let findings: Vec<_> = devices(vec![line(true, "cuda"), line(false, "cuda:0")], 1).collect();
        assert_eq!(findings, [finding(Level::Ok, "cuda", "f", "a"), finding(Level::Info, "cuda:0", "f", "a")]);
        // Each library is missed where it would be used.
        let levels = |gpus| devices(vec![line(false, "cuda"), line(false, "nccl")], gpus).map(|finding| finding.level);
        assert_eq!(levels(0).collect::<Vec<_>>(), [Level::Info, Level::Info]);
        assert_eq!(levels(1).collect::<Vec<_>>(), [Level::Warn, Level::Info]);
        assert_eq!(levels(2).collect::<Vec<_>>(), [Level::Warn, Level::Warn]);
    }

    #[test]
    fn of_an_empty_machine_only_its_missing_name_is_complained_about() {
        let root = tempfile::tempdir().unwrap();
        let expectations = Expectations {
            socket_buffer_bytes: 1 << 24,
            state_dir: "/home/user/.gradlane".into(),
            python_prefixes: Vec::new(),
        };
        let findings = examine(root.path(), &expectations).findings;
        let complaints = findings.iter().filter(|finding| finding.level == Level::Warn);
        assert_eq!(complaints.map(|finding| finding.subject.as_str()).collect::<Vec<_>>(), ["machine"]);
    }

    fn finding(level: Level, subject: &str, found: &str, advice: &str) -> Finding {
        Finding { level, subject: subject.to_owned(), found: found.to_owned(), advice: advice.to_owned() }
    }
}
