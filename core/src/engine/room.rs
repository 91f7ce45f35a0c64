//! Delays callers that submit faster than operations end.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::local::sync::{Condvar, Mutex};
use crate::worker::Liveness;

/// Bounds the bytes of unresolved submissions: a producer that runs ahead waits here.
pub(super) struct Room {
    held: Mutex<Held>,
    freed: Condvar,
    bytes_max: u64,
    /// How long a producer waits while no submission ends.
    bound: Duration,
}

#[derive(Default)]
struct Held {
    bytes: u64,
    /// Producers that wait for room.
    waiters: u32,
    /// Counts the submissions that have ended.
    ended: u64,
}

/// Bytes that a submission holds until it ends: dropping it makes room for others.
pub(super) struct Entered {
    room: Arc<Room>,
    bytes: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.room.leave(self.bytes);
    }
}

impl Room {
    pub(super) fn new(bytes_max: u64, bound: Duration) -> Self {
        Self { held: Mutex::default(), freed: Condvar::new(), bytes_max, bound }
    }

    /// Waits until there is room for these bytes, and reserves them. Without a timeout it waits as long as submissions end, or the engine
    /// `works` at them.
    pub(super) fn enter(
        room: &Arc<Self>,
        bytes: u64,
        timeout: Option<Duration>,
        works: &dyn Fn() -> Liveness,
    ) -> Result<Entered> {
        let full = |held: &mut Held| held.bytes > 0 && held.bytes + bytes > room.bytes_max;
        let mut guard = room.held.lock().expect(LOCK);
        if full(&mut guard) {
            guard.waiters += 1;
            let mut patience = room.bound;
            guard = match timeout {
                None => loop {
                    let ended = guard.ended;
                    let waiting = |held: &mut Held| full(held) && held.ended == ended;
                    let (mut held, late) = room.freed.wait_timeout_while(guard, patience, waiting).expect(LOCK);
                    if !full(&mut held) {
                        break held;
                    }
                    patience = room.bound;
                    if late.timed_out() {
                        // Asked without the lock, because a thread of the engine may need it.
                        drop(held);
                        let found = works();
                        held = room.held.lock().expect(LOCK);
                        match found {
                            Liveness::Works { ask_in } => patience = ask_in,
                            Liveness::Stuck => break held,
                        }
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
        Ok(Entered { room: Arc::clone(room), bytes })
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
    use super::*;

    #[test]
    fn a_producer_gives_up_if_no_submission_ends() {
        let room = Arc::new(Room::new(10, Duration::from_millis(1)));
        let held = Room::enter(&room, 10, None, &|| Liveness::Stuck);
        assert!(matches!(Room::enter(&room, 1, None, &|| Liveness::Stuck), Err(Error::Exhausted { .. })));
        drop(held);
        assert!(Room::enter(&room, 1, None, &|| Liveness::Stuck).is_ok());
    }

    #[test]
    fn a_producer_waits_as_long_as_the_engine_works_at_a_long_submission() {
        let room = Arc::new(Room::new(10, Duration::from_millis(1)));
        let held = std::cell::Cell::new(Some(Room::enter(&room, 10, None, &|| Liveness::Stuck)));
        let asked = std::cell::Cell::new(0);
        let works = || {
            asked.set(asked.get() + 1);
            if asked.get() == 3 {
                drop(held.take());
            }
            Liveness::Works { ask_in: Duration::from_millis(1) }
        };
        assert!(Room::enter(&room, 1, None, &works).is_ok());
        assert_eq!(asked.get(), 3);
    }
}
