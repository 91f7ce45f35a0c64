//! On what the workers spend their time.

use gradlane_core::types::Role;

use super::since::{NANOSECONDS, Since, average};

/// The shares of the time of the workers, on average. They add up to 1, unless several threads of a worker wait at the same time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct TimeUse {
    /// In which trainings wait for their data. `None` if no script has told of such a wait.
    pub(crate) data: Option<f64>,
    /// In which workers wait for handles: communication that hides behind no computation.
    pub(crate) exposed: f64,
    /// All else. The engine sees no borders within it: forward, backward, the optimizer, what else the script does, and its waits for data if it does
    /// not tell them.
    pub(crate) rest: f64,
}

impl TimeUse {
    /// Of the workers that answered in two readings. `None` if there is none.
    pub(super) fn between(since: &Since<'_>) -> Option<Self> {
        let share = |name: &'static str| {
            average(since.members(Role::Worker).filter_map(|worker| Some(since.rate(worker, name)? / NANOSECONDS)))
        };
        let is_told = since.now.told.values().any(|told| told.number("data_wait_nanoseconds") > Some(0));
        let exposed = share("caller_blocked_nanoseconds")?;
        let data = share("data_wait_nanoseconds").filter(|_| is_told);
        Some(Self { data, exposed, rest: (1.0 - exposed - data.unwrap_or_default()).max(0.0) })
    }

    /// The parts with their names, in the order in which a step has them.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let Self { data, exposed, rest } = *self;
        data.map(|data| ("data", data)).into_iter().chain([("exposed", exposed), ("rest", rest)])
    }
}
