//! Objects of Python that work only in the process that made them.
//!
//! A forked child has copies of them. It has none of the engine's threads, its locks may be held for ever, and the memory that it shares
//! with other processes is theirs. So nothing of such an object is read, waited for or dropped there.

use gradlane_session::OwnProcess;
use pyo3::prelude::*;

/// The parts of an object, for the process that made it.
pub(crate) struct Own<T>(OwnProcess<T>);

impl<T> Own<T> {
    /// Parts that this process has made.
    pub(crate) fn new(parts: T) -> Self {
        Self(OwnProcess::new(parts))
    }

    /// The parts. Raises `ForkedProcessError` in a forked child, before anything is touched.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        self.0.own().map_err(|owner| forked(py, owner))
    }

    /// The parts, for what must not fail; `None` in a forked child.
    pub(crate) fn find(&self) -> Option<&T> {
        self.0.own().ok()
    }
}

/// The exception in a process that was forked from the process `owner`.
fn forked(py: Python<'_>, owner: u32) -> PyErr {
    let text = format!(
        "process {} was forked from process {owner}, which takes part in a job; the engine does not work in a forked child. Start \
         processes with multiprocessing's spawn or forkserver method",
        std::process::id()
    );
    let exception = || py.import("gradlane.errors")?.getattr("ForkedProcessError")?.call1((text,));
    exception().map_or_else(|error| error, PyErr::from_value)
}
