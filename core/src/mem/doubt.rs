//! Whether a device may still write memory whose operation was reported as failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tells the owners of memory when they must not free it, although its operation has ended.
///
/// An operation on a device must fail within a deadline. But a device, or a library that drives it, may not stop in time. Then the caller
/// gets the error, and the memory stays in doubt: its owner keeps it until [`exists`](Self::exists) returns false, and leaks it if the
/// process ends before. Memory that is freed too early belongs to another tensor when the device writes it.
///
/// One value serves a whole engine. Every clone is the same value.
#[derive(Clone, Debug, Default)]
pub struct Doubt(Arc<AtomicUsize>);

/// A reason for doubt. The doubt ends when the last reason is dropped.
#[derive(Debug)]
#[must_use = "the doubt ends when this is dropped"]
pub struct Reason(Doubt);

impl Doubt {
    /// Raises doubt about all memory that was lent. Call it before an operation is reported whose memory may still be written.
    pub fn raise(&self) -> Reason {
        self.0.fetch_add(1, Ordering::SeqCst);
        Reason(self.clone())
    }

    /// Whether some device may still write memory of an operation that has ended.
    pub fn exists(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Reason {
    /// Keeps the doubt for ever, because it is not known when the device stops.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Reason {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_lasts_as_long_as_its_last_reason() {
        let doubt = Doubt::default();
        let (first, second) = (doubt.raise(), doubt.clone().raise());
        drop(first);
        assert!(doubt.exists());
        drop(second);
        assert!(!doubt.exists());
        doubt.raise().keep();
        assert!(doubt.exists());
    }
}
