//! Runs the callbacks of operations that have ended, on one thread per session, which starts with the first callback.
//!
//! The engine's threads must not run foreign code: they hold the engine's lock when an operation ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use gradlane_core::{Error, Result};

/// A function of the caller, to be run once.
pub(super) type Callback = Box<dyn FnOnce() + Send>;

/// Whether the engine will not end an operation, because its threads are stuck.
pub(super) type GivenUp = Arc<dyn Fn() -> bool + Send + Sync>;

/// The callbacks of one session.
#[derive(Default)]
pub(super) struct Callbacks(Mutex<State>);

#[derive(Default)]
struct State {
    /// Callbacks of operations that have not ended, by the engine's number.
    waiting: BTreeMap<u64, (GivenUp, Callback)>,
    /// Operations that ended before their callback was registered.
    ended: BTreeSet<u64>,
    thread: Thread,
}

/// `NotStarted ── start ──► Runs ── finish ──► Finished`, and from `NotStarted` to `Finished` at once.
#[derive(Default)]
enum Thread {
    #[default]
    NotStarted,
    Runs(Sender<Callback>, JoinHandle<()>),
    Finished,
}

impl Callbacks {
    /// Starts the thread, unless it runs.
    ///
    /// # Errors
    /// [`Error::Io`] if the system cannot start a thread; [`Error::FailedPrecondition`] after [`finish`](Self::finish).
    pub(super) fn start(self: &Arc<Self>) -> Result<()> {
        let mut state = self.0.lock().expect(LOCK);
        match state.thread {
            Thread::Runs(..) => Ok(()),
            Thread::Finished => Err(Error::FailedPrecondition {
                what: "the session is being shut down".to_owned(),
                hint: "submit before gradlane_shutdown".to_owned(),
            }),
            Thread::NotStarted => {
                let (sender, receiver) = unbounded::<Callback>();
                let there = Arc::downgrade(self);
                let run = move || {
                    let give_up = || {
                        if let Some(callbacks) = there.upgrade() {
                            callbacks.run_given_up();
                        }
                    };
                    run_all(&receiver, give_up);
                };
                let thread = std::thread::Builder::new().name("gl-callbacks".to_owned()).spawn(run);
                let refused = |error: std::io::Error| Error::Io {
                    what: "starting the thread of callbacks".to_owned(),
                    cause: error.to_string(),
                };
                state.thread = Thread::Runs(sender, thread.map_err(refused)?);
                Ok(())
            }
        }
    }

    /// The function that the engine calls at the end of an operation. [`expect`](Self::expect) registers the operation's callback.
    pub(super) fn ended(self: &Arc<Self>) -> impl FnOnce(u64) + Send + use<> {
        let callbacks = Arc::clone(self);
        move |id| {
            let mut state = callbacks.0.lock().expect(LOCK);
            match state.waiting.remove(&id) {
                Some((_, callback)) => state.send(callback),
                // Or its callback has run, because it was given up.
                None => drop(state.ended.insert(id)),
            }
        }
    }

    /// Registers the callback of an operation that was submitted with [`ended`](Self::ended). It also runs when the operation is `given_up`.
    pub(super) fn expect(&self, id: u64, given_up: GivenUp, callback: Callback) {
        let mut state = self.0.lock().expect(LOCK);
        if state.ended.remove(&id) {
            state.send(callback);
        } else {
            state.waiting.insert(id, (given_up, callback));
        }
    }

    /// Runs the callbacks of operations that the engine does not end.
    fn run_given_up(&self) {
        // Asked without the lock: a handle that is being resolved keeps its own lock and waits for this one in `ended`.
        let asked: Vec<(u64, GivenUp)> = {
            let state = self.0.lock().expect(LOCK);
            state.waiting.iter().map(|(id, (given_up, _))| (*id, Arc::clone(given_up))).collect()
        };
        for id in asked.into_iter().filter(|(_, given_up)| given_up()).map(|(id, _)| id) {
            let mut state = self.0.lock().expect(LOCK);
            if let Some((_, callback)) = state.waiting.remove(&id) {
                state.send(callback);
            }
        }
    }

