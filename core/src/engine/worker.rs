//! The engine of one worker: accepts submissions, resolves handles, starts and ends the threads.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::executors::executor;
use super::handle::{Canceller, Help};
use super::room::Room;
use super::shared::{Lent, Settings, Shared, Ticket};
use super::submit::{HERE_BYTES_MAX, accept, check, check_root};
use super::{Handle, Memory, Metrics, Timeline, stage_loop, together};
use crate::cluster::{MemberConfig, MemberEvent};
use crate::config::Config;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::local::PrivateSocket;
use crate::mem::Copies;
use crate::pipeline::registry::{Lookup, Registry};
use crate::pipeline::{Pipeline, Stage};
use crate::runtime::{Clock, Membership, MembershipOptions, Timer, status};
use crate::sched::{Scheduler, SchedulerConfig};
use crate::transport::Transport;
use crate::transport::quic::Credentials;
use crate::types::{DeviceKind, Done, Machines, Op, Priority, Role, TensorSpec, Time, View, WorkerId};
use crate::wire::frame::Health;

/// How to start an engine.
pub struct EngineOptions {
    /// Settings of the whole process.
    pub config: Config,
    /// Who this process is.
    pub member: MemberConfig,
    /// The coordinator's `host:port`.
    pub coordinator: String,
    /// Proves this process's identity.
    pub credentials: Arc<Credentials>,
    /// Carries the exchanges.
    pub transport: Arc<dyn Transport>,
    /// Counts what the transport copies.
    pub copies: Copies,
    /// Reaches the devices in whose memory tensors may lie. The engine shuts it down with itself.
    pub device: Option<Arc<dyn Device>>,
}

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

/// A worker's engine. Dropping it shuts it down.
pub struct Engine {
    pub(super) shared: Arc<Shared>,
    membership: Mutex<Membership>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    milestones: Arc<Milestones>,
    config: Config,
    coordinator: String,
    credentials: Arc<Credentials>,
    pub(super) tickets: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) room: Arc<Room>,
    cancel: Canceller,
    timeline: Arc<Timeline>,
}

/// How far the membership got; waited for by the caller's threads.
#[derive(Default)]
struct Milestones {
    reached: Mutex<Reached>,
    changed: Condvar,
}

#[derive(Default)]
struct Reached {
    joined: Option<u32>,
    left: bool,
    failed: Option<Error>,
}

