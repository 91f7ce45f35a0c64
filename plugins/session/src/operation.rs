//! An operation of a session, and the wait for the first of several.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::engine::Handle;
use gradlane_core::runtime::Clock;
use gradlane_core::types::{Effect, Time};

/// An operation that was begun in a session: a reduction, or a use of a parameter.
#[derive(Clone, Debug)]
pub struct Operation {
    handle: Handle,
    ends: Arc<Ends>,
}

impl Operation {
    pub(crate) fn new(handle: Handle, ends: &Arc<Ends>) -> Self {
        Self { handle, ends: Arc::clone(ends) }
    }

    /// One that has ended before the engine knew of it.
    pub(crate) fn ended(outcome: Result<()>) -> Self {
        Self::new(Handle::resolved(0, outcome), &Arc::default())
    }

    /// The engine's handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What a use of a parameter has come to, once the operation has ended well. `None` of a reduction; see [`Handle::effect`].
    pub fn effect(&self) -> Option<Effect> {
        self.handle.effect()
    }

    /// Whether it has ended, well or not, or was given up because the engine is stuck: then [`Handle::wait`] returns at once.
    pub fn has_ended(&self) -> bool {
        self.handle.outcome().is_some() || self.handle.is_given_up()
    }
}

/// Waits until one of the groups of operations has ended, at most for `patience`. Returns the position of the first one that has; `None` if
/// the time passes first. A group ends when all of its operations have ended.
pub fn wait_any(groups: &[Vec<Operation>], patience: Duration) -> Option<usize> {
    let first = || groups.iter().position(|group| group.iter().all(Operation::has_ended));
    // Those of other sessions have ended, or are looked at now and then.
    match groups.iter().flatten().find(|operation| !operation.has_ended()) {
        Some(operation) => operation.ends.wait_until(first, patience),
        None => first(),
    }
}

/// Counts the operations of a session that have ended, and wakes threads that wait for the next end.
#[derive(Default, Debug)]
pub(crate) struct Ends {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default, Debug)]
struct State {
    count: u64,
    /// Wakes only if a thread waits, because a wake is a system call.
    waiters: u32,
}

impl Ends {
    /// Calls `then` at the end of an operation, and wakes the threads that wait for an end.
    pub(crate) fn noting(
        self: &Arc<Self>,
        then: impl FnOnce(u64) + Send + 'static,
    ) -> impl FnOnce(u64) + Send + 'static {
        let ends = Arc::clone(self);
        move |id| {
            then(id);
            ends.note();
        }
    }

    fn note(&self) {
        let mut state = self.lock();
        state.count += 1;
        if state.waiters > 0 {
            self.changed.notify_all();
        }
    }

    /// Calls `look` until it finds something: now, and after each end. `None` if `patience` passes first.
    fn wait_until<T>(&self, look: impl Fn() -> Option<T>, patience: Duration) -> Option<T> {
        let clock = Clock::start();
        let mut state = self.lock();
        state.waiters += 1;
        let found = loop {
            let seen = state.count;
            // An operation that ends calls `note` under the lock of its handle, for which `look` asks.
            drop(state);
            let found = look();
            state = self.lock();
            let left = patience.saturating_sub(clock.now().since(Time::ZERO));
            if found.is_some() || left.is_zero() {
                break found;
            }
            let unchanged = |state: &mut State| state.count == seen;
            let woken = self.changed.wait_timeout_while(state, left.min(LOOK_EVERY), unchanged);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.waiters -= 1;
        found
    }

    /// A thread that panics with this lock leaves two consistent numbers.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often a thread that waits looks for operations that nobody tells of: the engine was given up, or they are of another session.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_group_whose_operations_have_all_ended_is_found() {
        let ends = Arc::default();
        let ended = |id| Operation::new(Handle::resolved(id, Ok(())), &ends);
        assert_eq!(wait_any(&[vec![ended(1), ended(2)], vec![]], Duration::ZERO), Some(0));
        assert_eq!(wait_any(&[], Duration::ZERO), None);
    }

    #[test]
    fn a_thread_that_waits_looks_again_after_each_end_and_its_time_is_bounded() {
        let ends: Arc<Ends> = Arc::default();
        let found = Arc::new(Mutex::new(None));
        assert_eq!(ends.wait_until(|| *found.lock().unwrap(), Duration::from_millis(1)), None);
        let waiting = std::thread::spawn({
            let (ends, found) = (Arc::clone(&ends), Arc::clone(&found));
            move || ends.wait_until(|| *found.lock().unwrap(), Duration::from_secs(600))
        });
        ends.noting(|_| {})(1);
        *found.lock().unwrap() = Some(7);
        ends.noting(|_| {})(2);
        assert_eq!(waiting.join().unwrap(), Some(7));
        let State { count, waiters } = *ends.lock();
        assert_eq!((count, waiters), (2, 0));
    }
}
