//! The operations for whose end a stream of the caller waits instead of a thread, and the errors of which nobody was told in time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::limit::{DEVICE_LOOK, GRACE};
use crate::cuda::Mark;
use crate::error::{Error, Result};
use crate::local::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use crate::runtime::Clock;
use crate::types::{Time, whole_ns};
use crate::worker::Liveness;

/// Counts operations from [`Handle::follow`](super::Handle::follow) to their end, and keeps the first error among them until it is told.
///
/// The caller of `follow` was told that all is well. So the error of such an operation comes from the next call that can raise it.
#[derive(Debug)]
pub struct Followed {
    open: Mutex<Open>,
    ended: Condvar,
    clock: Clock,
    /// How long no operation may begin or end while some are open.
    bound: Duration,
    counted: Waits,
}

/// What is counted of the waits for operations.
#[derive(Clone, Default, Debug)]
pub(super) struct Waits {
    /// Operations for whose end a stream has waited.
    pub(super) streams: Arc<AtomicU64>,
    /// Waits of threads for the end of an operation.
    pub(super) threads: Arc<AtomicU64>,
    /// The time of waits of threads.
    pub(super) blocked_nanoseconds: Arc<AtomicU64>,
}

#[derive(Default, Debug)]
struct Open {
    operations: usize,
    /// When an operation last began or ended.
    moved: Time,
    /// The error, and the id of its handle.
    untold: Option<(u64, Error)>,
    /// In a job of one worker: the marks of the caller before each operation, by the id of its handle.
    before: BTreeMap<u64, Vec<Mark>>,
    /// When a device was last seen that had not come to one of them.
    behind: Time,
}

impl Default for Followed {
    fn default() -> Self {
        let (open, ended) = (Mutex::default(), Condvar::new());
        Self { open, ended, clock: Clock::start(), bound: ALONE_BOUND, counted: Waits::default() }
    }
}

impl Followed {
    /// Counts waits there, by the clock of the engine. Operations that are open for longer than `bound` without any that begins or ends are
    /// given up.
    pub(super) fn counting(counted: Waits, clock: Clock, bound: Duration) -> Self {
        Self { counted, clock, bound, ..Self::default() }
    }

