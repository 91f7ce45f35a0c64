//! What must not be torn down in a forked child: its threads live in the parent only, and waiting for them would never end.

use std::mem::ManuallyDrop;
use std::ops::Deref;

/// A value that is dropped only by the process that made it; a forked child forgets its copy.
pub(crate) struct OwnProcess<T> {
    value: ManuallyDrop<T>,
    pid: u32,
}

impl<T> OwnProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), pid: std::process::id() }
    }
}

impl<T> Deref for OwnProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for OwnProcess<T> {
    #[expect(unsafe_code, reason = "a value is dropped by one process and forgotten by others")]
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
