//! Delays callers that submit faster than operations end.

use std::sync::Arc;
use std::time::Duration;

use super::limit::GRACE;
use crate::error::{Error, Result};
use crate::local::sync::{Condvar, Mutex};
use crate::worker::Liveness;

/// Bounds the bytes of submissions that have not ended. A caller that submits faster waits here.
pub(super) struct SubmitBudget {
    held: Mutex<Held>,
    freed: Condvar,
    bytes_max: u64,
    /// How long a producer waits while no submission ends.
    bound: Duration,
    /// How long it waits once more after it found the engine stuck, as whoever waits for a handle does.
    grace: Duration,
}

#[derive(Default)]
struct Held {
    bytes: u64,
    /// Producers that wait for room.
    waiters: u32,
    /// Counts the submissions that have ended.
    ended: u64,
}

/// The bytes that a submission holds until it ends. Dropping this makes room for others.
pub(super) struct Reservation {
    room: Arc<SubmitBudget>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.room.leave(self.bytes);
    }
}

impl SubmitBudget {
    pub(super) fn new(bytes_max: u64, bound: Duration) -> Self {
        Self { held: Mutex::default(), freed: Condvar::new(), bytes_max, bound, grace: GRACE }
    }

    /// Waits until there is room for these bytes, and reserves them. Without a timeout it waits as long as submissions end, or the engine
    /// `works` at them.
    pub(super) fn enter(
        room: &Arc<Self>,
        bytes: u64,
        timeout: Option<Duration>,
        works: &dyn Fn() -> Liveness,
    ) -> Result<Reservation> {
        let full = |held: &mut Held| held.bytes > 0 && held.bytes + bytes > room.bytes_max;
        let mut guard = room.held.lock().expect(LOCK);
        if full(&mut guard) {
            guard.waiters += 1;
            let (mut patience, mut is_suspected) = (room.bound, false);
            guard = match timeout {
                None => loop {
                    let ended = guard.ended;
                    let waiting = |held: &mut Held| full(held) && held.ended == ended;
                    let (mut held, late) = room.freed.wait_timeout_while(guard, patience, waiting).expect(LOCK);
                    if !full(&mut held) {
                        break held;
                    }
                    if late.timed_out() {
                        // Asked without the lock, because a thread of the engine may need it.
                        drop(held);
                        let found = works();
                        held = room.held.lock().expect(LOCK);
                        (patience, is_suspected) = match found {
                            Liveness::Works { ask_in } => (ask_in, false),
                            Liveness::Stuck if !is_suspected => (room.grace, true),
                            Liveness::Stuck => break held,
                        };
                    } else {
                        (patience, is_suspected) = (room.bound, false);
                    }
                    guard = held;
                },
                Some(timeout) => room.freed.wait_timeout_while(guard, timeout, full).expect(LOCK).0,
            };
            guard.waiters -= 1;
        }
        if full(&mut guard) {
            return Err(Error::Exhausted {
                what: "bytes of unresolved submissions".to_owned(),
                limit: format!("{} B (submit_bytes_max)", room.bytes_max),
                hint: "wait for earlier handles, or raise GRADLANE_SUBMIT_BYTES_MAX".to_owned(),
            });
        }
        guard.bytes += bytes;
        drop(guard);
        Ok(Reservation { room: Arc::clone(room), bytes })
    }

    /// Waits until all submissions have ended, at most for `patience`, and as long as `longer` then says: each of them ends by itself.
    ///
    /// # Errors
    /// [`Error::StillRunning`] if some have not ended in time.
    pub(super) fn wait_until_empty(&self, patience: Duration, longer: &dyn Fn() -> Duration) -> Result<()> {
        let (mut left, mut waited) = (patience, Duration::ZERO);
        loop {
            let mut guard = self.held.lock().expect(LOCK);
            guard.waiters += 1;
            let (mut guard, _) = self.freed.wait_timeout_while(guard, left, |held| held.bytes > 0).expect(LOCK);
            guard.waiters -= 1;
            let bytes = guard.bytes;
            drop(guard);
            (waited, left) = (waited + left, longer());
            match bytes {
                0 => return Ok(()),
                _ if !left.is_zero() => {}
                bytes => {
                    return Err(Error::StillRunning {
                        what: format!("operations of this worker on {bytes} bytes"),
                        waited,
                    });
                }
            }
        }
    }

    fn leave(&self, bytes: u64) {
        let mut held = self.held.lock().expect(LOCK);
        held.bytes -= bytes;
        held.ended += 1;
        let waiters = held.waiters;
        drop(held);
        if waiters > 0 {
            self.freed.notify_all();
        }
    }
}

const LOCK: &str = "nobody panics while holding it";

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_producer_gives_up_if_no_submission_ends_and_the_engine_was_found_stuck_twice() {
        let room = full();
        let asked = Cell::new(0);
        let stuck = || {
            asked.set(asked.get() + 1);
            Liveness::Stuck
        };
        let held = SubmitBudget::enter(&room, 10, None, &stuck);
        assert!(matches!(SubmitBudget::enter(&room, 1, None, &stuck), Err(Error::Exhausted { .. })));
        assert_eq!(asked.get(), 2);
        drop(held);
        assert!(SubmitBudget::enter(&room, 1, None, &stuck).is_ok());
    }

    #[test]
    fn a_producer_waits_as_long_as_the_engine_works_at_a_long_submission() {
        let room = full();
        let held = Cell::new(Some(SubmitBudget::enter(&room, 10, None, &|| Liveness::Stuck)));
        let asked = Cell::new(0);
        let works = || {
            asked.set(asked.get() + 1);
            if asked.get() == 5 {
                drop(held.take());
            }
            // A process that was stopped for a while seems stuck at first.
            if asked.get() % 2 == 1 { Liveness::Stuck } else { Liveness::Works { ask_in: MOMENT } }
        };
        assert!(SubmitBudget::enter(&room, 1, None, &works).is_ok());
        assert_eq!(asked.get(), 5);
    }

    fn full() -> Arc<SubmitBudget> {
        Arc::new(SubmitBudget { grace: MOMENT, ..SubmitBudget::new(10, MOMENT) })
    }

    const MOMENT: Duration = Duration::from_millis(1);
}
