//! The caller's handle of an operation under way.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::local::Progress;
use crate::runtime::Clock;
use crate::types::Done;

/// The text of [`Handle::wait`]'s error if the operation goes on after the timeout.
pub const STILL_RUNNING: &str = "waiting for an operation, which goes on";

/// An operation that was submitted. Resolves exactly once; every clone sees the outcome.
#[derive(Clone)]
pub struct Handle {
    id: u64,
    slot: Arc<Slot>,
    cancel: Option<Canceller>,
    /// The component whose work a waiting thread can do.
    progress: Option<Weak<dyn Progress + Send + Sync>>,
}

/// Cancels the operation with this id. Shared by all handles of an engine.
pub(super) type Canceller = Arc<dyn Fn(u64) + Send + Sync>;

#[derive(Default)]
struct Slot {
    state: Mutex<Resolution>,
    resolved: Condvar,
}

#[derive(Default)]
struct Resolution {
    outcome: Option<Result<()>>,
    /// Wakes only if a thread waits, because a wake is a system call, and there may be a thousand small tensors.
    waiters: u32,
}

impl Handle {
    /// A handle and the token that resolves it. `then` runs once on the thread that resolves, before the outcome is visible, so that a
    /// waiting thread finds all memory of the operation free. It must not use the handle.
    pub(super) fn new(id: u64, cancel: Option<Canceller>, then: impl FnOnce(u64) + Send + 'static) -> (Self, Done<()>) {
        let slot = Arc::new(Slot::default());
        let there = Arc::clone(&slot);
        let done = Done::new(move |outcome| {
            let mut state = there.state.lock().expect(LOCK);
            state.outcome = Some(outcome);
            // A panic of the callback must not keep those asleep who wait for the outcome.
            let called = catch_unwind(AssertUnwindSafe(|| then(id)));
            let waiters = state.waiters;
            drop(state);
            if waiters > 0 {
                there.resolved.notify_all();
            }
            if let Err(panic) = called {
                resume_unwind(panic);
            }
        });
        (Self { id, slot, cancel, progress: None }, done)
    }

    /// The same handle. Its waiting threads poll `progress` unless another thread does.
    #[must_use]
    pub(super) fn polling(self, progress: Weak<dyn Progress + Send + Sync>) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// A handle that is resolved already.
    pub fn resolved(id: u64, outcome: Result<()>) -> Self {
        let state = Mutex::new(Resolution { outcome: Some(outcome), waiters: 0 });
        Self { id, slot: Arc::new(Slot { state, resolved: Condvar::new() }), cancel: None, progress: None }
    }

    /// Unique within its engine.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// The operation's error, or [`Error::Timeout`] when `timeout` passes first; the operation then goes on.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        if let Some(outcome) = self.outcome() {
            return outcome;
        }
        let clock = Clock::start();
        let waited = || clock.now().since(crate::types::Time::ZERO);
        let (enough, patience) = (|| self.is_resolved(), timeout.unwrap_or(Duration::MAX));
        if let Some(progress) = self.progress.as_ref().and_then(Weak::upgrade) {
            progress.poll(&enough, patience);
        }
        let mut guard = self.slot.state.lock().expect(LOCK);
        let unresolved = |state: &mut Resolution| state.outcome.is_none();
        guard.waiters += 1;
        let mut guard = match timeout {
            None => self.slot.resolved.wait_while(guard, unresolved).expect(LOCK),
            Some(timeout) => {
                let rest = timeout.saturating_sub(waited());
                self.slot.resolved.wait_timeout_while(guard, rest, unresolved).expect(LOCK).0
            }
        };
        guard.waiters -= 1;
        let outcome = guard.outcome.clone();
        outcome.unwrap_or_else(|| Err(Error::Timeout { what: STILL_RUNNING.to_owned(), waited: waited() }))
    }

    pub(super) fn is_resolved(&self) -> bool {
        self.slot.state.lock().expect(LOCK).outcome.is_some()
    }

    /// The outcome, if there is one yet.
    pub fn outcome(&self) -> Option<Result<()>> {
        self.slot.state.lock().expect(LOCK).outcome.clone()
    }

    /// Cancels the operation. It resolves with [`Error::Cancelled`] once its memory is free, unless it has ended already.
    pub fn cancel(&self) {
        if let Some(cancel) = &self.cancel {
            cancel(self.id);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).field("outcome", &self.outcome()).finish()
    }
}

const LOCK: &str = "nobody panics while holding an outcome";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_times_out_leaves_the_operation_running() {
        let (handle, done) = Handle::new(1, None, |_| {});
        assert!(matches!(handle.wait(Some(Duration::from_millis(1))), Err(Error::Timeout { .. })));
        done.ok(());
        assert_eq!(handle.wait(None), Ok(()));
        assert_eq!(handle.wait(None), Ok(()), "again");
    }

    #[test]
    fn a_callback_that_panics_keeps_nobody_asleep() {
        let (handle, done) = Handle::new(1, None, |_| panic!("planted"));
        let waiting = std::thread::spawn({
            let handle = handle.clone();
            move || handle.wait(None)
        });
        assert!(catch_unwind(AssertUnwindSafe(|| done.ok(()))).is_err(), "whoever resolves hears of it");
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
        assert_eq!(handle.wait(None), Ok(()));
    }

    #[test]
    fn an_operation_that_is_dropped_resolves_with_an_error() {
        let (handle, done) = Handle::new(1, None, |_| {});
        drop(done);
        assert!(matches!(handle.wait(None), Err(Error::Internal { .. })));
    }
}
