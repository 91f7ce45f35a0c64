//! How long workers wait at their barriers.

use gradlane_core::cluster::Patience;

use super::{Action, Plan, timing};
use crate::random::Random;

impl Plan {
    /// A worker waits at the barrier after this step.
    pub(super) fn barrier(&self, random: &mut Random, step: u64) -> Action {
        let impatient = self.classes.deadlines && random.chance(20);
        let timeout = if impatient { random.millis(100, 3000) } else { timing::BARRIER };
        let patience = match (self.classes.away, impatient) {
            (true, _) => Patience::Usual(timing::BARRIER_SHORT),
            (false, true) => Patience::Named(timeout),
            (false, false) => Patience::Usual(timeout),
        };
        Action::Barrier { name: format!("after {step}"), patience }
    }
}