impl Engine {
    /// Joins the job and returns once it runs.
    ///
    /// # Errors
    /// Why it could not join: [`Error::NotFormed`] names who is missing, [`Error::DuplicateRank`] who has the rank, and so on.
    pub fn start(options: EngineOptions) -> Result<Self> {
        let clock = Clock::start();
        let config = options.config;
        let scheduling = SchedulerConfig {
            credit_bytes: config.credit_bytes,
            oldest_every: config.oldest_every,
            give_up_patience: config.step_timeout,
            ..SchedulerConfig::default()
        };
        // Until the view says who is where; nothing is submitted before.
        let scheduler = Scheduler::new(scheduling, Pipeline::of(Vec::new()));
        let door = together::open_door(&config, options.member.process.machine, options.member.workers);
        let mut member = options.member;
        member.process.wiring = together::wiring(&config)?;
        if let Some(door) = &door {
            member.process.socket_path = door.path().to_string_lossy().into_owned();
        }
        let settings = Settings {
            checksum: config.checksum,
            dial_patience: Duration::from_secs(3),
            stall_warn: config.stall_warn,
        };
        let shared = Arc::new(Shared::new(
            options.transport,
            options.device,
            Metrics::new(&options.copies),
            clock,
            settings,
            scheduler,
        ));
        let timed = Arc::downgrade(&shared);
        let timer = Timer::start("gl-timer", clock, move |_| {
            // The next deadline is armed by `with` itself.
            if let Some(shared) = timed.upgrade() {
                shared.with(|state, now| state.handle_timer(now));
            }
            None
        })?;
        *shared.timer.lock().expect(LOCK) = Some(timer);

        let milestones = Arc::new(Milestones::default());
        let (progress, listener, reached) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&milestones));
        let (coordinator, credentials) = (options.coordinator.clone(), Arc::clone(&options.credentials));
        let membership = Membership::start(
            MembershipOptions { member, coordinator: options.coordinator, credentials: options.credentials },
            clock,
            move || progress.progress(),
            move |event| on_event(&listener, &reached, scheduling, event),
        )?;
        let room = Room::new(config.submit_bytes_max);
        let cancelled = Arc::downgrade(&shared);
        let cancel = Arc::new(move |id| {
            if let Some(shared) = cancelled.upgrade() {
                shared.with(|state, now| state.cancel(now, id));
            }
        });
        let timeline = Timeline::new(clock, config.timeline_bytes_max);
        let engine = Self {
            shared,
            membership: Mutex::new(membership),
            threads: Mutex::default(),
            milestones,
            config,
            coordinator,
            credentials,
            tickets: AtomicU64::new(1),
            requests: AtomicU64::new(1),
            room: Arc::new(room),
            cancel,
            timeline: Arc::new(timeline),
        };
        engine.milestones.wait(None, |reached| reached.joined.is_some())?;
        engine.equip(clock, door)?;
        if let Some(place) = &engine.config.timeline {
            engine.start_timeline(place)?;
        }
        Ok(engine)
    }

    /// Starts what the pipeline needs: the other workers of this machine, and threads for its stages.
    fn equip(&self, clock: Clock, door: Option<PrivateSocket>) -> Result<()> {
        let (pipeline, rank, view) =
            self.shared.with(|state, _| (state.scheduler.pipeline().clone(), state.rank, state.view.clone()));
        if pipeline.stages().iter().any(|stage| stage.is_collective()) {
            let view = view.as_ref().expect("joined");
            let failed = || self.milestones.reached.lock().expect(LOCK).failed.clone();
            let copies = self.shared.metrics.copies();
            let collective = together::meet(&self.config, view, rank, door, copies, clock, &failed)?;
            let first = self.shared.collective.set(collective).is_ok();
            assert!(first, "an engine starts once");
        }
        for stage in pipeline.stages() {
            // What ranks do together needs no thread here, and PULL takes no longer than to wake one.
            if stage.is_collective() || *stage == Stage::Pull {
                continue;
            }
            let execute =
                executor(*stage).ok_or_else(|| Error::Internal { what: format!("no executor for {stage}") })?;
            let thread = stage_loop::spawn(*stage, Arc::clone(&self.shared), execute)?;
            self.threads.lock().expect(LOCK).push(thread);
        }
        Ok(())
    }

    /// This worker's rank.
    pub fn rank(&self) -> WorkerId {
        self.shared.with(|state, _| state.rank)
    }

    /// How many workers the job has.
    pub fn size(&self) -> u32 {
        let workers = |view: &View| u32::try_from(view.workers().count()).expect("bounded by MEMBERS_MAX");
        self.shared.with(|state, _| state.view.as_ref().map_or(1, workers))
    }

    /// Counters since the start.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// What reaches the devices of this process, if it was given any: whoever submits memory of one marks its stream there.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.shared.device.as_ref()
    }

    /// The parts of every declared tensor, one a line, for people.
    pub fn layout(&self) -> String {
        self.shared.with(|state, _| state.registry.describe())
    }

    /// Records from now on what every task does, and what is given to [`Timeline::record`]. See [`Timeline::start`] for `place`, the
    /// answer and the errors.
    pub fn start_timeline(&self, place: &Path) -> Result<PathBuf> {
        let path = self.timeline.start(place, self.rank())?;
        self.shared.with(|state, now| state.trace(now, Some(Arc::clone(&self.timeline))));
        Ok(path)
    }

    /// Completes the timeline's file. Does nothing if none is recorded.
    pub fn stop_timeline(&self) {
        self.shared.with(|state, now| state.trace(now, None));
        self.timeline.stop();
    }

    /// Where the caller's own spans go.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Declares tensors before their first use, all in one round trip. With `fuse`, small neighbours may share parts; all of the list
    /// must then be submitted in every round.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if another worker declared one of the names differently.
    pub fn declare(&self, tensors: Vec<TensorSpec>, fuse: bool, timeout: Option<Duration>) -> Result<()> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let unknown: Vec<TensorSpec> = self.shared.with(|state, _| {
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            let mut unknown = Vec::new();
            for tensor in tensors {
                if state.registry.lookup(&tensor)? == Lookup::Unknown {
                    unknown.push(tensor);
                }
            }
            state.registry.declaring(request, &unknown);
            Ok(unknown)
        })?;
        if unknown.is_empty() {
            return Ok(());
        }
        let (handle, done) = Handle::new(0, None, |_| {});
        self.send_declaration(request, unknown, fuse, done);
        handle.wait(timeout)
    }

    /// Reduces a tensor over all workers. `then` runs when the handle resolves, with its id, on an engine thread;
    /// it must not use the handle.
    ///
    /// Waits while more than `submit_bytes_max` bytes are unresolved.
    ///
    /// # Errors
    /// At once for what can be known at once: a bad reduction, a length that does not fit the shape, another dtype or shape than
    /// declared before on this worker, a job that has ended. Everything else resolves the handle.
    pub fn push_pull(&self, submission: Submission, then: impl FnOnce(u64) + Send + 'static) -> Result<Handle> {
        self.submit(submission, HERE_BYTES_MAX, &|| {}, then)
    }

    /// As [`push_pull`](Self::push_pull); parts of at most `here_bytes_max` bytes are pushed by the calling thread. `entered` runs once
    /// there is room for the submission, which is accepted then.
    fn submit(
        &self,
        submission: Submission,
        here_bytes_max: u64,
        entered: &dyn Fn(),
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        let Submission { tensor, source, destination, op, weight, priority, timeout } = submission;
        check(&tensor, &source, &destination, op, weight, self.device())?;
        check_root(op, || self.size())?;
        let bytes = source.len() as u64;
        self.room.enter(bytes, timeout)?;
        entered();

        let id = self.tickets.fetch_add(1, Ordering::Relaxed);
        let room = Arc::clone(&self.room);
        let (handle, done) = Handle::new(id, Some(Arc::clone(&self.cancel)), move |id| {
            room.leave(bytes);
            then(id);
        });
        Metrics::add(&self.shared.metrics.submissions, 1);
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let declare = self.shared.with_pushing(here_bytes_max, |state, now| {
            let ticket = Ticket {
                tensors: vec![Lent { key: tensor.key(), source, destination }],
                bytes,
                op,
                weight,
                priority,
                submitted: now,
                deadline: timeout.map(|timeout| now + timeout),
                group: None,
                done,
            };
            let known = state.registry.lookup(&tensor);
            let declare = known == Ok(Lookup::Unknown) && state.ended.is_none();
            if declare {
                state.registry.declaring(request, std::slice::from_ref(&tensor));
            }
            accept(state, now, id, ticket, known);
            declare
        });
        if declare {
            let (_, done) = Handle::new(0, None, |_| {});
            self.send_declaration(request, vec![tensor], false, done);
        }
        Ok(self.helping(handle))
    }

    /// Reduces a tensor over all workers and waits for it, at most for `patience`; as [`push_pull`](Self::push_pull) and
    /// [`Handle::wait`], and sooner where the calling thread can do the work itself.
    ///
    /// # Errors
    /// As those two.
    pub fn reduce(&self, submission: Submission, patience: Option<Duration>) -> Result<()> {
        self.finish(patience, |patience| self.begin_to_reduce(submission, patience, |_| {}))
    }

    /// Begins, and waits for the rest, at most for `patience` together.
    pub(super) fn finish(
        &self,
        patience: Option<Duration>,
        begin: impl FnOnce(Duration) -> Result<Handle>,
    ) -> Result<()> {
        let clock = Clock::start();
        let handle = begin(patience.unwrap_or(Duration::MAX))?;
        let helped = clock.now().since(Time::ZERO);
        handle.wait(patience.map(|patience| patience.saturating_sub(helped)))
    }

    /// The first half of [`reduce`](Self::reduce): submits, and does what the calling thread can do itself until the handle resolves, at
    /// most for `patience`. Wait for the handle afterwards. `then` is that of [`push_pull`](Self::push_pull).
    ///
    /// # Errors
    /// As [`push_pull`](Self::push_pull).
    pub fn begin_to_reduce(
        &self,
        submission: Submission,
        patience: Duration,
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        self.begin(patience, |here_bytes_max, entered| self.submit(submission, here_bytes_max, entered, then))
    }

    /// Submits, and then does what the calling thread can do itself; `submit` is told how long the parts may be that it pushes, and what to
    /// do once there is room for the submission and nothing can refuse it any more.
    pub(super) fn begin(
        &self,
        patience: Duration,
        submit: impl FnOnce(u64, &dyn Fn()) -> Result<Handle>,
    ) -> Result<Handle> {
        let Some(collective) = self.shared.collective.get() else {
            // Whoever waits anyway pushes all of it: no other thread has to wake first.
            return submit(u64::MAX, &|| {});
        };
        // Not before there is room: what this thread waits for there may need another to work.
        let handle = submit(HERE_BYTES_MAX, &|| collective.attend())?;
        collective.help(&|| handle.is_resolved(), patience, true);
        Ok(handle)
    }

    /// The handle, whose waiters do the work of this engine.
    pub(super) fn helping(&self, handle: Handle) -> Handle {
        handle.helping(match self.shared.collective.get() {
            Some(collective) => Help::Collective(Arc::downgrade(collective)),
            None => Help::Transport(Arc::downgrade(&self.shared.transport)),
        })
    }

    /// Arrives at the barrier `name`; the handle resolves once all workers have, at the latest after `timeout`, or else the job's step
    /// timeout.
    ///
    /// The handle's error is an [`Error::Timeout`] that names the ranks that did not come, or the cause if the job ended.
    pub fn arrive(&self, name: &str, timeout: Option<Duration>) -> Handle {
        if let Some(error) = self.shared.with(|state, _| state.ended.clone()) {
            return Handle::resolved(0, Err(error));
        }
        let timeout = timeout.unwrap_or(self.config.step_timeout);
        let (handle, done) = Handle::new(0, None, |_| {});
        self.membership.lock().expect(LOCK).barrier(name.to_owned(), timeout, done);
        handle
    }

    /// Leaves the job: pending submissions fail, then the other workers are waited for at most `grace`, so that a server that lives in
    /// this process serves them to their end. Idempotent.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming the workers that had not left by then; this process is out all the same.
    pub fn shutdown(&self, grace: Duration) -> Result<()> {
        self.leave(grace).map_err(|error| match error {
            Error::Timeout { waited, .. } => {
                Error::Timeout { what: format!("waiting for {} to leave", self.who_stays()), waited }
            }
            other => other,
        })
    }

    /// The workers that have not left, as far as the coordinator still tells.
    fn who_stays(&self) -> String {
        const PATIENCE: Duration = Duration::from_secs(1);
        let status = status(&self.coordinator, &self.credentials, PATIENCE).ok();
        let members = status.iter().flat_map(|status| status.view.members.iter().zip(&status.members));
        let stays = members.filter(|(member, now)| member.process.role == Role::Worker && now.health != Health::Left);
        let names: Vec<String> = stays.map(|(member, _)| format!("{} on {}", member.name(), member.place())).collect();
        if names.is_empty() { "the other workers".to_owned() } else { names.join(", ") }
    }

    fn leave(&self, grace: Duration) -> Result<()> {
        let pending = Error::FailedPrecondition {
            what: "the engine was shut down while the operation was under way".to_owned(),
            hint: "wait for the handles before shutdown()".to_owned(),
        };
        let (known, told) = Handle::new(0, None, |_| {});
        self.shared.with(|state, now| state.give_all_up(now, &pending, told));
        // Servers that do not answer do not keep it: who waits for it then waits for the step timeout.
        let _ = known.wait(Some(grace.min(LAST_WORDS)));
        let first = self.shared.with(|state, now| {
            state.end(now, &pending);
            !std::mem::replace(&mut state.leaving, true)
        });
        if !first {
            return Ok(());
        }
        self.membership.lock().expect(LOCK).leave();
        let left = self.milestones.wait(Some(grace), |reached| reached.left || reached.failed.is_some());
        self.membership.lock().expect(LOCK).stop();
        if let Some(collective) = self.shared.collective.get() {
            collective.shutdown();
        }
        self.shared.transport.shutdown(Duration::from_secs(1));
        // Copies under way end with it, and with them the last handles.
        if let Some(device) = &self.shared.device {
            device.shutdown();
        }
        // Not before: a sum that came meanwhile, and is awaited by other ranks, is still brought to its device.
        self.shared.with(|state, _| state.closed = true);
        for bell in self.shared.bells.values() {
            bell.ring();
        }
        for thread in self.threads.lock().expect(LOCK).drain(..) {
            let _ = thread.join();
        }
        // Out of the lock first: a callback under way may want to arm it.
        let timer = self.shared.timer.lock().expect(LOCK).take();
        drop(timer);
        self.stop_timeline();
        left
    }

    pub(super) fn send_declaration(&self, request: u64, tensors: Vec<TensorSpec>, fuse: bool, done: Done<()>) {
        let shared = Arc::clone(&self.shared);
        let declared = Done::new(move |outcome: Result<_>| {
            let report = outcome.as_ref().map(|_| ()).map_err(Clone::clone);
            shared.with(|state, now| {
                for key in state.registry.handle_declared(request, outcome) {
                    state.unpark(now, key);
                }
            });
            done.report(report);
        });
        self.membership.lock().expect(LOCK).declare(tensors, fuse, declared);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.leave(Duration::ZERO);
    }
}

