//! The engine of one worker: accepts submissions, resolves handles, starts and ends the threads.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::arrivals::Arrivals;
use super::asked::{Asked, Submission};
use super::dispatcher::Dispatcher;
use super::effects::counting;
use super::events::on_event;
use super::follow::Following;
use super::handle::{Handle, HandleBackend};
use super::limit::Limit;
use super::local_peers;
use super::metrics::Metrics;
use super::recorder::{Flight, Recorder};
use super::shared::{ChangeLog, Shared, Waiting};
use super::stages::Stages;
use super::submissions::{Submissions, ending};
use super::submit::{HERE_BYTES_MAX, check, check_ranks, in_copies};
use super::submit_budget::{Reservation, SubmitBudget};
use super::trace::{Timeline, Window};
use super::watched::Watched;
use crate::cluster::{ContactTerms, MemberConfig, empty_barrier};
use crate::config::Config;
use crate::device::Device;
use crate::error::Result;
use crate::identity::Credentials;
use crate::local::{Progress, Segment};
use crate::mem::{Copies, Doubt};
use crate::metrics::OfProcess as _;
use crate::runtime::exporter::{Exporter, Exposure, Standing};
use crate::runtime::{Clock, JobClock, Membership, MembershipOptions, Timer};
use crate::sched::SchedulerConfig;
use crate::transport::Transport;
use crate::types::{Address, Demand, DeviceKind, Role, Scheme, TensorSpec, Time, WorkerId, WorkersKey};
use crate::worker::{Formation, Tensor, Terms, Worker, WorkerSettings};

/// How to start an engine.
pub struct EngineOptions {
    /// Settings of the whole process.
    pub config: Config,
    /// The identity of this process.
    pub member: MemberConfig,
    /// The coordinator's `host:port`.
    pub coordinator: String,
    /// Proves this process's identity.
    pub credentials: Arc<Credentials>,
    /// Carries the exchanges.
    pub transport: Arc<dyn Transport>,
    /// Counts what the transport copies.
    pub copies: Copies,
    /// The devices whose memory may hold tensors. The engine shuts it down at its own shutdown.
    pub device: Option<Arc<dyn Device>>,
}

/// A worker's engine. Dropping it shuts it down.
pub struct Engine {
    pub(super) shared: Arc<Shared>,
    /// For the threads that wait for handles.
    waiting: Arc<Waiting>,
    pub(super) stages: Arc<Stages>,
    /// Equips the engine for each formation.
    pub(super) following: Following,
    pub(super) config: Config,
    pub(super) coordinator: String,
    pub(super) credentials: Arc<Credentials>,
    pub(super) room: Arc<SubmitBudget>,
    backend: Arc<dyn HandleBackend>,
    timeline: Arc<Timeline>,
    job_clock: JobClock,
    /// While the exporter of this process shows it.
    pub(super) exposure: Mutex<Option<Exposure>>,
    /// How many workers the job began with.
    first_size: u32,
    /// The engine has begun to leave.
    pub(super) leaving: Mutex<bool>,
    arrivals: Arrivals,
}

impl Engine {
    /// Joins the job and returns once it runs.
    ///
    /// # Errors
    /// If it could not join. For example, [`Error::NotFormed`](crate::Error::NotFormed) names the missing processes, and [`Error::DuplicateRank`](crate::Error::DuplicateRank) the process that
    /// has the rank.
    pub fn start(options: EngineOptions) -> Result<Self> {
        Self::start_shown(options, None)
    }

