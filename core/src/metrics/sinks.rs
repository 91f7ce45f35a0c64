//! A cell that counts events of a process by where they go: its flight recorder, or its timeline.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cells::Cell;
use super::instance::Value;

/// Where events go that say what a process did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sink {
    /// The flight recorder.
    Recorder,
    /// The timeline.
    Timeline,
}

impl Sink {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Recorder, Self::Timeline];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recorder => "recorder",
            Self::Timeline => "timeline",
        }
    }
}

/// A count for each [`Sink`]. All clones are one.
#[derive(Clone, Debug)]
pub struct BySink(Arc<[AtomicU64; Sink::ALL.len()]>);

impl BySink {
    /// Adds to the count of a sink.
    pub fn add(&self, sink: Sink, by: u64) {
        self.0[sink as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Sets the count of a sink, which counts itself.
    pub fn set(&self, sink: Sink, count: u64) {
        self.0[sink as usize].store(count, Ordering::Relaxed);
    }
}

impl Default for BySink {
    fn default() -> Self {
        Self(Arc::new(array::from_fn(|_| AtomicU64::new(0))))
    }
}

impl Cell for BySink {
    fn value(&self) -> Value {
        let count = |sink: Sink| (vec![sink.name().to_owned()], self.0[sink as usize].load(Ordering::Relaxed));
        Value::Family(Sink::ALL.map(count).to_vec())
    }
}
