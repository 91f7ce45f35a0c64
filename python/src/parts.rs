//! What a session is behind its Python object.

use std::sync::{Arc, OnceLock};

use gradlane_core::Result;
use gradlane_session::c::LentSession;
use gradlane_session::{Completions, Operation};
use pyo3::prelude::*;

use crate::errors;
use crate::handle::Handle;
use crate::owners::Owners;

/// What a session is in the process that joined the job.
pub(crate) struct Parts {
    pub(crate) inner: Arc<gradlane_session::Session>,
    pub(crate) owners: Arc<Owners>,
    pub(crate) completions: Completions,
    pub(crate) lent: OnceLock<LentSession>,
}

impl Parts {
    /// Calls `submit` with the function for the end of the operation, and holds `owner` until then. Raises the error of `submit`.
    pub(crate) fn hand_in(
        &self,
        py: Python<'_>,
        owner: Py<PyAny>,
        submit: impl FnOnce(Box<dyn FnOnce(u64) + Send>) -> Result<Operation> + Send,
    ) -> PyResult<Handle> {
        let owners = Arc::clone(&self.owners);
        let begun = py.detach(|| submit(Box::new(move |id| owners.note_end(id))));
        let operation = begun.map_err(|error| errors::raise(py, &error))?;
        let id = operation.handle().id();
        let handle = self.watched(operation);
        self.owners.hold(id, owner);
        Ok(handle)
    }

    /// The integer by which op libraries submit to the session; the same each time.
    pub(crate) fn lend(&self, py: Python<'_>) -> PyResult<u64> {
        if self.lent.get().is_none() {
            let lent = LentSession::new(Arc::clone(&self.inner)).map_err(|error| errors::raise(py, &error))?;
            // Another thread may have been first. Then this one ends.
            let _ = self.lent.set(lent);
        }
        Ok(self.lent.get().expect("just set").key())
    }

    /// The handle of an operation, whose end the threads that wait for completions hear.
    pub(crate) fn watched(&self, operation: Operation) -> Handle {
        self.completions.watch(operation.handle());
        Handle::new(operation, Arc::clone(&self.owners))
    }
}
