//! The lock that lets one thread at a time do the work of one side of shared memory.
//!
//! Two kinds of threads do this work. The side has a thread of its own. A *helper* is a thread that waits for a result of the work and does
//! the work itself meanwhile. There is at most one helper. The side's own thread waits while there is a helper. A helper does not wake the own
//! thread for that: the own thread notices the helper when it wakes next, and until then it sleeps and is not in the way.

use std::time::Duration;

use crate::local::progress::Spin;
use crate::local::sync::{AtomicBool, Condvar, Mutex, Ordering, PoisonError};

/// The lock of one side's work, and its helper.
pub(super) struct WorkLock {
    state: Mutex<State>,
    /// Notified when the lock is released and a thread waits for it.
    released: Condvar,
    helped: AtomicBool,
    /// Whether the side's own thread waits for the helper to leave.
    own_waits: Mutex<bool>,
    /// Notified when the helper leaves and the own thread waits.
    helper_left: Condvar,
}

struct State {
    /// The pace of the work. Absent while a thread holds the lock.
    spin: Option<Spin>,
    /// Threads that wait for the lock.
    waiters: u32,
}

/// The right to do the work. Dropping it releases the lock.
pub(super) struct WorkGuard<'a> {
    lock: &'a WorkLock,
    spin: Spin,
}

/// Says that the calling thread is the helper, until this is dropped.
pub(super) struct Helper<'a>(&'a WorkLock);

impl WorkLock {
    /// A lock that no thread holds.
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State { spin: Some(Spin::new()), waiters: 0 }),
            released: Condvar::new(),
            helped: AtomicBool::new(false),
            own_waits: Mutex::new(false),
            helper_left: Condvar::new(),
        }
    }

    /// Waits until no other thread works, at most for `patience`. `None` if another thread still works then.
    pub(super) fn lock(&self, patience: Option<Duration>) -> Option<WorkGuard<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.spin.is_none() {
            let is_held = |state: &mut State| state.spin.is_none();
            state.waiters += 1;
            state = match patience {
                None => self.released.wait_while(state, is_held).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    self.released.wait_timeout_while(state, patience, is_held).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.waiters -= 1;
        }
        state.spin.take().map(|spin| WorkGuard { lock: self, spin })
    }

    /// Whether there is a helper.
    pub(super) fn has_helper(&self) -> bool {
        self.helped.load(Ordering::SeqCst)
    }

    /// Makes the calling thread the helper, unless there is one.
    pub(super) fn help(&self) -> Option<Helper<'_>> {
        // The value must be built only for the thread that becomes the helper, because its drop says that the helper has left.
        if self.helped.swap(true, Ordering::SeqCst) { None } else { Some(Helper(self)) }
    }

    /// Waits until there is no helper. Only the side's own thread calls this.
    pub(super) fn wait_for_helper(&self) {
        let mut waits = self.own_waits.lock().unwrap_or_else(PoisonError::into_inner);
        while self.has_helper() {
            *waits = true;
            waits = self.helper_left.wait(waits).unwrap_or_else(PoisonError::into_inner);
        }
        *waits = false;
    }
}

impl WorkGuard<'_> {
    /// The pace of the work. All threads that hold the lock one after the other share it.
    pub(super) fn spin(&mut self) -> &mut Spin {
        &mut self.spin
    }
}

impl Drop for WorkGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.lock.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.spin = Some(std::mem::replace(&mut self.spin, Spin::new()));
        let is_awaited = state.waiters > 0;
        drop(state);
        if is_awaited {
            self.lock.released.notify_one();
        }
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        self.0.helped.store(false, Ordering::SeqCst);
        // Under the lock, so that an own thread which saw the helper waits already.
        let waits = self.0.own_waits.lock().unwrap_or_else(PoisonError::into_inner);
        if *waits {
            self.0.helper_left.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn one_thread_helps_at_a_time_however_often_others_ask() {
        let work = WorkLock::new();
        let helper = work.help();
        assert!(helper.is_some());
        for _ in 0..3 {
            assert!(work.help().is_none(), "a refused thread must not end the help of the first one");
            assert!(work.has_helper());
        }
        drop(helper);
        assert!(work.help().is_some());
    }

    #[test]
    fn the_own_thread_waits_until_the_helper_leaves() {
        let work = WorkLock::new();
        let (sender, back) = mpsc::channel();
        std::thread::scope(|scope| {
            let helper = work.help();
            let work = &work;
            scope.spawn(move || {
                work.wait_for_helper();
                sender.send(work.has_helper()).unwrap();
            });
            while !*work.own_waits.lock().unwrap() {
                std::thread::yield_now();
            }
            assert!(back.try_recv().is_err(), "there is a helper");
            drop(helper);
            assert_eq!(back.recv(), Ok(false));
        });
    }

    #[test]
    fn a_thread_waits_for_the_lock_no_longer_than_it_wants() {
        let work = WorkLock::new();
        let guard = work.lock(None).expect("free");
        assert!(work.lock(Some(Duration::from_millis(1))).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| work.lock(None).is_some());
            drop(guard);
            assert!(waiting.join().unwrap());
        });
        assert!(work.lock(Some(Duration::ZERO)).is_some(), "every thread has released it");
    }
}
