//! What is known of the coordinator's orders about checkpoints.

use std::collections::{BTreeMap, BTreeSet};

use gradlane_core::error::Result;
use gradlane_core::types::{ClockStep, PartId, PartLayout, Version, Written};

/// What this server does for a checkpoint.
#[derive(Default, Debug)]
pub(super) struct Checkpoints {
    pub(super) doing: Option<Doing>,
    /// The last order that was obeyed, or could not be.
    pub(super) done: Option<(u64, Result<Written>)>,
}

#[derive(Debug)]
pub(super) struct Doing {
    pub(super) order: u64,
    /// Bytes that are booked for it.
    pub(super) booked: u64,
    /// What the rounds of each clock have come to when its parts were frozen.
    pub(super) rounds: Vec<ClockStep>,
    /// The parts that are read.
    pub(super) reads: Vec<PartLayout>,
    /// They are read, and these are their versions.
    pub(super) versions: Option<BTreeMap<PartId, Version>>,
    /// Those whose tensors have ended meanwhile.
    pub(super) ended: BTreeSet<PartId>,
    /// Nobody wants it any more. It is under way all the same, and its memory is in use until it has come to its end.
    pub(super) is_cancelled: bool,
}
