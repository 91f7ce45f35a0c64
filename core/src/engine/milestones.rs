//! The progress of the engine's membership, for caller threads that wait for it.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::local::sync::{Condvar, Mutex, PoisonError};

/// The reached milestones, and a way to wait for them.
#[derive(Default)]
pub(super) struct Milestones {
    reached: Mutex<Reached>,
    changed: Condvar,
}

/// What was reached.
#[derive(Default)]
pub(super) struct Reached {
    /// The job formed.
    pub(super) joined: bool,
    /// The engine has what it needs for its first formation.
    pub(super) equipped: bool,
    /// All reports that must precede this worker's leave are sent.
    pub(super) may_leave: bool,
    /// The whole job ended in order.
    pub(super) left: bool,
    /// The job failed.
    pub(super) failed: Option<Error>,
}

impl Milestones {
    pub(super) fn change(&self, change: impl FnOnce(&mut Reached)) {
        change(&mut self.reached.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Why the job failed, if it did.
    pub(super) fn failed(&self) -> Option<Error> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner).failed.clone()
    }

    /// Waits until `enough`, the job's failure, or `patience`. `what` is what the caller waits for, for the error.
    pub(super) fn wait(&self, patience: Duration, what: &str, enough: impl Fn(&Reached) -> bool) -> Result<()> {
        let guard = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = |reached: &mut Reached| !enough(reached) && reached.failed.is_none();
        let guard = self.changed.wait_timeout_while(guard, patience, waiting).unwrap_or_else(PoisonError::into_inner).0;
        match (enough(&guard), &guard.failed) {
            (true, _) => Ok(()),
            (false, Some(error)) => Err(error.clone()),
            (false, None) => Err(Error::Timeout { what: what.to_owned(), waited: patience }),
        }
    }
}
