//! The residual of a part's answers, if its codec has error feedback: when it begins at zero, goes on and ends.
//!
//! ```text
//!  Void ──the sum flows, from zero──► (the sum has it) ──every caller was counted──► Kept, for sums of the same workers
//!   ▲                                       │                                         │
//!   └──the round fails or restarts──────────┘            the sum flows, of the same workers: it goes on
//!                                                        the sum flows, of others: from zero
//! ```
//! A sum takes the residual when its first block may be finished, and gives it back when it is whole. So an answer that was sent only in
//! part, to workers that will be told that there is no sum, leaves nothing behind. Rounds of a part flow one after the other, because a
//! worker that has begun the next one has the sum of this one or has given it up.
//!
//! Its memory is booked from the first round with error feedback to the end of the name.

use std::sync::Arc;

use gradlane_core::codec::feedback::Start;
use gradlane_core::types::WorkerSet;

/// What is known of the residual of a part. The store has its memory.
#[derive(Debug, Default)]
pub(super) struct Residual {
    /// Bytes of memory accounted to it.
    pub(super) booked: u64,
    /// The sum that left it. Absent if the next one begins at zero.
    kept: Option<Left>,
}

/// A sum, as far as the next one must be like it to go on with its residual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Left {
    /// The workers that are in it.
    pub(super) contributors: Arc<WorkerSet>,
    /// Bytes of its part.
    pub(super) bytes: u64,
}

impl Residual {
    /// A sum begins to flow, and has the residual from now on. Returns how its answer uses it.
    pub(super) fn take(&mut self, sum: &Left) -> Start {
        if self.kept.take().as_ref() == Some(sum) { Start::Kept } else { Start::Zero }
    }

    /// A sum that took the residual is whole.
    pub(super) fn keep(&mut self, sum: Left) {
        self.kept = Some(sum);
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::WorkerId;

    use super::*;

    #[test]
    fn it_goes_on_from_a_whole_sum_to_the_next_one_of_the_same_workers_and_length() {
        let sum = |ranks: &[u32], bytes| Left {
            contributors: Arc::new(ranks.iter().copied().map(WorkerId).collect()),
            bytes,
        };
        let mut residual = Residual::default();
        for (next, is_whole, start) in [
            (sum(&[0, 1, 2], 40), true, Start::Zero),
            (sum(&[0, 1, 2], 40), true, Start::Kept),
            (sum(&[0, 2], 40), true, Start::Zero),
            (sum(&[0, 2], 40), false, Start::Kept),
            (sum(&[0, 2], 40), true, Start::Zero),
            (sum(&[0, 2], 80), true, Start::Zero),
            (sum(&[0, 2], 80), true, Start::Kept),
        ] {
            assert_eq!(residual.take(&next), start, "{next:?}");
            if is_whole {
                residual.keep(next);
            }
        }
    }
}
