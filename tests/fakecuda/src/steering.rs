//! How a test reaches the controls of a library that stands in for another: by the names that its `api` exports.

#![expect(unsafe_code, reason = "functions are looked up by name in a library")]

use std::ffi::CString;
use std::path::Path;

use libloading::Library;

/// A library, mapped and kept.
#[derive(Debug)]
pub(crate) struct Steering(Library);

impl Steering {
    /// Maps the library at `path`, or finds it mapped.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn of(path: &Path) -> Self {
        // SAFETY: loading it runs nothing, and it is never unmapped (`-z nodelete`).
        let library = unsafe { Library::new(path) };
        Self(library.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// Calls the function `name`, which `call` is given with its type.
    ///
    /// # Panics
    /// If there is no such function, or it answers with an error.
    pub(crate) fn call<F: Copy>(&self, name: &str, call: impl FnOnce(F) -> u32) {
        // SAFETY: each name is given together with the type that the library's `api` declares it with.
        let function = unsafe { self.0.get::<F>(name) };
        let code = call(*function.unwrap_or_else(|error| panic!("{name}: {error}")));
        assert!(code == 0, "{name} answers {code}");
    }

    /// Changes a setting by the function `with`, which takes its name and its value.
    ///
    /// # Panics
    /// As [`call`](Self::call).
    pub(crate) fn set(&self, with: &str, name: &str, value: &str) {
        let (name, value) = (text(name), text(value));
        type Set = extern "C" fn(*const i8, *const i8) -> u32;
        self.call(with, |set: Set| set(name.as_ptr().cast(), value.as_ptr().cast()));
    }
}

/// A name or a value as C takes it.
pub(crate) fn text(text: &str) -> CString {
    CString::new(text).expect("names and values have no zeros")
}
