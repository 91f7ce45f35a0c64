//! The residuals of error feedback: which parts of this worker have one, and whether the next body goes on with it.
//!
//! ```text
//!  (absent) ──first body──► Used ──its sum came, of the same workers as the sum before──► Kept ──next body──► Used
//!                            │  └──its sum came, of other workers───────────────────────► Void ──next body, from zero──► Used
//!                            └──no sum came───────────────────────────────────────────── (stays Used) ──next body, from zero──► Used
//!  any ──the name ends, the part has another owner, the job ends──► (absent)
//! ```
//! **One body a round.** A residual is used when a part is encoded, which happens once in a task's life. A repeat sends the same body again.
//! The next round of the part is encoded after this one has ended, so a residual has one user at a time. Exception: what the ranks of a
//! machine reduce begins again if they lose one. Then another body is made, from zero, and the next one begins at zero too, because nobody
//! knows which of the two is in the sum.
//!
//! **A round that failed.** Its body has changed the residual, and no sum has what the body brought. Then the next body begins at zero: what
//! the rounds before lost is lost for good, once, and nothing is counted twice. To go back to the residual before the body, a worker would
//! need to keep both for each part.
//!
//! **Other workers.** What a part has lost is of use to the sum of the same workers. All workers see which workers are in a sum, so if a
//! sum has others than the sum before, all of them begin the next round at zero. No message is needed.
//!
//! **Taken back.** A caller that does not use a sum can take back what its body has changed, if that was held. The driver does it in the
//! memory. This machine tells the server with the next contribution, because the residual of the answers is there: if the part was encoded in
//! the round before, and all tensors of the part were taken back since. If only some were, the answers go on as they are: a server knows no
//! tensors. Repeats say the same, because this is a fact about the round.
//!
//! **Given.** A caller may have given the servers a residual, as it was saved at another time. The next body says that the answer begins with
//! it. It is not a fact about the number of the round, because rounds in between may have been none with error feedback.

use std::collections::{BTreeMap, BTreeSet};

use crate::codec::feedback::Start;
use crate::types::{Defect, PartId, Round, TensorKey, WorkerSet, planted};
use crate::wire::Hold;

/// The parts that have a residual.
#[derive(Debug, Default)]
pub(super) struct Residuals {
    parts: BTreeMap<PartId, Residual>,
    defect: Option<Defect>,
}

/// What the machine knows of a residual. The driver has its memory.
#[derive(Debug, Default)]
struct Residual {
    /// The workers of the latest sum.
    contributors: Option<WorkerSet>,
    /// Whether the next body goes on with it.
    is_kept: bool,
    /// Whether the part is the sum of this machine's ranks, which its owner encodes.
    is_of_machine: bool,
    /// The round that was encoded last.
    encoded: Option<Round>,
    /// Whether what was there before each body is kept too.
    is_held: bool,
    /// The round that was taken back last, and the tensors whose places in the part were.
    taken_back: Option<(Round, BTreeSet<TensorKey>)>,
    given: Given,
}

/// Whether the server was given the residual with which an answer begins.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Given {
    /// No, or that answer was followed by another round.
    #[default]
    No,
    /// Yes, and the next body that is encoded says so.
    ToTheNext,
    /// The body of this round says so, and its repeats.
    To(Round),
}

impl Residuals {
    /// None. `defect` is a mistake to make on purpose, for the simulation.
    pub(super) fn new(defect: Option<Defect>) -> Self {
        Self { parts: BTreeMap::new(), defect }
    }

    /// A part is encoded: the sum of this machine's ranks, or the contribution of this worker alone. Returns how the body uses its residual,
    /// which exists from now on.
    pub(super) fn encode(&mut self, part: PartId, round: Round, is_of_machine: bool) -> Start {
        let residual = self.parts.entry(part).or_default();
        (residual.is_of_machine, residual.encoded) = (is_of_machine, Some(round));
        if residual.given == Given::ToTheNext {
            residual.given = Given::To(round);
        }
        let start = if residual.is_kept { Start::Kept } else { Start::Zero };
        residual.is_kept = planted(self.defect, Defect::ResidualOfFailedKept);
        start
    }

