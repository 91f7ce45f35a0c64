//! What has begun on a server and has not ended, in one table: sums, uses, and the waits of uses at parts of tables.

use gradlane_core::runtime::recording::{OpenOperation, WORDS};
use gradlane_core::types::{ExchangeId, PartId};

use super::sum::OpenSum;
use super::used::OpenUse;
use super::waits::OpenWaits;
use crate::node::command::SlotId;

/// Something that has begun and has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Open {
    /// A sum, for some of its workers.
    Sum(OpenSum),
    /// A use of a parameter, of rows of a table, or of a residual.
    Use(OpenUse),
    /// The uses that wait at a part of a table.
    Table(OpenWaits),
}

/// Which one it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum OpenId {
    /// A sum, and a block of its workers.
    Sum(SlotId, u16),
    /// The exchange of a use.
    Use(ExchangeId),
    /// A part of a table.
    Table(PartId),
}

impl Open {
    /// The sum.
    pub(super) fn sum(&mut self) -> Option<&mut OpenSum> {
        match self {
            Self::Sum(sum) => Some(sum),
            Self::Use(_) | Self::Table(_) => None,
        }
    }

    /// The use.
    pub(super) fn used(&mut self) -> Option<&mut OpenUse> {
        match self {
            Self::Use(used) => Some(used),
            Self::Sum(_) | Self::Table(_) => None,
        }
    }

    /// The waits at a part.
    pub(super) fn waits(&mut self) -> Option<&mut OpenWaits> {
        match self {
            Self::Table(waits) => Some(waits),
            Self::Sum(_) | Self::Use(_) => None,
        }
    }
}

impl OpenOperation for Open {
    type Id = OpenId;

    fn id(&self) -> OpenId {
        match self {
            Self::Sum(sum) => OpenId::Sum(sum.slot, sum.block),
            Self::Use(used) => OpenId::Use(used.exchange),
            Self::Table(waits) => OpenId::Table(waits.part),
        }
    }

    /// Exchanges follow each other and end about in their order.
    fn place(id: OpenId) -> u64 {
        match id {
            OpenId::Sum(slot, block) => OpenSum::place(slot, block),
            OpenId::Use(exchange) => exchange.0,
            OpenId::Table(part) => OpenWaits::place(part),
        }
    }

    fn to_words(self) -> [u64; WORDS] {
        match self {
            Self::Sum(sum) => sum.to_words(),
            Self::Use(used) => used.to_words(),
            Self::Table(waits) => waits.to_words(),
        }
    }

    fn of_words(words: [u64; WORDS]) -> Option<Self> {
        let sum = OpenSum::of_words(words).map(Self::Sum);
        let used = || OpenUse::of_words(words).map(Self::Use);
        sum.or_else(used).or_else(|| OpenWaits::of_words(words).map(Self::Table))
    }
}
