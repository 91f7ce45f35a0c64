//! What the thread of a stage sleeps on.

use std::sync::{Condvar, Mutex, PoisonError};

/// Rung by whoever leaves work for a thread, waited for by that thread.
///
/// Not a channel: those try for a while before they sleep, and on a host with few cores that time is taken from who would ring.
#[derive(Default)]
pub(super) struct Bell {
    state: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    rung: bool,
    asleep: bool,
}

impl Bell {
    /// Has the thread look for tasks. One that rings already rings.
    pub(super) fn ring(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wakes = !state.rung && state.asleep;
        state.rung = true;
        drop(state);
        if wakes {
            self.changed.notify_one();
        }
    }

    /// Sleeps until it has rung since the last time.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.rung {
            state.asleep = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        *state = Rung::default();
    }
}
