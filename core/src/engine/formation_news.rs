//! Tells the thread that follows formations that there is another one, or that it must end.

use std::sync::atomic::{AtomicBool, Ordering};

use super::bell::Bell;

/// What other threads tell the thread.
#[derive(Default)]
pub(super) struct FormationNews {
    bell: Bell,
    is_over: AtomicBool,
}

impl FormationNews {
    /// There is another formation.
    pub(super) fn follow(&self) {
        self.bell.ring();
    }

    /// There will be no more, and what the thread does now is given up.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    /// Whether the thread must end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Waits for another formation. Returns false if the thread must end instead.
    pub(super) fn wait(&self) -> bool {
        self.bell.wait();
        !self.is_over()
    }
}
