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

    /// Waits until the coordinator has said something, at most for `patience`, and for as long as the workers hold. Returns whether it has.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        let mut steps = self.lock();
        loop {
            // Each word of it counts from when it was said.
            let holds = steps.holds();
            let bound = patience + holds.unwrap_or_default();
            let is_same = |steps: &mut Steps| steps.waits() && steps.holds() == holds;
            let (heard, late) =
                self.changed.wait_timeout_while(steps, bound, is_same).unwrap_or_else(PoisonError::into_inner);
            if late.timed_out() || !heard.waits() {
                return !late.timed_out();
            }
            steps = heard;
        }
    }

    /// The job has ended for this worker.
    pub(super) fn fail(&self, cause: Error) {
        self.with(|steps| steps.fail(cause), |_| {});
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(20);

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test is its own driver")]
    fn a_worker_waits_longer_while_all_hold_and_no_longer_than_they_may() {
        let gate = StepGate::default();
        let hear = |limit, hold| {
            gate.with(
                |steps| {
                    steps.handle_boundary(1, limit).unwrap();
                    steps.handle_hold(1, hold);
                    steps.begin(true)
                },
                |_| {},
            )
        };
        hear(Some(0), None).unwrap();
        assert!(!gate.wait(Duration::ZERO), "nobody has said anything");
        hear(Some(0), Some(MOMENT)).unwrap();
        let begun = Instant::now();
        assert!(!gate.wait(Duration::ZERO), "nobody has come");
        assert!(begun.elapsed() >= MOMENT);
    }

    #[test]
    fn a_worker_that_holds_hears_of_the_end_of_the_job() {
        let gate = StepGate::default();
        gate.with(|steps| steps.handle_boundary(1, Some(0)).unwrap(), |_| {});
        gate.with(|steps| steps.begin(true), |_| {}).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.wait(Duration::from_secs(60)));
            gate.with(|steps| steps.handle_hold(1, Some(Duration::from_secs(60))), |_| {});
            gate.fail(Error::Cancelled);
            assert!(waits.join().unwrap());
        });
    }
}
