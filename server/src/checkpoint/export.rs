//! All values of a checkpoint in one file, for other tools.

use std::borrow::Cow;
use std::path::Path;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::DType;
use safetensors::tensor::{Dtype, View};

use super::form::form;
use super::manifest::Manifest;
use super::read::Saved;
use super::write::{persist, temporary};

/// Writes the values of the checkpoint in `directory` to one file in the form of safetensors, under the names of the tensors. What is there
/// under this name is replaced when all is on the disk.
///
/// # Errors
/// As [`read`](super::read); [`Error::Io`].
pub fn export(directory: &Path, manifest: &Manifest, file: &Path) -> Result<()> {
    let beside = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = temporary(beside)?;
    let mut saved = Saved::open(directory, manifest)?;
    let mut tensors = Vec::new();
    for tensor in &manifest.tensors {
        let bytes = saved.values(tensor)?;
        let shape = tensor.shape.iter().map(|dimension| usize::try_from(*dimension).expect("it was read")).collect();
        tensors.push((tensor.name.as_str(), Whole { dtype: tensor.spec()?.dtype, shape, bytes }));
    }
    let failed = |error: safetensors::SafeTensorError| Error::Io {
        what: format!("writing {}", file.display()),
        cause: error.to_string(),
    };
    safetensors::serialize_to_file(tensors, None, temporary.path()).map_err(failed)?;
    persist(temporary, file)
}

/// The values of a tensor.
struct Whole {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for Whole {
    fn dtype(&self) -> Dtype {
        form(self.dtype)
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
