//! Values that a forked child must not tear down: their threads live in the parent only, and waiting for them would never end.

use std::ops::Deref;

/// A value that is dropped only by the process that made it. A forked child forgets its copy.
pub struct OwnProcess<T> {
    /// Present until the drop.
    value: Option<T>,
    pid: u32,
}

impl<T> OwnProcess<T> {
    /// Takes the value over for this process.
    pub fn new(value: T) -> Self {
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
