//! What the process of a coordinator does at the order of an operator.

use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::Sender;
use gradlane_core::local::OwnThread;
use gradlane_core::runtime::exporter::stats;
use gradlane_core::types::{ControlAnswer, ControlCommand};
use gradlane_core::{Error, Result};

use super::{Driver, Input};
use crate::log;

impl Driver {
    /// Obeys a command, and tells the machine what it has come to.
    pub(super) fn obey(&mut self, number: u64, command: ControlCommand) {
        let outcome = match command {
            ControlCommand::DumpRecorder { directory } => return self.dump(number, directory),
            ControlCommand::Stats => stats(&*self.probe),
            ControlCommand::Log { filter } => log::change(&filter).map(|()| ControlAnswer::Done),
            ControlCommand::Drain
            | ControlCommand::Save { .. }
            | ControlCommand::SetRate { .. }
            | ControlCommand::Dump { .. }
            | ControlCommand::Timeline { .. }
            | ControlCommand::StopTimeline
            | ControlCommand::Unknown { .. } => Err(command.refusal("the process of a coordinator")),
        };
        self.machine.handle_obeyed_here(number, outcome);
    }

    /// Writes what the flight recorder has, if it is on, and a report of the job so far, in a directory below `dump_dir`.
    fn dump(&mut self, number: u64, directory: String) {
        let now = self.now();
        let report = self.reporting.so_far(now, self.machine.status(now));
        let flight = Arc::clone(&self.flight);
        let started = apart(self.inputs.clone(), number, move || {
            let dumped = if flight.is_on() { Some(flight.dump_by_order(&directory)) } else { None };
            // Also if the dump was not written.
            let reported = report.map(|write| write(&directory));
            answer(dumped.into_iter().chain(reported))
        });
        if let Err(error) = started {
            self.machine.handle_obeyed_here(number, Err(error));
        }
    }
}

/// Obeys on a thread of its own, because a disk may be slow, and members wait for the thread of the coordinator.
///
/// # Errors
/// [`Error::Io`] if the system gives no thread.
fn apart(
    inputs: Sender<Input>,
    number: u64,
    obey: impl FnOnce() -> Result<ControlAnswer> + Send + 'static,
) -> Result<OwnThread> {
    OwnThread::start("gl-order", move || drop(inputs.send(Input::Obeyed(number, obey()))))
}

/// The answer to an order to write files.
///
/// # Errors
/// The first error. It names the files that were written all the same.
fn answer(written: impl Iterator<Item = Result<PathBuf>>) -> Result<ControlAnswer> {
    let (mut files, mut failed) = (Vec::new(), None);
    for outcome in written {
        match outcome {
            Ok(file) => files.push(file.display().to_string()),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        None => Ok(ControlAnswer::Dumped { files }),
        Some(error) if files.is_empty() => Err(error),
        Some(error) => {
            Err(Error::Io { what: format!("{} was written, the rest not", files.join(", ")), cause: error.to_string() })
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{bounded, unbounded};

    use super::*;

    #[test]
    fn the_coordinator_does_not_wait_for_the_files_of_an_order() {
        let (inputs, received) = unbounded();
        let (free, disk) = bounded(0);
        let _thread = apart(inputs, 7, move || disk.recv().map(|()| ControlAnswer::Done).map_err(|_| Error::Cancelled));
        assert!(received.is_empty(), "the disk hangs");
        free.send(()).unwrap();
        let Ok(Input::Obeyed(7, Ok(ControlAnswer::Done))) = received.recv() else { panic!("the order is answered") };
    }

    #[test]
    fn an_order_is_answered_with_every_file_that_was_written() {
        let (one, two) = (PathBuf::from("/d/one"), PathBuf::from("/d/two"));
        let io = |what: &str| Error::Io { what: what.to_owned(), cause: "full".to_owned() };
        let dumped =
            |files: &[&str]| Ok(ControlAnswer::Dumped { files: files.iter().map(|file| (*file).to_owned()).collect() });
        for (written, answered) in [
            (vec![Ok(one.clone()), Ok(two)], dumped(&["/d/one", "/d/two"])),
            (vec![Ok(one.clone())], dumped(&["/d/one"])),
            (vec![Err(io("a")), Err(io("b"))], Err(io("a"))),
            (
                vec![Err(io("a")), Ok(one)],
                Err(Error::Io { what: "/d/one was written, the rest not".to_owned(), cause: io("a").to_string() }),
            ),
        ] {
            assert_eq!(answer(written.into_iter()), answered);
        }
    }
}
