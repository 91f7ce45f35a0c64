//! The caller's handle of an operation under way.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::followed::Followed;
use super::limit::Limit;
use crate::cuda::Marks;
use crate::error::{Error, Result};
use crate::local::Progress;
use crate::local::sync::{Condvar, Mutex, MutexGuard};
use crate::mem::Ordinal;
use crate::types::{Done, Effect, Time};
use crate::worker::Liveness;

/// An operation that was submitted. Resolves exactly once; every clone sees the outcome.
///
/// ```text
/// under way ──all work is on the devices──► issued ──the work has ended──► resolved
///     └──────── ended, or failed (host memory knows no other way) ────────────┘
/// ```
#[derive(Clone)]
pub struct Handle {
    id: u64,
    slot: Arc<Slot>,
    backend: Option<Arc<dyn HandleBackend>>,
    followed: Arc<Followed>,
    /// The component whose work a waiting thread can do.
    progress: Option<Weak<dyn Progress + Send + Sync>>,
    /// When waiting threads ask whether the engine still works. Absent if there is no engine that could be stuck.
    limit: Option<Arc<Limit>>,
}

/// The requests of a handle to the engine that has its operation. All handles of an engine share one.
pub(super) trait HandleBackend: Send + Sync {
    /// Cancels the operation with this id.
    fn cancel(&self, id: u64);

    /// A stream of the caller waits for the operation with this id, so whatever the caller submits from now on comes after it.
    fn free_memory(&self, id: u64);

    /// Whether the engine works at the operation with this id. Does not wait for any other thread.
    fn liveness(&self, id: u64) -> Liveness;

    /// For the flight recorder: a thread of the caller begins to wait for the operation with this id. Like [`waited`](Self::waited), it takes
    /// no lock.
    fn waits(&self, _now: Time, _id: u64) {}

    /// For the flight recorder: the thread that has waited since `since` does not wait any longer.
    fn waited(&self, _now: Time, _id: u64, _since: Time) {}

    /// A thread of the caller gives the operation with this id up, because the engine does not work any more.
    fn given_up(&self, _id: u64, _error: &Error) {}
}

/// The end of an operation, as its handle tells it.
pub(super) struct Ended<'a> {
    pub(super) id: u64,
    pub(super) outcome: &'a Result<()>,
    /// Whether streams wait for it, whose caller was told that all is well.
    pub(super) is_followed: bool,
}

/// Tells a handle that all work of its operation is on devices, before these marks.
pub(super) type Issue = Box<dyn FnOnce(Marks) + Send>;

/// Tells a handle what its use of a parameter has come to. Calls nobody, and takes no lock.
pub(super) type EffectTeller = Box<dyn FnOnce(Effect) + Send>;

#[derive(Default)]
struct Slot {
    state: Mutex<Resolution>,
    changed: Condvar,
    effect: OnceLock<Effect>,
}

#[derive(Default)]
struct Resolution {
    outcome: Option<Result<()>>,
    /// The marks after the operation, once all of its work is on devices.
    issued: Option<Marks>,
    is_followed: bool,
    /// What to call once the operation is issued.
    listener: Option<Box<dyn FnOnce() + Send>>,
    /// Wakes only if a thread waits, because a wake is a system call, and there may be a thousand small tensors.
    waiters: u32,
}

