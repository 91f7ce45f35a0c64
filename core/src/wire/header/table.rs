//! The headers of tables: a worker's use of rows of a part, and the server's answer.

use super::about::{About, Service};
use super::sum::Target;
use crate::types::{RowAction, Shards, TableSpec, Version};

/// A worker's use of rows of a part of a table.
///
/// The round in its target counts this worker's uses of the table. A server does each change once: it knows the latest one of each worker, and
/// answers a repeat of it without doing it again.
///
/// The body has the ids first, u64 each, and then what the action needs: of a push, a gradient of `dim` elements for each id, in the form of the
/// table, with the scores of all ids before them (f32), if it brings scores; of a shrink, four numbers of 8 bytes; of a scan, what [`scan`](crate::wire::scan) says; of a restore, for each id the step of its last
/// use (u32) and its score (f32; NaN removes the row), and then for each id all numbers of its row. All are little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// What it is about.
    pub target: Target,
    /// What to do.
    pub action: RowAction,
    /// Which of two exchanges on one link goes first; higher is sooner. 0 to [`URGENCY_MAX`](super::URGENCY_MAX).
    pub urgency: u8,
    /// The table, as the worker has declared it.
    pub spec: TableSpec,
    /// The shards of the part.
    pub shards: Shards,
    /// The steps of the training before, as the worker counts them; at most [`Rows::STEP_MAX`].
    pub step: u64,
    /// How many ids follow. Of a scan, which has none: the most bytes that its answer may have.
    pub ids: u64,
    /// CRC-32C of the body, if the worker computed it.
    pub checksum: Option<u32>,
}

/// The answer to [`Rows`]. What was asked for follows: the rows in the order of the ids, counts, or a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowsAnswer {
    /// What it is about.
    pub target: Target,
    /// How often the part was changed.
    pub version: Version,
    /// Bytes that follow.
    pub body_bytes: u64,
    /// Whether the CRC-32C of the body follows it, as 4 bytes in little-endian order.
    pub checksum: bool,
}

impl Rows {
    /// The last step of a training that uses tables.
    pub const STEP_MAX: u64 = u32::MAX as u64 - 1;

    /// What a reject says of it.
    pub const fn about(&self) -> About {
        about(self.target)
    }

    /// Bytes that follow the header on the stream.
    pub fn body_bytes(&self) -> u64 {
        self.action.sent_bytes(self.ids, &self.spec)
    }

    /// Bytes of the answer's body; of a scan at most.
    pub const fn answer_bytes(&self) -> u64 {
        self.action.got_bytes(self.ids, &self.spec)
    }
}

impl RowsAnswer {
    /// What it is about.
    pub const fn about(&self) -> About {
        about(self.target)
    }
}

const fn about(target: Target) -> About {
    About { service: Service::Table, epoch: target.epoch, part: target.part }
}
