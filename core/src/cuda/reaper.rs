//! The thread that turns what happens on devices into outcomes.
//!
//! It asks the first event of every stream now and then whether it is reached, and sleeps on its channel while nothing is pending. Nobody
//! else waits for a device: a callback of the driver comes 100 µs late and may not call the driver, and an event that blocks a thread
//! takes a thread for each stream.

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

/// Hears of events. One serves all devices of a process.
pub(crate) struct Reaper {
    inbox: Sender<Message>,
    thread: OwnThread,
    /// Whether something was given up that may still be done.
    gave_up: Arc<AtomicBool>,
}

enum Message {
    Watch(Watched),
    /// Nothing comes any more; what is pending then has failed.
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
    /// [`Error::Io`] if the system gives none.
    pub(crate) fn start() -> Result<Self> {
        let (inbox, messages) = unbounded();
        let gave_up = Arc::new(AtomicBool::new(false));
        let watch = Watch { gave_up: Arc::clone(&gave_up), ..Watch::default() };
        let thread = OwnThread::start("gradlane-reaper", move || watch.run(&messages))?;
        Ok(Self { inbox, thread, gave_up })
    }

    /// Reports to `done` that `event` is reached, or how its device failed: then all that is pending on that device fails. `what` is the
    /// work whose end it is, for the error.
    ///
    /// `done` is called on the reaper's thread and must not block. There is no deadline here: a stream that waits for its machine may wait
    /// long, and the submitter knows how long is too long.
    pub(crate) fn when(&self, event: Arc<Event>, what: &'static str, done: Done<()>) {
        if let Err(unsent) = self.inbox.send(Message::Watch(Watched { event, what, done }))
            && let Message::Watch(Watched { done, .. }) = unsent.into_inner()
        {
            done.err(ended());
        }
    }

    /// Waits until all that is pending is done, at most for `patience`; what is not done then ends with an error. Whether all was done: if
    /// not, a device may still use the memory. Idempotent.
    pub(crate) fn shutdown(&self, patience: Duration) -> bool {
        let at = now() + patience;
        // The first outcome decides. A thread that has ended needs none.
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

/// What is pending, in the order of each stream: streams do not hold each other up, and the points of one are reached in order.
#[derive(Default)]
struct Watch {
    streams: BTreeMap<(Ordinal, usize), VecDeque<Watched>>,
    /// Whose context the thread has.
    bound: Option<Ordinal>,
    end: Option<Instant>,
    gave_up: Arc<AtomicBool>,
}

impl Watch {
    fn run(mut self, messages: &Receiver<Message>) {
        // The kernel adds up to 50 µs to every sleep of a thread that does not ask for less; it is five times what is slept here.
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
            // Before asking, so that what was submitted last is asked for as well.
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

    /// Asks the first events of all streams; whether any was reached.
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

    /// Fails all that is pending on `device`: after a fault nothing is done on it any more.
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

/// Asks, after the thread has taken the context of the event's device.
fn is_reached(watched: &Watched, bound: &mut Option<Ordinal>) -> Result<bool> {
    let context = watched.event.context();
    if *bound != Some(context.device()) {
        context.bind()?;
        *bound = Some(context.device());
    }
    watched.event.is_reached(watched.what)
}

/// `error` as that of `what`, so that each waiter reads what it waited for.
fn of_work(error: &Error, what: &str) -> Error {
    match error {
        Error::Device { device, cause, .. } => {
            Error::Device { device: device.clone(), what: what.to_owned(), cause: cause.clone() }
        }
        other => other.clone(),
    }
}

/// How long to sleep when nothing was reached for `quiet`: a hundredth of it, so that no waiter waits more than a hundredth longer than it must, and
/// little processor time goes into a long wait. The bounds are a few queries, and what a person does not see.
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
