//! What was found in a contribution while it moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a contribution has a NaN or an infinity, as far as anybody has found one. Clones share it.
#[derive(Clone, Default, Debug)]
pub struct Finding(Arc<AtomicBool>);

impl Finding {
    /// There is one.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether there is one.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
