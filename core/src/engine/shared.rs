//! The shared data of the engine's threads: the state under one lock, and everything outside of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use super::metrics::Metrics;
use super::milestones::Milestones;
use super::state::{Effect, State};
use super::wire::Wire;
use crate::collective::Collective;
use crate::config::Checksum;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::runtime::{Clock, Membership, Timer};
use crate::transport::Transport;
use crate::types::Time;
use crate::worker::Worker;

/// The engine as its threads see it.
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) device: Option<Arc<dyn Device>>,
    pub(super) metrics: Metrics,
    pub(super) wire: Wire,
    /// Which contributions carry a checksum.
    pub(super) checksum: Checksum,
    pub(super) milestones: Milestones,
    /// Set once, right after start: the timer's callback needs this struct.
    pub(super) timer: Mutex<Option<Timer>>,
    /// Set once, right after start: its callbacks need this struct.
    pub(super) membership: Mutex<Option<Membership>>,
    /// Set before anything is submitted, if the workers of this machine reduce among themselves.
    pub(super) collective: OnceLock<Arc<dyn Collective>>,
    dispatch: Arc<dyn Dispatch>,
    state: Mutex<State>,
    /// The error after a panic of the machine, which cannot be used any more.
    broken: OnceLock<Error>,
    /// Held while an engine thread reads or writes memory of callers.
    memory: RwLock<()>,
}

/// Carries out the commands of the machine. It is a layer above the executors, so that they need not know it.
pub(super) trait Dispatch: Send + Sync {
    /// Carries out `effects`, which were decided by an input of the calling thread. Pushes of at most `here_bytes_max` bytes are made by
    /// this thread.
    fn carry_out(&self, shared: &Arc<Shared>, effects: Vec<Effect>, here_bytes_max: u64);
}

impl Shared {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        device: Option<Arc<dyn Device>>,
        metrics: Metrics,
        clock: Clock,
        checksum: Checksum,
        worker: Worker,
        dispatch: Arc<dyn Dispatch>,
    ) -> Self {
        Self {
            clock,
            transport,
            device,
            metrics,
            wire: Wire::new(),
            checksum,
            milestones: Milestones::default(),
            timer: Mutex::new(None),
            membership: Mutex::new(None),
            collective: OnceLock::new(),
            dispatch,
            state: Mutex::new(State::new(worker)),
            broken: OnceLock::new(),
            memory: RwLock::new(()),
        }
    }

    /// Gives the machine an input, then carries out its commands with the lock released.
    ///
    /// # Errors
    /// [`Error::Internal`] if the machine has panicked, now or before. Every handle ends with this error then.
    pub(super) fn with<T>(self: &Arc<Self>, input: impl FnOnce(&mut State, Time) -> T) -> Result<T> {
        self.with_pushing(0, input)
    }

    /// As [`with`](Self::with); tasks of at most `here_bytes_max` bytes that can be pushed now are pushed by the calling thread.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub(super) fn with_pushing<T>(
        self: &Arc<Self>,
        here_bytes_max: u64,
        input: impl FnOnce(&mut State, Time) -> T,
    ) -> Result<T> {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = self.broken.get() {
            return Err(error.clone());
        }
        let decided = catch_unwind(AssertUnwindSafe(|| {
            let answer = input(&mut state, now);
            (answer, state.settle(now))
        }));
        let (answer, effects) = decided.map_err(|panic| {
            let error = Error::Internal { what: format!("the engine stopped because it panicked: {}", text(&*panic)) };
            let error = self.broken.get_or_init(|| error).clone();
            self.bury(&mut state, &error);
            error
        })?;
        drop(state);
        if !effects.is_empty() {
            self.dispatch.carry_out(self, effects, here_bytes_max);
        }
        Ok(answer)
    }

    /// Reports the end of a step. After a panic there is no machine to report to.
    pub(super) fn report(self: &Arc<Self>, input: impl FnOnce(&mut State, Time)) {
        let _ = self.with(input);
    }

    /// Reads the state, also after a panic.
    pub(super) fn look<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps the memory of the executing task alive. `None` after a panic, when it may be gone already.
    pub(super) fn use_memory(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let using = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        self.broken.get().is_none().then_some(using)
    }

    /// Marks the state as closed: the threads of the stages end when they are woken.
    pub(super) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
    }

    /// Ends every handle after a panic, once nothing uses the memory of the callers any more. On a separate thread, because the calling
    /// thread may belong to the transport.
    fn bury(self: &Arc<Self>, state: &mut State, error: &Error) {
        const PATIENCE: Duration = Duration::from_secs(1);
        let (shared, wreck, cause) = (Arc::clone(self), state.wreck(), error.clone());
        let ending = std::thread::Builder::new().name("gl-ending".to_owned()).spawn(move || {
            if let Some(collective) = shared.collective.get() {
                collective.abort(cause.clone());
                collective.shutdown();
            }
            shared.transport.shutdown(PATIENCE);
            if let Some(device) = &shared.device {
                device.shutdown();
            }
            drop(shared.memory.write());
            wreck.report(&cause);
            shared.milestones.change(|reached| reached.failed = Some(cause));
        });
        // If there is no thread, dropping the wreck reports to every handle.
        drop(ending);
    }
}

fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests;