    /// Whether the next body of a part goes on with what is there.
    pub(super) fn is_kept(&self, part: PartId) -> bool {
        self.parts.get(&part).is_some_and(|residual| residual.is_kept)
    }

    /// The residual of a part was put back, as it was at another time. The next body goes on with it, whichever workers are in its sum.
    pub(super) fn restore(&mut self, part: PartId, is_of_machine: bool) {
        let residual = self.parts.entry(part).or_default();
        (residual.contributors, residual.is_kept, residual.is_of_machine) = (None, true, is_of_machine);
    }

    /// From the next body of a part on, what was there before is kept too.
    pub(super) fn hold(&mut self, part: PartId, is_of_machine: bool) {
        let residual = self.parts.entry(part).or_default();
        (residual.is_held, residual.is_of_machine) = (true, is_of_machine);
    }

    /// The server of a part has the residual with which the next answer begins. It takes the place of what the answers before have left, so
    /// of those nothing is taken back any more.
    pub(super) fn give(&mut self, part: PartId, is_of_machine: bool) {
        let residual = self.parts.entry(part).or_default();
        (residual.given, residual.taken_back, residual.is_of_machine) = (Given::ToTheNext, None, is_of_machine);
    }

    /// Whether the answer of this round of a part, which was encoded, begins with what was given.
    pub(super) fn is_given(&self, part: PartId, round: Round) -> bool {
        self.parts.get(&part).is_some_and(|residual| residual.given == Given::To(round))
    }

    /// What the latest body of a part has changed for this tensor was taken back.
    pub(super) fn take_back(&mut self, part: PartId, tensor: TensorKey) {
        // What was given has taken the place of what that body has left on the server.
        let may_be = |residual: &&mut Residual| residual.is_held && residual.given != Given::ToTheNext;
        let Some(residual) = self.parts.get_mut(&part).filter(may_be) else { return };
        let Some(round) = residual.encoded else { return };
        match &mut residual.taken_back {
            Some((before, tensors)) if *before == round => drop(tensors.insert(tensor)),
            other => *other = Some((round, BTreeSet::from([tensor]))),
        }
    }

    /// What a contribution to this round of a part says of the residual of the answers. These are the tensors of the part.
    pub(super) fn hold_of(&self, part: PartId, round: Round, tensors: impl IntoIterator<Item = TensorKey>) -> Hold {
        let Some(residual) = self.parts.get(&part).filter(|residual| residual.is_held) else { return Hold::No };
        let is_unused = |(unused, keys): &(Round, BTreeSet<TensorKey>)| {
            unused.0 + 1 == round.0 && tensors.into_iter().all(|tensor| keys.contains(&tensor))
        };
        let is_taken_back = residual.taken_back.as_ref().is_some_and(is_unused);
        if is_taken_back { Hold::TakenBack } else { Hold::Before }
    }

    /// The sum of a part that was encoded has come, with the contributions of these workers.
    pub(super) fn summed(&mut self, part: PartId, contributors: WorkerSet) {
        let Some(residual) = self.parts.get_mut(&part) else { return };
        residual.is_kept = residual.contributors.as_ref().is_none_or(|before| *before == contributors)
            || planted(self.defect, Defect::ResidualOfOthersKept);
        residual.contributors = Some(contributors);
    }

    /// A part begins again. If it was encoded before, the next two bodies begin at zero.
    pub(super) fn start_over(&mut self, part: PartId) {
        if let Some(residual) = self.parts.get_mut(&part) {
            (residual.contributors, residual.is_kept) = (Some(WorkerSet::default()), false);
        }
    }

    /// Tensors have ended. Returns their parts that had a residual.
    pub(super) fn end(&mut self, keys: &BTreeSet<TensorKey>) -> Vec<PartId> {
        self.drop_where(|part, _| keys.contains(&part.key))
    }

    /// The owners of this machine's parts have changed. Returns the parts that had a residual and that this worker no longer `owns`.
    pub(super) fn follow(&mut self, owns: impl Fn(PartId) -> bool) -> Vec<PartId> {
        self.drop_where(|part, residual| residual.is_of_machine && !owns(part))
    }

