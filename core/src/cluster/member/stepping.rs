//! A worker agrees with the others on the boundaries between its steps.

use super::super::MemberEvent;
use super::{Member, Standing};
use crate::error::Result;
use crate::types::{Passage, StepReport};
use crate::wire::Frame;

impl Member {
    /// Tells the coordinator what this worker says of its steps, and again after each reconnection.
    pub fn report_steps(&mut self, report: StepReport) {
        self.steps = Some(report);
        if matches!(self.standing, Standing::Active) {
            self.ask(Frame::Steps(report));
        }
    }

    /// A change is over. A worker that leaves with it is no member any more, and goes without waiting for the others.
    pub(super) fn handle_passed(&mut self, change: u64, outcome: Result<Passage>) {
        let leaves = outcome.as_ref().is_ok_and(|passage| passage.leaves);
        self.tell(MemberEvent::Passed { change, outcome });
        if leaves {
            self.send(Frame::Leave);
            self.end_in_order();
        }
    }
}
