//! A job of one worker: every reduction is a copy, and there are no other members.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::device::Device;
use gradlane_core::engine::{
    self, BatchSubmission, FeedbackState, FiniteCheck, Flight, Followed, Handle, Member, Metrics, ParameterUse,
    RowsHandle, RowsUse, Step, Submission, Timeline,
};
use gradlane_core::mem::Doubt;
use gradlane_core::metrics::WorkerMetrics;
use gradlane_core::runtime::exporter::{Exporter, Exposure};
use gradlane_core::runtime::{Clock, JobClock};
use gradlane_core::types::{
    CheckpointAsk, Checkpointed, HostPlace, StoreAnswer, StoreAsk, TensorSpec, Tick, Ticked, WorkerId, WorkersKey,
};
use gradlane_core::{Error, Result};

use crate::own_checkpoints::OwnCheckpoints;
use crate::own_store::OwnStore;
use crate::own_tables::OwnTables;
use crate::parameters::Parameters;
use crate::place::{ALONE, Ended, Place};
use crate::probe::Probe;

/// The only worker of its job.
pub(crate) struct Alone {
    handles: AtomicU64,
    closed: AtomicBool,
    /// It was asked to leave at the next step.
    leaves: AtomicBool,
    timeline: Timeline,
    devices: Arc<dyn Device>,
    doubt: Doubt,
    followed: Arc<Followed>,
    parameters: Parameters,
    tables: OwnTables,
    checkpoints: OwnCheckpoints,
    store: OwnStore,
    finite: FiniteCheck,
    metrics: Arc<Metrics>,
    probe: Arc<Probe>,
    /// While the exporter of this process shows it.
    exposure: Mutex<Option<Exposure>>,
}

impl Alone {
    /// Begins the job.
    pub(crate) fn new(config: &Config, devices: Arc<dyn Device>) -> Result<Self> {
        let metrics = Arc::new(Metrics::default());
        let timeline = Timeline::new(Clock::start(), None, config.timeline_bytes_max);
        let timeline = timeline.counted_in(metrics.trace_counts());
        if let Some(place) = &config.timeline {
            timeline.start(place, WorkerId(0))?;
        }
        let (handles, closed, leaves) = (AtomicU64::new(1), AtomicBool::new(false), AtomicBool::new(false));
        let store = OwnStore::new(config.step_timeout);
        let probe = Arc::new(Probe::new(&metrics));
        let shown = Arc::clone(&probe);
        let exposure = Exporter::by_settings(config)?.map(|exporter| exporter.show(shown));
        let (doubt, followed, exposure) = (Doubt::default(), metrics.followed_alone(), Mutex::new(exposure));
        let (parameters, finite) = (Parameters::new(), FiniteCheck::new(config.nan_check, &metrics));
        Ok(Self {
            handles,
            closed,
            leaves,
            timeline,
            devices,
            doubt,
            followed: Arc::new(followed),
            parameters,
            tables: OwnTables::new(),
            checkpoints: OwnCheckpoints::new(config),
            store,
            finite,
            metrics,
            probe,
            exposure,
        })
    }

    /// Reduces all tensors or none; `ended` runs when they are done.
    fn reduce(&self, submissions: Vec<Submission>, ended: Ended) -> Result<Handle> {
        let id = self.begin()?;
        let counts = (&self.followed, &self.metrics);
        engine::reduce_alone(id, submissions, Some(&self.devices), counts, &self.finite, ended)
    }

    /// The number of an operation that begins.
    fn begin(&self) -> Result<u64> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(shut_down());
        }
        Ok(self.handles.fetch_add(1, Ordering::Relaxed))
    }

    /// The handle of an operation that has nothing to do.
    fn nothing_to_do(&self) -> Handle {
        Handle::resolved(self.handles.fetch_add(1, Ordering::Relaxed), Ok(()))
    }

    /// Ends the job; device copies under way fail. Idempotent.
    fn leave(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.store.close(shut_down());
        self.devices.shutdown(&self.doubt);
        self.timeline.stop();
        let exposure = self.exposure.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(exposure);
    }
}