    /// The time of waits, by the clock of the engine.
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Tells the error of an operation of whose end nobody else was told, once.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<()> {
        self.lock().untold.take().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Waits until all operations have ended for which streams wait, at most for `timeout`.
    ///
    /// # Errors
    /// That of [`check`](Self::check); [`Error::StillRunning`] if some have not ended in time; [`Error::Unresponsive`] if none has begun or ended
    /// for so long that the engine or the device must be stuck, and the engine does not `work` at them.
    pub fn settle(&self, timeout: Option<Duration>, works: &dyn Fn() -> Liveness) -> Result<()> {
        let until = timeout.map(|timeout| self.clock.now() + timeout);
        let mut trusted_until = Time::ZERO;
        let mut guard = self.lock();
        let stuck = loop {
            let (now, stuck_at) = (self.clock.now(), (guard.moved + self.bound + GRACE).max(trusted_until));
            if guard.operations == 0 || until.is_some_and(|until| until <= now) {
                break false;
            }
            if stuck_at <= now {
                // Asked without the lock, because a thread of the engine may need it.
                drop(guard);
                let found = works();
                guard = self.lock();
                match found {
                    Liveness::Works { ask_in } => trusted_until = self.clock.now() + ask_in,
                    Liveness::Stuck => break guard.operations > 0,
                }
                continue;
            }
            let due = until.map_or(stuck_at, |until| until.min(stuck_at));
            guard = self.ended.wait_timeout(guard, due.since(now)).unwrap_or_else(PoisonError::into_inner).0;
        };
        match (guard.untold.take(), guard.operations) {
            (Some((_, error)), _) => Err(error),
            (None, 0) => Ok(()),
            (None, operations) if stuck => Err(Error::Unresponsive {
                what: format!("{operations} operations on devices"),
                waited: self.clock.now().since(guard.moved),
                hint: "the device or the engine's threads are stuck, and the memory stays in use; look at what they do (py-spy dump --native, \
                       gdb), and start the job again"
                    .to_owned(),
            }),
            (None, operations) => Err(Error::StillRunning {
                what: format!("what was put on devices ({operations} operations)"),
                waited: timeout.unwrap_or_default(),
            }),
        }
    }

    /// A stream waits for an operation that has not ended.
    pub(super) fn begin(&self) {
        self.counted.streams.fetch_add(1, Ordering::Relaxed);
        let mut open = self.lock();
        open.operations += 1;
        open.moved = self.clock.now();
    }

    /// The operation `id` has ended. `names` are its tensors, for an error.
    pub(super) fn end(&self, id: u64, outcome: &Result<()>, names: &str) {
        let mut open = self.lock();
        open.operations -= 1;
        open.moved = self.clock.now();
        if let Err(error) = outcome
            && *error != Error::Cancelled
        {
            tracing::error!(tensor = names, %error, "a reduction failed after a stream was made to wait for it");
            open.untold.get_or_insert_with(|| (id, with_names(error, names)));
        }
        drop(open);
        self.ended.notify_all();
    }

    /// The error of the operation `id` was told by its own handle.
    pub(super) fn told(&self, id: u64) {
        self.lock().untold.take_if(|(untold, _)| *untold == id);
    }

    /// In a job of one worker: the operation `id` begins, and its device comes to it after these marks of the caller.
    pub(super) fn expect(&self, id: u64, before: Vec<Mark>) {
        self.lock().before.insert(id, before);
    }

    /// In a job of one worker: the operation `id` has ended.
    pub(super) fn forget(&self, id: u64) {
        self.lock().before.remove(&id);
    }

    /// Whether the operations of a job of one worker, which have taken longer than the bound, may still end: a device has other work to do
    /// before them, or had until the bound ago.
    pub fn works_alone(&self) -> Liveness {
        let before: Vec<Mark> = self.lock().before.values().flatten().cloned().collect();
        // Asked without the lock, because it calls the driver.
        let is_behind = !before.iter().all(Mark::is_reached);
        let mut open = self.lock();
        let now = self.clock.now();
        if is_behind {
            open.behind = now;
            return Liveness::Works { ask_in: DEVICE_LOOK };
        }
        let due = if open.behind == Time::ZERO { now } else { open.behind + self.bound };
        match due.since(now) {
            Duration::ZERO => Liveness::Stuck,
            ask_in => Liveness::Works { ask_in },
        }
    }

    /// A thread waits for the end of an operation.
    pub(super) fn count_host_wait(&self) {
        self.counted.threads.fetch_add(1, Ordering::Relaxed);
    }

    /// A thread of the caller was blocked for so long.
    pub(super) fn count_blocked(&self, blocked: Duration) {
        self.counted.blocked_nanoseconds.fetch_add(whole_ns(blocked), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bound of a job of one worker, whose operations are copies of a device.
pub(super) const ALONE_BOUND: Duration = Duration::from_secs(300);

/// The error with the names of the tensors.
fn with_names(error: &Error, names: &str) -> Error {
    match error {
        Error::FailedPrecondition { what, hint } => {
            Error::TensorState { tensor: names.into(), what: what.clone(), hint: hint.clone() }
        }
        other => other.clone().with_names(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Tensors;

    fn failed() -> Error {
        let [device, what, cause] = ["cuda:0", "a copy", "a fault"].map(str::to_owned);
        Error::Device { device, what, tensor: Tensors::Unknown, cause }
    }

    #[test]
    fn an_error_that_came_too_late_is_told_once_with_the_tensor() {
        let followed = Followed::default();
        followed.begin();
        followed.end(1, &Err(failed()), "grad");
        let told = followed.check().unwrap_err();
        assert!(told.to_string().contains("tensor grad"), "{told}");
        assert_eq!(followed.check(), Ok(()));
    }

    #[test]
    fn what_a_handle_has_told_is_not_told_again() {
        let followed = Followed::default();
        followed.begin();
        followed.end(1, &Err(failed()), "grad");
        followed.told(2);
        followed.told(1);
        assert_eq!(followed.check(), Ok(()));
    }

    #[test]
    fn settling_waits_for_all_that_streams_wait_for() {
        let followed = Arc::new(Followed::default());
        followed.begin();
        assert!(matches!(followed.settle(Some(Duration::ZERO), &|| Liveness::Stuck), Err(Error::StillRunning { .. })));
        let there = Arc::clone(&followed);
        let ending = std::thread::spawn(move || there.end(1, &Ok(()), "grad"));
        assert_eq!(followed.settle(None, &|| Liveness::Stuck), Ok(()));
        ending.join().expect("no panic");
    }

    #[test]
    fn settling_gives_up_if_no_operation_ends() {
        let followed = Followed { bound: Duration::ZERO, ..Followed::default() };
        followed.begin();
        assert!(matches!(followed.settle(None, &|| Liveness::Stuck), Err(Error::Unresponsive { .. })));
    }

    #[test]
    fn what_the_caller_cancelled_is_no_error_for_him() {
        let followed = Followed::default();
        followed.begin();
        followed.end(1, &Err(Error::Cancelled), "grad");
        assert_eq!(followed.settle(None, &|| Liveness::Stuck), Ok(()));
    }
}