    /// As [`start`](Self::start). `exporter` shows this worker from now on until it has left, also while it waits for the job to form.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_shown(options: EngineOptions, exporter: Option<&Arc<Exporter>>) -> Result<Self> {
        let _span = tracing::debug_span!("join", coordinator = &*options.coordinator).entered();
        let clock = Clock::start();
        let config = options.config;
        let process = &options.member.process;
        let socket = local_peers::listen(&config, process.machine, options.member.workers, Segment::check_system);
        let mut member = options.member;
        member.process.wiring = local_peers::wiring(&config)?;
        if let Some(socket) = &socket {
            member.process.addresses = vec![Address::new(Scheme::Shm, socket.path().to_string_lossy())];
        }
        let bounds = config.bounds();
        let settings = WorkerSettings {
            scheduler: SchedulerConfig {
                credit_bytes: config.credit_bytes,
                oldest_every: config.oldest_every,
                step_timeout: bounds.step,
                ..SchedulerConfig::default()
            },
            stall_warn: config.stall_warn,
            bounds,
            contact: ContactTerms::of(&config, bounds.call),
            device: if options.device.is_some() { DeviceKind::Cuda } else { DeviceKind::Host },
            keeps: local_peers::goes_on(&config),
            keeps_sums: local_peers::outlives_servers(&config),
        };
        let (joins_in, first_size) = (member.join_timeout + bounds.call, member.workers);
        let (dispatcher, recorder) = (Arc::new(Dispatcher::default()), Recorder::new(config.recorder_events));
        let shared = Arc::new(Shared::new(
            options.transport,
            options.device,
            Metrics::new(&options.copies),
            clock,
            (config.checksum, config.nan_check),
            (Worker::new(clock.now(), settings), Arc::new(Flight::new(&config, Role::Worker, clock, recorder))),
            Arc::clone(&dispatcher) as _,
        ));
        shared.metrics.configured(config.fingerprint());
        Metrics::set(&shared.metrics.credit_bytes, config.credit_bytes);
        config.dump_dir.iter().for_each(|directory| shared.dumps.allow(directory.clone()));
        let exposure = exporter.map(|exporter| exporter.show(Arc::clone(&shared.probe) as _));
        let timed = Arc::downgrade(&shared);
        let timer = Timer::start("gl-timer", clock, move |_| {
            // The next deadline is armed by `with` itself.
            if let Some(shared) = timed.upgrade() {
                shared.report(|state, now| state.handle_timer(now));
            }
            None
        })?;
        *locked(&shared.timer) = Some(timer);

