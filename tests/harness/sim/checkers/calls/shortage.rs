//! What is missing: memory of a server, or a tensor that a worker leaves out.

use gradlane_core::types::Time;

use super::super::Witness;
use super::{Call, DRIFT, TELLING};
use crate::sim::workload::timing;
use crate::sim::world::Who;

impl Witness {
    /// Whether a server without memory refused the part that holds a tensor to this worker or to a rank of its machine, which tells the
    /// others; without a worker, to any.
    pub(in crate::sim::checkers) fn is_short(&self, who: Option<Who>, tensor: usize) -> bool {
        let partners = self.calls.partners_of(tensor);
        let Some(who) = who else { return self.evidence.is_refused(None, &partners) };
        let mut near = self.job.workers().filter(|other| *other == who || self.job.shares_machine(*other, who));
        near.any(|other| self.evidence.is_refused(Some(other), &partners))
    }

    /// Whether a worker left out a tensor, of which `told` must name one, for a step timeout after the first one that shares its part.
    pub(super) fn is_incomplete(&self, who: Who, tensor: usize, round: u64, told: &str) -> bool {
        let partners = self.calls.partners_of(tensor);
        let partners = || (0..self.calls.keys.len()).filter(|at| partners.contains(&self.calls.keys[*at]));
        let call = |at: usize| self.calls.calls.get(&(who, at, round));
        let Some(first) = partners().filter_map(call).map(|call| call.submitted).min() else { return false };
        let due = first + timing::STEP.mul_f64(2.0 - DRIFT);
        let is_missing = |at: &usize| call(*at).is_none_or(|call| call.submitted >= due);
        // A worker does not know the name of a tensor that it never declared.
        let names =
            |at: usize| told.contains(&self.calls.names[at]) || told.contains("a tensor that other workers declare");
        due <= self.world && partners().filter(is_missing).any(names)
    }

    /// Whether a server may have refused to hear of this round, because of the round before, until a worker stopped to tell of it.
    pub(super) fn opens_late(&self, tensor: usize, round: u64, since: Time) -> bool {
        let Some(before) = round.checked_sub(1) else { return false };
        let open = |call: &Call| call.ended.is_none_or(|(at, _)| at + timing::STEP + timing::DEAD >= since + TELLING);
        self.job.workers().any(|who| self.calls.of_round(who, tensor, before).any(open))
    }
}
