//! The events of a server's recorder, and how one lies in seven words.

use gradlane_core::error::{ERRORS, Error};
use gradlane_core::runtime::recording::{WORDS, words};
use gradlane_core::types::{ControlCommand, Time, WorkerId};

use super::used::Action;
use crate::node::command::Receipt;

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Event {
    pub(super) at: Time,
    pub(super) head: Head,
    /// The key of the tensor that the part is called by.
    pub(super) key: u64,
    /// The index of the part.
    pub(super) part: u64,
    /// The round, or [`UNKNOWN`](gradlane_core::runtime::recording::UNKNOWN); of a use which one of the tensor it is for its worker, and of [`Kind::Formed`] the number of the epoch.
    pub(super) round: u64,
    /// The exchange, the link, or the number of the order; of [`Kind::Stalled`] how many workers are missing, and of [`Kind::Formed`] the term of
    /// the epoch.
    pub(super) id: u64,
    /// Bytes; of [`Kind::Stalled`] nanoseconds; of [`Kind::Waits`] how many workers are missing; of [`Kind::Formed`] workers.
    pub(super) amount: u64,
}

/// What kind of event it is, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// Which error or which order; of a use 1 and its action, and 0 of a sum.
    pub(super) code: u8,
    pub(super) worker: Option<WorkerId>,
}

words! {
    /// What happened.
    pub(super) enum Kind {
        /// A sum began.
        Begun = "begun",
        /// The first byte of a contribution came, or the header of a use.
        Came = "came",
        /// The last byte of a contribution was added, or the body of a use is whole.
        Whole = "whole",
        /// A body came whose checksum is wrong.
        Damaged = "damaged",
        /// A body could not be taken.
        Lost = "lost",
        /// A use of a table is whole, and waits until other workers have pushed.
        Waits = "waits",
        /// Every contribution has begun, so blocks of the sum may go.
        Flows = "flows",
        /// Every contribution is whole.
        Published = "published",
        /// The turn of a use of a parameter or of a residual has come: the lane of its part is to send the answer.
        ToAnswer = "to-answer",
        /// A worker is sent the sum, or was sent the answer of its use of a table.
        Answered = "answered",
        /// A worker has taken the sum, or the answer of its use.
        Taken = "taken",
        /// The memory of a sum is free.
        Dropped = "dropped",
        /// An exchange was refused.
        Refused = "refused",
        /// A worker says that it will not contribute.
        Withdrew = "withdrew",
        /// An exchange broke off.
        Torn = "torn",
        /// A link came.
        Linked = "linked",
        /// A link went.
        Unlinked = "unlinked",
        /// The server closes a link.
        Disconnected = "disconnected",
        /// The members of the job changed.
        Formed = "formed",
        /// A round waits, and the coordinator is told so.
        Stalled = "stalled",
        /// An operator gave an order.
        Ordered = "ordered",
    }
}

impl Kind {
    /// That of the receipt of a body.
    pub(super) fn of_receipt(receipt: Receipt) -> Self {
        match receipt {
            Receipt::Whole => Self::Whole,
            Receipt::Damaged => Self::Damaged,
            Receipt::Lost => Self::Lost,
        }
    }

    /// Whether it is about a part.
    pub(super) fn is_of_part(self) -> bool {
        match self {
            Self::Begun
            | Self::Came
            | Self::Whole
            | Self::Damaged
            | Self::Lost
            | Self::Waits
            | Self::Flows
            | Self::Published
            | Self::ToAnswer
            | Self::Answered
            | Self::Taken
            | Self::Dropped
            | Self::Refused
            | Self::Withdrew
            | Self::Stalled => true,
            Self::Torn | Self::Linked | Self::Unlinked | Self::Disconnected | Self::Formed | Self::Ordered => false,
        }
    }
}

/// The orders that a server gets, by their words. The place of one is its code.
const ORDERS: [&str; 5] = ["log", "drain", "set", "dump", "timeline"];

impl Head {
    /// The head of an event of this kind, without anything else.
    pub(super) const fn of(kind: Kind) -> Self {
        Self { kind, code: 0, worker: None }
    }

