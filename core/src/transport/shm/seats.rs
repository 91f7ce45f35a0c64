//! Decides which thread does the work of one side: the side's own thread, or a thread that waits for a result of this work.
//!
//! A thread works only while it has the seat. A helper comes and goes as often as it waits for something. The side's own thread steps aside
//! when it notices a helper. It is not woken for that, because a sleeping thread disturbs nobody.

use std::time::Duration;

use crate::local::progress::Spin;
use crate::local::sync::{AtomicBool, Condvar, Mutex, Ordering, PoisonError};

/// One seat, and at most one helper beside the side's own thread.
pub(super) struct Seats {
    seat: Mutex<Chair>,
    vacated: Condvar,
    helped: AtomicBool,
    /// Whether the side's own thread waits for the helper to leave.
    aside: Mutex<bool>,
    alone: Condvar,
}

struct Chair {
    /// The pace of the work; absent while a thread has the seat.
    spin: Option<Spin>,
    /// Threads that wait for the seat.
    waiters: u32,
}

/// The seat. The thread gives it up when it drops this.
pub(super) struct Seat<'a> {
    seats: &'a Seats,
    spin: Spin,
}

/// A thread that helps, until this is dropped.
pub(super) struct Helper<'a>(&'a Seats);

impl Seats {
    /// An empty seat.
    pub(super) fn new() -> Self {
        Self {
            seat: Mutex::new(Chair { spin: Some(Spin::new()), waiters: 0 }),
            vacated: Condvar::new(),
            helped: AtomicBool::new(false),
            aside: Mutex::new(false),
            alone: Condvar::new(),
        }
    }

    /// Waits until no other thread works, at most for `patience`. `None` if another thread still works then.
    pub(super) fn sit_down(&self, patience: Option<Duration>) -> Option<Seat<'_>> {
        let mut chair = self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        if chair.spin.is_none() {
            let taken = |chair: &mut Chair| chair.spin.is_none();
            chair.waiters += 1;
            chair = match patience {
                None => self.vacated.wait_while(chair, taken).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    self.vacated.wait_timeout_while(chair, patience, taken).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            chair.waiters -= 1;
        }
        chair.spin.take().map(|spin| Seat { seats: self, spin })
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

impl Seat<'_> {
    /// The pace of the work of all threads that sit here one after the other.
    pub(super) fn spin(&mut self) -> &mut Spin {
        &mut self.spin
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut chair = self.seats.seat.lock().unwrap_or_else(PoisonError::into_inner);
        chair.spin = Some(std::mem::replace(&mut self.spin, Spin::new()));
        let is_awaited = chair.waiters > 0;
        drop(chair);
        if is_awaited {
            self.seats.vacated.notify_one();
        }
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
    fn one_thread_helps_at_a_time_however_often_others_ask() {
        let seats = Seats::new();
        let helper = seats.help();
        assert!(helper.is_some());
        for _ in 0..3 {
            assert!(seats.help().is_none(), "a refused thread must not end the help of the first one");
            assert!(seats.has_helper());
        }
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

    #[test]
    fn a_thread_waits_for_the_seat_no_longer_than_it_wants() {
        let seats = Seats::new();
        let seat = seats.sit_down(None).expect("free");
        assert!(seats.sit_down(Some(Duration::from_millis(1))).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| seats.sit_down(None).is_some());
            drop(seat);
            assert!(waiting.join().unwrap());
        });
        assert!(seats.sit_down(Some(Duration::ZERO)).is_some(), "every thread has given it up");
    }
}