impl Handle {
    /// A handle and the token that resolves it. `then` runs once on the thread that resolves, before the outcome is visible, so that a
    /// waiting thread finds all memory of the operation free. It must not use the handle. `followed` counts the streams that wait for it.
    pub(super) fn new(
        id: u64,
        backend: Option<Arc<dyn HandleBackend>>,
        followed: Arc<Followed>,
        then: impl FnOnce(Ended<'_>) + Send + 'static,
    ) -> (Self, Done<()>) {
        let slot = Arc::new(Slot::default());
        let there = Arc::clone(&slot);
        let done = Done::new(move |outcome| {
            let mut state = there.lock();
            // Under the lock, so that whoever was told by the callback finds the outcome. A panic of the callback must not keep those asleep who
            // wait for it.
            let ended = Ended { id, outcome: &outcome, is_followed: state.is_followed };
            let called = catch_unwind(AssertUnwindSafe(|| then(ended)));
            state.outcome = Some(outcome);
            there.wake(state);
            if let Err(panic) = called {
                resume_unwind(panic);
            }
        });
        (Self { id, slot, backend, followed, progress: None, limit: None }, done)
    }

    /// The same handle. Its waiting threads poll `progress` unless another thread does.
    #[must_use]
    pub(super) fn polling(self, progress: Weak<dyn Progress + Send + Sync>) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// The same handle. Threads that wait for it ask after this time whether the engine still works at it.
    #[must_use]
    pub(super) fn limited(self, limit: Limit) -> Self {
        Self { limit: Some(Arc::new(limit)), ..self }
    }

    /// What tells this handle that all work is on devices.
    pub(super) fn issue(&self) -> Issue {
        let there = Arc::clone(&self.slot);
        Box::new(move |marks| {
            let mut state = there.lock();
            state.issued = Some(marks);
            there.wake(state);
        })
    }

    /// What tells this handle what its use of a parameter has come to.
    pub(super) fn effect_teller(&self) -> EffectTeller {
        let there = Arc::clone(&self.slot);
        Box::new(move |effect| {
            let _ = there.effect.set(effect);
        })
    }

    /// What a use of a parameter has come to, over all of its parts, once the operation has ended well. `None` of a reduction.
    pub fn effect(&self) -> Option<Effect> {
        self.slot.effect.get().copied()
    }

    /// A handle that is resolved already.
    pub fn resolved(id: u64, outcome: Result<()>) -> Self {
        Self::resolved_of(id, outcome, OnceLock::new())
    }

    /// The handle of a use of a parameter that is resolved already, and tells what that has come to.
    pub fn used(id: u64, outcome: Result<Effect>) -> Self {
        match outcome {
            Ok(effect) => Self::resolved_of(id, Ok(()), effect.into()),
            Err(error) => Self::resolved(id, Err(error)),
        }
    }

    fn resolved_of(id: u64, outcome: Result<()>, effect: OnceLock<Effect>) -> Self {
        let state = Mutex::new(Resolution { outcome: Some(outcome), ..Resolution::default() });
        let slot = Arc::new(Slot { state, changed: Condvar::new(), effect });
        Self { id, slot, backend: None, followed: Arc::default(), progress: None, limit: None }
    }

    /// Unique within its engine.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// The operation's error, or [`Error::StillRunning`] when `timeout` passes first; the operation then goes on. [`Error::Unresponsive`] if the
    /// engine's threads should have ended the operation and have not; its memory then stays in use until there is an
    /// [`outcome`](Self::outcome).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        if let Some(outcome) = self.outcome() {
            if outcome.is_err() {
                self.followed.told(self.id);
            }
            return outcome;
        }
        let since = self.followed.now();
        let outcome = self.slot_when(timeout, since, Resolution::is_resolved)?.outcome.clone();
        let outcome = outcome.ok_or_else(|| self.still_running(since))?;
        self.followed.count_host_wait();
        if outcome.is_err() {
            self.followed.told(self.id);
        }
        outcome
    }

    /// Waits until all work of the operation is on its devices, which is long before it has ended, and makes streams of the caller wait for
    /// the end. `stream` tells the stream for a device, by the framework's handle; `None` has the calling thread wait for the end.
    ///
    /// Work that the caller puts into these streams afterwards sees the result. The caller may also submit the memory again. An error that
    /// is found later comes from [`wait`](Self::wait), or else once from the engine's next submission, [`settle`](super::Engine::settle) or
    /// shutdown. For host memory, and where the device has no streams, this is [`wait`](Self::wait).
    ///
    /// # Errors
    /// As [`wait`](Self::wait). Those of [`Mark::precede`](crate::cuda::Mark::precede); the operation then goes on.
    pub fn follow(&self, timeout: Option<Duration>, stream: impl Fn(Ordinal) -> Option<u64>) -> Result<()> {
        let since = self.followed.now();
        let state = self.slot_when(timeout, since, Resolution::is_issued)?;
        let (outcome, marks) = (state.outcome.clone(), state.issued.clone());
        drop(state);
        let marks = match (outcome, marks) {
            (Some(outcome), _) => return outcome,
            (None, None) => return Err(self.still_running(since)),
            (None, Some(marks)) => marks,
        };
        for mark in marks.iter() {
            match mark.device().map(&stream) {
                Some(Some(stream)) => mark.precede(stream)?,
                Some(None) => return self.wait(timeout.map(|timeout| timeout.saturating_sub(self.waited(since)))),
                None => {}
            }
        }
        let mut state = self.slot.lock();
        if let Some(outcome) = &state.outcome {
            return outcome.clone();
        }
        if !std::mem::replace(&mut state.is_followed, true) {
            self.followed.begin();
            drop(state);
            if let Some(backend) = &self.backend {
                backend.free_memory(self.id);
            }
        }
        Ok(())
    }

    /// Waits until the state is `enough`, or for `timeout` from `since` on.
    ///
    /// # Errors
    /// [`Error::Unresponsive`] if the engine does not work at the operation any more.
    fn slot_when(
        &self,
        timeout: Option<Duration>,
        since: Time,
        enough: fn(&Resolution) -> bool,
    ) -> Result<MutexGuard<'_, Resolution>> {
        let _waiting = (!enough(&self.slot.lock())).then(|| Waiting::begin(self, since));
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(self.waited(since)));
            let ask_in = self.limit.is_some().then(|| self.trusted_for());
            let state = self.sleep(left.into_iter().chain(ask_in).min(), enough);
            if enough(&state) || timeout.is_some_and(|timeout| timeout <= self.waited(since)) {
                return Ok(state);
            }
            drop(state);
            if let Err(error) = self.ask() {
                // It may have ended just now: the engine forgets an operation before its handle is told.
                let state = self.slot.lock();
                if enough(&state) {
                    return Ok(state);
                }
                drop(state);
                if let Some(backend) = &self.backend {
                    backend.given_up(self.id, &error);
                }
                return Err(error);
            }
        }
    }

    /// Does work of the engine, and sleeps, until the state is `enough`, or for `patience`.
    fn sleep(&self, patience: Option<Duration>, enough: fn(&Resolution) -> bool) -> MutexGuard<'_, Resolution> {
        let since = self.followed.now();
        let is_enough = || enough(&self.slot.lock());
        if let Some(progress) = self.progress.as_ref().and_then(Weak::upgrade).filter(|_| !is_enough()) {
            progress.poll(&is_enough, patience.unwrap_or(Duration::MAX));
        }
        let mut guard = self.slot.lock();
        guard.waiters += 1;
        let waiting = |state: &mut Resolution| !enough(state);
        let mut guard = match patience {
            None => self.slot.changed.wait_while(guard, waiting).expect(LOCK),
            Some(patience) => {
                let rest = patience.saturating_sub(self.waited(since));
                self.slot.changed.wait_timeout_while(guard, rest, waiting).expect(LOCK).0
            }
        };
        guard.waiters -= 1;
        guard
    }

    fn waited(&self, since: Time) -> Duration {
        self.followed.now().since(since)
    }

    fn still_running(&self, since: Time) -> Error {
        Error::StillRunning { what: "the operation".to_owned(), waited: self.waited(since) }
    }

    /// How long a thread that waits does not ask yet whether the engine works at the operation.
    pub(super) fn trusted_for(&self) -> Duration {
        self.limit.as_ref().map_or(Duration::MAX, |limit| limit.left())
    }

    /// Fails if the engine should have ended the operation and has not.
    ///
    /// # Errors
    /// [`Error::Unresponsive`].
    fn ask(&self) -> Result<()> {
        let liveness = || self.backend.as_ref().map_or(Liveness::Stuck, |backend| backend.liveness(self.id));
        self.limit.as_ref().map_or(Ok(()), |limit| limit.ask(liveness))
    }

    /// Whether threads that wait for this handle give it up, because the engine does not work any more: then [`wait`](Self::wait) and
    /// [`follow`](Self::follow) return [`Error::Unresponsive`], and the memory stays in use.
    pub fn is_given_up(&self) -> bool {
        !self.is_issued() && self.ask().is_err() && !self.is_issued()
    }

    /// Whether [`follow`](Self::follow) returns at once: all work is on devices, or has ended.
    pub fn is_issued(&self) -> bool {
        self.slot.lock().is_issued()
    }

    /// Calls `listener` once [`follow`](Self::follow) returns at once: now, or later on an engine's thread. It must not block. A handle has
    /// one listener, the last.
    pub fn when_issued(&self, listener: impl FnOnce() + Send + 'static) {
        let mut state = self.slot.lock();
        if state.is_issued() {
            drop(state);
            return listener();
        }
        state.listener = Some(Box::new(listener));
    }

    /// The outcome, if there is one yet.
    pub fn outcome(&self) -> Option<Result<()>> {
        self.slot.lock().outcome.clone()
    }

    /// Cancels the operation. It resolves with [`Error::Cancelled`] once its memory is free, unless it has ended already.
    pub fn cancel(&self) {
        if let Some(backend) = &self.backend {
            backend.cancel(self.id);
        }
    }
}

