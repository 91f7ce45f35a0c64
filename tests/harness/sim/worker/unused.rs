//! Sums that workers do not use: they take back what error feedback has kept of them. Some do, and others not.

use std::collections::BTreeSet;

use gradlane_core::types::{PartId, Round, Span, TensorKey};
use gradlane_core::wire::{Contribute, Hold};
use gradlane_core::worker::FeedbackPlace;

use super::super::checkers::Checker;
use super::super::workload::Plan;
use super::super::world::{Context, Who};
use super::WorkerProcess;

/// What this worker holds and has taken back.
#[derive(Default, Debug)]
pub(super) struct Unused {
    held: BTreeSet<PartId>,
    /// The rounds of parts, and for which of their tensors.
    taken_back: BTreeSet<(PartId, Round, TensorKey)>,
}

impl Unused {
    /// The residual of a part has ended.
    pub(super) fn forget(&mut self, part: PartId) {
        self.held.remove(&part);
        self.taken_back.retain(|(of, ..)| *of != part);
    }
}

impl WorkerProcess {
    /// A tensor is about to be reduced. It is held from then on, if its layout is known and nothing of it is under way.
    pub(super) fn hold_feedback(&mut self, plan: &Plan, tensor: usize) {
        if !plan.holds_feedback() {
            return;
        }
        let Ok((_, places)) = self.worker.feedback_of(&plan.tensors[tensor].spec.name) else { return };
        for FeedbackPlace { part, .. } in places {
            self.residuals.entry(part).or_default().hold();
            self.worker.handle_held(part);
            self.unused.held.insert(part);
        }
    }

    /// A sum of a tensor has come. Perhaps nobody uses it.
    pub(super) fn take_back_feedback(&mut self, plan: &Plan, tensor: usize, round: u64) {
        let Who::Worker(number) = self.me.who else { unreachable!("a worker has sums") };
        if !plan.is_unused(round, number) {
            return;
        }
        let name = plan.tensors[tensor].spec.name.as_str();
        let Ok((_, places)) = self.worker.feedback_of(name) else { return };
        for FeedbackPlace { part, offset, span: Span { bytes, .. }, .. } in places {
            let encoded = self.fed_back.get(&part).and_then(|seen| seen.encoded);
            if let (Some(encoded), true) = (encoded, self.unused.held.contains(&part)) {
                let residual = self.residuals.entry(part).or_default();
                residual.take_back(offset as usize..(offset + bytes) as usize);
                self.worker.handle_taken_back(part, name);
                self.unused.taken_back.insert((part, encoded, TensorKey::of(name)));
            }
        }
    }

    /// A contribution says what this worker has done, to the round before and for all tensors of the part.
    pub(super) fn check_hold(&self, context: &mut Context, pieces: &[TensorKey], header: &Contribute) {
        let (part, round) = (header.target.part, header.target.round);
        let has_residual = header.body().is_some_and(|body| body.codec.has_answer_feedback());
        let before = round.0.checked_sub(1).map(Round);
        let is_unused =
            |tensor: &TensorKey| before.is_some_and(|before| self.unused.taken_back.contains(&(part, before, *tensor)));
        let due = match has_residual && self.unused.held.contains(&part) {
            false => Hold::No,
            true if pieces.iter().all(is_unused) => Hold::TakenBack,
            true => Hold::Before,
        };
        if header.hold != due {
            let text = format!("{} says {:?} and not {due:?} in {round} of part {part}", self.me.who, header.hold);
            context.witness.fail(context.now, Checker::Contribution, text);
        }
    }
}
