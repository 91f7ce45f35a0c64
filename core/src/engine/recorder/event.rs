//! The events of the recorder, and how one lies in seven words.

use crate::pipeline::Stage;
use crate::runtime::recording::{WORDS, words};
use crate::types::{Demand, Time};

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Event {
    pub(super) at: Time,
    pub(super) head: Head,
    /// The key of the tensor, or of the first tensor of the part; of [`Kind::Formed`] the term of the epoch.
    pub(super) key: u64,
    /// The round, or [`UNKNOWN`](crate::runtime::recording::UNKNOWN); of [`Kind::Formed`] the number of the epoch.
    pub(super) round: u64,
    /// The number of the submission or of the handle; of a part its index.
    pub(super) id: u64,
    /// Bytes; of [`Kind::Stalled`] and [`Kind::Waited`] nanoseconds; of [`Kind::Resolved`] tensors; of [`Kind::Formed`] workers.
    pub(super) amount: u64,
}

/// What kind of event it is, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// Of [`Kind::Submitted`] and of events of a part.
    pub(super) operation: Operation,
    /// Of events of a part: where it is.
    pub(super) stage: Option<Stage>,
    /// Of [`Kind::Finished`] and [`Kind::Resolved`].
    pub(super) ended: Ended,
    /// Of events of a part: the index of its server.
    pub(super) server: u32,
}

words! {
    /// What happened.
    pub(in crate::engine) enum Kind {
        /// A tensor was submitted.
        Submitted = "submitted",
        /// A part waits for its first stage: all tensors of it were submitted.
        Queued = "queued",
        /// A stage of a part began.
        Taken = "taken",
        /// A stage of a part ended. The end of PUSH is that the part was handed over, and the end of PULL that it was answered.
        Finished = "finished",
        /// A submission ended.
        Resolved = "resolved",
        /// The members of the job changed.
        Formed = "formed",
        /// This worker warned of a submission that does not move.
        Stalled = "stalled",
        /// A thread of the caller began to wait for a handle.
        Waits = "waits",
        /// A thread of the caller did not wait any longer.
        Waited = "waited",
    }
}

words! {
    /// What a submission does.
    pub(in crate::engine) enum Operation {
        /// A sum over workers.
        Reduce = "reduce",
        /// A use of a parameter.
        Parameter = "parameter",
        /// A use of rows of a table.
        Rows = "rows",
        /// A use of what servers keep of the answers of a sum.
        Residual = "residual",
    }
}

words! {
    /// How something ended.
    pub(in crate::engine) enum Ended {
        /// It was done.
        Done = "done",
        /// It will be repeated.
        Again = "again",
        /// It failed.
        Failed = "failed",
    }
}

impl Operation {
    /// That of a demand.
    pub(in crate::engine) fn of_demand(demand: &Demand) -> Self {
        match demand {
            Demand::Reduce { .. } => Self::Reduce,
            Demand::Access { .. } => Self::Parameter,
            Demand::Rows { .. } => Self::Rows,
            Demand::AnswerResidual(_) => Self::Residual,
        }
    }
}

impl Head {
    /// The head of an event of this kind, without anything else.
    pub(super) const fn of(kind: Kind) -> Self {
        Self { kind, operation: Operation::Reduce, stage: None, ended: Ended::Done, server: 0 }
    }

    /// It in one word.
    pub(super) fn to_word(self) -> u64 {
        let Self { kind, operation, stage, ended, server } = self;
        let stage = stage.map_or(0, |stage| stage.index() as u64 + 1);
        kind as u64 | (operation as u64) << 8 | stage << 16 | (ended as u64) << 24 | u64::from(server) << 32
    }

    /// That of a word. `None` for a word that is none.
    pub(super) fn of_word(word: u64) -> Option<Self> {
        let byte = |at: u32| word >> at & 0xff;
        let stage = match byte(16) {
            0 => None,
            stage => Some(*Stage::ALL.get(usize::try_from(stage - 1).ok()?)?),
        };
        Some(Self {
            kind: Kind::of(byte(0))?,
            operation: Operation::of(byte(8))?,
            stage,
            ended: Ended::of(byte(24))?,
            server: u32::try_from(word >> 32).ok()?,
        })
    }
}

impl Event {
    /// It in words.
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let Self { at, head, key, round, id, amount } = self;
        [at.0, head.to_word(), key, round, id, amount, 0]
    }

    /// That of words. `None` for words that are none.
    pub(super) fn of_words([at, head, key, round, id, amount, _]: [u64; WORDS]) -> Option<Self> {
        Some(Self { at: Time(at), head: Head::of_word(head)?, key, round, id, amount })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::recording::UNKNOWN;

    #[test]
    fn every_event_comes_back_from_its_words() {
        for kind in Kind::ALL {
            for stage in [None].into_iter().chain(Stage::ALL.map(Some)) {
                for (operation, ended) in [(Operation::Residual, Ended::Failed), (Operation::Rows, Ended::Again)] {
                    let head = Head { kind: *kind, operation, stage, ended, server: u32::MAX };
                    let event = Event { at: Time(1), head, key: u64::MAX, round: UNKNOWN, id: 4, amount: 5 };
                    assert_eq!(Event::of_words(event.to_words()), Some(event));
                }
            }
        }
    }

    #[test]
    fn words_that_are_no_event_are_none() {
        for head in [0xff, 0xff << 8, 0xff << 16, 0xff << 24] {
            assert_eq!(Event::of_words([0, head, 0, 0, 0, 0, 0]), None, "{head:x}");
        }
    }
}
