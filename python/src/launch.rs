//! How a process finds its job, the command line, and the report of the settings.

use std::ffi::OsString;

use gradlane_core::config::{Config, Launcher, Origin, ProcessRole};
use gradlane_server::launch::rendezvous;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::settings::{Settings, config};
use crate::wait::duration;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(detect_launch, module)?)?;
    module.add_function(wrap_pyfunction!(find_join, module)?)?;
    module.add_function(wrap_pyfunction!(config_report, module)?)?;
    module.add_function(wrap_pyfunction!(cli_main, module)?)
}

/// What the arguments and the environment say of this process's place in a job, and how long it may take to form, in seconds.
/// `coordinator` among them is a `host:port` or a join string.
#[pyfunction]
fn detect_launch(py: Python<'_>, mut arguments: Settings) -> PyResult<Bound<'_, PyDict>> {
    if let Some(address) = arguments.remove("coordinator") {
        if address.starts_with("gradlane") {
            arguments.insert("join".to_owned(), address);
            return detect_launch(py, arguments);
        }
        let (host, port) = address.rsplit_once(':').unwrap_or((&address, ""));
        arguments.insert("coordinator_host".to_owned(), host.to_owned());
        arguments.insert("coordinator_port".to_owned(), port.to_owned());
    }
    // Who asks for a place trains, whatever task its environment describes.
    arguments.entry("role".to_owned()).or_insert_with(|| ProcessRole::Worker.name().to_owned());
    let config = config(&arguments).map_err(|error| errors::raise(py, &error))?;
    let unknown_size = if config.join.is_some() { 0 } else { 1 };
    let found = PyDict::new(py);
    found.set_item("source", source(&config))?;
    found.set_item("rank", config.rank)?;
    found.set_item("size", config.size.unwrap_or(unknown_size))?;
    found.set_item("local_rank", config.local_rank.unwrap_or(0))?;
    found.set_item("local_size", config.local_size.unwrap_or(1))?;
    found.set_item("node_rank", config.node_rank.unwrap_or(0))?;
    found.set_item("num_nodes", config.num_nodes.unwrap_or(1))?;
    found.set_item("join", config.join.as_ref().map(ToString::to_string))?;
    found.set_item("servers", config.servers)?;
    found.set_item("job", rendezvous::job(&config))?;
    found.set_item("join_timeout", config.join_timeout.as_secs_f64())?;
    Ok(found)
}

/// Who placed this process.
fn source(config: &Config) -> &'static str {
    match config.origin("size") {
        Origin::Launcher(Launcher::Dmlc) => "dmlc",
        Origin::Launcher(Launcher::Torchrun) => "torchrun",
        Origin::Launcher(Launcher::TfConfig) => "tf_config",
        Origin::Launcher(Launcher::Mpi) => "mpi",
        Origin::Launcher(Launcher::Slurm) => "slurm",
        Origin::Launcher(Launcher::Gradlane) | Origin::Environment(_) | Origin::File(_) | Origin::Cluster(_) => {
            "gradlane"
        }
        Origin::Launcher(Launcher::Single) | Origin::Argument | Origin::Default if config.join.is_some() => "gradlane",
        Origin::Launcher(Launcher::Single) | Origin::Argument | Origin::Default => "single",
    }
}

/// Waits up to `timeout` seconds for the join string that the job's coordinator left in this user's state directory.
#[pyfunction]
fn find_join(py: Python<'_>, job: &str, timeout: f64) -> PyResult<String> {
    let found = py.detach(|| {
        let config = config(&Settings::new())?;
        rendezvous::find(rendezvous::state_dir(&config)?, job, duration(timeout))
    });
    found.map(|join| join.to_string()).map_err(|error| errors::raise(py, &error))
}

/// Every setting, its value and where it came from.
#[pyfunction]
fn config_report(py: Python<'_>, arguments: Settings) -> PyResult<String> {
    config(&arguments).map(|config| config.report()).map_err(|error| errors::raise(py, &error))
}

/// The `gradlane` command with these words, the first its own name; returns its exit code.
#[pyfunction]
fn cli_main(py: Python<'_>, argv: Vec<OsString>) -> PyResult<i32> {
    let python: OsString = py.import("sys")?.getattr("executable")?.extract()?;
    let program = [python, "-m".into(), "gradlane".into()];
    Ok(py.detach(|| gradlane_server::cli::main(argv.into_iter(), &program)))
}
