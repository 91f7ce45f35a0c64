//! What a worker keeps of sums, in case that their server is lost, and how far a recovery is. [`restoring`](super::restoring) says what
//! follows.

use std::collections::{BTreeMap, BTreeSet};

use crate::pipeline::registry::ReadyPart;
use crate::sched::TaskId;
use crate::types::{Epoch, PartId, ServerId, SumId, Time, WorkerSet};
use crate::wire::Body;

/// What a worker knows of kept sums, and of a recovery.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    pub(super) kept: BTreeMap<PartId, Kept>,
    /// Since when each of them is whole.
    pub(super) whole: BTreeSet<(Time, PartId)>,
    /// The servers by which parts go. While a recovery lasts these are the former ones.
    pub(super) servers: BTreeSet<ServerId>,
    /// The epoch in which the coordinator was told what there is.
    pub(super) reported: Option<Epoch>,
    /// The sums that are being restored, and in which epoch.
    pub(super) restoring: Option<(Epoch, BTreeSet<TaskId>)>,
}

/// The latest sum of a part.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Kept {
    /// The part as this worker submitted it; it serves no submission any more.
    pub(super) part: ReadyPart,
    /// How the sum travelled. The driver has its bytes, unless it went to another worker.
    pub(super) body: Option<Body>,
    pub(super) divisor: f64,
    pub(super) contributors: WorkerSet,
    pub(super) since: Time,
}

impl Kept {
    /// Which sum it is.
    pub(super) fn id(&self) -> SumId {
        SumId { part: self.part.layout.part, round: self.part.round }
    }
}
