//! A worker says that it will not contribute to a round: the other workers hear why, at once or when they come.
//!
//! A contribution that is under way decides first. If it arrives whole, the sum needs nothing more of the worker; if it breaks off, the round
//! fails. So it does not matter which of the two is heard first. If the round restarts, the worker will not send again, so the round fails.

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Time, WorkerId};
use gradlane_core::wire::Withdraw;

use super::aggregator::Aggregator;
use super::opening::{Opener, check_caller};
use super::round::{Open, RoundState, Spec};
use crate::node::budget::Budget;
use crate::node::command::SlotId;

impl Aggregator {
    /// Takes a withdrawal; the error that the other workers get of it.
    pub(super) fn withdraw(
        &mut self,
        now: Time,
        worker: WorkerId,
        header: &Withdraw,
        error: &Error,
        budget: &mut Budget,
    ) -> Result<Error> {
        let Withdraw { target, dtype, op, participants, error_bytes: _ } = header;
        let callers = self.due_callers(worker, target, *dtype, participants)?;
        let membership = self.membership.as_ref().expect("it admitted the worker");
        check_caller(worker, target, *dtype, participants, &callers, &membership.machines)?;
        let cause = error.of_one_who_gave_up(worker, target.part.key, target.round);
        // A withdrawal does not say how long the part is.
        let claim = Spec::of(worker, target.part, *dtype, *op, participants, &membership.machines);
        let id = self.locate(now, claim, target, callers, Opener::Withdrawal(&cause), budget)?;
        self.fall_out(id, worker, &cause);
        Ok(cause)
    }

    /// Fails a round that needs more of `worker` than it has sent or is sending. A worker that is still sending has not come to the round
    /// before its last byte: it would count as if it had contributed.
    fn fall_out(&mut self, id: SlotId, worker: WorkerId, cause: &Error) {
        let slot = self.slot(id).expect("located");
        if let RoundState::Open(open) = &slot.state {
            let (under_way, counted) = (self.is_under_way(open, worker), slot.arrived.contains(worker));
            if under_way || counted {
                self.open_mut(id).withdrawn.insert(worker, cause.clone());
            } else {
                self.fail(id, cause.clone());
            }
            if under_way && !counted {
                return;
            }
        }
        self.reach(id, worker);
    }

    /// A contribution broke off for good if its worker has withdrawn.
    pub(super) fn end_of_upload(&mut self, id: SlotId, worker: WorkerId) {
        let Some(slot) = self.slot(id) else { return };
        let RoundState::Open(open) = &slot.state else { return };
        if let Some(cause) = open.withdrawn.get(&worker).cloned()
            && !slot.arrived.contains(worker)
            && !self.is_under_way(open, worker)
        {
            self.fail(id, cause);
            self.reach(id, worker);
        }
    }

    fn is_under_way(&self, open: &Open, worker: WorkerId) -> bool {
        open.uploads.get(&worker).is_some_and(|uploading| self.exchanges.contains_key(&uploading.exchange))
    }
}
