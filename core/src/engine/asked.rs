//! What callers ask of one tensor.

use std::sync::Arc;
use std::time::Duration;

use super::memory::Memory;
use super::submit::check_tensor;
use crate::error::Result;
use crate::types::{Access, Demand, Op, Priority, RowsCut, TensorSpec};

/// One reduction to do.
#[derive(Debug)]
pub struct Submission {
    /// Name, element type and shape; equal on all workers.
    pub tensor: TensorSpec,
    /// This worker's contribution; as long as the tensor.
    pub source: Memory,
    /// Where the result goes; as long as the tensor, and on the same device. May be the same memory.
    pub destination: Memory,
    /// How the contributions become one.
    pub op: Op,
    /// This worker's weight in a weighted mean; 1 elsewhere.
    pub weight: f64,
    /// How urgent.
    pub priority: Priority,
    /// Give up after this long; the job's step timeout applies in any case.
    pub timeout: Option<Duration>,
}

/// One use of a parameter.
#[derive(Debug)]
pub struct ParameterUse {
    /// Name, element type and shape; equal on all workers: see [`TensorSpec::parameter`].
    pub tensor: TensorSpec,
    /// What to do.
    pub access: Access,
    /// Where the clock of the parameter's mode stands: see [`Demand::Access`]. 0 without a clock.
    pub clock_at: u64,
    /// The value or the change, as long as the parameter; of a pull, where the value goes.
    pub memory: Memory,
    /// Of a push_pull, where the value goes, as long as the parameter and on the same device; `None` for the memory of the change.
    pub into: Option<Memory>,
    /// How urgent.
    pub priority: Priority,
    /// Give up after this long; the job's step timeout applies in any case.
    pub timeout: Option<Duration>,
}

impl ParameterUse {
    /// Refuses a use that makes no sense wherever its memory lies.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the tensor is no parameter, or a buffer is not as long as the parameter.
    pub fn check(&self) -> Result<()> {
        let bytes = [&self.memory, self.into.as_ref().unwrap_or(&self.memory)].map(Memory::len);
        check_tensor(&self.tensor, bytes, self.demand())
    }

    fn demand(&self) -> Demand {
        Demand::Access { access: self.access, clock_at: self.clock_at }
    }
}

/// What is asked of one tensor, with its memory.
pub(super) struct Asked {
    pub(super) tensor: TensorSpec,
    pub(super) source: Memory,
    pub(super) destination: Memory,
    pub(super) demand: Demand,
    pub(super) priority: Priority,
    pub(super) timeout: Option<Duration>,
    /// Of a table: what goes to each of its parts.
    pub(super) cuts: Option<Arc<[RowsCut]>>,
}

impl From<Submission> for Asked {
    fn from(submission: Submission) -> Self {
        let Submission { tensor, source, destination, op, weight, priority, timeout } = submission;
        Self { tensor, source, destination, demand: Demand::Reduce { op, weight }, priority, timeout, cuts: None }
    }
}

impl From<ParameterUse> for Asked {
    fn from(asked: ParameterUse) -> Self {
        let demand = asked.demand();
        let ParameterUse { tensor, memory: source, into, priority, timeout, .. } = asked;
        // Of a push nothing lands there, and of a pull nothing leaves it.
        let destination = into.unwrap_or_else(|| source.again());
        Self { tensor, source, destination, demand, priority, timeout, cuts: None }
    }
}