/// A thread of the caller that waits, for the metrics and the flight recorder.
struct Waiting<'a> {
    handle: &'a Handle,
    since: Time,
}

impl<'a> Waiting<'a> {
    fn begin(handle: &'a Handle, since: Time) -> Self {
        if let Some(backend) = &handle.backend {
            backend.waits(since, handle.id);
        }
        Self { handle, since }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Self { handle, since } = *self;
        let now = handle.followed.now();
        handle.followed.count_blocked(now.since(since));
        if let Some(backend) = &handle.backend {
            backend.waited(now, handle.id, since);
        }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Resolution> {
        self.state.lock().expect(LOCK)
    }

    /// Releases the lock and wakes the threads that wait for a change.
    fn wake(&self, mut state: MutexGuard<'_, Resolution>) {
        let (waiters, listener) = (state.waiters, state.listener.take());
        drop(state);
        if let Some(listener) = listener {
            listener();
        }
        if waiters > 0 {
            self.changed.notify_all();
        }
    }
}

impl Resolution {
    fn is_resolved(&self) -> bool {
        self.outcome.is_some()
    }

    fn is_issued(&self) -> bool {
        self.is_resolved() || self.issued.is_some()
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
        let (handle, done) = Handle::new(1, None, Arc::default(), |_| {});
        assert!(matches!(handle.wait(Some(Duration::from_millis(1))), Err(Error::StillRunning { .. })));
        done.ok(());
        assert_eq!(handle.wait(None), Ok(()));
        assert_eq!(handle.wait(None), Ok(()), "again");
    }

