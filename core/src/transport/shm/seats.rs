//! Who does the work of one side: its own thread, or a thread that waits for what this work brings about.
//!
//! Works only who sits. A helper comes and goes as often as it waits for something; the thread steps aside when it notices one, and is not
//! woken for that: while it sleeps, it is in nobody's way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::local::progress::Spin;

/// One seat, and at most one helper beside the thread.
pub(super) struct Seats {
    seat: Mutex<Spin>,
    helped: AtomicBool,
    /// Whether the thread waits for the helper to leave.
    aside: Mutex<bool>,
    alone: Condvar,
}

/// A thread that helps, until this is dropped.
pub(super) struct Helper<'a>(&'a Seats);

impl Seats {
    /// An empty seat.
    pub(super) fn new() -> Self {
        let (seat, helped, aside) = (Mutex::new(Spin::new()), AtomicBool::new(false), Mutex::new(false));
        Self { seat, helped, aside, alone: Condvar::new() }
    }

    /// Waits until no thread works.
    pub(super) fn sit_down(&self) -> MutexGuard<'_, Spin> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a helper.
    pub(super) fn has_helper(&self) -> bool {
        self.helped.load(Ordering::SeqCst)
    }

    /// Makes the calling thread the helper, unless there is one.
    pub(super) fn help(&self) -> Option<Helper<'_>> {
        (!self.helped.swap(true, Ordering::SeqCst)).then_some(Helper(self))
    }

    /// Waits until there is no helper.
    pub(super) fn step_aside(&self) {
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        while self.has_helper() {
            *aside = true;
            aside = self.alone.wait(aside).unwrap_or_else(PoisonError::into_inner);
        }
        *aside = false;
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        self.0.helped.store(false, Ordering::SeqCst);
        // Under the lock, so that a thread which saw the helper already waits.
        let aside = self.0.aside.lock().unwrap_or_else(PoisonError::into_inner);
        if *aside {
            self.0.alone.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn one_thread_helps_at_a_time() {
        let seats = Seats::new();
        let helper = seats.help();
        assert!(helper.is_some() && seats.help().is_none());
        drop(helper);
        assert!(seats.help().is_some());
    }

    #[test]
    fn the_thread_steps_aside_until_the_helper_leaves() {
        let seats = Seats::new();
        let (sender, back) = mpsc::channel();
        std::thread::scope(|scope| {
            let helper = seats.help();
            let seats = &seats;
            scope.spawn(move || {
                seats.step_aside();
                sender.send(seats.has_helper()).unwrap();
            });
            while !*seats.aside.lock().unwrap() {
                std::thread::yield_now();
            }
            assert!(back.try_recv().is_err(), "there is a helper");
            drop(helper);
            assert_eq!(back.recv(), Ok(false));
        });
    }
}
