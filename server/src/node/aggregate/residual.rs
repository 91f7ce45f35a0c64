//! The residual of a part's answers, if its codec has error feedback: when it begins at zero, goes on, is taken back and ends.
//!
//! ```text
//!  Void ──the sum flows, from zero──► (the sum has it) ──every caller was counted──► Kept, for sums of the same workers
//!   ▲                                       │                                         │
//!   └──the round fails or restarts──────────┘            the sum flows, of the same workers: it goes on
//!                                                        the sum flows, of others: from zero
//!                                                        the sum flows, of the same workers, none of which has used
//!                                                          the sum of the round before: from the residual before that
//! ```
//! A sum takes the residual when its first block may be finished, and gives it back when it is whole. So an answer that was sent only in
//! part, to workers that will be told that there is no sum, leaves nothing behind. Rounds of a part flow one after the other, because a
//! worker that has begun the next one has the sum of this one or has given it up.
//!
//! **Taken back.** A training that skips a step uses no sum of it. Then what the answers before have lost is still owed, and what the unused
//! answers have lost is not. Workers say so with their next contribution ([`Hold::TakenBack`]), and before, with each, that it may come to
//! this ([`Hold::Before`]): the residual before the answer is kept too. A part is taken back as a whole, so a worker says it only if it has
//! taken back all tensors of the part. Five rules:
//!
//! - *All contributions must say it.* Workers skip a step because of what is in its sums, so all skip the same one. If one worker says
//!   nothing, it may have used the sum, and everything goes on as if nobody had said anything. The order of arrival does not matter.
//! - *It is about the round before*, by number. If that round has no sum, its answer left nothing to take back: the residual is Void, or
//!   still that of an older sum, which was used.
//! - *It can be said again.* A repeat says what the first exchange said. A step that is skipped after another begins again from the same
//!   residual. A server that does not have the one before goes on with what it has.
//! - *Of other workers there is nothing to take back*: the sum begins at zero, as without a skipped step. So does that of a server that took
//!   over the part of a lost one, and has no residual.
//! - *What is taken back never depends on time or order*, so an answer is a function of the contributions, as `deterministic` demands. All
//!   workers get the same bytes in any case.
//!
//! **Given.** Workers may give a residual that was saved at another time. It waits beside what the answers have left, until the next sum with
//! error feedback begins to flow. All contributions to it must say that they have given it. Then it takes the place of what the answers have
//! left, whichever workers and rounds that was of. If none says it, nobody has use for it, and it goes. [`Gift`] is what is known of it.
//!
//! Its memory is booked from the first round with error feedback to the end of the name, and twice as much from the first round that is held.

use std::sync::Arc;

use gradlane_core::codec::feedback::Start;
use gradlane_core::types::{CodecSpec, ExchangeId, Round, WorkerId, WorkerSet};
use gradlane_core::wire::Hold;

use crate::node::command::Feedback;

/// What is known of the residual of a part. The store has its memory.
#[derive(Debug, Default)]
pub(super) struct Residual {
    /// Bytes of memory accounted to it.
    pub(super) booked: u64,
    /// The sum that left it. Absent if the next one begins at zero.
    kept: Option<Fed>,
    /// What workers have given for the next one.
    pub(super) gift: Option<Gift>,
}

/// A residual that workers give. All of them give the same bytes, and the first one brings them.
#[derive(Debug)]
pub(super) struct Gift {
    /// Bytes of its part, which are booked.
    pub(super) bytes: u64,
    pub(super) codec: CodecSpec,
    pub(super) checksum: u32,
    /// The workers that have given it: they were told so.
    pub(super) givers: WorkerSet,
    /// What brings it, and who waits for that beside its worker. Absent once it is whole.
    pub(super) coming: Option<Coming>,
}

/// A gift that is on its way.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) worker: WorkerId,
    pub(super) exchange: ExchangeId,
    pub(super) waiting: Vec<ExchangeId>,
}

/// A sum, as far as the residual and the next sum depend on it.
#[derive(Clone, Debug)]
pub(super) struct Fed {
    /// The workers that are in it.
    pub(super) contributors: Arc<WorkerSet>,
    /// Bytes of its part.
    pub(super) bytes: u64,
    /// Which sum of the part.
    pub(super) round: Round,
    /// What all its contributions say.
    pub(super) hold: Hold,
    /// Whether all its contributions say that they have given the residual.
    pub(super) is_given: bool,
}

impl Residual {
    /// A sum begins to flow, and has the residual from now on, with what was given for it. Returns how its answer uses it.
    pub(super) fn take(&mut self, sum: &Fed, gift: Option<&Gift>) -> Feedback {
        let used = self.use_by(sum, gift);
        self.kept = None;
        used
    }

    /// How the answer of a sum would use the residual, if the sum flowed now.
    pub(super) fn use_by(&self, sum: &Fed, gift: Option<&Gift>) -> Feedback {
        let is_given = sum.is_given && gift.is_some_and(|gift| gift.is_whole_for(sum.bytes));
        let start = match &self.kept {
            _ if is_given => Start::Kept,
            Some(before) => before.start_of(sum),
            None => Start::Zero,
        };
        Feedback { start, is_held: sum.hold > Hold::No, is_given }
    }

