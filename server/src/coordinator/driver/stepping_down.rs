//! A coordinator stops and leaves its job to the next one, which goes on with it (`--resume`). To the members it is as if it was killed.

use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::types::Phase;

use super::{CoordinatorNode, Driver, Input, STOPPING};

impl CoordinatorNode {
    /// Stops without an end of the job. The next coordinator needs all that is in the state directory. Returns whether the job was left to
    /// it, which is not so if the job has ended.
    pub fn step_down(&self) -> bool {
        let _ = self.inputs.send(Input::Stop(None));
        self.thread.join(STOPPING);
        self.end.outcome() == Some(Err(cause()))
    }
}

impl Driver {
    /// Stops with all that the next coordinator must know on the disk, unless the job has ended. Returns whether it has stopped.
    pub(super) fn steps_down(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        self.sync();
        self.end.set(Err(cause()));
        self.listener.stop(Duration::from_millis(500));
        true
    }

    /// Whether the job has ended for good.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.machine.view().phase, Phase::Ended | Phase::Aborted(_))
    }
}

/// Why a coordinator has stopped that has left its job to the next one.
fn cause() -> Error {
    Error::Unavailable { what: "the coordinator".to_owned(), cause: "it has left its job to the next one".to_owned() }
}
