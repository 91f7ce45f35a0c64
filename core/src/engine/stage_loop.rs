//! One loop for every stage: sleep on the bell, take what the scheduler allows, hand it to the stage's executor.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::shared::Shared;
use crate::error::{Error, Result};
use crate::pipeline::stage::Stage;
use crate::sched::Task;

/// What a stage does with a task. It must lead to exactly one `Scheduler::finish`.
pub(super) type Executor = fn(&Arc<Shared>, Task);

/// What the thread of a stage sleeps on.
///
/// Not a channel: those try for a while before they sleep, and on a host with few cores that time is taken from who would ring.
#[derive(Default)]
pub(super) struct Bell {
    state: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    rung: bool,
    asleep: bool,
}

impl Bell {
    /// Has the thread look for tasks. One that rings already rings.
    pub(super) fn ring(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wakes = !state.rung && state.asleep;
        state.rung = true;
        drop(state);
        if wakes {
            self.changed.notify_one();
        }
    }

    fn wait(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.rung {
            state.asleep = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        *state = Rung::default();
    }
}

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
