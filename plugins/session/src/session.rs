//! The membership of a process in a job: the engine as frameworks use it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::engine::{
    BatchSubmission, Engine, EngineOptions, FeedbackState, Flight, Handle, ParameterUse, RowsHandle, RowsUse, Step,
    Submission, Timeline,
};
use gradlane_core::identity::Credentials;
use gradlane_core::mem::{Copies, Doubt};
use gradlane_core::metrics::{Instance, WorkerMetrics};
use gradlane_core::runtime::exporter::Exporter;
use gradlane_core::runtime::{JobClock, process};
use gradlane_core::transport::router::Router;
use gradlane_core::types::{
    CheckpointAsk, Checkpointed, HostPlace, Participants, Role, StoreAnswer, StoreAsk, TensorSpec, Tick, Ticked,
    WorkerId, WorkerSet, WorkersKey,
};
use gradlane_core::{Error, Result};
use gradlane_server::launch::entering::Found;

use crate::alone::Alone;
use crate::devices::devices;
use crate::embedded::Embedded;
use crate::memory::Lender;
use crate::operation::{Ends, Operation};
use crate::own_process::OwnProcess;
use crate::place::{Ended, Place};
use crate::reduction::Reduction;

/// The membership of a process in a job. Several threads may call all methods at once. Dropping it leaves the job without waiting. A forked
/// child that drops its copy does nothing.
pub struct Session {
    place: OwnProcess<Box<dyn Place>>,
    ends: Arc<Ends>,
    /// How it came into its job; `None` for a job of one.
    entrance: Option<Entrance>,
}

/// How a process enters its job.
#[derive(Clone)]
struct Entrance {
    coordinator: String,
    credentials: Arc<Credentials>,
    request: JoinRequest,
    config: Config,
}

/// The arguments of a joining worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinRequest {
    /// The rank; `None` lets the coordinator assign one.
    pub rank: Option<u32>,
    /// How many workers the job has; 0 if this process does not know.
    pub workers: u32,
    /// How many servers the job has.
    pub servers: u32,
    /// How long the job may take to form.
    pub patience: Duration,
    /// The versions of what the process runs besides Gradlane, such as `torch`, by name. People see them in the report of the job.
    pub software: BTreeMap<String, String>,
}

impl Session {
    /// Joins the job whose join string was found and returns once it runs.
    ///
    /// # Errors
    /// As [`Exporter::by_settings`], [`Found::enrol`] and [`Engine::start`].
    pub fn join(found: Found, request: JoinRequest, config: Config) -> Result<Self> {
        let exporter = Exporter::by_settings(&config)?;
        Self::join_shown(found, request, config, exporter)
    }

