//! A bell, on which the thread of a stage sleeps.

use crate::local::sync::{Condvar, Mutex, PoisonError};

/// A thread waits for its bell; other threads ring it when there is work.
///
/// Not a channel: channels spin before they sleep, and on a host with few cores that takes time from the thread that would ring.
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
    /// Wakes the thread to look for tasks. Does nothing if the bell rings already.
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
