//! Delays callers that submit faster than operations end.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::error::{Error, Result};

/// Bounds the bytes of unresolved submissions: a producer that runs ahead waits here.
pub(super) struct Room {
    held: Mutex<Held>,
    freed: Condvar,
    bytes_max: u64,
}

#[derive(Default)]
struct Held {
    bytes: u64,
    /// Producers that wait for room.
    waiters: u32,
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
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { held: Mutex::default(), freed: Condvar::new(), bytes_max }
    }

    /// Waits until there is room for these bytes, and reserves them.
    pub(super) fn enter(room: &Arc<Self>, bytes: u64, timeout: Option<Duration>) -> Result<Entered> {
        let full = |held: &mut Held| held.bytes > 0 && held.bytes + bytes > room.bytes_max;
        let mut guard = room.held.lock().expect(LOCK);
        if full(&mut guard) {
            guard.waiters += 1;
            guard = match timeout {
                None => room.freed.wait_while(guard, full).expect(LOCK),
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
        let waiters = held.waiters;
        drop(held);
        if waiters > 0 {
            self.freed.notify_all();
        }
    }
}

const LOCK: &str = "nobody panics while holding it";
