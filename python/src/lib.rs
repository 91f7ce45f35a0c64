//! The native half of the `gradlane` Python package: `gradlane._core`.
//!
//! Thin: it translates arguments, releases the interpreter lock in every wait, and raises the package's own exceptions. What keeps a
//! tensor alive is kept here until a Python thread comes by after the operation has ended; no engine thread ever attaches to Python.

use pyo3::prelude::*;

mod alone;
mod batch;
mod copies;
mod devices;
mod embedded;
mod errors;
mod fork;
mod handle;
mod launch;
mod lent;
mod metrics;
mod owners;
mod session;
mod settings;
mod wait;

/// The module's contents.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::Session>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<embedded::Embedded>()?;
    module.add_function(wrap_pyfunction!(copies::copy_seconds, module)?)?;
    errors::register(module)?;
    metrics::register(module)?;
    launch::register(module)
}
