//! `gradlane._core.Batch`: tensors that are submitted together, as the engine wants them.

use gradlane_core::engine::{self, Member};
use gradlane_core::types::{Priority, TensorSpec};
use gradlane_core::{Error, Result};
use pyo3::prelude::*;

use crate::errors;
use crate::lent::{length, region};

/// Names, dtypes and shapes of tensors that are submitted together. Belongs to no session, and to no memory.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Batch {
    batch: engine::Batch,
    /// Bytes of each tensor.
    lengths: Vec<usize>,
}

#[pymethods]
impl Batch {
    #[new]
    fn new(py: Python<'_>, tensors: Vec<(String, String, Vec<u64>)>) -> PyResult<Self> {
        Self::checked(tensors).map_err(|error| errors::raise(py, &error))
    }

    fn __len__(&self) -> usize {
        self.lengths.len()
    }
}

impl Batch {
    fn checked(tensors: Vec<(String, String, Vec<u64>)>) -> Result<Self> {
        let spec = |(name, dtype, shape): (String, String, _)| Ok(TensorSpec { name, dtype: dtype.parse()?, shape });
        let specs = tensors.into_iter().map(spec).collect::<Result<Vec<_>>>()?;
        let lengths = specs.iter().map(length).collect::<Result<_>>()?;
        Ok(Self { batch: engine::Batch::new(specs)?, lengths })
    }

    /// What the engine knows of it.
    pub(crate) fn of(&self) -> &engine::Batch {
        &self.batch
    }

    /// The memory at these addresses, one for each tensor; `priority` is that of the first, and each one after it has one less.
    ///
    /// # Errors
    /// If there are more of them, or fewer.
    pub(crate) fn lent(&self, sources: &[usize], destinations: &[usize], priority: i32) -> Result<Vec<Member>> {
        if [sources.len(), destinations.len()] != [self.lengths.len(); 2] {
            return Err(Error::InvalidArgument {
                what: format!(
                    "{} and {} addresses for {} tensors",
                    sources.len(),
                    destinations.len(),
                    self.lengths.len()
                ),
                hint: "give one for each".to_owned(),
            });
        }
        let each = sources.iter().zip(destinations).zip(&self.lengths).zip(0..);
        let member = |(((source, destination), bytes), position): (((&usize, &usize), &usize), i32)| Member {
            source: region(*source, *bytes).into(),
            destination: region(*destination, *bytes).into(),
            priority: Priority(priority.saturating_sub(position)),
        };
        Ok(each.map(member).collect())
    }
}
