//! `gradlane ctl dump` without a tensor: has members write what their flight recorders have, and the coordinator also what is known of the job.

use std::time::Duration;

use gradlane_core::runtime::Operator;
use gradlane_core::types::{ControlAnswer, ControlCommand, Recipient, printable};
use gradlane_core::{Error, Result};

use super::order_all::{Errors, as_json, conclude, first_of, order_all};

/// These members write at the same time, to `directory` below `dump_dir` of each. Those that do not answer are named on standard error.
///
/// # Errors
/// Why no order can be given.
pub(super) fn dump(
    operator: &mut Operator,
    writers: Vec<Recipient>,
    directory: String,
    timeout: Duration,
    json: bool,
) -> Result<i32> {
    let Told { files, errors, asked } = written(operator, writers, directory, timeout)?;
    conclude(&errors, &if json { to_json(&files, &errors) } else { as_text(&files, asked) })
}

/// The same, with the answers.
///
/// # Errors
/// Why no order can be given.
pub(super) fn written(
    operator: &mut Operator,
    writers: Vec<Recipient>,
    directory: String,
    timeout: Duration,
) -> Result<Told> {
    Ok(told(order_all(operator, writers, timeout, &ControlCommand::DumpRecorder { directory })?))
}

/// What the members have answered.
pub(super) struct Told {
    asked: usize,
    /// What each member has written: the coordinator has two files.
    files: Vec<(Recipient, Vec<String>)>,
    errors: Vec<(Recipient, Error)>,
}

impl Told {
    /// How many have written, where, and the first error.
    pub(super) fn in_short(&self) -> String {
        let first = self.files.first().and_then(|(member, files)| Some((member, files.first()?)));
        let place = first.map(|(member, file)| format!(", {member}: {file}")).unwrap_or_default();
        let (written, asked) = (self.files.len(), self.asked);
        format!("{written} of {asked} members have written{place}{}", first_of(&self.errors))
    }
}

fn told(outcomes: Vec<(Recipient, Result<ControlAnswer>)>) -> Told {
    let mut told = Told { asked: outcomes.len(), files: Vec::new(), errors: Vec::new() };
    for (member, outcome) in outcomes {
        match outcome {
            Ok(ControlAnswer::Dumped { files }) => told.files.push((member, files)),
            Ok(_) => {
                let what = format!("{member} has answered something else than the files that it wrote");
                told.errors.push((member, Error::Internal { what }));
            }
            Err(error) => told.errors.push((member, error)),
        }
    }
    told
}

fn as_text(files: &[(Recipient, Vec<String>)], asked: usize) -> String {
    let each = files.iter().flat_map(|(member, files)| files.iter().map(move |file| (member, file)));
    let written: String = each.map(|(member, file)| format!("{member} has written {}\n", printable(file))).collect();
    format!("{written}{} of {asked} members have written; read the files with gradlane explain", files.len())
}

fn to_json(files: &[(Recipient, Vec<String>)], errors: &Errors) -> String {
    as_json(files.iter().map(|(member, file)| (*member, file.clone().into())), errors)
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::WorkerId;

    use super::*;
    use crate::hostile;

    #[test]
    fn workers_that_do_not_answer_are_counted_and_told_apart() {
        let worker = |rank| Recipient::Worker(WorkerId(rank));
        let (files, two) = (vec!["/d/0".to_owned()], vec!["/d/a".to_owned(), "/d/b".to_owned()]);
        let all = told(vec![
            (worker(0), Ok(ControlAnswer::Dumped { files })),
            (Recipient::Coordinator, Ok(ControlAnswer::Dumped { files: two })),
            (worker(1), Err(Error::Cancelled)),
            (worker(2), Ok(ControlAnswer::Done)),
        ]);
        let cancelled = Error::Cancelled;
        assert_eq!(all.in_short(), format!("2 of 4 members have written, worker-0: /d/0; worker-1: {cancelled}"));
        let Told { files, errors, .. } = all;
        assert_eq!(errors.iter().map(|(member, _)| *member).collect::<Vec<_>>(), [worker(1), worker(2)]);
        let text = as_text(&files, 4);
        let expected =
            "worker-0 has written /d/0\ncoordinator has written /d/a\ncoordinator has written /d/b\n2 of 4 members";
        assert!(text.starts_with(expected), "{text}");
        hostile::check(|name| as_text(&[(worker(0), vec![name.to_owned()])], 1));
        let json: serde_json::Value = serde_json::from_str(&to_json(&files, &errors)).unwrap();
        assert_eq!((&json["files"]["worker-0"][0], json["errors"].as_object().unwrap().len()), (&"/d/0".into(), 2));
    }
}
