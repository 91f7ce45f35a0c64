//! `gradlane._core.Batch`: tensors that are submitted together, as the engine wants them.

use gradlane_core::engine::{self, Member};
use gradlane_core::types::{Priority, TensorSpec};
use gradlane_core::{Error, Result};
use pyo3::prelude::*;

use crate::errors;
use crate::lent::{Lender, length};

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

    /// The memory that `lender` makes of these addresses, one for each tensor; `priority` is that of the first, and each one after it has
    /// one less. `streams` are those of the sources, then those of the destinations unless these are the same memory, or none at all.
    ///
    /// # Errors
    /// If there are more of them, or fewer, and those of the lender.
    pub(crate) fn lent(
        &self,
        mut lender: Lender<'_>,
        sources: &[usize],
        destinations: Option<&[usize]>,
        streams: &[Option<u64>],
        priority: i32,
    ) -> Result<Vec<Member>> {
        let tensors = self.lengths.len();
        let targets = destinations.unwrap_or(sources);
        let sides = if destinations.is_some() { 2 } else { 1 };
        if [sources.len(), targets.len()] != [tensors; 2] || ![0, sides * tensors].contains(&streams.len()) {
            return Err(Error::InvalidArgument {
                what: format!(
                    "{} and {} addresses and {} streams for {tensors} tensors",
                    sources.len(),
                    targets.len(),
                    streams.len()
                ),
                hint: "give one for each".to_owned(),
            });
        }
        let (begin, end) = streams.split_at(streams.len().min(tensors));
        let end = if destinations.is_some() { end } else { begin };
        let stream = |of: &[Option<u64>], index: usize| of.get(index).copied().flatten();
        let member = |index: usize| {
            let (bytes, position) = (self.lengths[index], i32::try_from(index).unwrap_or(i32::MAX));
            Ok(Member {
                source: lender.lend(sources[index], bytes, stream(begin, index))?,
                destination: lender.lend(targets[index], bytes, stream(end, index))?,
                priority: Priority(priority.saturating_sub(position)),
            })
        };
        (0..tensors).map(member).collect()
    }
}
