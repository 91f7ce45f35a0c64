//! A worker of the job: the engine as a training process uses it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use gradlane_core::cluster::MemberConfig;
use gradlane_core::config::Config;
use gradlane_core::engine::{Batch, BatchSubmission, Engine, EngineOptions, Handle, Member, Submission};
use gradlane_core::identity::Credentials;
use gradlane_core::mem::{Copies, Region};
use gradlane_core::runtime::process;
use gradlane_core::transport::Transport;
use gradlane_core::transport::router::Router;
use gradlane_core::types::{DType, JoinString, Op, Priority, Role, TensorSpec};

use super::operations::Operations;
use crate::job::{JOIN, SETTINGS, config};
use crate::team::buffers::{Buffers, Set};
use crate::team::collective::Collective;
use crate::team::orders::{Case, Tensor};
use crate::team::rank::Exchanger;

/// A joined worker.
pub(crate) struct Worker {
    engine: Engine,
    /// The less urgent tensors, if the case has a backlog.
    backlog: Option<(Case, Buffers)>,
    under_way: Vec<Handle>,
    /// The tensors of the case, if it submits them in one call.
    batch: Option<Batch>,
    /// What makes up the case, if it is no all-reduce.
    operations: Option<Operations>,
    rank: u32,
    ranks: u32,
    /// The small tensor whose exchange serves as a barrier of the workers.
    meeting: (Case, Buffers),
    shutdown: Duration,
}

/// The connections of a worker to its job.
pub(crate) struct Means {
    /// The address of the coordinator.
    pub(crate) coordinator: String,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) transport: Arc<dyn Transport>,
    /// Counts the copies of the transport.
    pub(crate) copies: Copies,
}

impl Means {
    /// Those of a worker that this join string lets in.
    ///
    /// # Errors
    /// Why it is not let in.
    pub(crate) fn of(join: &str, config: &Config) -> Result<Self, String> {
        let text = |error: gradlane_core::Error| error.to_string();
        let join: JoinString = join.parse().map_err(text)?;
        let credentials = Arc::new(Credentials::enroll(&join, Role::Worker, config.join_timeout).map_err(text)?);
        let copies = Copies::default();
        let transport = Arc::new(Router::new(config, &credentials, &copies).map_err(text)?);
        Ok(Self { coordinator: join.address, credentials, transport, copies })
    }

    /// An engine that has joined as this rank. Returns when all other ranks have joined too.
    ///
    /// # Errors
    /// Why it could not.
    pub(crate) fn engine(self, rank: u32, ranks: u32, config: Config) -> Result<Engine, String> {
        let Self { coordinator, credentials, transport, copies } = self;
        let member = MemberConfig { requested: Some(rank), workers: ranks, ..process::member(Role::Worker, &config) };
        Engine::start(EngineOptions { config, member, coordinator, credentials, transport, copies, device: None })
            .map_err(|error| error.to_string())
    }
}

impl Worker {
    /// Joins as this rank. Returns when all other ranks have joined too.
    ///
    /// # Errors
    /// Why it could not.
    pub(crate) fn start(rank: u32, ranks: u32, config: Config, means: Means) -> Result<Self, String> {
        let shutdown = config.shutdown_timeout;
        let engine = means.engine(rank, ranks, config)?;
        let case = Case::single("meeting", 4, DType::F32, Op::Sum, 1);
        let meeting = (case.clone(), Buffers::new(&case, rank, ranks));
        let (backlog, under_way, batch, operations) = (None, Vec::new(), None, None);
        Ok(Self { engine, backlog, under_way, batch, operations, rank, ranks, meeting, shutdown })
    }
}

impl Exchanger for Worker {
    fn join(rank: u32, ranks: u32, with: &BTreeMap<String, String>) -> Result<Self, String> {
        let settings = with.get(SETTINGS).map_or("{}", String::as_str);
        let config = config(&serde_json::from_str(settings).map_err(|cause| format!("settings: {cause}"))?)?;
        let means = Means::of(with.get(JOIN).map_or("", String::as_str), &config)?;
        Self::start(rank, ranks, config, means)
    }

    fn prepare(&mut self, case: &Case) -> Result<(), String> {
        self.backlog = None;
        if case.backlog_bytes > 0 {
            let tensors = u32::try_from(case.backlog_bytes / BACKLOG_TENSOR_BYTES).unwrap_or(u32::MAX).max(1);
            let mut backlog = Case::single("backlog", BACKLOG_TENSOR_BYTES, DType::F32, Op::Sum, tensors);
            for tensor in &mut backlog.tensors {
                tensor.priority = i32::MIN;
            }
            self.engine.declare(specs(&backlog), false, None).map_err(|error| error.to_string())?;
            let buffers = Buffers::new(&backlog, self.rank, self.ranks);
            self.backlog = Some((backlog, buffers));
        }
        self.batch = case.together.then(|| Batch::new(specs(case))).transpose().map_err(|error| error.to_string())?;
        let partly = case.collective != Collective::AllReduce;
        self.operations = partly.then(|| Operations::of(case, self.rank, self.ranks));
        let specs = self.operations.as_ref().map_or_else(|| specs(case), Operations::specs);
        self.engine.declare(specs, case.fuse, None).map_err(|error| error.to_string())
    }

