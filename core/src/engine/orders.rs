//! What a worker does at the order of an operator.

use std::sync::Arc;
use std::time::Duration;

use super::dumps::Asked;
use super::shared::Shared;
use super::trace::Window;
use crate::error::{Error, Result};
use crate::runtime::exporter::stats;
use crate::types::{ControlAnswer, ControlCommand, Round, TensorKey};

/// Obeys a command, and tells the coordinator what it has come to.
pub(super) fn obey(shared: &Arc<Shared>, number: u64, command: ControlCommand) {
    let outcome = match command {
        ControlCommand::Stats => stats(&*shared.probe),
        ControlCommand::Log { filter } => change_log(shared, &filter),
        ControlCommand::Dump { tensor, round, directory, wait } => {
            let round = Round(round);
            match begin_dump(shared, number, (&tensor, round), &directory, wait) {
                // It is answered when the round is over.
                Ok(()) => return,
                Err(error) => Err(error),
            }
        }
        ControlCommand::DumpRecorder { directory } => {
            return apart(shared, number, move |shared| {
                Ok(ControlAnswer::dumped(&shared.flight.dump_by_order(&directory)?))
            });
        }
        ControlCommand::Timeline { directory, from, steps } => {
            return apart(shared, number, move |shared| {
                let place = shared.dumps.place(&directory)?;
                let path = shared.record_timeline(&place, Window { from, steps })?;
                Ok(ControlAnswer::dumped(&path))
            });
        }
        ControlCommand::StopTimeline => {
            return apart(shared, number, |shared| {
                shared.stop_timeline();
                Ok(ControlAnswer::Done)
            });
        }
        ControlCommand::Drain
        | ControlCommand::Save { .. }
        | ControlCommand::SetRate { .. }
        | ControlCommand::Unknown { .. } => Err(command.refusal("a worker")),
    };
    shared.tell(|membership| membership.reporter().report_commanded(number, outcome));
}

/// Obeys on a thread of its own, because a file is written and the thread of the membership must go on.
fn apart(shared: &Arc<Shared>, number: u64, obey: impl FnOnce(&Arc<Shared>) -> Result<ControlAnswer> + Send + 'static) {
    let there = Arc::clone(shared);
    let obey = move || {
        let outcome = obey(&there);
        there.tell(|membership| membership.reporter().report_commanded(number, outcome));
    };
    if let Err(error) = std::thread::Builder::new().name("gl-order".to_owned()).spawn(obey) {
        let error = Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() };
        shared.tell(|membership| membership.reporter().report_commanded(number, Err(error)));
    }
}

/// Waits for a round that has not begun.
fn begin_dump(
    shared: &Shared,
    number: u64,
    (tensor, round): (&str, Round),
    directory: &str,
    wait: Duration,
) -> Result<()> {
    let (key, now) = (TensorKey::of(tensor), shared.clock.now());
    let Some(next) = shared.look(|state| state.worker.next_round(key)) else {
        return Err(Error::NotFound {
            what: format!("the tensor {tensor} of this worker"),
            hint: "give the name by which the worker reduces it, after its first use".to_owned(),
        });
    };
    if round < next {
        return Err(Error::FailedPrecondition {
            what: format!("{round} of tensor {tensor} has begun"),
            hint: format!("the next one is {next}; give a later one to be in time"),
        });
    }
    let directory = shared.dumps.place(directory)?;
    shared.dumps.ask(now, Asked { number, key, round, until: now + wait, directory })
}

fn change_log(shared: &Shared, filter: &str) -> Result<ControlAnswer> {
    let Some(change) = shared.change_log.get() else {
        return Err(Error::FailedPrecondition {
            what: "the log of this worker is not that of Gradlane".to_owned(),
            hint: "change it in the program that started the engine".to_owned(),
        });
    };
    change(filter).map(|()| ControlAnswer::Done)
}
