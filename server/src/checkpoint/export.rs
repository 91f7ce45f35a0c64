//! All values of a checkpoint in one file, for other tools.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::path::Path;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::DType;
use safetensors::tensor::{Dtype, View};

use super::form::form;
use super::manifest::Manifest;
use super::read::Saved;
use super::write::{persist, temporary};

/// Writes the values of the checkpoint in `directory` to one file in the form of safetensors, under the names of the tensors. What is there
/// under this name is replaced when all is on the disk. One tensor at a time is in memory.
///
/// # Errors
/// As [`read`](super::read); [`Error::Io`].
pub fn export(directory: &Path, manifest: Manifest, file: &Path) -> Result<()> {
    let beside = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = temporary(beside)?;
    let mut tensors = Vec::new();
    for tensor in &manifest.tensors {
        let shape = tensor.shape.iter().map(|dimension| usize::try_from(*dimension).expect("it was read")).collect();
        let bytes = usize::try_from(tensor.bytes()?).expect("it was in memory");
        tensors.push((tensor.name.clone(), tensor.spec()?.dtype, shape, bytes));
    }
    let (saved, failure) = (RefCell::new(Saved::open(directory, manifest)?), Cell::new(None));
    let views = tensors.into_iter().map(|(name, dtype, shape, bytes)| {
        (name.clone(), Tensor { name, dtype, shape, bytes, saved: &saved, failure: &failure })
    });
    let written = safetensors::serialize_to_file(views, None, temporary.path());
    if let Some(error) = failure.take() {
        return Err(error);
    }
    written.map_err(|error| Error::Io { what: format!("writing {}", file.display()), cause: error.to_string() })?;
    persist(temporary, file)
}

/// A tensor whose values are read when they are written.
struct Tensor<'a> {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
    saved: &'a RefCell<Saved>,
    /// Why the values of a tensor could not be read, which [`View`] has no place for.
    failure: &'a Cell<Option<Error>>,
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        form(self.dtype)
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.saved.borrow_mut().values(&self.name).map_or_else(
            |error| {
                self.failure.set(Some(error));
                Cow::Borrowed(&[][..])
            },
            Cow::Owned,
        )
    }

    fn data_len(&self) -> usize {
        self.bytes
    }
}