    /// That of a use.
    pub(super) fn of_use(kind: Kind, action: Action) -> Self {
        Self { code: action as u8 + 1, ..Self::of(kind) }
    }

    /// That of something that failed.
    pub(super) fn failed(kind: Kind, error: &Error) -> Self {
        Self { code: error.kind().wire_code, ..Self::of(kind) }
    }

    /// That of an order; `None` for one that a server does not get, or that changes nothing.
    pub(super) fn ordered(command: &ControlCommand) -> Option<Self> {
        let place = ORDERS.iter().position(|word| *word == command.word())?;
        Some(Self { code: u8::try_from(place).ok()?, ..Self::of(Kind::Ordered) })
    }

    /// Which error, which order, or which action of a use, in words.
    pub(super) fn how(self) -> Option<&'static str> {
        match self.kind {
            Kind::Refused | Kind::Disconnected => {
                ERRORS.iter().find(|kind| kind.wire_code == self.code).map(|kind| kind.variant)
            }
            Kind::Ordered => ORDERS.get(usize::from(self.code)).copied(),
            Kind::Came
            | Kind::Whole
            | Kind::Damaged
            | Kind::Lost
            | Kind::Waits
            | Kind::ToAnswer
            | Kind::Answered
            | Kind::Taken => u64::from(self.code).checked_sub(1).and_then(Action::of).map(Action::word),
            Kind::Begun
            | Kind::Flows
            | Kind::Published
            | Kind::Dropped
            | Kind::Withdrew
            | Kind::Torn
            | Kind::Linked
            | Kind::Unlinked
            | Kind::Formed
            | Kind::Stalled => None,
        }
    }

    fn to_word(self) -> u64 {
        let Self { kind, code, worker } = self;
        let worker = worker.map_or(NOBODY, |worker| worker.0);
        kind as u64 | u64::from(code) << 8 | u64::from(worker) << 32
    }

    fn of_word(word: u64) -> Option<Self> {
        let worker = u32::try_from(word >> 32).ok()?;
        Some(Self {
            kind: Kind::of(word & 0xff)?,
            code: u8::try_from(word >> 8 & 0xff).ok()?,
            worker: Some(WorkerId(worker)).filter(|worker| worker.0 != NOBODY),
        })
    }
}

/// No rank: a job has fewer workers.
const NOBODY: u32 = u32::MAX;

impl Event {
    /// It in words.
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let Self { at, head, key, part, round, id, amount } = self;
        [at.0, head.to_word(), key, part, round, id, amount]
    }

    /// That of words. `None` for words that are none.
    pub(super) fn of_words([at, head, key, part, round, id, amount]: [u64; WORDS]) -> Option<Self> {
        Some(Self { at: Time(at), head: Head::of_word(head)?, key, part, round, id, amount })
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::runtime::recording::UNKNOWN;

    use super::*;

    #[test]
    fn every_event_comes_back_from_its_words() {
        for kind in Kind::ALL {
            for worker in [None, Some(WorkerId(0)), Some(WorkerId(4_095))] {
                let head = Head { kind: *kind, code: 255, worker };
                let event = Event { at: Time(1), head, key: u64::MAX, part: 2, round: UNKNOWN, id: 4, amount: 5 };
                assert_eq!(Event::of_words(event.to_words()), Some(event));
            }
        }
        assert_eq!(Event::of_words([0, 0xff, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn errors_orders_and_actions_have_their_words() {
        assert_eq!(Head::failed(Kind::Refused, &Error::Cancelled).how(), Some("Cancelled"));
        for (command, word) in [
            (ControlCommand::Drain, Some("drain")),
            (ControlCommand::DumpRecorder { directory: "d".to_owned() }, Some("dump")),
            (ControlCommand::Stats, None),
        ] {
            assert_eq!(Head::ordered(&command).and_then(Head::how), word);
        }
        assert_eq!(Head::of_use(Kind::Came, Action::PushPull).how(), Some("push-pull"));
        assert_eq!(Head::of(Kind::Came).how(), None, "that of a sum");
    }
}
