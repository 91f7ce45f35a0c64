//! How tests find the library and steer it.

#![expect(unsafe_code, reason = "functions are looked up by name in a library")]

use std::ffi::CString;
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::built;

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
pub struct Control(Library);

impl Control {
    /// Maps the library, or finds it mapped, and keeps it.
    ///
    /// # Panics
    /// If there is none.
    pub fn open(path: &Path) -> Self {
        // SAFETY: loading it runs nothing, and it is never unmapped (`-z nodelete`).
        let library = unsafe { Library::new(path) };
        Self(library.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// Changes a setting, by its name without `FAKENCCL_`.
    ///
    /// # Panics
    /// If it is not understood.
    pub fn set(&self, name: &str, value: &str) {
        let (name, value) = (text(name), text(value));
        type Set = extern "C" fn(*const i8, *const i8) -> u32;
        self.call("fakenccl_set", |set: Set| set(name.as_ptr().cast(), value.as_ptr().cast()));
    }

    /// A number by name: `live_comms`, `executed` (operations that this process's ranks did to their end), or the name of a function for
    /// how often it was called.
    pub fn counter(&self, name: &str) -> u64 {
        let name = text(name);
        let mut value = 0;
        type Counter = extern "C" fn(*const i8, *mut u64) -> u32;
        self.call("fakenccl_counter", |counter: Counter| counter(name.as_ptr().cast(), &raw mut value));
        value
    }

    fn call<F: Copy>(&self, name: &str, call: impl FnOnce(F) -> u32) {
        // SAFETY: each name is given together with the type that `api` declares it with.
        let function = unsafe { self.0.get::<F>(name) };
        let code = call(*function.unwrap_or_else(|error| panic!("{name}: {error}")));
        assert!(code == 0, "{name} answers {code}");
    }
}

fn text(text: &str) -> CString {
    CString::new(text).expect("names and values have no zeros")
}
