//! A process's place in its job: one of several members ([`Engine`]), or the only one ([`Alone`](crate::alone::Alone)).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::device::Device;
use gradlane_core::engine::{
    BatchSubmission, Engine, FeedbackState, Flight, Handle, ParameterUse, RowsHandle, RowsUse, Step, Submission,
    Timeline,
};
use gradlane_core::mem::Doubt;
use gradlane_core::metrics::WorkerMetrics;
use gradlane_core::runtime::JobClock;
use gradlane_core::types::{
    CheckpointAsk, Checkpointed, HostPlace, StoreAnswer, StoreAsk, TensorSpec, Tick, Ticked, WorkersKey,
};

/// Runs when an operation has ended, with the id of its handle.
pub(crate) type Ended = Box<dyn FnOnce(u64) + Send>;

/// What a [`Session`](crate::Session) asks of its place. Each method means what the session's method of the same name says.
pub(crate) trait Place: Send + Sync {
    /// The rank of this worker.
    fn rank(&self) -> u32;

    /// How many workers the job has.
    fn size(&self) -> u32;

    /// How many workers the job began with.
    fn first_size(&self) -> u32;

    /// The ranks of the workers that the job has, in their order.
    fn ranks(&self) -> Vec<u32>;

    /// How often the job had formed before.
    fn formed_before(&self) -> u32;

    /// Where this worker is among those of its host.
    fn host_place(&self) -> HostPlace;

    /// The key of the job's workers; `None` after this one has left.
    fn workers_key(&self) -> Option<WorkersKey>;

    fn declare(&self, tensors: Vec<TensorSpec>, fuse: bool, timeout: Option<Duration>) -> Result<()>;

    fn undeclare(&self, names: &[String], timeout: Option<Duration>) -> Result<()>;

    /// The devices of this process.
    fn device(&self) -> &dyn Device;

    fn submit(&self, submission: Submission, waits: Option<Duration>, ended: Ended) -> Result<Handle>;