impl Place for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        1
    }

    fn first_size(&self) -> u32 {
        1
    }

    fn ranks(&self) -> Vec<u32> {
        vec![0]
    }

    fn formed_before(&self) -> u32 {
        0
    }

    fn host_place(&self) -> HostPlace {
        ALONE
    }

    /// Any key, because nothing leaves this process.
    fn workers_key(&self) -> Option<WorkersKey> {
        Some(WorkersKey([0; WorkersKey::BYTES]))
    }

    fn declare(&self, _: Vec<TensorSpec>, _: bool, _: Option<Duration>) -> Result<()> {
        Ok(())
    }

    fn undeclare(&self, names: &[String], _: Option<Duration>) -> Result<()> {
        self.parameters.forget(names);
        self.tables.forget(names);
        Ok(())
    }

    fn device(&self) -> &dyn Device {
        &*self.devices
    }

    fn submit(&self, submission: Submission, _: Option<Duration>, ended: Ended) -> Result<Handle> {
        self.reduce(vec![submission], ended)
    }

    fn submit_all(&self, submission: BatchSubmission<'_>, _: Option<Duration>, ended: Ended) -> Result<Handle> {
        let BatchSubmission { batch, members, op, weight, timeout } = submission;
        let each = batch.tensors().iter().zip(members);
        let each = each.map(|(tensor, Member { source, destination, priority })| {
            let tensor = tensor.clone();
            Submission { tensor, source, destination, op, weight, priority, timeout }
        });
        self.reduce(each.collect(), ended)
    }

    /// The use has ended when this returns.
    fn access(&self, asked: ParameterUse, _: Option<Duration>, ended: Ended) -> Result<Handle> {
        let asked = Parameters::check(asked)?;
        let id = self.begin()?;
        let counts = asked.is_change();
        let used = self.parameters.access(asked);
        if let Ok(effect) = &used
            && counts
        {
            self.metrics.count_change(*effect);
        }
        ended(id);
        Ok(Handle::used(id, used))
    }

    /// The use has ended when this returns.
    fn use_rows(&self, asked: RowsUse<'_>, ended: Ended) -> Result<RowsHandle> {
        let used = self.tables.use_rows(|| self.begin(), asked)?;
        ended(used.handle().id());
        Ok(used)
    }

    fn agree_on_empty(&self, _: TensorSpec, _: Option<Duration>) -> Result<Handle> {
        Ok(self.nothing_to_do())
    }

    fn arrive(&self, _: &str, _: Option<Duration>) -> Handle {
        self.nothing_to_do()
    }

    fn ask_store(&self, ask: StoreAsk, timeout: Option<Duration>) -> Result<StoreAnswer> {
        self.store.ask(ask, timeout)
    }

    fn tick(&self, tick: Tick, _: Option<Duration>) -> Result<Ticked> {
        self.begin()?;
        self.parameters.tick(tick)
    }

    fn checkpoint(&self, ask: CheckpointAsk) -> Result<Checkpointed> {
        self.begin()?;
        self.checkpoints.work(ask, &self.parameters)
    }

    /// Nobody has to agree.
    fn begin_step_at_once(&self) -> Result<Option<Step>> {
        self.begin_step().map(Some)
    }

    fn begin_step(&self) -> Result<Step> {
        if self.leaves.swap(false, Ordering::Relaxed) {
            self.leave();
            return Ok(Step::Left);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(shut_down());
        }
        Ok(Step::Begun(None))
    }

    fn end_steps(&self) {}

    fn may_leave(&self) -> bool {
        true
    }

    fn ask_to_leave(&self) -> Result<()> {
        self.leaves.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn doubt(&self) -> &Doubt {
        &self.doubt
    }

    fn metrics(&self) -> &WorkerMetrics {
        self.probe.refresh();
        &self.metrics
    }

    fn layout(&self) -> String {
        String::new()
    }

    /// Nothing is encoded, so nothing is lost.
    fn feedback(&self, _: &str) -> Result<FeedbackState> {
        Ok(FeedbackState::default())
    }

    fn answer_feedback(&self, names: &[&str]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![Vec::new(); names.len()])
    }

    fn set_answer_feedback(&self, _: &[(&str, &[u8])]) -> Result<()> {
        Ok(())
    }

    fn hold_feedback(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn take_back_feedback(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn set_feedback(&self, _: &str, _: &FeedbackState) -> Result<()> {
        Ok(())
    }

    fn companions(&self) -> Vec<Vec<String>> {
        Vec::new()
    }

    fn flight(&self) -> Option<&Arc<Flight>> {
        None
    }

    fn start_timeline(&self, place: &Path) -> Result<PathBuf> {
        self.timeline.start(place, WorkerId(0))
    }

    fn stop_timeline(&self) {
        self.timeline.stop();
    }

    fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    fn job_clock(&self) -> Option<&JobClock> {
        None
    }

    fn settle(&self, timeout: Option<Duration>) -> Result<()> {
        self.followed.settle(timeout, &|| self.followed.works_alone())
    }

    fn give_up(&self, _: String, _: Duration) -> Result<()> {
        self.leave();
        Ok(())
    }

    fn shutdown(&self, grace: Duration) -> Result<()> {
        let settled = self.settle(Some(grace));
        self.leave();
        settled
    }
}

fn shut_down() -> Error {
    Error::FailedPrecondition { what: "the session was shut down".to_owned(), hint: "call init() again".to_owned() }
}
