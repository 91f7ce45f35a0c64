//! Inline execution: the thread that finds work does it, and other threads that find more of it meanwhile leave it to that thread.

use crate::local::sync::{AtomicBool, Mutex, Ordering};

/// Serialises inline execution of some stages, so that their tasks keep the order in which the scheduler gives them.
#[derive(Default)]
pub(super) struct Inline {
    /// The thread that holds this lock executes.
    turn: Mutex<()>,
    /// Whether there may be tasks.
    waiting: AtomicBool,
}

impl Inline {
    /// Calls `work`, which does all work that it finds. Only one thread does so at a time. That thread calls it again for every other thread
    /// that came meanwhile, so that no work is left when the last of them has returned.
    pub(super) fn run(&self, mut work: impl FnMut()) {
        self.waiting.store(true, Ordering::SeqCst);
        while self.waiting.load(Ordering::SeqCst) {
            let Ok(turn) = self.turn.try_lock() else { return };
            while self.waiting.swap(false, Ordering::SeqCst) {
                work();
            }
            drop(turn);
        }
    }
}