    /// The same for a process that has embedded the coordinator. If `embedded` has an exporter, that one shows this worker too.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn join_beside(embedded: &Embedded, found: Found, request: JoinRequest, config: Config) -> Result<Self> {
        Self::join_shown(found, request, config, embedded.exporter())
    }

    fn join_shown(found: Found, request: JoinRequest, config: Config, exporter: Option<Arc<Exporter>>) -> Result<Self> {
        let (join, credentials) = found.enrol(&config, Role::Worker, request.patience)?;
        let credentials = Arc::new(credentials);
        Self::enter(Entrance { coordinator: join.address, credentials, request, config }, exporter)
    }

    fn enter(entrance: Entrance, exporter: Option<Arc<Exporter>>) -> Result<Self> {
        let Entrance { coordinator, credentials, request, config } = entrance.clone();
        let JoinRequest { rank, workers, servers, patience, software } = request;
        let copies = Copies::default();
        let devices = devices(&config);
        let transport = Router::new(&config, &credentials, &copies)?;
        let mut member = gradlane_core::cluster::MemberConfig {
            requested: rank,
            workers,
            servers,
            join_timeout: patience,
            ..process::member(Role::Worker, &config)
        };
        member.setup.versions.extend(software);
        let (transport, device) = (Arc::new(transport), Some(devices));
        let options = EngineOptions { config, member, coordinator, credentials, transport, copies, device };
        let engine = Engine::start_shown(options, exporter.as_ref())?;
        engine.change_log_by(gradlane_server::log::change);
        Ok(Self { entrance: Some(entrance), ..Self::at(engine) })
    }

    /// Joins the job that forms again ([`Step::FormsAgain`]): leaves this session and returns the one of the next formation, once that runs.
    /// This process keeps its identity, and gets a rank anew.
    ///
    /// # Errors
    /// As [`Exporter::by_settings`] and [`Engine::start`]; [`Error::FailedPrecondition`] in a job of one worker without servers.
    pub fn join_again(&self) -> Result<Self> {
        let Some(entrance) = self.entrance.clone() else {
            return Err(Error::FailedPrecondition {
                what: "a job of one worker without servers does not form again".to_owned(),
                hint: "start it with servers, and with `elastic`".to_owned(),
            });
        };
        // Its handles fail, if there are any left. Nobody is waited for: all have left.
        let _ = self.shutdown(Duration::ZERO);
        let request = JoinRequest { rank: None, workers: 0, ..entrance.request };
        let exporter = Exporter::by_settings(&entrance.config)?;
        Self::enter(Entrance { request, ..entrance }, exporter)
    }

    /// A job of one worker, without any server. Reductions are copies.
    ///
    /// # Errors
    /// If the timeline that the settings ask for cannot be written. As [`Exporter::by_settings`].
    pub fn alone(config: &Config) -> Result<Self> {
        Alone::new(config, devices(config)).map(Self::at)
    }

    fn at(place: impl Place + 'static) -> Self {
        Self { place: OwnProcess::new(Box::new(place)), ends: Arc::default(), entrance: None }
    }

    /// This worker's rank.
    pub fn rank(&self) -> u32 {
        self.place.rank()
    }

    /// The key that only the coordinator and the workers of the job have, for what must not be forged by servers.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if this worker has left the job.
    pub fn workers_key(&self) -> Result<WorkersKey> {
        self.place.workers_key().ok_or_else(|| Error::FailedPrecondition {
            what: "this worker has left the job".to_owned(),
            hint: "call this before shutdown".to_owned(),
        })
    }

    /// How many workers the job has. It has fewer after it went on without some.
    pub fn size(&self) -> u32 {
        self.place.size()
    }

    /// How many workers the job began with. Their ranks are below this number.
    pub fn first_size(&self) -> u32 {
        self.place.first_size()
    }

    /// The ranks of the workers that the job has, in their order.
    pub fn ranks(&self) -> Vec<u32> {
        self.place.ranks()
    }

    /// How often the job had formed before this process joined it: an elastic job forms again when workers come.
    pub fn formed_before(&self) -> u32 {
        self.place.formed_before()
    }

    /// Where this worker is among those of its host.
    pub fn host_place(&self) -> HostPlace {
        self.place.host_place()
    }

    /// The declaration of a tensor that is reduced in this way, with the workers that take part. A set of all ranks with which the job began is
    /// the same as no set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a rank that the job does not have, a set without ranks, or a receiver that is not in the set. As
    /// [`TensorSpec::compressed`].
    pub fn declaration(&self, tensor: TensorSpec, reduction: &Reduction) -> Result<TensorSpec> {
        let (members, receiver) = (reduction.members.as_deref(), reduction.receiver);
        let size = self.first_size();
        if let Some(rank) = members.into_iter().flatten().chain(&receiver).find(|rank| **rank >= size) {
            return Err(Error::InvalidArgument {
                what: format!("{} does not exist in a job of {size} workers", WorkerId(*rank)),
                hint: format!("give ranks from 0 to {}", size - 1),
            });
        }
        let set: Option<WorkerSet> = members.map(|ranks| ranks.iter().copied().map(WorkerId).collect());
        let is_everybody = |set: &WorkerSet| set.len() == size as usize;
        let members = set.filter(|set| !is_everybody(set)).map_or(Participants::ALL, Participants::of);
        let participants = match receiver {
            Some(receiver) => members.with_receiver(WorkerId(receiver)),
            None => members,
        };
        participants.check("of this call")?;
        Ok(tensor.compressed(reduction.codec)?.with_participants(participants))
    }

    /// Declares tensors in one round trip; see [`Engine::declare`].
    ///
    /// # Errors
    /// As [`Engine::declare`].
    pub fn declare(&self, tensors: Vec<TensorSpec>, fuse: bool, timeout: Option<Duration>) -> Result<()> {
        self.place.declare(tensors, fuse, timeout)
    }

    /// Says that this worker uses these names no more; see [`Engine::undeclare`].
    ///
    /// # Errors
    /// As [`Engine::undeclare`].
    pub fn undeclare(&self, names: &[String], timeout: Option<Duration>) -> Result<()> {
        self.place.undeclare(names, timeout)
    }

    /// A lender of memory for submissions to this session: host memory, or memory of the device with this number.
    pub fn lender(&self, device: Option<u16>) -> Lender<'_> {
        Lender::new(self.place.device(), device)
    }

    /// Submits a reduction. With `waits` the caller waits for it next; the calling thread then does work of the engine, at most for that
    /// time. `ended` runs when the operation has ended, like `then` of [`Engine::push_pull`].
    ///
    /// # Errors
    /// As [`Engine::push_pull`].
    pub fn submit(
        &self,
        submission: Submission,
        waits: Option<Duration>,
        ended: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        self.place.submit(submission, waits, self.ended(ended))
    }

    /// Submits the reductions of all tensors of a batch. `waits` and `ended` are those of [`submit`](Self::submit).
    ///
    /// # Errors
    /// As [`Engine::push_pull_all`].
    pub fn submit_all(
        &self,
        submission: BatchSubmission<'_>,
        waits: Option<Duration>,
        ended: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Handle> {
        self.place.submit_all(submission, waits, self.ended(ended))
    }

    /// Uses a parameter; see [`Engine::access`]. `waits` and `ended` are those of [`submit`](Self::submit). In a job of one worker without
    /// servers, this process keeps the parameters.
    ///
    /// # Errors
    /// As [`Engine::access`]; [`Error::FailedPrecondition`] for memory of a device in a job without servers.
    pub fn access(
        &self,
        asked: ParameterUse,
        waits: Option<Duration>,
        ended: impl FnOnce(u64) + Send + 'static,
    ) -> Result<Operation> {
        let handle = self.place.access(asked, waits, self.ended(ended))?;
        Ok(self.operation(handle))
    }

    /// Uses rows of a table; see [`Engine::use_rows`], and the example of this crate. A job of one worker without servers keeps the rows itself.
    ///
    /// # Errors
    /// As [`Engine::use_rows`].
    pub fn use_rows(&self, asked: RowsUse<'_>) -> Result<RowsHandle> {
        self.begin_rows(asked, |_| {})
    }

    /// As [`use_rows`](Self::use_rows); `ended` is that of [`submit`](Self::submit).
    ///
    /// # Errors
    /// As [`use_rows`](Self::use_rows).
    pub fn begin_rows(&self, asked: RowsUse<'_>, ended: impl FnOnce(u64) + Send + 'static) -> Result<RowsHandle> {
        self.place.use_rows(asked, self.ended(ended))
    }

    /// An operation of this session, by its handle, for threads that wait for the [first](crate::wait_any) of several.
    pub fn operation(&self, handle: Handle) -> Operation {
        Operation::new(handle, &self.ends)
    }

    fn ended(&self, then: impl FnOnce(u64) + Send + 'static) -> Ended {
        Box::new(self.ends.noting(then))
    }

    /// Begins the first reduction of a tensor without elements; see [`Engine::agree_on_empty`].
    ///
    /// # Errors
    /// As [`Engine::agree_on_empty`].
    pub fn agree_on_empty(&self, tensor: TensorSpec, timeout: Option<Duration>) -> Result<Handle> {
        self.place.agree_on_empty(tensor, timeout)
    }

    /// Enters the barrier `name`; the handle resolves once all workers have entered it. See [`Engine::arrive`].
    pub fn arrive(&self, name: &str, timeout: Option<Duration>) -> Handle {
        self.place.arrive(name, timeout)
    }

    /// Asks the key-value store of the job, and waits for the answer; see [`Engine::ask_store`]. In a job of one worker without servers, this
    /// process keeps the store.
    ///
    /// # Errors
    /// As [`Engine::ask_store`].
    pub fn ask_store(&self, ask: StoreAsk, timeout: Option<Duration>) -> Result<StoreAnswer> {
        self.place.ask_store(ask, timeout)
    }

    /// Finishes a round of a clock, and waits until this worker may begin the next one; see [`Engine::tick`]. In a job of one worker without
    /// servers nobody is waited for.
    ///
    /// # Errors
    /// As [`Engine::tick`].
    pub fn tick(&self, tick: Tick, timeout: Option<Duration>) -> Result<Ticked> {
        self.place.tick(tick, timeout)
    }

    /// Saves the parameters of the job, or loads them; see [`Engine::checkpoint`]. In a job of one worker without servers, this process writes
    /// and reads all files.
    ///
    /// # Errors
    /// As [`Engine::checkpoint`].
    pub fn checkpoint(&self, ask: CheckpointAsk) -> Result<Checkpointed> {
        self.place.checkpoint(ask)
    }

    /// Begins a step of the training; see [`Engine::begin_step`].
    ///
    /// # Errors
    /// As [`Engine::begin_step`].
    pub fn begin_step(&self) -> Result<Step> {
        self.place.begin_step()
    }

    /// As [`begin_step`](Self::begin_step); `None` where that would wait, and then no step has begun.
    ///
    /// # Errors
    /// As [`begin_step`](Self::begin_step).
    pub fn begin_step_at_once(&self) -> Result<Option<Step>> {
        self.place.begin_step_at_once()
    }

    /// The loop over the steps has ended; see [`Engine::end_steps`].
    pub fn end_steps(&self) {
        self.place.end_steps();
    }

    /// Whether the others go on if this worker leaves.
    pub fn may_leave(&self) -> bool {
        self.place.may_leave()
    }

    /// Asks to leave the job at the next boundary between two steps; see [`Engine::ask_to_leave`].
    ///
    /// # Errors
    /// As [`Engine::ask_to_leave`].
    pub fn ask_to_leave(&self) -> Result<()> {
        self.place.ask_to_leave()
    }

    /// Whether a device may still write memory of operations that have ended. As long as this doubt exists, [`Owners`](crate::Owners) keeps
    /// the owners of that memory.
    pub fn doubt(&self) -> &Doubt {
        self.place.doubt()
    }

    /// The metrics of this worker. In a job of one nothing is sent, so those of stages, links and servers are 0.
    pub fn metrics(&self) -> Instance {
        self.counters().instance(self.rank())
    }

    /// Where they are counted.
    pub fn counters(&self) -> &WorkerMetrics {
        self.place.metrics()
    }

    /// The parts of every declared tensor, one a line.
    pub fn layout(&self) -> String {
        self.place.layout()
    }

    /// The names of tensors that share a part; see [`Engine::companions`].
    pub fn companions(&self) -> Vec<Vec<String>> {
        self.place.companions()
    }

    /// What error feedback keeps of a tensor on this worker; see [`Engine::feedback`]. Empty in a job of one worker, which encodes nothing.
    ///
    /// # Errors
    /// As [`Engine::feedback`].
    pub fn feedback(&self, name: &str) -> Result<FeedbackState> {
        self.place.feedback(name)
    }

    /// Puts that back; see [`Engine::set_feedback`].
    ///
    /// # Errors
    /// As [`Engine::set_feedback`].
    pub fn set_feedback(&self, name: &str, state: &FeedbackState) -> Result<()> {
        self.place.set_feedback(name, state)
    }

    /// Reads what servers keep of the answers to these tensors; see [`Engine::answer_feedback`]. Empty in a job of one worker.
    ///
    /// # Errors
    /// As [`Engine::answer_feedback`].
    pub fn answer_feedback(&self, names: &[&str]) -> Result<Vec<Vec<u8>>> {
        self.place.answer_feedback(names)
    }

    /// Gives that back to servers; see [`Engine::set_answer_feedback`].
    ///
    /// # Errors
    /// As [`Engine::set_answer_feedback`].
    pub fn set_answer_feedback(&self, given: &[(&str, &[u8])]) -> Result<()> {
        self.place.set_answer_feedback(given)
    }

    /// Keeps also what error feedback had before each round; see [`Engine::hold_feedback`].
    ///
    /// # Errors
    /// As [`Engine::hold_feedback`].
    pub fn hold_feedback(&self, name: &str) -> Result<()> {
        self.place.hold_feedback(name)
    }

    /// Takes back what the latest round has changed; see [`Engine::take_back_feedback`].
    ///
    /// # Errors
    /// As [`Engine::take_back_feedback`].
    pub fn take_back_feedback(&self, name: &str) -> Result<()> {
        self.place.take_back_feedback(name)
    }

    /// Records from now on what this worker does, and returns the path of the file.
    ///
    /// # Errors
    /// As [`Timeline::start`].
    pub fn start_timeline(&self, place: &Path) -> Result<PathBuf> {
        self.place.start_timeline(place)
    }

    /// Completes the file of the timeline. Does nothing if no timeline is being recorded.
    pub fn stop_timeline(&self) {
        self.place.stop_timeline();
    }

    /// The timeline, for spans of the caller.
    pub fn timeline(&self) -> &Timeline {
        self.place.timeline()
    }

    /// What this worker did last, as it is dumped. `None` if this worker is the only one, which nobody holds up.
    pub fn flight(&self) -> Option<&Arc<Flight>> {
        self.place.flight()
    }

    /// The clock that all members of the job share. `None` if this worker is the only one, which has no coordinator.
    pub fn job_clock(&self) -> Option<&JobClock> {
        self.place.job_clock()
    }

    /// Waits until all operations have ended for which streams wait, at most for `timeout`; see [`Engine::settle`].
    ///
    /// # Errors
    /// As [`Engine::settle`].
    pub fn settle(&self, timeout: Option<Duration>) -> Result<()> {
        self.place.settle(timeout)
    }

    /// Ends the work of this process because of `cause`, which every member of the job gets. Waits at most `grace` until the coordinator
    /// knows. Has no effect after this process has left.
    ///
    /// # Errors
    /// As [`Engine::give_up`].
    pub fn give_up(&self, cause: String, grace: Duration) -> Result<()> {
        self.place.give_up(cause, grace)
    }

    /// Leaves the job: pending operations fail. Waits at most `grace` for the other workers. Idempotent.
    ///
    /// # Errors
    /// As [`Engine::shutdown`].
    pub fn shutdown(&self, grace: Duration) -> Result<()> {
        self.place.shutdown(grace)
    }
}
