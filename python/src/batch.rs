//! `gradlane._core.Batch`: tensors that are submitted together.

use gradlane_core::types::TensorSpec;
use gradlane_core::{Error, Result};
use gradlane_session::{codec_named, dtype_named};
use pyo3::prelude::*;

use crate::errors;

/// Names, dtypes and shapes of tensors that are submitted together. It belongs to no session and holds no memory.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Batch {
    pub(crate) inner: gradlane_session::Batch,
}

#[pymethods]
impl Batch {
    #[new]
    #[pyo3(signature = (tensors, codec = "none"))]
    fn new(py: Python<'_>, tensors: Vec<(String, String, Vec<u64>)>, codec: &str) -> PyResult<Self> {
        let inner = specs(tensors, codec).and_then(gradlane_session::Batch::new);
        inner.map(|inner| Self { inner }).map_err(|error| errors::raise(py, &error))
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }
}

/// Reads tensors from `(name, dtype, shape)` triples. The codec is for all of them, or has a line for each.
pub(crate) fn specs(tensors: Vec<(String, String, Vec<u64>)>, codec: &str) -> Result<Vec<TensorSpec>> {
    let codecs = codec.split('\n').map(codec_named).collect::<Result<Vec<_>>>()?;
    if ![1, tensors.len()].contains(&codecs.len()) {
        return Err(Error::InvalidArgument {
            what: format!("{} codecs for {} tensors", codecs.len(), tensors.len()),
            hint: "give one for all, or one for each".to_owned(),
        });
    }
    let spec = |(index, (name, dtype, shape)): (usize, (String, String, _))| {
        let codec = codecs.get(index).unwrap_or(&codecs[0]);
        TensorSpec::new(name, dtype_named(&dtype)?, shape).compressed(*codec)
    };
    tensors.into_iter().enumerate().map(spec).collect()
}
