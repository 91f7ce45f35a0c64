//! How long a published sum is kept.
//!
//! Usually until every caller has come to the next round. A name may be used once, though, and then nobody comes. So a sum also goes when
//! nobody has read it for a step timeout. A worker that lost its answer asks again at once, and gives up before that time is over. Whoever
//! asks later hears that the sum is gone.
//!
//! An open round to which nobody was counted, because the contributions that began broke off, goes in the same time. The workers that
//! began it have given up by then. So does a round that restarted because the view lost workers, if no survivor sends again.
//!
//! A sum that every caller has received whole is kept as well, but it goes soon if a new round needs its memory. That a sum was received
//! whole does not mean that its worker has it: the connection may be lost before the worker has taken it from there, and then the worker
//! asks again. So a sum stays while a worker that may ask for it has no connection, and for [`RETURNED`](super::absence::RETURNED) after it has one again.
//!
//! In a job that goes on without lost workers, nothing of this goes while the coordinator is out of contact, because workers that are
//! missing or that do not read may be lost.
//!
//! A worker that is connected and takes no sums reads nothing either. It is given up after a step timeout, its link is closed, and the sums
//! that no other worker reads go at once. If it comes back for one of them, it gets an error that names it. Whether the job goes on without
//! it is not decided here: its error makes it withdraw from the next rounds or end, and the coordinator decides about a member that ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Defect, Time, WorkerId, planted};

use super::absence::Absence;
use super::aggregator::Aggregator;
use super::readers::Slow;
use super::refusals::{broke_off, not_sent_again, not_taken, over};
use super::round::{RoundState, Slot};
use crate::node::budget::Budget;
use crate::node::command::{SlotId, Step};

/// A worker that gave up an exchange whose answer had come asks again within this time.
const ASKED_AGAIN: Duration = Duration::from_millis(200);

impl Aggregator {
    /// A round begins: its sum will have to be looked at.
    pub(super) fn watch_sums(&mut self, now: Time) {
        let due = now + self.config.step_timeout / 2;
        self.look_at_sums.get_or_insert(due);
    }

    /// Gives up the workers that take no sums. Returns the sums that they did not take, with the error of each.
    fn give_up_slow_readers(&mut self, now: Time) -> BTreeMap<SlotId, Error> {
        let mut untaken = BTreeMap::new();
        for Slow { worker, owed, waited } in self.readers.look(now, self.config.step_timeout) {
            for (slot, exchange) in owed {
                self.end_exchange(exchange, false);
                untaken.insert(slot, not_taken(slot, worker, waited));
            }
            self.given_up.push((worker, waited));
        }
        untaken
    }

    /// Frees the sums that nobody has read for a step timeout, and the rounds that nobody contributes to any more.
    pub(super) fn free_quiet_sums(&mut self, now: Time) {
        if self.look_at_sums.is_none_or(|due| due > now) {
            return;
        }
        let keep = self.config.step_timeout;
        let is_patient = self.patient_until > now;
        let mut untaken = if is_patient { BTreeMap::new() } else { self.give_up_slow_readers(now) };
        let read: BTreeSet<SlotId> = self.exchanges.values().map(|exchange| exchange.slot).collect();
        let mut quiet = Vec::new();
        let mut is_watched = !self.readers.is_empty();
        for slot in self.parts.values_mut().flat_map(|part| part.slots.iter_mut().flatten()) {
            let is_in_use = match &slot.state {
                RoundState::Failed(_) => continue,
                // It waits for the survivors to send again.
                RoundState::Restarted => false,
                // Once somebody was counted, the round has a deadline.
                RoundState::Open(open) => open.since.is_some() || read.contains(&slot.id),
                RoundState::Published(_) | RoundState::Restoring { .. } => read.contains(&slot.id),
            };
            if is_in_use {
                slot.is_read();
            }
            let is_quiet = !is_in_use
                && (untaken.contains_key(&slot.id) || *slot.quiet_since.get_or_insert(now) + keep <= now)
                && !is_patient;
            if is_quiet && !planted(self.config.defect, Defect::QuietSumKept) {
                quiet.push(slot.id);
            } else {
                is_watched = true;
            }
        }
        for id in quiet {
            match self.slot(id) {
                Some(Slot { state: RoundState::Open(open), .. }) => {
                    let error = broke_off(id, open.uploads.keys().copied().collect(), keep);
                    self.fail(id, error);
                }
                Some(slot @ Slot { state: RoundState::Restarted, .. }) => {
                    let missing = slot.missing();
                    self.fail_restarted(id, not_sent_again(id, missing, keep));
                }
                Some(Slot {
                    state: RoundState::Published(_) | RoundState::Failed(_) | RoundState::Restoring { .. },
                    ..
                })
                | None => {
                    let error = untaken.remove(&id).unwrap_or_else(|| over(id));
                    self.free_sum(id, error);
                }
            }
        }
        self.look_at_sums = is_watched.then(|| now + keep / 2);
    }

    /// `worker` has received the whole sum of a round.
    pub(super) fn note_delivery(&mut self, id: SlotId, worker: WorkerId) {
        let Some(slot) = self.slot_mut(id) else { return };
        slot.served.insert(worker);
        let is_published = matches!(slot.state, RoundState::Published(_));
        if is_published && slot.served.contains_all(&slot.due.set) {
            self.delivered.insert(id, None);
        }
    }

    /// Books the memory of a new round. If it is short, the sums go that every caller has received: otherwise a name that is used once
    /// would keep its sum until it is quiet, and other names would wait for that long.
    pub(super) fn take_memory(&mut self, now: Time, bytes: u64, budget: &mut Budget) -> Result<()> {
        self.settle(budget);
        if !budget.fits(bytes) {
            self.absent.values_mut().for_each(|absence| absence.handle_shortage(now));
            self.absent.retain(|_, absence| !absence.is_over(now));
            for (id, since) in &mut self.delivered {
                let part = self.parts.get(&id.part);
                let slot = part.and_then(|part| part.slots.iter().flatten().find(|slot| slot.id == *id));
                let may_ask = |worker: &WorkerId| slot.is_some_and(|slot| slot.due.set.contains(*worker));
                *since = if self.absent.keys().any(may_ask) { None } else { since.or(Some(now)) };
            }
            let may_go = |since: &Option<Time>| since.is_some_and(|since| since + ASKED_AGAIN <= now);
            let old: Vec<SlotId> =
                self.delivered.iter().filter(|(_, since)| may_go(since)).map(|(id, _)| *id).collect();
            for id in old {
                if !budget.fits(bytes) {
                    self.free_sum(id, over(id));
                    self.settle(budget);
                }
            }
        }
        budget.take(now, bytes)
    }

    /// The connection of this worker was lost.
    pub(in crate::node) fn handle_worker_away(&mut self, worker: WorkerId) {
        self.absent.insert(worker, Absence::Away);
    }

    /// This worker has a connection. It is its first one, or it follows one that was lost.
    pub(in crate::node) fn handle_worker_back(&mut self, worker: WorkerId) {
        if let Some(absence) = self.absent.get_mut(&worker) {
            *absence = Absence::Back(None);
        }
    }

    /// Frees the sum of a published round. Whoever asks for it hears `error`.
    fn free_sum(&mut self, id: SlotId, error: Error) {
        self.delivered.remove(&id);
        self.slot_mut(id).expect("it has a sum").state = RoundState::Failed(error);
        self.step(id, Step::Drop);
        self.book(id);
    }
}

impl Slot {
    /// Somebody reads the sum.
    pub(super) fn is_read(&mut self) {
        self.quiet_since = None;
    }
}
