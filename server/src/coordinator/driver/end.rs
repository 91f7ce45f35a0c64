//! How a job ended, for those who wait for that.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use gradlane_core::{Error, Result};

/// Empty while the job lives.
#[derive(Default)]
pub(super) struct End {
    outcome: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

impl End {
    /// The job has ended so. Only the first outcome counts.
    pub(super) fn set(&self, outcome: Result<()>) {
        self.outcome.lock().expect(LOCK).get_or_insert(outcome);
        self.ended.notify_all();
    }

    /// How it has ended.
    pub(super) fn outcome(&self) -> Option<Result<()>> {
        self.outcome.lock().expect(LOCK).clone()
    }

    /// Waits for it; forever without `patience`.
    ///
    /// # Errors
    /// Why the job failed; [`Error::Timeout`] if it still runs.
    pub(super) fn wait(&self, patience: Option<Duration>) -> Result<()> {
        let guard = self.outcome.lock().expect(LOCK);
        let running = |outcome: &mut Option<Result<()>>| outcome.is_none();
        let guard = match patience {
            None => self.ended.wait_while(guard, running).expect(LOCK),
            Some(patience) => self.ended.wait_timeout_while(guard, patience, running).expect(LOCK).0,
        };
        guard.clone().unwrap_or_else(|| {
            Err(Error::Timeout { what: "waiting for the job to end".to_owned(), waited: patience.unwrap_or_default() })
        })
    }
}

const LOCK: &str = "nobody panics while holding it";
