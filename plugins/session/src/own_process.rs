//! Values that a forked child must not drop: their threads exist only in the parent, so waiting for them would never end.

use std::ops::Deref;

use gradlane_core::local::process_id;

/// A value that only the process that made it drops. A forked child forgets its copy.
pub struct OwnProcess<T> {
    /// `Some` until the drop.
    value: Option<T>,
    pid: u32,
}

impl<T> OwnProcess<T> {
    /// Wraps a value of this process.
    pub fn new(value: T) -> Self {
        Self { value: Some(value), pid: process_id() }
    }

    /// The value.
    ///
    /// # Errors
    /// In a forked child, the process that made the value.
    pub fn own(&self) -> Result<&T, u32> {
        if self.pid == process_id() { Ok(self) } else { Err(self.pid) }
    }
}

impl<T> Deref for OwnProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("present until the drop")
    }
}

impl<T> Drop for OwnProcess<T> {
    fn drop(&mut self) {
        if self.pid != process_id() {
            std::mem::forget(self.value.take());
        }
    }
}
