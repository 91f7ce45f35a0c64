//! The thread that reports when work on devices has ended.
//!
//! It polls the first event of every stream, and sleeps on its channel while no event is pending. Nobody else waits for a device. The
//! alternatives are worse: a callback of the driver comes 100 µs late and may not call the driver, and an event that blocks a thread needs
//! a thread per stream.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::codes::name;
use super::event::Event;
use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::mem::Ordinal;
use crate::types::Done;

/// The reaper. One serves all devices of a process.
pub(crate) struct Reaper {
    inbox: Sender<Message>,
    thread: OwnThread,
    /// Whether a pending event was given up, so that its work may still run.
    gave_up: Arc<AtomicBool>,
}

enum Message {
    Watch(Watched),
    /// The end: pending events fail at this time.
    End {
        at: Instant,
    },
}

struct Watched {
    event: Arc<Event>,
    what: &'static str,
    done: Done<()>,
}

impl Reaper {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Io`] if the system cannot start a thread.
    pub(crate) fn start() -> Result<Self> {
        let (inbox, messages) = unbounded();
        let gave_up = Arc::new(AtomicBool::new(false));
        let watch = Watch { gave_up: Arc::clone(&gave_up), ..Watch::default() };
        let thread = OwnThread::start("gl-reaper", move || watch.run(&messages))?;
        Ok(Self { inbox, thread, gave_up })
    }

    /// Calls `done` when `event` is reached, or with the error of its device. If a device fails, all events that are pending on it fail.
    /// `what` names the work in the error.
    ///
    /// `done` is called on the reaper's thread and must not block. There is no deadline here, because a stream may wait long for other
    /// machines; the submitter has its own deadline.
    pub(crate) fn when(&self, event: Arc<Event>, what: &'static str, done: Done<()>) {
        if let Err(unsent) = self.inbox.send(Message::Watch(Watched { event, what, done }))
            && let Message::Watch(Watched { done, .. }) = unsent.into_inner()
        {
            done.err(ended());
        }
    }

    /// Waits until all pending events are reached, at most for `patience`; the rest end with an error. Returns whether all were reached. If
    /// not, a device may still use the memory. Idempotent.
    pub(crate) fn shutdown(&self, patience: Duration) -> bool {
        let at = now() + patience;
        // The thread may have ended already.
        let _ = self.inbox.send(Message::End { at });
        self.thread.join(patience);
        !self.gave_up.load(Ordering::Acquire)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

impl std::fmt::Debug for Reaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reaper")
    }
}

/// The pending events of each stream in order. The points of one stream are reached in order, and streams do not delay each other.
#[derive(Default)]
struct Watch {
    streams: BTreeMap<(Ordinal, usize), VecDeque<Watched>>,
    /// The device whose context the thread has.
    bound: Option<Ordinal>,
    end: Option<Instant>,
    gave_up: Arc<AtomicBool>,
}

impl Watch {
    fn run(mut self, messages: &Receiver<Message>) {
        // By default the kernel adds up to 50 µs to every sleep of a thread, which is five times the shortest sleep here.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut quiet_since = now();
        loop {
            if self.streams.is_empty() {
                if self.end.is_some() && messages.is_empty() {
                    return;
                }
                match messages.recv() {
                    Ok(message) => self.take(message),
                    Err(_gone) => return,
                }
                quiet_since = now();
            }
            // Before polling, so that the newest events are polled too.
            messages.try_iter().for_each(|message| self.take(message));
            if self.ask() {
                quiet_since = now();
                continue;
            }
            let now = now();
            if self.end.is_some_and(|end| now >= end) {
                return self.fail_all(messages);
            }
            match messages.recv_timeout(nap(now - quiet_since)) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.fail_all(messages),
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Watch(watched) => {
                let key = (watched.event.context().device(), watched.event.stream());
                self.streams.entry(key).or_default().push_back(watched);
            }
            Message::End { at } => self.end = Some(self.end.map_or(at, |end| end.min(at))),
        }
    }

    /// Polls the first events of all streams; returns whether any was reached.
    fn ask(&mut self) -> bool {
        let mut any = false;
        let mut faults = BTreeMap::new();
        let bound = &mut self.bound;
        self.streams.retain(|(device, _), queue| {
            while let Some(first) = queue.front() {
                if faults.contains_key(device) {
                    break;
                }
                match is_reached(first, bound) {
                    Ok(false) => break,
                    Ok(true) => {
                        any = true;
                        queue.pop_front().expect("looked at just now").done.ok(());
                    }
                    Err(error) => {
                        faults.insert(*device, error);
                    }
                }
            }
            !queue.is_empty()
        });
        for (device, error) in faults {
            any = true;
            self.fail(device, &error);
        }
        any
    }

    /// Fails all pending events of `device`, because a device does nothing more after a fault.
    fn fail(&mut self, device: Ordinal, error: &Error) {
        tracing::error!(device = name(device), %error, "a device failed");
        self.streams.retain(|(of, _), queue| {
            if *of == device {
                queue.drain(..).for_each(|watched| watched.done.err(of_work(error, watched.what)));
            }
            *of != device
        });
    }

    fn fail_all(mut self, messages: &Receiver<Message>) {
        messages.try_iter().for_each(|message| self.take(message));
        for watched in std::mem::take(&mut self.streams).into_values().flatten() {
            self.gave_up.store(true, Ordering::Release);
            watched.done.err(ended());
        }
    }
}

/// Polls the event, in the context of its device.
fn is_reached(watched: &Watched, bound: &mut Option<Ordinal>) -> Result<bool> {
    let context = watched.event.context();
    if *bound != Some(context.device()) {
        context.bind()?;
        *bound = Some(context.device());
    }
    watched.event.is_reached(watched.what)
}

/// Returns `error` with `what` as the failed work, so that each waiter reads the name of its own work.
fn of_work(error: &Error, what: &str) -> Error {
    match error {
        Error::Device { device, tensor, cause, .. } => {
            let (device, tensor, cause) = (device.clone(), tensor.clone(), cause.clone());
            Error::Device { device, what: what.to_owned(), tensor, cause }
        }
        other => other.clone(),
    }
}

/// How long to sleep if no event was reached for `quiet`: a hundredth of it. So a waiter waits at most one per cent longer than necessary,
/// and a long wait takes little processor time. The lower bound is the time of a few queries; the upper bound is too short for a user to
/// notice.
fn nap(quiet: Duration) -> Duration {
    (quiet / 100).clamp(Duration::from_micros(5), Duration::from_micros(200))
}

fn ended() -> Error {
    Error::FailedPrecondition {
        what: "the engine was shut down before the device had done its work".to_owned(),
        hint: "wait for all handles before shutdown".to_owned(),
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a device takes is measured where it is waited for")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_short_against_what_was_waited_for_already() {
        assert_eq!(nap(Duration::ZERO), Duration::from_micros(5));
        assert_eq!(nap(Duration::from_millis(2)), Duration::from_micros(20));
        assert_eq!(nap(Duration::from_secs(9)), Duration::from_micros(200));
    }

    #[test]
    fn a_reaper_without_work_ends_at_once_and_only_once() {
        let reaper = Reaper::start().unwrap();
        assert!(reaper.shutdown(Duration::from_secs(5)));
        assert!(reaper.shutdown(Duration::from_secs(5)));
    }
}