    /// The job has ended. Returns the parts that had a residual.
    pub(super) fn end_all(&mut self) -> Vec<PartId> {
        std::mem::take(&mut self.parts).into_keys().collect()
    }

    fn drop_where(&mut self, is_over: impl Fn(PartId, &Residual) -> bool) -> Vec<PartId> {
        let over: Vec<PartId> =
            self.parts.iter().filter(|(part, residual)| is_over(**part, residual)).map(|(part, _)| *part).collect();
        self.parts.retain(|part, _| over.binary_search(part).is_err());
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WorkerId;

    /// What happens to a part, in order.
    enum Event {
        /// It is encoded, and its residual begins so.
        Encoded(Start),
        /// Its sum comes, of these workers.
        Summed(&'static [u32]),
        /// It begins again.
        Over,
    }

    use Event::{Encoded, Over, Summed};
    use Start::{Kept, Zero};

    #[test]
    fn a_residual_is_kept_from_sum_to_sum_of_the_same_workers() {
        let (all, two) = (&[0, 1, 2], &[0, 2]);
        let table: [(&str, &[Event]); 8] = [
            ("the same workers", &[Encoded(Zero), Summed(all), Encoded(Kept), Summed(all), Encoded(Kept)]),
            (
                "a worker is lost",
                &[Encoded(Zero), Summed(all), Encoded(Kept), Summed(two), Encoded(Zero), Summed(two), Encoded(Kept)],
            ),
            (
                "and another one comes",
                &[Encoded(Zero), Summed(two), Encoded(Kept), Summed(all), Encoded(Zero), Summed(all), Encoded(Kept)],
            ),
            (
                "a round without a sum",
                &[Encoded(Zero), Summed(all), Encoded(Kept), Encoded(Zero), Summed(all), Encoded(Kept)],
            ),
            ("the first round has no sum", &[Encoded(Zero), Encoded(Zero), Summed(all), Encoded(Kept)]),
            // The others have seen a sum of two workers in between, and begin at zero too.
            (
                "a change is seen late",
                &[Encoded(Zero), Summed(all), Encoded(Kept), Encoded(Zero), Summed(two), Encoded(Zero)],
            ),
            (
                "it begins again",
                &[
                    Encoded(Zero),
                    Summed(all),
                    Encoded(Kept),
                    Over,
                    Encoded(Zero),
                    Summed(all),
                    Encoded(Zero),
                    Summed(all),
                ],
            ),
            (
                "it begins again with its sum",
                &[Encoded(Zero), Summed(all), Over, Encoded(Zero), Summed(all), Encoded(Zero)],
            ),
        ];
        for (name, events) in table {
            let mut residuals = Residuals::default();
            for (at, event) in events.iter().enumerate() {
                match event {
                    Encoded(start) => {
                        assert_eq!(residuals.encode(part(0), Round(at as u64), true), *start, "{name}, event {at}")
                    }
                    Summed(ranks) => residuals.summed(part(0), ranks.iter().copied().map(WorkerId).collect()),
                    Over => residuals.start_over(part(0)),
                }
            }
        }
    }

    #[test]
    fn a_residual_that_was_put_back_is_kept_by_the_next_body() {
        let mut residuals = Residuals::default();
        residuals.encode(part(0), Round(0), true);
        for (part, is_kept) in [(part(0), false), (part(1), false)] {
            assert_eq!(residuals.is_kept(part), is_kept);
            residuals.restore(part, true);
            assert!(residuals.is_kept(part));
            assert_eq!(residuals.encode(part, Round(1), true), Kept);
            residuals.summed(part, [0, 1].map(WorkerId).into_iter().collect());
            assert_eq!(residuals.encode(part, Round(1), true), Kept);
        }
    }

    #[test]
    fn a_round_that_was_taken_back_is_told_with_the_next_one_alone() {
        let (mut residuals, one) = (Residuals::default(), [TensorKey(1)]);
        residuals.encode(part(0), Round(0), true);
        residuals.take_back(part(0), TensorKey(1));
        assert_eq!(residuals.hold_of(part(0), Round(1), one), Hold::No, "it is not held");
        residuals.hold(part(0), true);
        assert_eq!(residuals.hold_of(part(0), Round(1), one), Hold::Before);
        for round in [1, 2] {
            residuals.encode(part(0), Round(round), true);
            assert_eq!(residuals.hold_of(part(0), Round(round + 1), one), Hold::Before, "it may have been used");
            residuals.take_back(part(0), TensorKey(1));
            residuals.restore(part(0), true);
            assert_eq!(residuals.hold_of(part(0), Round(round + 1), one), Hold::TakenBack);
            residuals.encode(part(0), Round(round + 1), true);
            assert_eq!(residuals.hold_of(part(0), Round(round + 1), one), Hold::TakenBack, "a repeat says the same");
        }
        assert_eq!(residuals.hold_of(part(0), Round(4), one), Hold::Before, "of round 3, nobody has said anything");
    }

    #[test]
    fn a_part_is_taken_back_once_all_its_tensors_are() {
        let (mut residuals, both) = (Residuals::default(), [TensorKey(1), TensorKey(2)]);
        residuals.hold(part(0), true);
        residuals.encode(part(0), Round(0), true);
        residuals.take_back(part(0), TensorKey(2));
        assert_eq!(residuals.hold_of(part(0), Round(1), both), Hold::Before);
        residuals.take_back(part(0), TensorKey(1));
        assert_eq!(residuals.hold_of(part(0), Round(1), both), Hold::TakenBack);
        residuals.encode(part(0), Round(1), true);
        residuals.take_back(part(0), TensorKey(1));
        assert_eq!(residuals.hold_of(part(0), Round(2), both), Hold::Before, "the other one was of the round before");
    }

    #[test]
    fn the_next_body_that_is_encoded_says_that_its_answer_begins_with_what_was_given() {
        let (mut residuals, one) = (Residuals::default(), [TensorKey(1)]);
        residuals.hold(part(0), true);
        residuals.encode(part(0), Round(0), true);
        residuals.give(part(0), true);
        residuals.take_back(part(0), TensorKey(1));
        assert!(!residuals.is_given(part(0), Round(0)), "that body was made before");
        residuals.encode(part(0), Round(5), true);
        let said = |residuals: &Residuals, round| {
            (residuals.is_given(part(0), Round(round)), residuals.hold_of(part(0), Round(round), one))
        };
        assert_eq!(said(&residuals, 5), (true, Hold::Before), "nothing that was before is taken back");
        residuals.take_back(part(0), TensorKey(1));
        assert_eq!(said(&residuals, 5), (true, Hold::Before), "a repeat says the same");
        residuals.encode(part(0), Round(6), true);
        assert_eq!(said(&residuals, 6), (false, Hold::TakenBack));
    }

    #[test]
    fn parts_have_residuals_of_their_own_which_end_with_their_tensor() {
        let mut residuals = Residuals::default();
        let other = PartId { key: TensorKey(2), index: 0 };
        for part in [part(0), part(1), other] {
            residuals.encode(part, Round(0), true);
            residuals.summed(part, WorkerSet::default());
        }
        assert_eq!(residuals.end(&BTreeSet::from([TensorKey(1)])), [part(0), part(1)]);
        residuals.summed(part(1), WorkerSet::default());
        assert_eq!([part(0), part(1), other].map(|part| residuals.encode(part, Round(1), true)), [Zero, Zero, Kept]);
        assert_eq!(residuals.end_all(), [part(0), part(1), other]);
    }

    #[test]
    fn a_residual_ends_where_another_rank_of_the_machine_owns_its_part_from_now_on() {
        let mut residuals = Residuals::default();
        for (part, is_of_machine) in [(part(0), true), (part(1), true), (part(2), false)] {
            residuals.encode(part, Round(0), is_of_machine);
        }
        assert_eq!(residuals.follow(|part| part.index == 0), [part(1)]);
    }

    fn part(index: u32) -> PartId {
        PartId { key: TensorKey(1), index }
    }
}