    /// Whether a sum of this round or a later one has left it.
    pub(super) fn is_beyond(&self, round: Round) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.round >= round)
    }

    /// A sum that took the residual is whole.
    pub(super) fn keep(&mut self, sum: Fed) {
        self.kept = Some(sum);
    }
}

impl Gift {
    /// Whether all of it is here, for a part of so many bytes.
    pub(super) fn is_whole_for(&self, bytes: u64) -> bool {
        self.coming.is_none() && self.bytes == bytes
    }

    /// Whether `worker` has given it, or brings it.
    pub(super) fn is_from(&self, worker: WorkerId) -> bool {
        self.givers.contains(worker) || self.coming.as_ref().is_some_and(|coming| coming.worker == worker)
    }

    /// A worker that has given it, or brings it.
    pub(super) fn any_giver(&self) -> WorkerId {
        let coming = self.coming.as_ref().map(|coming| coming.worker);
        self.givers.iter().next().or(coming).expect("somebody gives it")
    }

    /// Whether `worker` has given it for a part of this form.
    pub(super) fn is_of(&self, worker: WorkerId, codec: CodecSpec, bytes: u64) -> bool {
        self.is_whole_for(bytes) && self.codec == codec && self.givers.contains(worker)
    }
}

impl Fed {
    /// How the answer of the next sum uses the residual that this one left.
    fn start_of(&self, next: &Self) -> Start {
        let is_unused = self.hold > Hold::No && next.hold == Hold::TakenBack && self.round.0 + 1 == next.round.0;
        match (&self.contributors, self.bytes) == (&next.contributors, next.bytes) {
            false => Start::Zero,
            true if is_unused => Start::Before,
            true => Start::Kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_from_a_whole_sum_to_the_next_one_of_the_same_workers_and_length() {
        let mut residual = Residual::default();
        for (round, (ranks, bytes, is_whole, start)) in (0..).zip([
            (&[0, 1, 2][..], 40, true, Start::Zero),
            (&[0, 1, 2], 40, true, Start::Kept),
            (&[0, 2], 40, true, Start::Zero),
            (&[0, 2], 40, false, Start::Kept),
            (&[0, 2], 40, true, Start::Zero),
            (&[0, 2], 80, true, Start::Zero),
            (&[0, 2], 80, true, Start::Kept),
        ]) {
            let next = Fed { bytes, ..sum(round, ranks, Hold::No) };
            assert_eq!(residual.take(&next, None), Feedback { start, is_held: false, is_given: false }, "{next:?}");
            if is_whole {
                residual.keep(next);
            }
        }
    }

    #[test]
    fn a_sum_that_was_not_used_is_taken_back_by_the_next_round_of_the_same_workers() {
        use Hold::{Before, No, TakenBack};
        let all = &[0, 1][..];
        let table = [
            (
                "a step is skipped, and then two",
                vec![
                    (0, all, Before, Start::Zero),
                    (1, all, TakenBack, Start::Before),
                    (2, all, Before, Start::Kept),
                    (3, all, TakenBack, Start::Before),
                    (4, all, TakenBack, Start::Before),
                ],
            ),
            ("the first one", vec![(0, all, TakenBack, Start::Zero)]),
            ("it was not held", vec![(0, all, No, Start::Zero), (1, all, TakenBack, Start::Kept)]),
            ("it is held no more", vec![(0, all, Before, Start::Zero), (1, all, No, Start::Kept)]),
            ("the round between has no sum", vec![(0, all, Before, Start::Zero), (2, all, TakenBack, Start::Kept)]),
            ("other workers", vec![(0, all, Before, Start::Zero), (1, &[0], TakenBack, Start::Zero)]),
            (
                "and then the same ones",
                vec![
                    (0, all, Before, Start::Zero),
                    (1, &[0], Before, Start::Zero),
                    (2, &[0], TakenBack, Start::Before),
                ],
            ),
        ];
        for (name, rounds) in table {
            let mut residual = Residual::default();
            for (round, ranks, hold, start) in rounds {
                let next = sum(round, ranks, hold);
                let due = Feedback { start, is_held: hold != No, is_given: false };
                assert_eq!(residual.take(&next, None), due, "{name}, round {round}");
                residual.keep(next);
            }
        }
    }

    #[test]
    fn of_a_sum_that_is_not_whole_nothing_is_taken_back() {
        let mut residual = Residual::default();
        residual.take(&sum(0, &[0, 1], Hold::Before), None);
        assert_eq!(residual.take(&sum(1, &[0, 1], Hold::TakenBack), None).start, Start::Zero);
    }

    fn sum(round: u64, ranks: &[u32], hold: Hold) -> Fed {
        let contributors = Arc::new(ranks.iter().copied().map(WorkerId).collect());
        Fed { contributors, bytes: 40, round: Round(round), hold, is_given: false }
    }
}