    /// Runs the callback of an operation that did not need the engine.
    pub(super) fn run(&self, callback: Callback) {
        self.0.lock().expect(LOCK).send(callback);
    }

    /// Whether the calling thread is that of the callbacks.
    pub(super) fn is_this_thread(&self) -> bool {
        let id: Option<ThreadId> = match &self.0.lock().expect(LOCK).thread {
            Thread::Runs(_, thread) => Some(thread.thread().id()),
            Thread::NotStarted | Thread::Finished => None,
        };
        id == Some(std::thread::current().id())
    }

    /// Waits until all callbacks have run, and ends the thread. The operations have ended, unless the engine is stuck.
    pub(super) fn finish(&self) {
        let before = {
            let mut state = self.0.lock().expect(LOCK);
            for (_, (_, callback)) in std::mem::take(&mut state.waiting) {
                state.send(callback);
            }
            std::mem::replace(&mut state.thread, Thread::Finished)
        };
        if let Thread::Runs(sender, thread) = before {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// Runs callbacks as they come, until no more can come. Calls `give_up` while none come, and now and then while many come.
fn run_all(receiver: &Receiver<Callback>, give_up: impl Fn()) {
    let mut run = 0_u32;
    loop {
        match receiver.recv_timeout(LOOK_EVERY) {
            Ok(callback) => {
                callback();
                run = run.wrapping_add(1);
                if run.is_multiple_of(CALLBACKS_PER_LOOK) {
                    give_up();
                }
            }
            Err(RecvTimeoutError::Timeout) => give_up(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl State {
    fn send(&self, callback: Callback) {
        match &self.thread {
            Thread::Runs(sender, _) => sender.send(callback).expect("the thread ends after its sender"),
            // The submission raced with the shutdown, which has ended it. Its callback still runs, outside of this lock.
            Thread::NotStarted | Thread::Finished => drop(std::thread::spawn(callback)),
        }
    }
}

/// How often the thread looks for operations that the engine does not end.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many callbacks run between two looks if they never stop coming.
const CALLBACKS_PER_LOOK: u32 = 64;

const LOCK: &str = "no thread panics while it holds this lock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_runs_once_its_operation_has_ended_in_whatever_order_the_two_are_told() {
        let callbacks = Arc::new(Callbacks::default());
        callbacks.start().unwrap();
        let (sender, receiver) = unbounded();
        let callback = |id: u64| {
            let sender = sender.clone();
            Box::new(move || sender.send(id).unwrap())
        };
        callbacks.ended()(1);
        assert!(receiver.is_empty());
        callbacks.expect(1, Arc::new(|| false), callback(1));
        callbacks.expect(2, Arc::new(|| false), callback(2));
        callbacks.ended()(2);
        callbacks.finish();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1, 2]);
        assert!(matches!(callbacks.start(), Err(Error::FailedPrecondition { .. })));
    }

    #[test]
    fn given_up_operations_are_looked_for_also_while_callbacks_never_stop_coming() {
        let (sender, receiver) = unbounded::<Callback>();
        for _ in 0..3 * CALLBACKS_PER_LOOK {
            sender.send(Box::new(|| {})).unwrap();
        }
        drop(sender);
        let looks = std::cell::Cell::new(0);
        run_all(&receiver, || looks.set(looks.get() + 1));
        assert_eq!(looks.get(), 3);
    }

    #[test]
    fn a_callback_runs_also_if_its_operation_was_given_up_and_only_once() {
        let callbacks = Arc::new(Callbacks::default());
        callbacks.start().unwrap();
        let (sender, receiver) = unbounded();
        callbacks.expect(1, Arc::new(|| true), Box::new(move || sender.send(1).unwrap()));
        callbacks.run_given_up();
        callbacks.ended()(1);
        callbacks.finish();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1]);
    }
}
