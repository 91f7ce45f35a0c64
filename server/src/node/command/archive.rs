//! What a node wants to have written to files, or read from them.

use gradlane_core::error::Result;
use gradlane_core::types::{PartId, Plan, Version, Written};

/// Work with the files of a checkpoint.
#[derive(Clone, PartialEq, Debug)]
pub struct Archive {
    /// The number of the coordinator's order.
    pub order: u64,
    /// Where, below the server's `checkpoint_dir`.
    pub directory: String,
    /// The parts.
    pub plan: Plan,
    /// What to do with them.
    pub errand: Errand,
}

/// What is done with the files of a checkpoint.
#[derive(Clone, PartialEq, Debug)]
pub enum Errand {
    /// Write the parts as they are frozen.
    Save {
        /// The number of the checkpoint.
        checkpoint: u64,
        /// The version of each part, in the order of the plan.
        versions: Vec<Version>,
    },
    /// Read the parts, and give them to the lanes.
    Read {
        /// Whether to read what the rules keep, too.
        with_state: bool,
        /// Bytes of a block of each part, in the order of the plan.
        block_bytes: Vec<u64>,
    },
}

/// What became of an [`Archive`].
#[derive(Clone, PartialEq, Debug)]
pub struct Archived {
    /// The number of the coordinator's order.
    pub order: u64,
    /// What was written or read, and of each part that was read its version; or why not.
    pub outcome: Result<(Written, Vec<(PartId, Version)>)>,
}
