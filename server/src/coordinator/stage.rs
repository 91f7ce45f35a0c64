//! How far the job is.

use gradlane_core::error::Result;
use gradlane_core::types::{Phase, Time};

/// ```text
///           everybody joined   last worker left   a member is lost       stop             time over
/// Forming   Running            -                  Forming, seat free     Closing (error)  Closing (not formed)
/// Running   -                  Closing (ok)       as the policy says     Closing (error)  -
/// Closing   -                  -                  Closing                -                Finished, or sooner if all know
/// Finished  -                  -                  -                      -                -
/// ```
/// A job that forms again is in `Closing` first, with an error if it has lost what a server kept.
#[derive(Debug)]
pub(super) enum Stage {
    Forming { until: Time },
    Running,
    Closing { outcome: Result<()>, until: Time },
    Finished { outcome: Result<()> },
}

impl Stage {
    /// The stage as members see it.
    pub(super) fn phase(&self) -> Phase {
        match self {
            Self::Forming { .. } => Phase::Forming,
            Self::Running => Phase::Running,
            Self::Closing { outcome, .. } | Self::Finished { outcome } => {
                outcome.clone().map_or_else(Phase::Aborted, |()| Phase::Ended)
            }
        }
    }
}
