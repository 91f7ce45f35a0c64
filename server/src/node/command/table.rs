//! The steps of the part of a table.

use std::sync::Arc;
use std::time::Duration;

use gradlane_core::error::Error;
use gradlane_core::types::{Epoch, ExchangeId, NodeId, PartId, WorkerId};
use gradlane_core::wire::Rows;

/// A step in the life of a part of a table: `Serve`, `Forget` and `GiveUp`, for any number of exchanges at once, with `Leave` in between; `Drop`.
///
/// A use may wait until other workers have done theirs.
#[derive(Clone, PartialEq, Debug)]
pub enum RowsStep {
    /// Take the body of a use from what `exchange` brings, do the use when all of it came, and answer. Ends in one
    /// [`Served`], also if something else ends it.
    Serve {
        /// What brings it.
        exchange: ExchangeId,
        /// Who asks, and for what.
        asked: Box<AskedRows>,
    },
    /// The exchange is over: what it has brought goes, unless its use was done.
    Forget {
        /// Which one.
        exchange: ExchangeId,
    },
    /// Uses have waited too long for other workers: those that were not done are refused, and the workers are named that are missing.
    GiveUp {
        /// What brings them.
        exchanges: Vec<ExchangeId>,
        /// How long they have waited.
        waited: Duration,
    },
    /// This worker is gone for good: nobody repeats its uses, and its scan ends. Ends in one [`Served`] without an exchange.
    Leave {
        /// Which one.
        node: NodeId,
    },
    /// Free the memory.
    Drop,
}

/// A use of rows.
#[derive(Clone, PartialEq, Debug)]
pub struct AskedRows {
    /// Whose use it is.
    pub node: NodeId,
    /// Its header.
    pub header: Rows,
    /// The membership under which it is answered.
    pub epoch: Epoch,
    /// The workers of the table and their processes, by rank.
    pub workers: Arc<[(WorkerId, NodeId)]>,
    /// Bytes of a block of the answer.
    pub block_bytes: u64,
    /// The error for a use that was not done before, because the server drains.
    pub refusal: Option<Error>,
}

/// A use of rows that is over, or the scan of a worker that has left.
#[derive(Clone, PartialEq, Debug)]
pub struct Served {
    /// The part.
    pub part: PartId,
    /// The exchange; `None` if a worker has left the part.
    pub exchange: Option<ExchangeId>,
    /// Bytes that the rows of the part take now.
    pub bytes: u64,
    /// The most bytes that open scans of the part take before they end.
    pub scan_bytes: u64,
    /// Why it was not done. Without an error it was answered, or there is nothing to answer.
    pub refusal: Option<Error>,
}
