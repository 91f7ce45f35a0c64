//! A worker of the job: the engine as a training process uses it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::cluster::MemberConfig;
use gradlane_core::engine::{Engine, EngineOptions, Handle, Submission, process};
use gradlane_core::transport::quic::{Credentials, QuicTransport, Settings};
use gradlane_core::types::{JoinString, Op, Priority, Role, TensorSpec};

use super::job::config;
use crate::team::buffers::{Buffers, Set};
use crate::team::orders::Case;
use crate::team::rank::Exchanger;

/// What a worker joins with: the join string of the job.
pub(super) const JOIN: &str = "join";
/// What a worker joins with: its settings, as a JSON object.
pub(super) const SETTINGS: &str = "settings";

/// A joined worker.
pub(crate) struct Worker {
    engine: Engine,
    /// The tensor by whose exchange the workers meet.
    meeting: (Case, Buffers),
    shutdown: Duration,
}

impl Exchanger for Worker {
    fn join(rank: u32, ranks: u32, with: &BTreeMap<String, String>) -> Result<Self, String> {
        let text = |error: gradlane_core::Error| error.to_string();
        let settings = with.get(SETTINGS).map_or("{}", String::as_str);
        let config = config(&serde_json::from_str(settings).map_err(|cause| format!("settings: {cause}"))?)?;
        let join: JoinString = with.get(JOIN).map_or("", String::as_str).parse().map_err(text)?;
        let credentials = Arc::new(Credentials::enroll(&join, Role::Worker, config.join_timeout).map_err(text)?);
        let transport = QuicTransport::new(&credentials, &Settings::from_config(&config)).map_err(text)?;
        let member = MemberConfig { requested: Some(rank), workers: ranks, ..process::member(Role::Worker, &config) };
        let shutdown = config.shutdown_timeout;
        let engine = Engine::start(EngineOptions {
            config,
            member,
            coordinator: join.address,
            credentials,
            transport: Arc::new(transport),
        })
        .map_err(text)?;
        let case = Case::single("meeting", 4, gradlane_core::types::DType::F32, Op::Sum, 1);
        let meeting = (case.clone(), Buffers::new(&case, rank, ranks));
        Ok(Self { engine, meeting, shutdown })
    }

    fn prepare(&mut self, case: &Case) -> Result<(), String> {
        self.engine.declare(specs(case), case.fuse, None).map_err(|error| error.to_string())
    }

    fn exchange(&mut self, case: &Case, set: &mut Set, in_place: bool) -> Result<(), String> {
        push_pull(&self.engine, case, set, in_place)
    }

    fn meet(&mut self) -> Result<(), String> {
        let (case, buffers) = &mut self.meeting;
        push_pull(&self.engine, case, buffers.set(0), true)
    }

    fn leave(self) -> Result<(), String> {
        // The others leave too, as soon as they read of it.
        self.engine.shutdown(self.shutdown.max(Duration::from_secs(10))).map_err(|error| error.to_string())
    }
}

impl Worker {
    /// Submits all tensors of a case. The set must be left alone until all handles have resolved.
    ///
    /// # Errors
    /// What the first could not be submitted for; what was submitted has resolved then.
    pub(crate) fn begin(&self, case: &Case, set: &mut Set, in_place: bool) -> Result<Vec<Handle>, String> {
        begin(&self.engine, case, set, in_place)
    }
}

fn push_pull(engine: &Engine, case: &Case, set: &mut Set, in_place: bool) -> Result<(), String> {
    let mut outcome = Ok(());
    // Every handle is waited for, whatever became of the others: the memory is theirs until then. The job's step timeout ends all waits.
    for handle in begin(engine, case, set, in_place)? {
        outcome = outcome.and(handle.wait(None));
    }
    outcome.map_err(|error| error.to_string())
}

fn begin(engine: &Engine, case: &Case, set: &mut Set, in_place: bool) -> Result<Vec<Handle>, String> {
    let op = case.op();
    let mut handles = Vec::with_capacity(case.tensors.len());
    for ((spec, (source, destination)), tensor) in specs(case).into_iter().zip(set.regions(in_place)).zip(&case.tensors)
    {
        let priority = Priority(tensor.priority);
        let submission = Submission { tensor: spec, source, destination, op, weight: 1.0, priority, timeout: None };
        match engine.push_pull(submission, |_| {}) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                for handle in handles {
                    // The first error is told.
                    let _ = handle.wait(None);
                }
                return Err(error.to_string());
            }
        }
    }
    Ok(handles)
}

fn specs(case: &Case) -> Vec<TensorSpec> {
    let dtype = case.dtype();
    let spec = |tensor: &crate::team::orders::Tensor| TensorSpec {
        name: tensor.name.clone(),
        dtype,
        shape: vec![tensor.elements],
    };
    case.tensors.iter().map(spec).collect()
}
