//! The steps of this worker, which the thread that trains and the thread of the membership share.

use std::time::Duration;

use crate::cluster::Steps;
use crate::error::Error;
use crate::local::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::types::StepReport;

/// The steps, and a way to wait for what the coordinator says of them.
#[derive(Default)]
pub(super) struct StepGate {
    steps: Mutex<Steps>,
    changed: Condvar,
}

impl StepGate {
    /// Gives the steps an input. `tell` gets what the coordinator must hear of it; it runs with the lock, so that reports stay in order, and
    /// must wait for nothing.
    pub(super) fn with<T>(&self, input: impl FnOnce(&mut Steps) -> T, tell: impl FnOnce(StepReport)) -> T {
        let mut steps = self.lock();
        let output = input(&mut steps);
        if let Some(report) = steps.next_report() {
            tell(report);
        }
        drop(steps);
        self.changed.notify_all();
        output
    }

    /// Waits until the coordinator has said something, at most for `patience`. Returns whether it has.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), patience, |steps| steps.waits());
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The job has ended for this worker.
    pub(super) fn fail(&self, cause: Error) {
        self.with(|steps| steps.fail(cause), |_| {});
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