impl Milestones {
    fn change(&self, change: impl FnOnce(&mut Reached)) {
        change(&mut self.reached.lock().expect(LOCK));
        self.changed.notify_all();
    }

    /// Waits until `enough`, the job's failure, or `patience`. The membership has deadlines of its own, so that none is needed to join.
    fn wait(&self, patience: Option<Duration>, enough: impl Fn(&Reached) -> bool) -> Result<()> {
        let guard = self.reached.lock().expect(LOCK);
        let waiting = |reached: &mut Reached| !enough(reached) && reached.failed.is_none();
        let guard = match patience {
            None => self.changed.wait_while(guard, waiting).expect(LOCK),
            Some(patience) => self.changed.wait_timeout_while(guard, patience, waiting).expect(LOCK).0,
        };
        match (enough(&guard), &guard.failed) {
            (true, _) => Ok(()),
            (false, Some(error)) => Err(error.clone()),
            (false, None) => Err(Error::Timeout {
                what: "waiting for the other workers to leave".to_owned(),
                waited: patience.unwrap_or_default(),
            }),
        }
    }
}

/// How long a worker that leaves stays for servers to hear what it gave up.
const LAST_WORDS: Duration = Duration::from_secs(2);
const LOCK: &str = "nobody panics while holding it";

/// Fails everything, now and later, whatever other workers do.
fn abort(shared: &Arc<Shared>, cause: Error) {
    shared.with(|state, now| state.end(now, &cause));
    if let Some(collective) = shared.collective.get() {
        collective.abort(cause);
    }
}

