//! How long requests to the coordinator last: until their time has passed, which a caller has named or which is the usual one. The usual one
//! does not pass while the coordinator is away, in a job that goes on without lost workers.

use std::time::Duration;

use gradlane_core::cluster::Patience;
use gradlane_core::error::Error;
use gradlane_core::types::Time;

use super::{Checker, Witness};
use crate::sim::workload::timing;
use crate::sim::world::Who;

impl Witness {
    /// How long a request of this worker may last that it made at `since`.
    pub(super) fn longest_request(&self, who: Who, since: Time, patience: Patience) -> Duration {
        let now = self.world;
        let extended = match patience {
            Patience::Usual(_) if self.job.survivors && self.is_disturbed(who, since, now) => {
                timing::CONTROL_LOST + timing::verdicts()
            }
            Patience::Usual(_) | Patience::Named(_) => Duration::ZERO,
        };
        (patience.length() + extended).mul_f64(1.02) + timing::DEAD * 2 + self.evidence.still(who, since, now)
    }

    /// A request has ended that was made at `asked`, with this error if it failed. Its usual time has not passed while the coordinator was
    /// away.
    pub(super) fn check_patience(&mut self, asked: Time, patience: Patience, error: Option<&Error>, what: &str) {
        let is_usual = matches!(patience, Patience::Usual(_)) && self.job.survivors;
        let is_late = matches!(error, Some(Error::Timeout { .. }));
        if is_usual && is_late && self.evidence.is_away(asked, self.world) {
            self.report(Checker::Patience, format!("{what} fails because the coordinator is away"));
        }
    }

    /// Whether a worker may have been out of contact with the coordinator at some moment of this time.
    fn is_disturbed(&self, who: Who, from: Time, until: Time) -> bool {
        !self.evidence.apart(who, Who::Coordinator, from, until).is_zero()
    }
}
