//! What must not be torn down in a forked child: its threads live in the parent only, and waiting for them would never end.

use std::ops::Deref;

/// A value that is dropped only by the process that made it; a forked child forgets its copy.
pub(crate) struct OwnProcess<T> {
    /// Present until the drop.
    value: Option<T>,
    pid: u32,
}

impl<T> OwnProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), pid: std::process::id() }
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
        if self.pid != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
