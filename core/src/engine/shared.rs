//! The shared data of the engine's threads: the state under one lock, and everything outside of it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

use super::company::Company;
use super::dumps::Dumps;
use super::followed::Followed;
use super::formation_news::FormationNews;
use super::limit::DEVICE_LOOK;
use super::metrics::Metrics;
use super::milestones::Milestones;
use super::probe::Probe;
use super::recorder::Flight;
use super::state::{Effect, State};
use super::step_gate::StepGate;
use super::trace::Timeline;
use super::wire::Wire;
use crate::cluster::Steps;
use crate::config::{Checksum, NanCheck};
use crate::cuda::Mark;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::local::Progress;
use crate::mem::Doubt;
use crate::runtime::exporter::Standing;
use crate::runtime::{Clock, Membership, Timer};
use crate::transport::Transport;
use crate::types::Time;
use crate::wire::frame::{self, Hold};
use crate::worker::{Liveness, Worker};

/// Changes what the log of this process lets through, to a filter like that of the setting `log`.
pub type ChangeLog = fn(&str) -> Result<()>;

/// The engine as its threads see it.
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) device: Option<Arc<dyn Device>>,
    /// Whether a device may still write memory of operations that have ended.
    pub(super) doubt: Doubt,
    pub(super) metrics: Arc<Metrics>,
    /// What the exporter shows.
    pub(super) probe: Arc<Probe>,
    /// The operations for which streams of the caller wait.
    pub(super) followed: Arc<Followed>,
    pub(super) wire: Wire,
    /// Which contributions carry a checksum.
    pub(super) checksum: Checksum,
    /// What becomes of contributions that are not finite.
    pub(super) nan_check: NanCheck,
    pub(super) milestones: Milestones,
    /// Set once, right after start: the timer's callback needs this struct.
    pub(super) timer: Mutex<Option<Timer>>,
    /// Set once, right after start: its callbacks need this struct.
    pub(super) membership: Mutex<Option<Membership>>,
    /// The steps of this worker.
    pub(super) boundary: StepGate,
    /// The ranks with which this worker reduces.
    pub(super) company: Company,
    /// The thread that equips the engine for another formation.
    pub(super) following: Arc<FormationNews>,
    /// The rounds that operators want to see.
    pub(super) dumps: Dumps,
    /// What this worker did last.
    pub(super) flight: Arc<Flight>,
    /// Set right after the start, because it needs the clock of the job.
    pub(super) timeline: OnceLock<Arc<Timeline>>,
    /// How an operator changes the log of this process, if the engine's owner says so.
    pub(super) change_log: OnceLock<ChangeLog>,
    dispatch: Arc<dyn Dispatch>,
    state: Mutex<State>,
    /// How often the lock of the state was taken.
    #[cfg(feature = "testing")]
    takings: std::sync::atomic::AtomicU64,
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
        (checksum, nan_check): (Checksum, NanCheck),
        (worker, flight): (Worker, Arc<Flight>),
        dispatch: Arc<dyn Dispatch>,
    ) -> Self {
        let bound = worker.bounds().call;
        let metrics = Arc::new(metrics);
        let followed = Arc::new(Followed::counting(metrics.waits(), clock, bound));
        Self {
            clock,
            transport,
            device,
            doubt: Doubt::default(),
            followed,
            probe: Arc::new(Probe::new(&metrics, &flight)),
            wire: Wire::new(),
            checksum,
            nan_check,
            milestones: Milestones::default(),
            timer: Mutex::new(None),
            membership: Mutex::new(None),
            boundary: StepGate::default(),
            company: Company::default(),
            following: Arc::default(),
            dumps: Dumps::default(),
            state: Mutex::new(State::new(worker, &metrics, Arc::clone(&flight))),
            metrics,
            flight,
            timeline: OnceLock::new(),
            change_log: OnceLock::new(),
            dispatch,
            #[cfg(feature = "testing")]
            takings: std::sync::atomic::AtomicU64::new(0),
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
        let mut state = self.state();
        if let Some(error) = self.broken.get() {
            return Err(error.clone());
        }
        let decided = catch_unwind(AssertUnwindSafe(|| {
            let answer = input(&mut state, now);
            (answer, state.settle(now))
        }));
        let (answer, effects) = decided.map_err(|panic| self.break_down_locked(&mut state, panicked(&*panic)))?;
        drop(state);
        if !effects.is_empty() {
            self.guard(|| self.dispatch.carry_out(self, effects, here_bytes_max))?;
        }
        Ok(answer)
    }

    /// Does `work` of the engine outside the lock. What it should have reported may be lost if it panics, so a panic ends every handle.
    ///
    /// # Errors
    /// [`Error::Internal`] if it panicked.
    pub(super) fn guard<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> Result<T> {
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| self.break_down(panicked(&*panic)))
    }

    /// Ends every handle, because this process can do no more for them. The first cause counts; returns it.
    pub(super) fn break_down(self: &Arc<Self>, cause: Error) -> Error {
        let mut state = self.state();
        self.break_down_locked(&mut state, cause)
    }

    /// Reports the end of a step. After a panic there is no machine to report to.
    pub(super) fn report(self: &Arc<Self>, input: impl FnOnce(&mut State, Time)) {
        let _ = self.with(input);
    }

    /// Reads the state, also after a panic.
    pub(super) fn look<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.state())
    }

    /// What each heartbeat tells the coordinator. Sets the gauges of the metrics that need the lock, which nobody asks more often.
    pub(super) fn tell_progress(&self) -> frame::Progress {
        self.look(|state| {
            for (gauge, value) in [
                (&self.metrics.rounds, state.worker.rounds()),
                (&self.metrics.inflight_bytes, state.worker.credit_in_flight()),
                (&self.metrics.stalled_tensors, state.worker.stalled() as u64),
            ] {
                Metrics::set(gauge, value);
            }
            state.worker.progress()
        })
    }

    /// Whether the engine works at the submissions with these ids. Does not wait for any other thread: if one keeps the lock, it is stuck.
    pub(super) fn liveness(&self, ids: Range<u64>) -> Liveness {
        let Some(state) = self.try_state() else { return Liveness::Stuck };
        let elsewhere = self.company.any().map_or(Time::ZERO, |collective| self.clock.own(collective.moved()));
        let found = state.worker.liveness(self.clock.now(), ids.clone(), elsewhere);
        let before = if found == Liveness::Stuck { state.loans.marks_before(ids) } else { Vec::new() };
        drop(state);
        // Asked without the lock, because it calls the driver.
        if before.iter().all(Mark::is_reached) {
            return found;
        }
        let Some(mut state) = self.try_state() else { return Liveness::Stuck };
        state.worker.handle_device_behind(self.clock.now());
        Liveness::Works { ask_in: DEVICE_LOOK }
    }

    /// How long nothing fails because it has waited too long for others; `None` if a thread keeps the lock.
    pub(super) fn patience_left(&self) -> Option<Duration> {
        let now = self.clock.now();
        self.try_state().map(|state| state.worker.patient_until().since(now))
    }

    /// Whether the engine works at the submissions that have not ended.
    pub(super) fn works(&self) -> Liveness {
        self.liveness(0..u64::MAX)
    }

    /// The state, also after a panic.
    fn state(&self) -> MutexGuard<'_, State> {
        #[cfg(feature = "testing")]
        self.takings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the lock of the state was taken, except by threads that do not wait for it.
    #[cfg(feature = "testing")]
    pub(super) fn takings(&self) -> u64 {
        self.takings.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The state, unless a thread keeps its lock.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        const ATTEMPTS: usize = 1000;
        for _ in 0..ATTEMPTS {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Keeps the memory of the executing task alive. `None` after a panic, when it may be gone already.
    pub(super) fn use_memory(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let using = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        if self.broken.get().is_none() { Some(using) } else { None }
    }

    /// Gives the membership something to tell the coordinator. It has one from right after the start on.
    pub(super) fn tell(&self, say: impl FnOnce(&Membership)) {
        if let Some(membership) = &*self.membership.lock().unwrap_or_else(PoisonError::into_inner) {
            say(membership);
        }
    }

    /// Gives the steps an input, and tells the coordinator what it must hear of it.
    pub(super) fn step<T>(&self, input: impl FnOnce(&mut Steps) -> T) -> T {
        self.boundary.with(input, |report| self.tell(|membership| membership.reporter().report_steps(report)))
    }

    /// The coordinator says that the membership is to change, and how far workers may go.
    pub(super) fn hear_boundary(self: &Arc<Self>, change: u64, limit: Option<u64>, hold: Option<Hold>) {
        if let Some(Hold { there, needed, lost, patience }) = &hold {
            let seconds = patience.as_secs_f64();
            tracing::warn!(there, needed, %lost, seconds, "the workers hold behind their step until others have come");
        }
        let heard = self.step(|steps| {
            let heard = steps.handle_boundary(change, limit);
            steps.handle_hold(change, hold.map(|hold| hold.patience));
            heard
        });
        if let Err(problem) = heard {
            let peer = "the coordinator".to_owned();
            drop(self.break_down(Error::Protocol { peer, field: "limit".to_owned(), problem }));
        }
    }

    /// Marks the state as closed: the threads of the stages end when they are woken.
    pub(super) fn close(&self) {
        self.state().closed = true;
    }

    fn break_down_locked(self: &Arc<Self>, state: &mut State, cause: Error) -> Error {
        if let Some(first) = self.broken.get() {
            return first.clone();
        }
        tracing::error!(%cause, "the engine stopped");
        self.probe.standing.advance(Standing::Failed);
        let cause = self.broken.get_or_init(|| cause).clone();
        self.flight.ended(&cause);
        self.end_all_handles(state, &cause);
        cause
    }

    /// Ends every handle after a panic, once nothing uses the memory of the callers any more. On a separate thread, because the calling
    /// thread may belong to the transport.
    fn end_all_handles(self: &Arc<Self>, state: &mut State, error: &Error) {
        const PATIENCE: Duration = Duration::from_secs(1);
        let (shared, unfinished, cause) = (Arc::clone(self), state.take_unfinished(), error.clone());
        let ending = std::thread::Builder::new().name("gl-ending".to_owned()).spawn(move || {
            // First, because the other workers wait for this one.
            shared.tell(|membership| membership.reporter().break_down(cause.clone()));
            // The panic may have poisoned a lock of any of these parts. The other parts are ended all the same.
            let end = |part: &dyn Fn()| drop(catch_unwind(AssertUnwindSafe(part)));
            if let Some(collective) = shared.company.any() {
                end(&|| collective.abort(cause.clone()));
                end(&|| collective.shutdown());
            }
            end(&|| shared.transport.shutdown(PATIENCE));
            if let Some(device) = &shared.device {
                end(&|| device.shutdown(&shared.doubt));
            }
            drop(shared.memory.write());
            unfinished.report(&cause);
            shared.milestones.change(|reached| reached.failed = Some(cause));
        });
        // If the system gives no thread, the closure is dropped, and with it the handles' reports, which then are errors.
        drop(ending);
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    Error::of_panic("the engine stopped because it", panic)
}

/// What a thread polls that waits for a handle: the component in which most of its engine's work waits.
pub(super) struct Waiting(pub(super) Arc<Shared>);

impl Progress for Waiting {
    fn poll(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        // Whoever waits hears of a panic by the handle.
        let _ = self.0.guard(|| match self.0.company.any() {
            Some(collective) => collective.poll(enough, patience),
            None => self.0.transport.poll(enough, patience),
        });
    }

    fn wake(&self) {
        match self.0.company.any() {
            Some(collective) => collective.wake(),
            None => self.0.transport.wake(),
        }
    }
}

#[cfg(test)]
mod tests;
