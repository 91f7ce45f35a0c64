//! Writes a timeline in Chrome's trace format, on a thread of its own.
//!
//! Viewers read times as doubles of microseconds. Since 1970 those have steps of 0.25 µs, so spans would seem to leave those around them.
//! So the times of a file count from the origin of the engine's clock, and the first line says when that was: `gradlane_timeline`. Further
//! lines, `gradlane_clock`, say what the wall clock and the coordinator's clock show, every 5 s and at the end: somebody may set the
//! first one meanwhile, and the second one drifts.
//!
//! Whoever sends an event puts it where it waits, and wakes nobody: the thread comes by itself, every 20 ms. So an event costs its sender
//! tens of nanoseconds, and the thread seldom takes a core from the engine.
//!
//! A row of a part says what holds for all its spans, and spans say what differs, so that their lines are short: the tensor, key and part, and
//! of a worker's row the bytes, priority and server.
//!
//! The file is an array of events, a line each, that is closed at the end; viewers read one that is not. Whole lines are written whenever
//! nothing more waits, so a process that is killed leaves a file that can be read, without its last moments. The number of events that wait is
//! bounded, and so are the bytes of the file; what finds no room is counted, and the last line says how much that was.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::metrics::{Sink, TraceCounts};

mod event;
mod file;
mod lines;
mod owner;
mod waiting;
mod window;

pub use event::{Event, Note, Subject, Thread, Times};
use file::TimelineFile;
pub use owner::{Clocks, Owner};
use waiting::Waiting;
pub use window::{Gate, Window};

/// An open file. Dropping it completes the file.
#[derive(Debug)]
pub struct Writer {
    waiting: Arc<Waiting>,
    counts: TraceCounts,
    threads: Mutex<BTreeSet<u64>>,
    /// Its end is that of the file.
    until: Option<Sender<()>>,
    thread: OwnThread,
}

impl Writer {
    /// Creates the file and the folders above it, and starts the thread. The events are counted in `counts`.
    ///
    /// # Errors
    /// [`Error::Io`] with the path.
    pub fn open(path: &Path, owner: Owner, bytes_max: u64, clocks: Clocks, counts: TraceCounts) -> Result<Self> {
        let waiting = Arc::new(Waiting::default());
        let file = TimelineFile::create(path, owner, bytes_max, clocks).map_err(|error| Error::Io {
            what: format!("writing the timeline {}", path.display()),
            cause: error.to_string(),
        })?;
        let (until, ends) = bounded(0);
        let (source, taken) = (Arc::clone(&waiting), counts.clone());
        let thread = OwnThread::start("gl-timeline", move || file.fill(&source, &taken, &ends))?;
        Ok(Self { waiting, counts, threads: Mutex::default(), until: Some(until), thread })
    }

    /// Has an event written, unless so many wait that there is no room; whether there was. Never waits for the file.
    pub fn send(&self, event: Event) -> bool {
        let has_room = self.waiting.add(event);
        if !has_room {
            self.counts.events.add(Sink::Timeline, 1);
            self.counts.lost.add(Sink::Timeline, 1);
        }
        has_room
    }

    /// Names the row of a thread, once.
    pub fn thread(&self, thread: Thread<'_>) {
        let mut known = self.threads.lock().expect("nobody panics while holding it");
        if !known.contains(&thread.id) && self.send(Event::Thread { row: thread.id, name: thread.name.to_owned() }) {
            known.insert(thread.id);
        }
    }

    /// Completes the file on a thread of its own, because the caller must not wait.
    pub fn end_apart(self) {
        let completed = std::thread::Builder::new().name("gl-timeline-end".to_owned()).spawn(move || drop(self));
        if let Err(error) = completed {
            // The closure is dropped, and with it the file is completed here.
            tracing::warn!(%error, "the end of a timeline had to be waited for");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.until = None;
        self.thread.join(WRITING);
    }
}

/// How long the end of a timeline waits for its file to be written. After that the rest is written in the background.
const WRITING: Duration = Duration::from_secs(10);
