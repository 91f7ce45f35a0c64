//! One loop for every stage that has a thread: sleep on the bell, take what the machine allows, execute it.

use std::sync::Arc;

use super::burst::Burst;
use super::dispatcher::Dispatcher;
use super::executors::execute;
use super::shared::Shared;
use crate::error::Result;
use crate::local::OwnThread;
use crate::pipeline::stage::Stage;

/// Starts the thread of `stage`. It ends when its bell rings after the engine has closed.
pub(super) fn spawn(stage: Stage, shared: Arc<Shared>, dispatcher: Arc<Dispatcher>) -> Result<OwnThread> {
    let run = move || {
        loop {
            dispatcher.bell(stage).wait();
            let mut burst = Burst::of(stage, &*shared.transport);
            while let Some(job) = dispatcher.take(&shared, stage) {
                let bytes = job.task.bytes;
                tracing::trace!(%stage, part = %job.task.part, round = job.task.round.0, "task taken");
                // After a panic the next `take` refuses.
                let _ = shared.guard(|| execute(&shared, job, 0));
                burst.add(bytes);
            }
            drop(burst);
            if shared.look(|state| state.closed) {
                return;
            }
        }
    };
    OwnThread::start(&format!("gl-{}", stage.to_string().to_lowercase()), run)
}