        let (reporter, listener) = (Arc::downgrade(&shared), Arc::downgrade(&shared));
        let (coordinator, credentials) = (options.coordinator.clone(), Arc::clone(&options.credentials));
        let membership = Membership::start(
            MembershipOptions { member, coordinator: options.coordinator, credentials: options.credentials },
            clock,
            Some(Arc::clone(&shared.probe) as _),
            move || reporter.upgrade().map(|shared| shared.tell_progress()).unwrap_or_default(),
            None,
            move |event| {
                if let Some(shared) = listener.upgrade() {
                    on_event(&shared, event);
                }
            },
        )?;
        let job_clock = membership.job_clock().clone();
        shared.probe.usage.joined(job_clock.clone());
        shared.flight.follow_clock(job_clock.clone());
        *locked(&shared.membership) = Some(membership);
        let watched = Arc::downgrade(&shared);
        shared.transport.watch(Arc::new(move |cause| {
            if let Some(shared) = watched.upgrade() {
                shared.break_down(cause);
            }
        }));
        let room = SubmitBudget::new(config.submit_bytes_max, bounds.call);
        let backend = Submissions::single(&shared);
        let timeline = Timeline::new(clock, Some(job_clock.clone()), config.timeline_bytes_max);
        let timeline = Arc::new(timeline.counted_in(shared.metrics.trace_counts()));
        let _ = shared.timeline.set(Arc::clone(&timeline));
        let waiting = Arc::new(Waiting(Arc::clone(&shared)));
        let stages = Arc::new(Stages::new(Arc::clone(&shared), dispatcher));
        let following = Following::start(Arc::clone(&shared), Arc::clone(&stages), config.clone(), socket)?;
        let mut engine = Self {
            shared,
            waiting,
            stages,
            following,
            config,
            coordinator,
            credentials,
            room: Arc::new(room),
            backend,
            timeline,
            job_clock,
            exposure: Mutex::new(exposure),
            first_size,
            leaving: Mutex::default(),
            arrivals: Arrivals::default(),
        };
        let (milestones, meeting) = (&engine.shared.milestones, "meeting the workers of this machine");
        // Meeting them ends in time by itself, with an error that says more.
        let meets_in = engine.config.join_timeout * 2 + bounds.call;
        milestones
            .wait(joins_in, "joining the job", |reached| reached.joined)
            .and_then(|()| milestones.wait(meets_in, meeting, |reached| reached.equipped))
            .inspect_err(|error| engine.shared.flight.failed(error))?;
        // A worker need not know it before.
        engine.first_size =
            engine.first_size.max(engine.shared.look(|state| state.worker.formation().map_or(1, Formation::ranks)));
        if let Some(place) = &engine.config.timeline {
            let Config { timeline_from_step: from, timeline_steps: steps, .. } = engine.config;
            engine.shared.record_timeline(place, Window::by_settings(from, steps))?;
        }
        engine.shared.probe.standing.advance(Standing::Ready);
        Ok(engine)
    }

    /// The key that only the coordinator and the workers of the job have, for what must not be forged by servers. `None` after
    /// [`shutdown`](Self::shutdown).
    pub fn workers_key(&self) -> Option<WorkersKey> {
        locked(&self.shared.membership).as_ref()?.workers_key()
    }

    /// This worker's rank.
    pub fn rank(&self) -> WorkerId {
        self.shared.look(|state| state.worker.rank())
    }

    /// How many workers the job has. It has fewer after it went on without some.
    pub fn size(&self) -> u32 {
        self.shared.look(|state| state.worker.formation().map_or(1, Formation::workers))
    }

    /// How many workers the job began with. Their ranks are below this number, and stay as they are if some leave or are lost.
    pub fn first_size(&self) -> u32 {
        self.first_size
    }

    /// The ranks of the workers that the job has, in their order.
    pub fn ranks(&self) -> Vec<WorkerId> {
        let ranks = |formation: &Formation| formation.view.workers().map(|member| WorkerId(member.index)).collect();
        self.shared.look(|state| state.worker.formation().map_or_else(|| vec![WorkerId(0)], ranks))
    }

    /// From now on operators of the job can change the log of this process: `change` sets a filter like that of the setting `log`.
    pub fn change_log_by(&self, change: ChangeLog) {
        // A process has one log.
        let _ = self.shared.change_log.set(change);
    }

    /// What this worker did last, as it is dumped.
    pub fn flight(&self) -> &Arc<Flight> {
        &self.shared.flight
    }

    /// Counters since the start.
    pub fn metrics(&self) -> &Metrics {
        self.shared.probe.refresh();
        &self.shared.metrics
    }

    /// The devices of this process, if it has any. A caller that submits device memory marks its stream with them.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.shared.device.as_ref()
    }

    /// Whether a device may still write memory of operations that have ended. As long as this doubt exists, owners keep their memory.
    pub fn doubt(&self) -> &Doubt {
        &self.shared.doubt
    }

    /// How often threads have waited for the lock of the engine's state, for the test that bounds it.
    #[cfg(feature = "testing")]
    pub fn state_takings(&self) -> u64 {
        self.shared.takings()
    }

    /// The parts of every declared tensor, one per line, for people.
    pub fn layout(&self) -> String {
        self.shared.look(|state| state.worker.describe_layout())
    }

    /// The names of tensors that share a part, a list for each such part. No byte of it is sent before all of them were submitted, so a
    /// caller loses nothing if it submits them together, as a [`Batch`].
    pub fn companions(&self) -> Vec<Vec<String>> {
        self.shared.look(|state| state.worker.companions())
    }

    /// Records all tasks from now on, and the spans of [`Timeline::record`]. See [`Timeline::start`] for `place`, the result and the
    /// errors.
    pub fn start_timeline(&self, place: &Path) -> Result<PathBuf> {
        self.shared.record_timeline(place, Window::default())
    }

    /// Completes the timeline's file. Does nothing if no timeline is being recorded.
    pub fn stop_timeline(&self) {
        self.shared.stop_timeline();
    }

    /// The timeline, for the caller's own spans.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The clock of the job, also after [`shutdown`](Self::shutdown).
    pub fn job_clock(&self) -> &JobClock {
        &self.job_clock
    }

    /// Waits for room for a submission of so many bytes. See [`SubmitBudget::enter`].
    pub(super) fn reserve(&self, bytes: u64, timeout: Option<Duration>) -> Result<Reservation> {
        let room = SubmitBudget::enter(&self.room, bytes, timeout, &|| self.shared.works());
        room.inspect_err(|error| self.shared.flight.failed(error))
    }

    /// The limit of an operation on a tensor that begins now with this timeout.
    pub(super) fn limit(&self, name: Arc<str>, timeout: Option<Duration>) -> Limit {
        Limit::new(self.shared.clock, self.config.bounds().operation(timeout), "tensor", name)
    }

    /// Reduces a tensor over all workers. `then` runs when the handle resolves, with its id, on an engine thread;
    /// it must not use the handle. The memory is free then, unless [`doubt`](Self::doubt) exists.
    ///
    /// Waits while more than `submit_bytes_max` bytes are unresolved.
    ///
    /// # Errors
    /// If the arguments are wrong: an invalid reduction, a length that does not match the shape, or another dtype or shape than this worker
    /// declared before; or if the job has ended. Also the error of an earlier operation of which nobody was told, because a stream waits for
    /// it ([`Handle::follow`]). All other errors resolve the handle.
    pub fn push_pull(&self, submission: Submission, then: impl FnOnce(u64) + Send + 'static) -> Result<Handle> {
        self.submit(submission.into(), HERE_BYTES_MAX, &|| {}, then)
    }

    /// As [`push_pull`](Self::push_pull); parts of at most `here_bytes_max` bytes are pushed by the calling thread. `entered` runs once
    /// there is room for the submission, which is then accepted.
    pub(super) fn submit(
        &self,
        asked: Asked,
        here_bytes_max: u64,
        entered: &dyn Fn(),
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        let Asked { tensor, source, destination, demand, priority, timeout, cuts } = asked;
        check(&tensor, &source, &destination, demand, self.device())?;
        check_ranks(std::slice::from_ref(&tensor), demand, self.first_size)?;
        self.shared.followed.check()?;
        let bytes = source.len() as u64;
        let _span = tracing::trace_span!("submit", tensor = &*tensor.name, bytes).entered();
        let room = self.reserve(bytes, timeout)?;
        entered();

        let name: Arc<str> = tensor.name.as_str().into();
        let limit = self.limit(Arc::clone(&name), timeout);
        let in_copies = in_copies(&tensor, &source, self.device(), self.shared.nan_check);
        let device = source.device();
        let in_place = source.is_place_of(&destination);
        let described = Tensor { key: tensor.key(), bytes, device, in_copies, in_place, priority, cuts };
        let watched = Watched::look(&self.shared, &tensor, &source, demand);
        let handle = self.shared.with_pushing(here_bytes_max, |state, now| {
            let taken = state.loans.take(&source, &destination);
            let taken = taken.map_err(|in_use| state.refusal(in_use, std::slice::from_ref(&tensor)))?;
            let (key, round) = (described.key, state.worker.next_round(described.key));
            let id = state.worker.submit(now, &tensor, described, Terms { demand, timeout });
            state.record(now, id, (key, round), (&demand, bytes), true);
            let followed = &self.shared.followed;
            let then = ending(room, followed, name, then);
            let (handle, done) = Handle::new(id, Some(Arc::clone(&self.backend)), Arc::clone(followed), then);
            let done = match watched {
                Some(watched) => watched.follow(&self.shared, round, &destination, done),
                None => done,
            };
            // Where no value comes back to the device, the last step is no copy to it.
            let issue = device.filter(|_| demand.receives()).map(|_| handle.issue());
            state.loans.lend(id, &taken, vec![(source, destination)], issue, done);
            if let Demand::Access { access, .. } = demand {
                let teller = counting(access, &self.shared.metrics, handle.effect_teller());
                state.loans.tell_effect(id, teller);
            }
            Ok(handle)
        });
        let handle = handle.flatten()?;
        Metrics::add(&self.shared.metrics.submissions, 1);
        Ok(self.polling(handle).limited(limit))
    }

    /// Reduces a tensor over all workers and waits for it, at most for `patience`; like [`push_pull`](Self::push_pull) and
    /// [`Handle::wait`], but faster if the calling thread can do the work itself.
    ///
    /// # Errors
    /// As those two.
    pub fn reduce(&self, submission: Submission, patience: Option<Duration>) -> Result<()> {
        self.finish(patience, |patience| self.begin_to_reduce(submission, patience, |_| {}))
    }

    /// Begins an operation and waits for it, at most for `patience` in total.
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

    /// The first half of [`reduce`](Self::reduce): submits, and then does work on the calling thread until the handle resolves, or all work
    /// is on devices, at most for `patience`. The caller must wait for the handle afterwards. `then` is that of [`push_pull`](Self::push_pull).
    ///
    /// # Errors
    /// As [`push_pull`](Self::push_pull).
    pub fn begin_to_reduce(
        &self,
        submission: Submission,
        patience: Duration,
        then: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        self.begin(patience, |here_bytes_max, entered| self.submit(submission.into(), here_bytes_max, entered, then))
    }

    /// Calls `submit`, and then does work on the calling thread. The arguments of `submit` are the longest parts that it pushes itself, and
    /// a function to call once the submission is accepted.
    pub(super) fn begin(
        &self,
        patience: Duration,
        submit: impl FnOnce(u64, &dyn Fn()) -> Result<Handle>,
    ) -> Result<Handle> {
        let Some(collective) = self.shared.company.any() else {
            // The caller waits anyway, so it pushes all parts itself, and no other thread has to wake up.
            return submit(u64::MAX, &|| {});
        };
        // Only once there is room, because the wait for room may need another thread to do the work.
        let handle = submit(HERE_BYTES_MAX, &|| collective.announce())?;
        // A panic ends the handle as well. No longer than the handle trusts the engine: it asks in its own wait.
        let patience = patience.min(handle.trusted_for());
        let _ = self.shared.guard(|| collective.poll_announced(&|| handle.is_issued(), patience));
        Ok(handle)
    }

    /// The handle, whose waiters do the work of this engine.
    pub(super) fn polling(&self, handle: Handle) -> Handle {
        handle.polling(Arc::downgrade(&self.waiting) as Weak<dyn Progress + Send + Sync>)
    }

    /// Begins the first reduction of a tensor without elements, of which nothing is ever sent: the workers only agree that it has none.
    /// The handle resolves once all of them have come, or fails if one has elements.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if another worker declared the name differently.
    pub fn agree_on_empty(&self, tensor: TensorSpec, timeout: Option<Duration>) -> Result<Handle> {
        let meeting = empty_barrier(&tensor.name);
        self.declare(vec![tensor], true, timeout)?;
        Ok(self.arrive(&meeting, timeout))
    }

    /// Enters the barrier `name`. The handle resolves once all workers have entered it, at the latest after `timeout`, or the job's step
    /// timeout, which does not pass while a coordinator is out of contact that has to say who is lost.
    ///
    /// The handle's error is an [`Error::Timeout`](crate::Error::Timeout) that names the ranks that did not come, or the cause if the job ended.
    pub fn arrive(&self, name: &str, timeout: Option<Duration>) -> Handle {
        let id = self.arrivals.next_number();
        if let Some(error) = self.shared.look(|state| state.worker.ended().cloned()) {
            return Handle::resolved(id, Err(error));
        }
        let patience = self.patience(timeout);
        let (handle, done) = self.request(id, patience, "barrier", name);
        // If the engine is shut down, the token is dropped, which reports an error.
        if let Some(membership) = &*locked(&self.shared.membership) {
            membership.barrier(name.to_owned(), patience, done);
        }
        handle
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // No caller is left.
        let _ = self.leave(Duration::ZERO);
    }
}

/// A thread that panics with such a lock leaves a consistent state.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