    #[test]
    fn a_handle_is_followed_before_its_operation_ends_and_a_late_error_is_told_once() {
        let followed = Arc::new(Followed::default());
        let (sink, failure) = (Arc::clone(&followed), Error::Internal { what: "late".to_owned() });
        let ended = move |Ended { id, outcome, is_followed }: Ended<'_>| {
            assert!(is_followed);
            sink.end(id, outcome, "grad");
        };
        let (handle, done) = Handle::new(1, None, Arc::clone(&followed), ended);
        assert!(matches!(handle.follow(Some(Duration::ZERO), |_| Some(0)), Err(Error::StillRunning { .. })));
        let (sender, told) = std::sync::mpsc::channel();
        handle.when_issued(move || sender.send(()).expect("the test listens"));
        handle.issue()(Marks::default());
        assert_eq!(told.try_recv(), Ok(()), "whoever listens hears of it");
        assert!(handle.is_issued() && handle.outcome().is_none());
        assert_eq!(handle.follow(None, |_| Some(0)), Ok(()));
        done.err(failure.clone());
        assert_eq!(followed.check(), Err(failure.clone()));
        assert_eq!(handle.wait(None), Err(failure));
        assert_eq!(followed.check(), Ok(()));
    }

    #[test]
    fn a_callback_that_panics_keeps_nobody_asleep() {
        let (handle, done) = Handle::new(1, None, Arc::default(), |_| panic!("planted"));
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
        let (handle, done) = Handle::new(1, None, Arc::default(), |_| {});
        drop(done);
        assert!(matches!(handle.wait(None), Err(Error::Internal { .. })));
    }
}
