//! How long workers wait at their barriers.

use gradlane_core::cluster::Patience;

use super::{Action, Plan, timing};
use crate::random::{Random, mix};

impl Plan {
    /// A worker waits at the barrier after this step.
    pub(super) fn barrier(&self, random: &mut Random, step: u64) -> Action {
        let impatient = self.classes.deadlines && random.chance(20);
        let timeout = if impatient { random.millis(100, 3000) } else { timing::BARRIER };
        // The same on all workers.
        let is_short = self.classes.survivors && self.classes.succeeds && mix(self.seed ^ step).is_multiple_of(2);
        let patience = match (is_short, impatient) {
            (true, _) => Patience::Usual(timing::BARRIER_SHORT),
            (false, true) => Patience::Named(timeout),
            (false, false) => Patience::Usual(timeout),
        };
        Action::Barrier { name: format!("after {step}"), patience }
    }
}