fn on_event(shared: &Arc<Shared>, milestones: &Milestones, scheduling: SchedulerConfig, event: MemberEvent) {
    match event {
        MemberEvent::Joined { index, view } => {
            tracing::info!(rank = index, epoch = %view.epoch, "joined");
            shared.with(|state, now| {
                state.rank = WorkerId(index);
                state.registry = Registry::new(state.rank);
                state.machines = Machines::of(&view);
                let device = if shared.device.is_some() { DeviceKind::Cuda } else { DeviceKind::Host };
                let pipeline = Pipeline::for_role(&together::topology(&state.machines, state.rank, device), false);
                let local_ranks = state.machines.team(state.rank).map_or(1, <[WorkerId]>::len);
                tracing::info!(machines = state.machines.len(), local_ranks, %device, "{pipeline}");
                state.scheduler = Scheduler::new(scheduling, pipeline);
                state.follow(now, view);
            });
            milestones.change(|reached| reached.joined = Some(index));
        }
        MemberEvent::View(view) => shared.with(|state, now| state.follow(now, view)),
        MemberEvent::Forget { key, error } => shared.with(|state, now| {
            for key in state.registry.handle_forget(key, error.clone()) {
                state.fail_tensor(now, key, &error);
            }
        }),
        MemberEvent::StallNotice { tensor, stall, detail } => tracing::warn!(
            tensor, round = stall.round.0, missing = ?stall.missing, waited_s = stall.waited.as_secs_f64(), detail,
            "waiting for a contribution"
        ),
        MemberEvent::Failed(error) => {
            tracing::error!(%error, "the job failed");
            abort(shared, error.clone());
            milestones.change(|reached| reached.failed = Some(error));
        }
        MemberEvent::Left => milestones.change(|reached| reached.left = true),
        MemberEvent::Declared { .. } | MemberEvent::BarrierDone { .. } => {
            unreachable!("the membership reports these to their waiters")
        }
    }
}
