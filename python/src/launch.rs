//! How a process finds its job, the command line, and the report of the settings.

use std::ffi::OsString;
use std::path::PathBuf;

use gradlane_core::config::CompressionFallback;
use gradlane_core::types::JoinString;
use gradlane_session::{Entrance, Launch, Settings, config};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::wait::{duration, in_background};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(detect_launch, module)?)?;
    module.add_function(wrap_pyfunction!(find_join, module)?)?;
    module.add_function(wrap_pyfunction!(read_join, module)?)?;
    module.add_function(wrap_pyfunction!(wrap_join, module)?)?;
    module.add_function(wrap_pyfunction!(unwrap_join, module)?)?;
    module.add_function(wrap_pyfunction!(config_report, module)?)?;
    module.add_function(wrap_pyfunction!(step_timeout, module)?)?;
    module.add_function(wrap_pyfunction!(serve, module)?)?;
    module.add_function(wrap_pyfunction!(cli_main, module)?)
}

/// Detects this process's place in a job from the arguments and the environment, and how long the job may take to form, in seconds.
/// `coordinator` among the arguments is a `host:port` or a join string. `generation` is the number of jobs that this process has entered.
#[pyfunction]
#[pyo3(signature = (arguments, generation = 0))]
fn detect_launch(py: Python<'_>, arguments: Settings, generation: u64) -> PyResult<Bound<'_, PyDict>> {
    let launch = Launch::detect(arguments).map_err(|error| errors::raise(py, &error))?;
    let config = &launch.config;
    let found = PyDict::new(py);
    found.set_item("source", launch.source)?;
    found.set_item("rank", launch.rank)?;
    found.set_item("size", launch.size)?;
    found.set_item("local_rank", config.local_rank.unwrap_or(0))?;
    found.set_item("local_size", config.local_size.unwrap_or(1))?;
    found.set_item("node_rank", config.node_rank.unwrap_or(0))?;
    found.set_item("num_nodes", config.num_nodes.unwrap_or(1))?;
    found.set_item("servers", config.servers)?;
    found.set_item("join_timeout", config.join_timeout.as_secs_f64())?;
    let may_fall_back = config.compression_fallback == CompressionFallback::None;
    found.set_item("compression", (config.compression.to_string(), config.min_compress_bytes, may_fall_back))?;
    // A caller that needs only its place need not be able to enter.
    match launch.entrance(generation) {
        Ok(entrance) => found.set_item("entrance", described(py, &entrance)?)?,
        Err(error) => found.set_item("entrance", errors::build(py, &error)?)?,
    }
    Ok(found)
}

/// How this process enters its job: the `way`, and its parameters.
fn described<'py>(py: Python<'py>, entrance: &Entrance) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    match entrance {
        Entrance::Alone => found.set_item("way", "alone")?,
        Entrance::Join(join) => {
            found.set_item("way", "join")?;
            found.set_item("join", join.to_string())?;
        }
        Entrance::Read(path) => {
            found.set_item("way", "read")?;
            found.set_item("path", path)?;
        }
        Entrance::Find { job } => {
            found.set_item("way", "find")?;
            found.set_item("job", job)?;
        }
        Entrance::Embed(plan) => {
            found.set_item("way", "embed")?;
            found.set_item("bind", &plan.bind)?;
            found.set_item("workers", plan.workers)?;
            found.set_item("servers", plan.servers)?;
            found.set_item("job", &plan.job)?;
            found.set_item("coordinator_only", plan.coordinator_only)?;
        }
    }
    Ok(found)
}

/// Waits up to `timeout` seconds until the job's coordinator has published its join string in this user's state directory.
#[pyfunction]
fn find_join(py: Python<'_>, job: &str, timeout: f64) -> PyResult<String> {
    let job = job.to_owned();
    let found =
        in_background(py, move || gradlane_session::find_join(&config(&Settings::new())?, &job, duration(timeout)))?;
    found.map(|found| found.join.to_string()).map_err(|error| errors::raise(py, &error))
}

/// Waits up to `timeout` seconds for the join string in this file.
#[pyfunction]
fn read_join(py: Python<'_>, path: PathBuf, timeout: f64) -> PyResult<String> {
    let found = in_background(py, move || gradlane_session::read_join(&path, duration(timeout)))?;
    found.map(|found| found.join.to_string()).map_err(|error| errors::raise(py, &error))
}

/// What rank 0 of `job` puts into a store that others can read: the join string, sealed if the settings have a secret.
#[pyfunction]
fn wrap_join(py: Python<'_>, settings: Settings, job: &str, join: &str) -> PyResult<String> {
    let wrapped =
        config(&settings).and_then(|config| gradlane_session::wrap_join(&config, job, &join.parse::<JoinString>()?));
    wrapped.map_err(|error| errors::raise(py, &error))
}

/// The join string that rank 0 of `job` has wrapped.
#[pyfunction]
fn unwrap_join(py: Python<'_>, settings: Settings, job: &str, text: &str) -> PyResult<String> {
    let join = config(&settings).and_then(|config| gradlane_session::unwrap_join(&config, job, text));
    join.map(|join| join.to_string()).map_err(|error| errors::raise(py, &error))
}

/// Every setting, its value and where it came from.
#[pyfunction]
fn config_report(py: Python<'_>, arguments: Settings) -> PyResult<String> {
    config(&arguments).map(|config| config.report()).map_err(|error| errors::raise(py, &error))
}

/// The setting `step_timeout`, in seconds.
#[pyfunction]
fn step_timeout(py: Python<'_>, arguments: Settings) -> PyResult<f64> {
    config(&arguments).map(|config| config.step_timeout.as_secs_f64()).map_err(|error| errors::raise(py, &error))
}

/// Runs a server of a job in this process until the job ends. Returns 0, or the exit code of a signal that ended it, or of a job whose
/// failure its launcher tells.
#[pyfunction]
fn serve(py: Python<'_>, settings: Settings) -> PyResult<i32> {
    py.detach(|| gradlane_server::cli::serve(settings, None)).map_err(|error| errors::raise(py, &error))
}

/// Runs the `gradlane` command with these arguments, of which the first is its name; returns its exit code.
#[pyfunction]
fn cli_main(py: Python<'_>, argv: Vec<OsString>) -> PyResult<i32> {
    let python: OsString = py.import("sys")?.getattr("executable")?.extract()?;
    let program = [python, "-m".into(), "gradlane".into()];
    Ok(py.detach(|| gradlane_server::cli::main(argv.into_iter(), &program)))
}