    fn submit_all(&self, submission: BatchSubmission<'_>, waits: Option<Duration>, ended: Ended) -> Result<Handle>;

    fn access(&self, asked: ParameterUse, waits: Option<Duration>, ended: Ended) -> Result<Handle>;

    fn use_rows(&self, asked: RowsUse<'_>, ended: Ended) -> Result<RowsHandle>;

    fn agree_on_empty(&self, tensor: TensorSpec, timeout: Option<Duration>) -> Result<Handle>;

    fn arrive(&self, name: &str, timeout: Option<Duration>) -> Handle;

    fn ask_store(&self, ask: StoreAsk, timeout: Option<Duration>) -> Result<StoreAnswer>;

    fn tick(&self, tick: Tick, timeout: Option<Duration>) -> Result<Ticked>;

    fn checkpoint(&self, ask: CheckpointAsk) -> Result<Checkpointed>;

    fn begin_step_at_once(&self) -> Result<Option<Step>>;

    fn begin_step(&self) -> Result<Step>;

    fn end_steps(&self);

    fn may_leave(&self) -> bool;

    fn ask_to_leave(&self) -> Result<()>;

    fn doubt(&self) -> &Doubt;

    fn metrics(&self) -> &WorkerMetrics;

    fn layout(&self) -> String;

    fn companions(&self) -> Vec<Vec<String>>;

    fn feedback(&self, name: &str) -> Result<FeedbackState>;

    fn set_feedback(&self, name: &str, state: &FeedbackState) -> Result<()>;

    fn answer_feedback(&self, names: &[&str]) -> Result<Vec<Vec<u8>>>;

    fn set_answer_feedback(&self, given: &[(&str, &[u8])]) -> Result<()>;

    fn hold_feedback(&self, name: &str) -> Result<()>;

    fn take_back_feedback(&self, name: &str) -> Result<()>;

    /// What this worker did last; `None` if nothing is recorded.
    fn flight(&self) -> Option<&Arc<Flight>>;

    fn start_timeline(&self, place: &Path) -> Result<PathBuf>;

    fn stop_timeline(&self);

    fn timeline(&self) -> &Timeline;

    /// The clock of the job; `None` if this worker is the only one, which has no coordinator.
    fn job_clock(&self) -> Option<&JobClock>;

    fn settle(&self, timeout: Option<Duration>) -> Result<()>;

    fn give_up(&self, cause: String, grace: Duration) -> Result<()>;

    fn shutdown(&self, grace: Duration) -> Result<()>;
}

/// Where a worker is that knows of no other.
pub(crate) const ALONE: HostPlace = HostPlace { local_rank: 0, local_size: 1, node_rank: 0, num_nodes: 1 };

/// A member of a job of several processes.
impl Place for Engine {
    fn rank(&self) -> u32 {
        self.rank().0
    }

    fn size(&self) -> u32 {
        self.size()
    }

    fn first_size(&self) -> u32 {
        self.first_size()
    }

    fn ranks(&self) -> Vec<u32> {
        self.ranks().into_iter().map(|rank| rank.0).collect()
    }

    fn formed_before(&self) -> u32 {
        self.formed_before()
    }

    fn host_place(&self) -> HostPlace {
        self.place().unwrap_or(ALONE)
    }

    fn workers_key(&self) -> Option<WorkersKey> {
        self.workers_key()
    }

    fn declare(&self, tensors: Vec<TensorSpec>, fuse: bool, timeout: Option<Duration>) -> Result<()> {
        self.declare(tensors, fuse, timeout)
    }

    fn undeclare(&self, names: &[String], timeout: Option<Duration>) -> Result<()> {
        self.undeclare(names, timeout)
    }

    fn device(&self) -> &dyn Device {
        &**self.device().expect("given to the engine when it joined")
    }

    fn submit(&self, submission: Submission, waits: Option<Duration>, ended: Ended) -> Result<Handle> {
        match waits {
            Some(patience) => self.begin_to_reduce(submission, patience, ended),
            None => self.push_pull(submission, ended),
        }
    }

    fn submit_all(&self, submission: BatchSubmission<'_>, waits: Option<Duration>, ended: Ended) -> Result<Handle> {
        match waits {
            Some(patience) => self.begin_to_reduce_all(submission, patience, ended),
            None => self.push_pull_all(submission, ended),
        }
    }

    fn access(&self, asked: ParameterUse, waits: Option<Duration>, ended: Ended) -> Result<Handle> {
        match waits {
            Some(patience) => self.begin_to_access(asked, patience, ended),
            None => self.access(asked, ended),
        }
    }

    fn use_rows(&self, asked: RowsUse<'_>, ended: Ended) -> Result<RowsHandle> {
        self.begin_rows(asked, ended)
    }

    fn agree_on_empty(&self, tensor: TensorSpec, timeout: Option<Duration>) -> Result<Handle> {
        self.agree_on_empty(tensor, timeout)
    }

    fn arrive(&self, name: &str, timeout: Option<Duration>) -> Handle {
        self.arrive(name, timeout)
    }

    fn ask_store(&self, ask: StoreAsk, timeout: Option<Duration>) -> Result<StoreAnswer> {
        self.ask_store(ask, timeout)
    }

    fn tick(&self, tick: Tick, timeout: Option<Duration>) -> Result<Ticked> {
        self.tick(tick, timeout)
    }

    fn checkpoint(&self, ask: CheckpointAsk) -> Result<Checkpointed> {
        self.checkpoint(ask)
    }

    fn begin_step_at_once(&self) -> Result<Option<Step>> {
        self.begin_step_at_once()
    }

    fn begin_step(&self) -> Result<Step> {
        self.begin_step()
    }

    fn end_steps(&self) {
        self.end_steps();
    }

    fn may_leave(&self) -> bool {
        self.may_leave()
    }

    fn ask_to_leave(&self) -> Result<()> {
        self.ask_to_leave()
    }

    fn doubt(&self) -> &Doubt {
        self.doubt()
    }

    fn metrics(&self) -> &WorkerMetrics {
        self.metrics()
    }

    fn layout(&self) -> String {
        self.layout()
    }

    fn feedback(&self, name: &str) -> Result<FeedbackState> {
        self.feedback(name)
    }

    fn set_feedback(&self, name: &str, state: &FeedbackState) -> Result<()> {
        self.set_feedback(name, state)
    }

    fn answer_feedback(&self, names: &[&str]) -> Result<Vec<Vec<u8>>> {
        self.answer_feedback(names)
    }

    fn set_answer_feedback(&self, given: &[(&str, &[u8])]) -> Result<()> {
        self.set_answer_feedback(given)
    }

    fn hold_feedback(&self, name: &str) -> Result<()> {
        self.hold_feedback(name)
    }

    fn take_back_feedback(&self, name: &str) -> Result<()> {
        self.take_back_feedback(name)
    }

    fn companions(&self) -> Vec<Vec<String>> {
        self.companions()
    }

    fn flight(&self) -> Option<&Arc<Flight>> {
        Some(self.flight())
    }

    fn start_timeline(&self, place: &Path) -> Result<PathBuf> {
        self.start_timeline(place)
    }

    fn stop_timeline(&self) {
        self.stop_timeline();
    }

    fn timeline(&self) -> &Timeline {
        self.timeline()
    }

    fn job_clock(&self) -> Option<&JobClock> {
        Some(self.job_clock())
    }

    fn settle(&self, timeout: Option<Duration>) -> Result<()> {
        self.settle(timeout)
    }

    fn give_up(&self, cause: String, grace: Duration) -> Result<()> {
        self.give_up(cause, grace)
    }

    fn shutdown(&self, grace: Duration) -> Result<()> {
        self.shutdown(grace)
    }
}
