//! The product's own defaults where they matter to correctness, shortened where only patience depends on them.

use std::time::Duration;

use gradlane_core::cluster::ContactTerms;
use gradlane_core::config::Bounds;

/// A sign of life.
pub(in crate::sim) const HEARTBEAT: Duration = Duration::from_millis(250);
/// Silence that makes suspect.
pub(in crate::sim) const SUSPECT: Duration = Duration::from_secs(2);
/// Silence that kills.
pub(in crate::sim) const DEAD: Duration = Duration::from_secs(5);
/// Patience while the job forms.
pub(in crate::sim) const FORM: Duration = Duration::from_secs(30);
/// Patience with a silent coordinator.
pub(in crate::sim) const CONTROL_LOST: Duration = Duration::from_secs(20);
/// Patience with a round.
pub(in crate::sim) const STEP: Duration = Duration::from_secs(30);
/// Patience before a stall is told of.
pub(in crate::sim) const STALL_WARN: Duration = Duration::from_secs(4);
/// Patience of a barrier that nobody should miss.
pub(in crate::sim) const BARRIER: Duration = Duration::from_secs(120);
/// Patience of a barrier that workers miss unless they wait for a coordinator that is away.
pub(in crate::sim) const BARRIER_SHORT: Duration = Duration::from_secs(3);
/// Patience of a worker that leaves.
pub(in crate::sim) const LEAVE: Duration = Duration::from_secs(2);
/// Patience of one attempt to connect.
pub(in crate::sim) const DIAL: Duration = Duration::from_secs(3);
/// Patience of workers that stand at a boundary between steps.
pub(in crate::sim) const BOUNDARY: Duration = Duration::from_secs(20);
/// Patience of workers that hold until others have come.
pub(in crate::sim) const REJOIN: Duration = Duration::from_secs(12);
/// Patience with a worker that wants to leave.
pub(in crate::sim) const LEAVE_GRACE: Duration = Duration::from_secs(15);

/// How long a coordinator that is back may take for its verdicts, to a worker.
pub(in crate::sim) fn verdicts() -> Duration {
    Bounds::new(STEP, DEAD).call
}

/// How patient processes are that have no coordinator, if the job goes on without lost workers.
pub(in crate::sim) fn contact(goes_on: bool, verdicts: Duration) -> Option<ContactTerms> {
    if goes_on { Some(ContactTerms { verdicts, lost_max: CONTROL_LOST }) } else { None }
}
