//! What is known of a use that has begun and has not ended: of a parameter, of rows of a table, or of the residual of a sum's answers.

use gradlane_core::runtime::recording::{WORDS, words};
use gradlane_core::types::{Access, ExchangeId, PartId, Round, RowAction, TensorKey, Time, WorkerId};
use gradlane_core::wire::{AnswerResidual, Request, ResidualAction, Target};

use crate::node::command::SlotId;

words! {
    /// What a server keeps and workers use.
    pub(super) enum Kept {
        /// The value of a parameter.
        Parameter = "parameter",
        /// Rows of a table.
        Table = "table",
        /// What the answers of a sum have lost.
        Residual = "residual",
    }
}

words! {
    /// What a use does.
    pub(super) enum Action {
        /// Gives a parameter its first value.
        Init = "init",
        /// Reads.
        Pull = "pull",
        /// Changes.
        Push = "push",
        /// Changes and reads.
        PushPull = "push-pull",
        /// Reads an average of the values of a parameter.
        PullAverage = "pull-average",
        /// Reads rows and changes nothing.
        Look = "look",
        /// Changes rows, with a score for each of them.
        PushScored = "push-scored",
        /// Removes rows that are not worth their place.
        Shrink = "shrink",
        /// Counts rows.
        Stats = "stats",
        /// Removes all rows.
        Clear = "clear",
        /// Begins a scan.
        Changed = "changed",
        /// Goes on with a scan.
        Page = "page",
        /// Puts rows back.
        Restore = "restore",
        /// Reads a residual.
        Read = "read",
        /// Gives a residual.
        Give = "give",
    }
}

words! {
    /// How far a use is.
    pub(super) enum Progress {
        /// Its body comes.
        Begun = "begun",
        /// All of it is here, and it is not answered.
        Waits = "waits",
        /// All of it is here, and it waits until other workers have pushed to the table.
        Held = "held",
        /// Its turn has come: the lane of its part sends the answer when it has done what comes before.
        ToAnswer = "to-answer",
        /// It is done, and its answer was sent.
        Answered = "answered",
    }
}

/// A use that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenUse {
    pub(super) exchange: ExchangeId,
    pub(super) worker: WorkerId,
    /// The part, and which use of the tensor it is for this worker.
    pub(super) slot: SlotId,
    pub(super) action: Action,
    pub(super) progress: Progress,
    /// When it began.
    pub(super) began: Time,
    pub(super) of: Of,
}

/// What is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Of {
    /// A parameter, where its clock must stand; 0 if it has none.
    Parameter { clock_at: u64 },
    /// A table.
    Table,
    /// A residual.
    Residual,
}

impl OpenUse {
    /// The use of a worker whose header has come. `None` for a request that is no use.
    pub(super) fn of(request: &Request, worker: WorkerId, exchange: ExchangeId, began: Time) -> Option<Self> {
        let (Target { part, round, .. }, action, of) = match request {
            Request::Use(header) => {
                let action = match header.access {
                    Access::Init => Action::Init,
                    Access::Push(_) => Action::Push,
                    Access::Pull => Action::Pull,
                    Access::PushPull(_) => Action::PushPull,
                    Access::PullAverage(_) => Action::PullAverage,
                };
                (header.target, action, Of::Parameter { clock_at: header.clock_at })
            }
            Request::Rows(header) => {
                let action = match header.action {
                    RowAction::Pull => Action::Pull,
                    RowAction::Look => Action::Look,
                    RowAction::Push => Action::Push,
                    RowAction::PushScored => Action::PushScored,
                    RowAction::Shrink => Action::Shrink,
                    RowAction::Stats => Action::Stats,
                    RowAction::Clear => Action::Clear,
                    RowAction::Changed => Action::Changed,
                    RowAction::Page => Action::Page,
                    RowAction::Restore => Action::Restore,
                };
                (header.target, action, Of::Table)
            }
            Request::AnswerResidual(AnswerResidual { target, action, .. }) => {
                let action = match action {
                    ResidualAction::Read(_) => Action::Read,
                    ResidualAction::Give { .. } => Action::Give,
                };
                (*target, action, Of::Residual)
            }
            Request::Contribute(_) | Request::Withdraw(_) | Request::Restore(_) | Request::Unknown(_) => return None,
        };
        let slot = SlotId { part, round };
        Some(Self { exchange, worker, slot, action, progress: Progress::Waits, began, of })
    }

    /// What is used.
    pub(super) fn kept(&self) -> Kept {
        match self.of {
            Of::Parameter { .. } => Kept::Parameter,
            Of::Table => Kept::Table,
            Of::Residual => Kept::Residual,
        }
    }

    /// It in words.
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let Self { exchange, worker, slot: SlotId { part, round }, action, progress, began, of } = self;
        let byte = |value: u8, at: u32| u64::from(value) << at;
        let kept = self.kept() as u8;
        let head =
            TAKEN | byte(progress as u8, 8) | byte(kept, 16) | byte(action as u8, 24) | u64::from(worker.0) << 32;
        let clock_at = match of {
            Of::Parameter { clock_at } => clock_at,
            Of::Table | Of::Residual => 0,
        };
        [head, exchange.0, part.key.0, part.index.into(), round.0, began.0, clock_at]
    }

    /// That of words; `None` for words that are none of a use.
    pub(super) fn of_words([head, exchange, key, index, round, began, clock_at]: [u64; WORDS]) -> Option<Self> {
        if head & 0xff != TAKEN {
            return None;
        }
        let byte = |at: u32| head >> at & 0xff;
        let half = |word: u64| u32::try_from(word).ok();
        let part = PartId { key: TensorKey(key), index: half(index)? };
        let of = match Kept::of(byte(16))? {
            Kept::Parameter => Of::Parameter { clock_at },
            Kept::Table => Of::Table,
            Kept::Residual => Of::Residual,
        };
        Some(Self {
            exchange: ExchangeId(exchange),
            worker: WorkerId(half(head >> 32)?),
            slot: SlotId { part, round: Round(round) },
            action: Action::of(byte(24))?,
            progress: Progress::of(byte(8))?,
            began: Time(began),
            of,
        })
    }
}

/// The mark of a place that a use has taken.
const TAKEN: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::recorder::sum::OpenSum;

    #[test]
    fn every_use_comes_back_from_its_words_and_is_no_sum() {
        let slot = SlotId { part: PartId { key: TensorKey(u64::MAX), index: u32::MAX }, round: Round(u64::MAX) };
        for of in [Of::Parameter { clock_at: u64::MAX }, Of::Table, Of::Residual] {
            for (action, progress) in
                Action::ALL.iter().flat_map(|one| Progress::ALL.iter().map(move |two| (*one, *two)))
            {
                let exchange = ExchangeId(u64::MAX);
                let used = OpenUse { exchange, worker: WorkerId(4_095), slot, action, progress, began: Time(5), of };
                assert_eq!(OpenUse::of_words(used.to_words()), Some(used));
                assert_eq!(OpenSum::of_words(used.to_words()), None);
            }
        }
        assert_eq!(OpenUse::of_words([0; WORDS]), None);
    }
}
