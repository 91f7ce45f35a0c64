//! Names of tensors: declared before their first use, and given up after their last.

use std::sync::Arc;
use std::time::Duration;

use super::driver::Engine;
use super::handle::Handle;
use crate::error::{Error, Result};
use crate::types::TensorSpec;

impl Engine {
    /// Declares tensors before their first use, all in one round trip. With `fuse`, small neighbours may share parts; all of the list
    /// must then be submitted in every round.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if another worker declared one of the names differently; [`Error::Timeout`] if there is no answer within `timeout`,
    /// or else within the step timeout and the time after which a peer is lost, which do not pass while the coordinator is out of contact.
    pub fn declare(&self, tensors: Vec<TensorSpec>, fuse: bool, timeout: Option<Duration>) -> Result<()> {
        let what = tensors.first().map_or_else(String::new, |first| {
            format!(
                "declaring {} tensors, the first is {} (a name that was undeclared comes again once every worker has undeclared it)",
                tensors.len(),
                first.name
            )
        });
        let asked = self.shared.with(|state, _| {
            let requests = state.worker.declare(tensors, fuse)?;
            let handles = requests.into_iter().map(|request| {
                let (handle, done) = Handle::new(0, None, Arc::default(), |_| {});
                state.await_answer(request, done);
                handle
            });
            Ok(handles.collect::<Vec<_>>())
        });
        asked.flatten()?.iter().try_for_each(|handle| self.wait_for_answer(handle, timeout, &what))
    }

    /// Says that this worker uses these names no more. When every worker has said so, the names cost nothing any more, and may be declared
    /// again as other tensors. A declaration that comes earlier waits for the other workers. Does not wait for them itself.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a name is not declared, or shares a part with one that is not among
    /// them; [`Error::FailedPrecondition`](crate::Error::FailedPrecondition) if a tensor is still being declared or reduced; or why the
    /// job ended.
    pub fn undeclare(&self, names: &[String], timeout: Option<Duration>) -> Result<()> {
        let (handle, done) = Handle::new(0, None, Arc::default(), |_| {});
        let asked = self.shared.with(|state, _| {
            let request = state.worker.undeclare(names)?;
            state.await_answer(request, done);
            Ok(())
        });
        asked.flatten()?;
        self.wait_for_answer(&handle, timeout, "undeclaring names")
    }

    /// Waits for the answer to a request of this process, at most for `timeout`, or for as long as any call may wait; see
    /// [`wait_patiently`](Self::wait_patiently).
    fn wait_for_answer(&self, handle: &Handle, timeout: Option<Duration>, what: &str) -> Result<()> {
        let waited_for = |patience| match handle.wait(Some(patience)) {
            Err(Error::StillRunning { .. }) => None,
            outcome => Some(outcome),
        };
        let answer = match timeout {
            Some(timeout) => waited_for(timeout).ok_or(timeout),
            None => self.wait_patiently(self.config.bounds().call, waited_for),
        };
        let answer = answer.unwrap_or_else(|waited| Err(Error::Timeout { what: what.to_owned(), waited }));
        answer.inspect_err(|error| self.shared.flight.request_failed(error))
    }
}
