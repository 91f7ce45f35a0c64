//! The events that wait for the thread of a file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::event::Event;

/// Those of one file.
#[derive(Default, Debug)]
pub(super) struct Waiting {
    /// The lock is held to add an event, or to take all of them.
    events: Mutex<Vec<Event>>,
    /// How many found no room.
    lost: AtomicU64,
}

impl Waiting {
    /// Adds one; whether there was room.
    pub(super) fn add(&self, event: Event) -> bool {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = events.len() < EVENTS_WAITING_MAX;
        if has_room {
            events.push(event);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// All of them. `emptied` has none, and gives its memory for those that come next.
    pub(super) fn take(&self, mut emptied: Vec<Event>) -> Vec<Event> {
        std::mem::swap(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner), &mut emptied);
        emptied
    }

    /// How many found no room.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// So many events wait at most: some 15 MiB.
const EVENTS_WAITING_MAX: usize = 128 << 10;
