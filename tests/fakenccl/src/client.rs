//! How tests find the library and steer it.

use std::path::{Path, PathBuf};

use crate::built;
use crate::steering::{Steering, text};

/// Where the built library lies; see `fakecuda::library`. Processes that cargo does not start take `target/release/libfakenccl.so` after
/// `cargo build --release -p fakenccl`.
///
/// # Panics
/// If it is not there.
pub fn library() -> PathBuf {
    built::beside_this_program("libfakenccl.so")
}

/// The library as a test sees it. All of it acts on the one state of this process, whoever else uses the library.
#[derive(Debug)]
pub struct Control(Steering);

impl Control {
    /// Maps the library, or finds it mapped, and keeps it.
    ///
    /// # Panics
    /// If there is none.
    pub fn open(path: &Path) -> Self {
        Self(Steering::of(path))
    }

    /// Changes a setting, by its name without `FAKENCCL_`.
    ///
    /// # Panics
    /// If it is not understood.
    pub fn set(&self, name: &str, value: &str) {
        self.0.set("fakenccl_set", name, value);
    }

    /// A number by name: `live_comms`, `begun` and `executed` (operations that this process's ranks began, and did to their end),
    /// `call_nanoseconds` (how long calls took the threads that end groups of communicators that do not block, until these knew that they
    /// were done, so with the thread that such a group starts), `contexts_made` (contexts on the first device, because a thread that called
    /// had none), or the name of a function for how often it was called.
    pub fn counter(&self, name: &str) -> u64 {
        let name = text(name);
        let mut value = 0;
        type Counter = extern "C" fn(*const i8, *mut u64) -> u32;
        self.0.call("fakenccl_counter", |counter: Counter| counter(name.as_ptr().cast(), &raw mut value));
        value
    }
}
