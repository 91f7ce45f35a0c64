//! What the workers of a seed ask of the store of the job, between their other actions.
//!
//! All draws come from sequences of their own, so a seed whose workers ask nothing is what it would be if none did in any.

use std::time::Duration;

use gradlane_core::cluster::Patience;

use super::{Action, Plan};
use crate::random::{Random, mix};

/// Tells the draws of requests to the store from others.
const STORE: u64 = 0x0073_746f_7265;

/// Keys that all workers put and read.
const KEYS: u64 = 3;

/// A request to the store. No worker waits for its answer before it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::sim) enum Asking {
    /// Adds 1 to the number of this worker alone.
    AddOwn,
    /// Adds 1 to the number of all workers.
    AddToAll,
    /// Puts a value that nobody else puts.
    Put { key: u64 },
    /// Reads what somebody has put, or waits for it.
    Get { key: u64, waits: bool },
}

impl Plan {
    /// Puts requests to the store between the actions of a worker, in one of three seeds.
    pub(super) fn ask_store(&self, worker: u32, script: Vec<Action>) -> Vec<Action> {
        if !mix(self.seed ^ STORE).is_multiple_of(3) {
            return script;
        }
        let mut random = Random::new(mix(self.seed ^ STORE ^ u64::from(worker + 1)));
        let percent = random.pick(&[20, 60]);
        let mut woven = Vec::new();
        for action in script {
            // These belong to the action before them.
            let is_between = !matches!(action, Action::Cancel { .. } | Action::CancelUse { .. });
            while is_between && random.chance(percent) {
                let key = random.below(KEYS);
                let adds = [Asking::AddOwn, Asking::AddToAll];
                let asking = match random.below(8) {
                    0..=3 => random.pick(&adds),
                    4 => Asking::Put { key },
                    5 => Asking::Get { key, waits: false },
                    _ => Asking::Get { key, waits: true },
                };
                let length = Duration::from_secs(random.pick(&[1, 10, 60]));
                let is_named = random.clone().chance(50);
                let patience = if is_named { Patience::Named(length) } else { Patience::Usual(length) };
                woven.push(Action::Ask { asking, patience });
            }
            woven.push(action);
        }
        woven
    }
}
