//! How a process finds its job, the command line, and the report of the settings.

use std::collections::BTreeMap;
use std::ffi::OsString;

use gradlane_core::config::{Config, Launch};
use gradlane_server::rendezvous;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::handle::duration;

type Settings = BTreeMap<String, String>;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(detect_launch, module)?)?;
    module.add_function(wrap_pyfunction!(find_join, module)?)?;
    module.add_function(wrap_pyfunction!(config_report, module)?)?;
    module.add_function(wrap_pyfunction!(cli_main, module)?)
}

/// What the arguments and the environment say of this process's place in a job.
#[pyfunction]
fn detect_launch(py: Python<'_>, arguments: Settings) -> PyResult<Bound<'_, PyDict>> {
    let detected =
        Config::from_process(&arguments).and_then(|(config, _)| Ok((Launch::from_process(&config)?, config)));
    let (launch, config) = detected.map_err(|error| errors::raise(py, &error))?;
    let found = PyDict::new(py);
    found.set_item("source", launch.source.name())?;
    found.set_item("rank", launch.rank)?;
    found.set_item("size", launch.size)?;
    found.set_item("local_rank", launch.local_rank)?;
    found.set_item("local_size", launch.local_size)?;
    found.set_item("node_rank", launch.node_rank)?;
    found.set_item("num_nodes", launch.num_nodes)?;
    found.set_item("join", config.join.as_ref().map(ToString::to_string))?;
    found.set_item("servers", config.servers)?;
    found.set_item("job", rendezvous::job(&config))?;
    Ok(found)
}

/// Waits up to `timeout` seconds for the join string that a coordinator of this user left in the state directory.
#[pyfunction]
fn find_join(py: Python<'_>, arguments: Settings, timeout: f64) -> PyResult<String> {
    let found = py.detach(|| {
        let (config, _) = Config::from_process(&arguments)?;
        rendezvous::find(&config.state_dir, &rendezvous::job(&config), duration(timeout))
    });
    found.map(|join| join.to_string()).map_err(|error| errors::raise(py, &error))
}

/// Every setting, its value and where it came from.
#[pyfunction]
fn config_report(py: Python<'_>, arguments: Settings) -> PyResult<String> {
    let config = Config::from_process(&arguments);
    config.map(|(config, _)| config.report()).map_err(|error| errors::raise(py, &error))
}

/// The `gradlane` command; returns its exit code. `program` is the command line that starts it again.
#[pyfunction]
fn cli_main(py: Python<'_>, argv: Vec<OsString>, program: Vec<OsString>) -> i32 {
    py.detach(|| gradlane_server::cli::main(argv.into_iter(), &program))
}
