//! `gradlane._core.Batch`: tensors that are submitted together.

use gradlane_core::Result;
use gradlane_core::types::TensorSpec;
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
    fn new(py: Python<'_>, tensors: Vec<(String, String, Vec<u64>)>) -> PyResult<Self> {
        let inner = specs(tensors).and_then(gradlane_session::Batch::new);
        inner.map(|inner| Self { inner }).map_err(|error| errors::raise(py, &error))
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }
}

/// Tensors that Python describes as `(name, dtype, shape)`.
pub(crate) fn specs(tensors: Vec<(String, String, Vec<u64>)>) -> Result<Vec<TensorSpec>> {
    let spec = |(name, dtype, shape): (String, String, _)| Ok(TensorSpec::new(name, dtype.parse()?, shape));
    tensors.into_iter().map(spec).collect()
}
