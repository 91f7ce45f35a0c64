//! The threads of the stages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::dispatcher::Dispatcher;
use super::shared::Shared;
use super::stage_loop;
use crate::error::Result;
use crate::local::OwnThread;
use crate::pipeline::Stage;

/// One thread for each stage that needs one. Stages that become necessary later get theirs then.
pub(super) struct Stages {
    shared: Arc<Shared>,
    dispatcher: Arc<Dispatcher>,
    threads: Mutex<Vec<(Stage, OwnThread)>>,
}

impl Stages {
    /// Without threads.
    pub(super) fn new(shared: Arc<Shared>, dispatcher: Arc<Dispatcher>) -> Self {
        Self { shared, dispatcher, threads: Mutex::default() }
    }

    /// Starts the threads of these stages that have one and are not started yet.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the system gives no thread.
    pub(super) fn start(&self, stages: &[Stage]) -> Result<()> {
        // Collective stages need no thread here, nothing is executed in PULL, and COPYH2D takes no longer than waking a thread.
        // Only a job that goes on without lost workers lets sums land beside their contributions.
        let keeps = self.shared.look(|state| state.worker.keeps());
        let has_thread = |stage: &Stage| match stage {
            Stage::Pull | Stage::CopyH2D => false,
            Stage::Land => keeps,
            stage => !stage.is_collective(),
        };
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for stage in stages.iter().filter(|stage| has_thread(stage)) {
            let is_started = threads.iter().any(|(of, _)| of == stage);
            // A submission to an engine that was closed is refused anyway.
            if !is_started && !self.shared.look(|state| state.closed) {
                let thread = stage_loop::spawn(*stage, Arc::clone(&self.shared), Arc::clone(&self.dispatcher))?;
                threads.push((*stage, thread));
            }
        }
        Ok(())
    }

    /// Waits until all threads have ended, because the engine is closed, at most for `patience` each.
    pub(super) fn end(&self, patience: Duration) {
        self.dispatcher.ring_all();
        for (_, thread) in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            thread.join(patience);
        }
    }
}
