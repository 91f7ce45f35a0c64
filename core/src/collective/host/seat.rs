//! The seat of a rank: what its threads share, so that one of them at a time drives the rank, and no work stays behind.
//!
//! The thread that has locked the driver has the *seat*. All others leave their requests with it.
//!
//! | word | who writes it | who reads it |
//! |---|---|---|
//! | `driver` | the thread in the seat | the same thread |
//! | `requests` | any thread, before it sets `requested` | the thread in the seat, after it has cleared `requested` |
//! | `requested` | set by any thread before it tries the seat, cleared in the seat | a thread that has just left the seat |
//! | `announced` | threads that are about to poll, until they have tried the seat | a thread before it leaves the seat |
//! | `naps_until` | the rank's own thread, before it tries the seat and sleeps | a thread before it leaves the seat |
//! | `leaves` | threads that end the rank; it only falls | the thread in the seat, and the rank's own thread |
//!
//! # No request stays behind
//! A thread sets `requested` and then tries the seat. A thread in the seat frees the lock and then reads `requested`. Between the two steps
//! both have a full fence. So if the first one found the seat taken, the second one sees `requested`, takes the seat again and handles what it
//! finds. If meanwhile a third one took the seat, that one reads `requested` when it leaves. This rests on every thread leaving by
//! [`rise`](Seat::rise) and looking again while it returns true.
//!
//! # No work stays behind
//! - A thread that finds work before it leaves may leave the work to an *announced* thread. That thread tries the seat and takes its
//!   announcement back. If it found the seat taken, it sets `requested` and tries again: then the thread in the seat looks once more, and nobody
//!   is announced any more.
//! - A thread that leaves wakes the own thread if a deadline comes before `naps_until`. The own thread stores `naps_until` first, and then
//!   sets `requested` and tries the seat. So the thread in the seat reads the new time before it leaves, or the own thread gets the seat and
//!   sees the deadline itself.
//! - Work that other ranks make is the matter of [`presence`](super::presence).

use std::collections::VecDeque;
use std::sync::TryLockError;

use crate::local::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence};
use crate::types::Time;

/// The seat of a rank with the driver `D`, for which others leave requests `R`.
#[derive(Debug)]
pub(super) struct Seat<D, R> {
    driver: Mutex<D>,
    requests: Mutex<VecDeque<R>>,
    requested: AtomicBool,
    announced: AtomicU32,
    naps_until: AtomicU64,
    leaves: AtomicU64,
}

impl<D, R> Seat<D, R> {
    /// A free seat of a rank that stays.
    pub(super) fn new(driver: D) -> Self {
        Self {
            driver: Mutex::new(driver),
            requests: Mutex::new(VecDeque::new()),
            requested: AtomicBool::new(false),
            announced: AtomicU32::new(0),
            naps_until: AtomicU64::new(0),
            leaves: AtomicU64::new(STAYS.0),
        }
    }

    /// Takes the seat if it is free.
    pub(super) fn sit_down(&self) -> Option<MutexGuard<'_, D>> {
        match self.driver.try_lock() {
            Ok(driver) => Some(driver),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("{LOCK}"),
        }
    }

    /// Takes the seat if it is free. If not, the thread in the seat looks for work once more after it has left.
    pub(super) fn sit_down_or_be_noticed(&self) -> Option<MutexGuard<'_, D>> {
        self.requested.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.sit_down()
    }

    /// Leaves a request, and takes the seat if it is free. If not, the thread in the seat handles the request.
    pub(super) fn request(&self, request: R) -> Option<MutexGuard<'_, D>> {
        self.requests.lock().expect(LOCK).push_back(request);
        self.sit_down_or_be_noticed()
    }

    /// Whether requests wait.
    #[cfg(test)]
    pub(super) fn has_requests(&self) -> bool {
        !self.requests.lock().expect(LOCK).is_empty()
    }

    /// Takes the seat, and waits for it as for any lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, D> {
        self.driver.lock().expect(LOCK)
    }

    /// The thread in the seat handles the requests. Returns whether there may have been any.
    pub(super) fn take_requests(&self, mut handle: impl FnMut(R)) -> bool {
        // A load first, because in most cases there are none, and a load leaves the word in the caches of other cores.
        if !self.requested.load(Ordering::SeqCst) || !self.requested.swap(false, Ordering::SeqCst) {
            return false;
        }
        loop {
            let Some(request) = self.requests.lock().expect(LOCK).pop_front() else { return true };
            handle(request);
        }
    }

    /// Leaves the seat. Returns true if the caller must take the seat again and handle requests, unless another thread has taken it.
    pub(super) fn rise(&self, driver: MutexGuard<'_, D>) -> bool {
        drop(driver);
        fence(Ordering::SeqCst);
        self.requested.load(Ordering::Relaxed)
    }

    /// This thread is about to poll. Whoever leaves the seat may leave work to it.
    pub(super) fn announce(&self) {
        self.announced.fetch_add(1, Ordering::SeqCst);
    }

    /// The announced thread takes the seat, or is noticed.
    pub(super) fn sit_down_announced(&self) -> Option<MutexGuard<'_, D>> {
        let driver = self.sit_down();
        self.announced.fetch_sub(1, Ordering::SeqCst);
        // The thread in the seat may be about to leave the work to this thread.
        driver.or_else(|| self.sit_down_or_be_noticed())
    }

    /// Whether another thread is about to poll.
    pub(super) fn is_announced(&self) -> bool {
        self.announced.load(Ordering::SeqCst) > 0
    }

    /// The rank's own thread sleeps until `time`, unless it is woken. [`Time::ZERO`] while it is awake.
    pub(super) fn nap_until(&self, time: Time) {
        self.naps_until.store(time.0, Ordering::SeqCst);
    }

    /// Until when the rank's own thread sleeps.
    pub(super) fn naps_until(&self) -> Time {
        Time(self.naps_until.load(Ordering::SeqCst))
    }

    /// The rank leaves the others at `time`, even if it is not finished. Of several times, the earliest counts.
    pub(super) fn leave_at(&self, time: Time) {
        self.leaves.fetch_min(time.0, Ordering::SeqCst);
    }

    /// When the rank leaves the others, which is never as long as it stays.
    pub(super) fn leaves(&self) -> Time {
        Time(self.leaves.load(Ordering::SeqCst))
    }

    /// Whether no thread has ended the rank.
    pub(super) fn stays(&self) -> bool {
        self.leaves() == STAYS
    }
}

const STAYS: Time = Time(u64::MAX);

const LOCK: &str = "nobody panics while driving";
