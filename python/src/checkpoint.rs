//! Checkpoints: saved and loaded by a session, and read without one.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gradlane_core::types::{CheckpointAsk, Checkpointed, LoadAsk, Missing, SaveAsk};
use gradlane_core::{Error, Result};
use gradlane_server::checkpoint::{self, Saved};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::session::Session;
use crate::wait::{duration, in_background};

/// The number, the directory, the tensors, the bytes, the files, the steps of the clocks by key, and the notes.
type Told = (u64, String, u64, u64, u64, Vec<(u64, u64)>, String);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(save_checkpoint, module)?)?;
    module.add_function(wrap_pyfunction!(load_checkpoint, module)?)?;
    module.add_class::<SavedCheckpoint>()?;
    module.add_function(wrap_pyfunction!(export_checkpoint, module)?)
}

/// Saves the parameters of the job, and waits until they are on the disk.
#[pyfunction]
fn save_checkpoint(
    py: Python<'_>,
    session: &Session,
    path: String,
    keep: Option<u32>,
    notes: String,
    tables_apart: bool,
    timeout: f64,
) -> PyResult<Told> {
    let ask_to_save = SaveAsk { path, keep, notes, tables_apart, wait: duration(timeout) };
    ask(py, session, Ok(CheckpointAsk::Save(ask_to_save)))
}

/// Loads them. `missing` is `error`, `init` or `zero`; `what` says whether the checkpoint may have more tensors, whether what the rules keep is
/// loaded too, and whether a directory without any checkpoint is no error: the number is 0 then.
#[pyfunction]
fn load_checkpoint(
    py: Python<'_>,
    session: &Session,
    path: String,
    checkpoint: Option<u64>,
    missing: &str,
    what: (bool, bool, bool),
    timeout: f64,
) -> PyResult<Told> {
    let missing = match missing {
        "error" => Ok(Missing::Refuse),
        "init" => Ok(Missing::Leave),
        "zero" => Ok(Missing::Zero),
        other => Err(Error::InvalidArgument {
            what: format!("missing={other:?}"),
            hint: "give error, init or zero".to_owned(),
        }),
    };
    let (wait, (ignore_extra, with_state, if_any)) = (duration(timeout), what);
    let load =
        |missing| CheckpointAsk::Load(LoadAsk { path, checkpoint, missing, ignore_extra, with_state, if_any, wait });
    ask(py, session, missing.map(load))
}

/// Writes the values of a checkpoint to one file in the form of safetensors.
#[pyfunction]
fn export_checkpoint(py: Python<'_>, path: PathBuf, checkpoint: Option<u64>, file: PathBuf) -> PyResult<()> {
    let exported = py.detach(|| {
        let (directory, manifest) = checkpoint::open(&path, checkpoint)?;
        checkpoint::export(&directory, manifest, &file)
    });
    exported.map_err(|error| errors::raise(py, &error))
}

/// The files of a checkpoint, open to be read.
#[pyclass(module = "gradlane._core", frozen)]
struct SavedCheckpoint {
    saved: Mutex<Saved>,
    /// Its own directory.
    #[pyo3(get)]
    directory: PathBuf,
}

#[pymethods]
impl SavedCheckpoint {
    #[new]
    fn open(py: Python<'_>, path: PathBuf, checkpoint: Option<u64>) -> PyResult<Self> {
        let opened = py.detach(|| {
            let (directory, manifest) = checkpoint::open(&path, checkpoint)?;
            Ok((Mutex::new(Saved::open(&directory, manifest)?), directory))
        });
        let (saved, directory) = opened.map_err(|error: Error| errors::raise(py, &error))?;
        Ok(Self { saved, directory })
    }

    /// The manifest as JSON.
    fn manifest(&self) -> String {
        self.lock().manifest().to_json()
    }

    /// The values of a tensor, in little-endian bytes.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let read = py.detach(|| self.lock().values(name));
        read.map(|bytes| PyBytes::new(py, &bytes)).map_err(|error| errors::raise(py, &error))
    }
}

impl SavedCheckpoint {
    fn lock(&self) -> MutexGuard<'_, Saved> {
        // What a panic of another thread has left is only what was read last.
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ask(py: Python<'_>, session: &Session, ask: Result<CheckpointAsk>) -> PyResult<Told> {
    let session = Arc::clone(&session.0.get(py)?.inner);
    let done = in_background(py, move || ask.and_then(|ask| session.checkpoint(ask)))?;
    let done = done.map_err(|error| errors::raise(py, &error))?;
    let Checkpointed { checkpoint, directory, tensors, bytes, files, steps, notes } = done;
    let steps = steps.into_iter().map(|at| (at.clock.0, at.step)).collect();
    Ok((checkpoint, directory, tensors, bytes, files, steps, notes))
}