    fn load(&mut self, _case: &Case) -> Result<(), String> {
        let Some((backlog, buffers)) = &mut self.backlog else { return Ok(()) };
        let (handles, outcome) = submit(&self.engine, submissions(backlog, buffers.set(0), false));
        // Once the first sum is back, both directions of the link are full.
        let first = handles.first().map_or(Ok(()), |first| first.wait(None));
        self.under_way = handles;
        outcome.and(first.map_err(|error| error.to_string()))
    }

    fn unload(&mut self) -> Result<bool, String> {
        if self.under_way.is_empty() {
            return Ok(false);
        }
        let over = self.under_way.iter().all(|handle| handle.outcome().is_some());
        wait(std::mem::take(&mut self.under_way)).map(|()| over)
    }

    fn exchange(&mut self, case: &Case, set: &mut Set, in_place: bool) -> Result<(), String> {
        if let Some(operations) = &self.operations {
            let (handles, outcome) = submit(&self.engine, operations.begin(set));
            return outcome.and(wait(handles));
        }
        let Some(batch) = &self.batch else { return push_pull(&self.engine, case, set, in_place) };
        let member = |((source, destination), tensor): ((Region, Region), &Tensor)| Member {
            source: source.into(),
            destination: destination.into(),
            priority: Priority(tensor.priority),
        };
        let members = set.regions(in_place).into_iter().zip(&case.tensors).map(member).collect();
        let submission = BatchSubmission { batch, members, op: case.op(), weight: 1.0, timeout: None };
        self.engine.reduce_all(submission, None).map_err(|error| error.to_string())
    }

    fn body_bytes(&self) -> Option<u64> {
        let metrics = self.engine.metrics();
        Some(metrics.push_bytes.load(Relaxed) + metrics.pull_bytes.load(Relaxed))
    }

    fn meet(&mut self) -> Result<(), String> {
        let (case, buffers) = &mut self.meeting;
        push_pull(&self.engine, case, buffers.set(0), true)
    }

    fn leave(self) -> Result<(), String> {
        // The other ranks leave as soon as they read the same order.
        self.engine.shutdown(self.shutdown.max(Duration::from_secs(10))).map_err(|error| error.to_string())
    }
}

fn push_pull(engine: &Engine, case: &Case, set: &mut Set, in_place: bool) -> Result<(), String> {
    if case.tensors.len() == 1 {
        // With a single tensor, use the call that submits and waits.
        return submissions(case, set, in_place)
            .try_for_each(|submission| engine.reduce(submission, None))
            .map_err(|error| error.to_string());
    }
    let (handles, outcome) = submit(engine, submissions(case, set, in_place));
    outcome.and(wait(handles))
}

/// Submits all of them. The handles must be waited for, whatever the outcome: the memory of the set is theirs until then.
fn submit(engine: &Engine, submissions: impl Iterator<Item = Submission>) -> (Vec<Handle>, Result<(), String>) {
    let mut handles = Vec::with_capacity(submissions.size_hint().0);
    for submission in submissions {
        match engine.push_pull(submission, |_| {}) {
            Ok(handle) => handles.push(handle),
            Err(error) => return (handles, Err(error.to_string())),
        }
    }
    (handles, Ok(()))
}

fn submissions(case: &Case, set: &mut Set, in_place: bool) -> impl Iterator<Item = Submission> {
    let op = case.op();
    let tensors = specs(case).into_iter().zip(set.regions(in_place)).zip(&case.tensors);
    tensors.map(move |((tensor, (source, destination)), settings)| Submission {
        tensor,
        source: source.into(),
        destination: destination.into(),
        op,
        weight: 1.0,
        priority: Priority(settings.priority),
        timeout: None,
    })
}

/// Waits for all of them; the job's step timeout ends every wait.
fn wait(handles: Vec<Handle>) -> Result<(), String> {
    let outcomes: Vec<_> = handles.into_iter().map(|handle| handle.wait(None)).collect();
    outcomes.into_iter().collect::<Result<(), _>>().map_err(|error| error.to_string())
}

fn specs(case: &Case) -> Vec<TensorSpec> {
    let (dtype, codec) = (case.dtype(), case.codec());
    let spec = |tensor: &Tensor| TensorSpec::new(tensor.name.as_str(), dtype, vec![tensor.elements]).with_codec(codec);
    case.tensors.iter().map(spec).collect()
}

/// Size of one tensor of a backlog: as long as a part.
const BACKLOG_TENSOR_BYTES: u64 = 4 << 20;
