//! A job at one time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::metrics::Instance;
use gradlane_core::types::Role;
use gradlane_core::wire::frame::Status;

/// A job at one time.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// When, by the clock of this process.
    pub(crate) at: Duration,
    /// The members, as the coordinator sees them.
    pub(crate) status: Status,
    /// The metrics of the members that answered.
    pub(crate) told: BTreeMap<(Role, u32), Arc<Instance>>,
    /// When they told them, where that is not [`at`](Self::at).
    pub(crate) told_at: BTreeMap<(Role, u32), Duration>,
}

impl Reading {
    /// The highest round of a worker.
    pub(crate) fn step(&self) -> Option<u64> {
        highest_step(&self.status)
    }

    /// When a member told its metrics.
    pub(super) fn told_at(&self, member: (Role, u32)) -> Duration {
        self.told_at.get(&member).copied().unwrap_or(self.at)
    }
}

/// The highest round of a worker.
pub(crate) fn highest_step(status: &Status) -> Option<u64> {
    let members = status.view.members.iter().zip(&status.members);
    let workers = members.filter(|(member, _)| member.process.role == Role::Worker);
    workers.filter_map(|(_, status)| status.progress.last.map(|(_, round)| round.0)).max()
}
