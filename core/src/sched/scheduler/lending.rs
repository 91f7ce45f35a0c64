//! When tasks draw and return credit, and when held credit is lent on.
//!
//! A task draws credit when it first takes staging memory or bytes of a link: in COPYD2H if it lies in device memory, in COMPRESS if the
//! host encodes it, else in PUSH. It returns its credit when it holds neither any more: at the end of COPYH2D, DECOMPRESS, LAND or PULL. So
//! one limit bounds both the bytes on the network and the bytes staged for it, and a task uses the same credit for both.

use std::cmp::Reverse;

use super::{Scheduler, Timer};
use crate::metrics::StageTimes;
use crate::pipeline::Stage;
use crate::sched::ids::TaskId;
use crate::sched::queue::Entry;
use crate::sched::rules::needs_credit;
use crate::sched::task::{Place, Work};
use crate::types::Time;

impl Scheduler {
    /// Counts in `times` from now on how long stages take, and what tasks wait for.
    pub fn count_in(&mut self, times: StageTimes) {
        self.times = times;
    }

    /// Whether tasks wait because the credit is used up.
    pub fn is_starved(&self) -> bool {
        let waits = |stage: Stage| needs_credit(stage) && self.queues[stage.index()].has_ready();
        self.starvation.goes_on() && Stage::ALL.into_iter().any(waits)
    }

    /// Draws credit for a task that is taken for a stage that needs it.
    pub(super) fn draw_credit(&mut self, id: TaskId) {
        let work = self.tasks.get_mut(id.0).expect("a task that is taken exists");
        if work.credit_place.is_none() {
            work.credit_place = Some(self.holders.len());
            self.credit.draw(work.spec.priority, work.spec.bytes);
            self.holders.push(id);
        }
    }

    /// Called if the first task for `stage` did not fit. Takes the most urgent staged task instead: it already has its credit, and the
    /// first task may be waiting for that very credit. Scans the tasks that hold credit, which are few.
    pub(super) fn take_funded(&mut self, stage: Stage, bytes_max: u64) -> Option<Entry> {
        if !self.has_staged {
            return None;
        }
        let can_go = |work: &&Work| {
            let is_ready = matches!(work.place, Place::Queued(gates) if gates.open());
            is_ready && work.stage == stage && work.spec.bytes <= bytes_max
        };
        let funded = self.holders.iter().filter_map(|id| Some((*id, self.tasks.get(id.0).filter(can_go)?)));
        let (id, work) = funded.min_by_key(|(_, work)| (Reverse(work.spec.priority), work.order))?;
        let entry = work.entry(id);
        self.queues[stage.index()].remove(entry);
        Some(entry)
    }

    /// The credit that a task holds, if any.
    pub(super) fn give_credit_back(&mut self, id: TaskId) {
        if !self.leave_holders(id) {
            return;
        }
        let work = self.tasks.get(id.0).expect("a task that drew credit exists");
        self.credit.give_back(work.spec.priority, work.spec.bytes);
        if let Some(at) = self.credit_due.take() {
            self.timers.remove(&(at, Timer::Credit));
        }
        self.wake_for_credit();
    }

    /// Removes a task from those that hold credit; returns whether it was one.
    pub(super) fn leave_holders(&mut self, id: TaskId) -> bool {
        let work = self.tasks.get_mut(id.0).expect("a task that drew credit exists");
        let Some(place) = work.credit_place.take() else {
            return false;
        };
        self.holders.swap_remove(place);
        if let Some(moved) = self.holders.get(place) {
            self.tasks.get_mut(moved.0).expect("it holds credit").credit_place = Some(place);
        }
        true
    }

    /// Called if nothing could be taken. If credit is missing, starts the wait after which credit is lent on.
    pub(super) fn expect_credit(&mut self, now: Time, stage: Stage) {
        let wants = needs_credit(stage) && self.has_room(stage) && self.queues[stage.index()].has_ready();
        if wants {
            self.starvation.begin(now);
        }
        if wants && self.credit_due.is_none() {
            let at = now + self.config.credit_patience;
            self.credit_due = Some(at);
            self.timers.insert((at, Timer::Credit));
        }
    }

    /// Called when no credit came back for `credit_patience`. Lends on the credit of three kinds of tasks. A task that has waited that long
    /// for its sum, from a server or from the other PCIe groups, waits for other workers and not for the network; its credit could keep
    /// back the very part that those workers wait for. The same holds for a task that repeats its push, because a server that has counted
    /// the contribution does not receive it again. A task that is staged for a server that is not connected waits for that server.
    pub(super) fn lend_credit_on(&mut self, now: Time) {
        self.credit_due = None;
        let is_held_up = |work: &Work| matches!(work.place, Place::Queued(gates) if !gates.open());
        let waits = |work: &Work| {
            let waits_for_a_sum = matches!(work.stage, Stage::Pull | Stage::PcieReduce | Stage::PcieBroadcast);
            (waits_for_a_sum || work.tries.failures > 0 || is_held_up(work))
                && work.since + self.config.credit_patience <= now
        };
        let holders = self.holders.iter().copied();
        let waiting: Vec<TaskId> = holders.filter(|id| self.tasks.get(id.0).is_some_and(waits)).collect();
        for id in waiting {
            self.give_credit_back(id);
        }
        // If no credit could be lent, the next attempt to take a task begins a new wait.
        self.wake_for_credit();
    }

    fn wake_for_credit(&mut self) {
        for stage in Stage::ALL.into_iter().filter(|stage| needs_credit(*stage)) {
            self.wake_if_ready(stage);
        }
    }
}
