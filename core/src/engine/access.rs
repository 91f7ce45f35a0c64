//! Uses of parameters: as reductions, they are submissions, but they need threads and servers that sums may not need.

use std::time::Duration;

use super::asked::ParameterUse;
use super::driver::Engine;
use super::handle::Handle;
use super::submit::HERE_BYTES_MAX;
use crate::error::Result;
use crate::pipeline::Stage;

impl Engine {
    /// Uses a parameter: a tensor that servers keep, and that each worker changes and reads by itself. The first use on any worker declares
    /// it; [`Access::Init`] gives it its first value. The handle resolves when the servers of all its parts have answered, and tells the
    /// [`version`](Handle::version). Each part is changed and read at once, and a change is made once, also if a connection breaks. Uses of
    /// one parameter by this worker come one after the other, in the order of these calls. `then` is that of
    /// [`push_pull`](Self::push_pull).
    ///
    /// # Errors
    /// As [`push_pull`](Self::push_pull). The handle resolves with [`Error::FailedPrecondition`](crate::Error::FailedPrecondition) if the
    /// parameter has no value, or the job has no server.
    pub fn access(&self, asked: ParameterUse, then: impl FnOnce(u64) + Send + 'static) -> Result<Handle> {
        self.start_client(&asked)?;
        self.submit(asked.into(), HERE_BYTES_MAX, &|| {}, then)
    }

    /// The first half of using a parameter and waiting for it, as [`begin_to_reduce`](Self::begin_to_reduce).
    ///
    /// # Errors
    /// As [`access`](Self::access).
    pub fn begin_to_access(
        &self,
        asked: ParameterUse,
        patience: Duration,
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        self.start_client(&asked)?;
        self.begin(patience, |here_bytes_max, entered| self.submit(asked.into(), here_bytes_max, entered, then))
    }

    /// Starts the threads that parameters need, where the sums of this worker need none.
    fn start_client(&self, asked: &ParameterUse) -> Result<()> {
        match asked.memory.device() {
            Some(_) => self.stages.start(&[Stage::Push, Stage::CopyD2H]),
            None => self.stages.start(&[Stage::Push]),
        }
    }
}
