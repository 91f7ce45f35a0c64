//! Events: names for points in the queues of streams.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::capture::Captured;

/// A point in the work of a stream. Each record of an event makes a new one, so that whoever waited for an earlier record keeps waiting
/// for that.
#[derive(Default)]
pub(crate) struct Point {
    reached: Mutex<Option<Instant>>,
    news: Condvar,
}

impl Point {
    pub(crate) fn reach(&self) {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(crate::time::now());
        self.news.notify_all();
    }

    pub(crate) fn reached(&self) -> Option<Instant> {
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait(&self) {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.news.wait_while(reached, |reached| reached.is_none()).unwrap_or_else(PoisonError::into_inner));
    }
}

/// What `cuEventCreate` makes.
pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) flags: u32,
    last: Mutex<Last>,
}

/// The last record of an event.
#[derive(Clone, Default)]
pub(crate) enum Last {
    #[default]
    Never,
    In(Arc<Point>),
    /// In a stream under capture: a point of it, and of no queue.
    Captured(Captured),
}

impl Event {
    pub(crate) const BLOCKING_SYNC: u32 = 1;
    pub(crate) const DISABLE_TIMING: u32 = 2;
    pub(crate) const INTERPROCESS: u32 = 4;

    pub(crate) fn new(device: usize, flags: u32) -> Self {
        Self { device, flags, last: Mutex::default() }
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.flags & Self::DISABLE_TIMING == 0
    }

    pub(crate) fn record(&self, last: Last) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }

    pub(crate) fn last(&self) -> Last {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
