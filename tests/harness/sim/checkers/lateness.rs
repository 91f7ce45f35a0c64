//! Why a worker did not come to a round in time.
//!
//! The workers of a job wait for each other, so one that stands still makes others late, in other rounds and at barriers. A worker's
//! lateness is explained if it could not act or be reached itself; if it waited for something whose failure was explained; or if it
//! waits now for others, of whom one is late for such a reason.

use std::collections::BTreeSet;
use std::time::Duration;

use gradlane_core::types::{TensorKey, Time};

use super::Witness;
use crate::sim::workload::timing;
use crate::sim::world::Who;

/// So much of the last two step timeouts must be due to a fault.
const SHARE: u32 = 3;

impl Witness {
    /// Why a worker is late at `now`, if there is a reason.
    pub(super) fn why_late(&self, who: Who, now: Time) -> Option<String> {
        self.find_reason(who, now, &mut BTreeSet::new())
    }

    /// Whether a worker could not reach some server for a part of this time.
    pub(super) fn is_cut_off(&self, who: Who, from: Time, until: Time) -> bool {
        self.job.servers().any(|server| !self.evidence.apart(who, server, from, until).is_zero())
    }

    fn find_reason(&self, who: Who, now: Time, seen: &mut BTreeSet<Who>) -> Option<String> {
        if !seen.insert(who) {
            return None;
        }
        let since = now - timing::STEP * 2;
        let long = timing::STEP / SHARE;
        let apart = |other| self.evidence.apart(who, other, since, now);
        if let Some(server) = self.job.servers().find(|server| apart(*server) >= long) {
            return Some(format!("{who} could not reach {server}"));
        }
        if apart(Who::Coordinator) >= long {
            return Some(format!("{who} could not reach the coordinator"));
        }
        let waited: Duration = self.calls.held_up_since(who, since);
        if waited >= long {
            return Some(format!("{who} waited {:.1} s for what failed", waited.as_secs_f64()));
        }
        if self.boundaries.waits(who) {
            let others = self.job.workers().filter(|other| *other != who && !self.boundaries.waits(*other));
            return others.into_iter().find_map(|other| self.find_reason(other, now, seen));
        }
        if self.job.waits_in_vain(who) {
            return Some(format!("{who} waits at a barrier that the others have left"));
        }
        if let Some((tensor, _)) = self.calls.open_of(who).find(|(tensor, _)| self.is_short(None, *tensor)) {
            return Some(format!("{who} waits for tensor {tensor}, for which a server has too little memory"));
        }
        let is_refused = |key: &TensorKey| self.evidence.is_refused(None, &BTreeSet::from([*key]));
        if self.uses.open_of(who).any(|key| is_refused(&key)) {
            return Some(format!("{who} uses a parameter, for which a server has too little memory"));
        }
        let is_forgotten = |(tensor, round): &(usize, u64)| self.calls.forgetter_of(*tensor, *round).is_some();
        if let Some((tensor, _)) = self.calls.open_of(who).find(is_forgotten) {
            return Some(format!("{who} waits for tensor {tensor}, which another worker leaves out"));
        }
        let at_barrier = self.job.missing_at_barrier_of(who);
        let in_rounds = self.calls.open_of(who).flat_map(|(tensor, round)| self.missing_in(tensor, round));
        let awaited: Vec<Who> = at_barrier.into_iter().chain(in_rounds).collect();
        awaited.into_iter().find_map(|other| self.find_reason(other, now, seen))
    }

    /// The workers that have no result of a round: they have not submitted it, wait themselves, or gave it up.
    fn missing_in(&self, tensor: usize, round: u64) -> Vec<Who> {
        let is_missing = |who: &Who| self.calls.uses(*who, tensor) && !self.calls.has_result((*who, tensor, round));
        self.job.workers().filter(is_missing).collect()
    }
}
