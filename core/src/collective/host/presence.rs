//! The presence of a rank, which says whether a writer must wake the rank, and its bells.
//!
//! # Sleeping without missing anything
//! A rank first publishes that it sleeps, then checks once more for records, and then sleeps on a word, its *bell*. A writer checks *after*
//! its write whether the reader sleeps, with a full fence between the two. So either the sleeper sees the write, or the writer sees that
//! the reader sleeps. The writer then *rings*: it changes the bell and wakes the sleeper. A reader that is awake costs the writer one load.

use crate::local::futex;
use crate::local::sync::{AtomicU32, Ordering, fence};

/// Which thread drives a rank.
///
/// ```text
///  Awake ◄──► Asleep        a thread drives it
///    │ leaves       ▲ knock
///    ▼              │
///  Idle, Awaited ───┘       no thread does; its own thread sleeps
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Presence {
    /// A thread drives it, or is about to, and will see new records.
    Awake = 0,
    /// The thread that drives it sleeps on its bell.
    Asleep = 1,
    /// No thread drives it, and it waits for nothing. Only urgent records may wake it.
    Idle = 2,
    /// No thread drives it. It waits for other ranks, or they wait for it.
    Awaited = 3,
}

/// The words of one rank with which others wake it.
pub(super) struct Bells<'a> {
    pub(super) presence: &'a AtomicU32,
    /// Changes when the thread that drives the rank is woken.
    pub(super) bell: &'a AtomicU32,
    /// Changes when the rank's own thread is woken.
    pub(super) idle: &'a AtomicU32,
}

impl Bells<'_> {
    /// Wakes the rank if its thread sleeps or if it waits for others. With `urgent`, also if it waits for nothing.
    pub(super) fn knock(&self, urgent: bool) {
        fence(Ordering::SeqCst);
        let found = self.presence.load(Ordering::Relaxed);
        let word = match found {
            found if found == Presence::Asleep as u32 => self.bell,
            found if found == Presence::Awaited as u32 => self.idle,
            found if found == Presence::Idle as u32 && urgent => self.idle,
            _ => return,
        };
        // If several ranks wake it at once, only one of them rings.
        let woken = self.presence.compare_exchange(found, Presence::Awake as u32, Ordering::SeqCst, Ordering::Relaxed);
        if woken.is_ok() {
            ring(word);
        }
    }

    /// Sets the presence of the rank. Afterwards the caller must check once more for new records.
    pub(super) fn appear(&self, presence: Presence) {
        self.presence.store(presence as u32, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// Changes a bell and wakes the threads that sleep on it.
pub(super) fn ring(bell: &AtomicU32) {
    bell.fetch_add(1, Ordering::AcqRel);
    futex::wake(bell);
}
