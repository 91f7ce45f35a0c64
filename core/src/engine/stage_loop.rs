//! One loop for every stage: sleep on the bell, take what the scheduler allows, hand it to the stage's executor.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::shared::Shared;
use crate::error::{Error, Result};
use crate::pipeline::stage::Stage;
use crate::sched::Task;

/// What a stage does with a task. It must lead to exactly one `Scheduler::finish`.
pub(super) type Executor = fn(&Arc<Shared>, Task);

/// Starts the thread of `stage`. It ends when its bell rings after the engine has closed.
pub(super) fn spawn(stage: Stage, shared: Arc<Shared>, execute: Executor) -> Result<JoinHandle<()>> {
    let run = move || {
        let bell = &shared.bells[&stage];
        loop {
            bell.wait();
            while let Some(task) = shared.with(|state, now| state.take(now, stage)) {
                tracing::trace!(%stage, part = %task.part, round = task.round.0, "task taken");
                execute(&shared, task);
            }
            if shared.with(|state, _| state.closed) {
                return;
            }
        }
    };
    let name = format!("gl-{}", stage.to_string().to_lowercase());
    std::thread::Builder::new()
        .name(name.clone())
        .spawn(run)
        .map_err(|error| Error::Io { what: format!("starting thread {name}"), cause: error.to_string() })
}
