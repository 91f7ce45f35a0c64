//! The native half of the `gradlane` Python package: `gradlane._core`.
//!
//! A thin layer over `gradlane_session`: it translates arguments, releases the interpreter lock in every wait, and raises the package's own
//! exceptions. An object whose memory is lent to the engine is dropped by a Python thread after its operation has ended, because no engine
//! thread ever attaches to Python.

use pyo3::prelude::*;

mod batch;
mod checkpoint;
mod copies;
mod data_wait;
mod embedded;
mod errors;
mod feedback;
mod handle;
mod launch;
mod lent;
mod metrics;
mod own_process;
mod owners;
mod parameter;
mod parts;
mod reduction;
mod session;
mod stacks;
mod store;
mod table;
mod wait;

/// The module's contents.
#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::Session>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<stacks::Stacks>()?;
    module.add_class::<table::Rows>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<embedded::Embedded>()?;
    module.add_function(wrap_pyfunction!(handle::wait_any, module)?)?;
    module.add_function(wrap_pyfunction!(copies::copy_seconds, module)?)?;
    module.add_function(wrap_pyfunction!(table::table_text, module)?)?;
    module.add_function(wrap_pyfunction!(table::use_rows, module)?)?;
    module.add_function(wrap_pyfunction!(feedback::answer_feedback, module)?)?;
    module.add_function(wrap_pyfunction!(feedback::set_answer_feedback, module)?)?;
    errors::register(module)?;
    data_wait::register(module)?;
    metrics::register(module)?;
    reduction::register(module)?;
    checkpoint::register(module)?;
    lent::register(module)?;
    launch::register(module)
}
