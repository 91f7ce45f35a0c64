//! A link of the model: answers that the server has written, and whether the worker's side sleeps.

use shuttle::sync::atomic::{AtomicBool, Ordering, fence};
use shuttle::sync::{Mutex, MutexGuard};

/// One link of a worker.
#[derive(Default)]
pub(super) struct Link {
    /// Numbers of the callers whose sums are here.
    answers: Mutex<Vec<usize>>,
    asleep: AtomicBool,
    outbound: Mutex<Outbound>,
}

/// The sending half, which has nothing to do in a model.
#[derive(Default)]
pub(super) struct Outbound;

impl Outbound {
    pub(super) fn has_work(&self) -> bool {
        false
    }
}

impl Link {
    pub(super) fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().expect("no panic")
    }

    pub(super) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    pub(super) fn has_news(&self) -> bool {
        !self.answers.lock().expect("no panic").is_empty()
    }

    /// The server writes an answer. Returns whether it must wake the worker.
    pub(super) fn answer(&self, caller: usize) -> bool {
        self.answers.lock().expect("no panic").push(caller);
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::SeqCst)
    }

    pub(super) fn drain(&self) -> Vec<usize> {
        std::mem::take(&mut self.answers.lock().expect("no panic"))
    }
}
