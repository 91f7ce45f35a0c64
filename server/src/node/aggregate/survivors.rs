//! Going on after the view lost workers: what restarts, what stays, what fails.
//!
//! ```text
//!   Open, and no participant is missing ─────────────► as it is
//!   Open, nobody has the whole sum ─────────────────► Restarted: its contributions are void, the survivors send again
//!   Open, and a survivor will not send again ───────► Failed, with that survivor's reason
//!   Published, some may have the whole sum ─────────► as it is: the others must get the same bytes
//!   Failed, some may have heard the error ──────────► as it is
//! ```
//!
//! A contribution of the attempt before cannot get into the next one, because admission refuses exchanges of an older epoch and a restart
//! ends the open ones.

use std::time::Duration;

use gradlane_core::error::Error;
use gradlane_core::types::{Defect, Epoch, Op, PartId, WorkerId, WorkerSet, planted};

use super::aggregator::Aggregator;
use super::refusals::{gave_up, restarted, root_lost};
use super::round::{RoundState, Slot, Spec};
use crate::node::command::SlotId;

impl Aggregator {
    /// Follows a membership that lacks workers of the one before.
    pub(super) fn go_on_with_survivors(&mut self) {
        let parts: Vec<PartId> = self.parts.keys().copied().collect();
        for part in parts {
            self.go_on_with(part);
        }
    }

    fn go_on_with(&mut self, id: PartId) {
        let membership = self.membership.clone().expect("it has lost workers");
        let part = self.parts.get_mut(&id).expect("it is known");
        part.callers = membership.callers(id, part.dtype, &part.participants);
        let participants = part.participants.clone();
        let callers = part.callers.clone();
        part.ahead.retain(|worker, _| callers.set.contains(*worker));
        part.blocked = None;
        // The earlier round first, because the later one tells which survivors went on.
        let mut rounds = self.alive(id);
        rounds.sort_unstable();
        for round in &rounds {
            let slot = self.slot_mut(*round).expect("it is alive");
            let due = membership.due_callers(&callers, slot.spec.dtype, &participants, round.round);
            let before = std::mem::replace(&mut slot.due, due);
            // The members of a set exchange one by one, so all of them are callers.
            let is_whole = participants.members().is_some() && before.set == slot.due.set;
            let Spec { said_by, bytes, dtype, codec, op, hold, .. } = slot.spec;
            let of_these = Spec::of(said_by, id, dtype, op, &participants, &membership.machines);
            slot.spec = Spec { bytes, codec, hold, ..of_these };
            if let RoundState::Open(_) = slot.state
                && !is_whole
                && !planted(self.config.defect, Defect::RestartSkipped)
            {
                match self.obstacle(*round) {
                    Some(error) => self.fail(*round, error),
                    None => self.restart(*round, membership.epoch),
                }
            }
        }
        // Perhaps only the lost workers had not passed the rounds before.
        for round in rounds {
            self.free_passed(round);
        }
    }

    /// Why an open round cannot restart: a survivor will not send again, or the root of the broadcast is gone.
    fn obstacle(&self, id: SlotId) -> Option<Error> {
        let slot = self.slot(id)?;
        let RoundState::Open(open) = &slot.state else { return None };
        if let Some(error) = self.root_lost(id, slot.spec.op) {
            return Some(error);
        }
        let is_due = |worker: &WorkerId| slot.due.set.contains(*worker);
        if let Some((_, cause)) = open.withdrawn.iter().find(|(worker, _)| is_due(worker)) {
            return Some(cause.clone());
        }
        let went_on = slot.due.ranks.iter().copied().filter(is_due).find(|worker| self.went_on(id, *worker));
        went_on.map(|worker| gave_up(id, worker, Duration::ZERO))
    }

    /// The error of a round of this part if the worker from which it comes, or to which it goes, is not in the view.
    pub(super) fn root_lost(&self, id: SlotId, op: Op) -> Option<Error> {
        let origin = if let Op::Broadcast { root } = op { Some(root) } else { None };
        let receiver = self.parts.get(&id.part).and_then(|part| part.participants.receiver());
        let gone = origin.into_iter().chain(receiver).find(|worker| !self.workers().contains(*worker));
        gone.map(|worker| root_lost(id, worker))
    }

    /// Whether `worker` has asked for a later round of the part.
    fn went_on(&self, id: SlotId, worker: WorkerId) -> bool {
        let Some(part) = self.parts.get(&id.part) else { return false };
        let takes_part = |slot: &Slot| match &slot.state {
            RoundState::Open(open) => slot.arrived.contains(worker) || open.begun.contains(worker),
            RoundState::Published(_) | RoundState::Failed(_) | RoundState::Restarted | RoundState::Restoring { .. } => {
                slot.arrived.contains(worker)
            }
        };
        let later = || part.slots.iter().flatten().filter(|slot| slot.id.round > id.round);
        part.ahead.contains_key(&worker) || later().any(takes_part)
    }

    fn restart(&mut self, id: SlotId, epoch: Epoch) {
        let Some(open) = self.close(id, RoundState::Restarted) else { return };
        let slot = self.slot_mut(id).expect("closed");
        slot.arrived = WorkerSet::default();
        slot.attempt = slot.attempt.saturating_add(1);
        self.end_open(id, open, &restarted(epoch));
    }

    /// Nobody will bring a restarted round to its sum. It holds no memory and no exchanges.
    pub(super) fn fail_restarted(&mut self, id: SlotId, error: Error) {
        if let Some(slot) = self.slot_mut(id)
            && let RoundState::Restarted = slot.state
        {
            slot.state = RoundState::Failed(error);
        }
    }
}
