//! The clocks of the processes: each has its own origin and runs a little fast or slow, as real ones do.

use gradlane_core::types::Time;

use crate::random::Random;

/// How the clock of one process follows the time of the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Clock {
    /// What it shows when the world begins, in nanoseconds.
    origin: u64,
    /// How much faster than the world it runs, in millionths.
    drift_ppm: i64,
}

/// The farthest that a clock drifts: a hundred times what a bad quartz does, so that a comparison of two clocks shows.
const DRIFT_PPM_MAX: u64 = 10_000;
/// The latest origin, in seconds: a machine that was started a day ago.
const ORIGIN_SECONDS_MAX: u64 = 86_400;
const MILLION: i128 = 1_000_000;

impl Clock {
    /// Draws a clock.
    pub(super) fn draw(random: &mut Random) -> Self {
        let drift_ppm = random.between(0, 2 * DRIFT_PPM_MAX) as i64 - DRIFT_PPM_MAX as i64;
        Self { origin: random.between(0, ORIGIN_SECONDS_MAX) * 1_000_000_000, drift_ppm }
    }

    /// What the clock shows at a time of the world.
    pub(super) fn local(self, world: Time) -> Time {
        let elapsed = i128::from(world.0) * (MILLION + i128::from(self.drift_ppm)) / MILLION;
        Time(self.origin.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX)))
    }

    /// The first time of the world at which the clock shows at least `local`.
    pub(super) fn world(self, local: Time) -> Time {
        let elapsed = i128::from(local.0.saturating_sub(self.origin));
        let world = elapsed * MILLION / (MILLION + i128::from(self.drift_ppm)) + 1;
        Time(u64::try_from(world).unwrap_or(u64::MAX))
    }
}
