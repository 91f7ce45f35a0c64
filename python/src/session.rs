//! `gradlane._core.Session`: a process's place in a job.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gradlane_core::device::Device;
use gradlane_core::engine::{self, BatchSubmission, Engine, EngineOptions, Member, Submission, Thread};
use gradlane_core::mem::Copies;
use gradlane_core::metrics::{Instance, prometheus};
use gradlane_core::runtime::process;
use gradlane_core::transport::quic::Credentials;
use gradlane_core::transport::roads::Roads;
use gradlane_core::types::{JoinString, Op, Priority, Role, TensorSpec, WorkerId};
use gradlane_core::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::alone::Alone;
use crate::batch::Batch;
use crate::devices::devices;
use crate::errors;
use crate::fork::OwnProcess;
use crate::handle::Handle;
use crate::lent::{Lender, length};
use crate::metrics;
use crate::owners::Owners;
use crate::settings::config;
use crate::wait::{SLICE, duration, wait_interruptibly};

/// A process's place in a job. All blocking calls release the interpreter lock.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Session {
    place: OwnProcess<Place>,
    owners: Arc<Owners>,
    finished: Finished,
}

enum Place {
    Joined(Box<Engine>),
    Alone(Alone),
}

/// Ids of ended operations, for a completion thread. Nothing is noted before somebody asked once.
struct Finished {
    wanted: Arc<AtomicBool>,
    sender: crossbeam_channel::Sender<u64>,
    receiver: crossbeam_channel::Receiver<u64>,
}

#[pymethods]
impl Session {
    /// Joins a job and returns once it runs.
    #[staticmethod]
    #[pyo3(signature = (join, *, rank, size, servers, local_rank, local_size, node_rank, num_nodes, settings, timeout))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python call")]
    fn join(
        py: Python<'_>,
        join: &str,
        rank: Option<u32>,
        size: u32,
        servers: u32,
        local_rank: u32,
        local_size: u32,
        node_rank: u32,
        num_nodes: u32,
        settings: BTreeMap<String, String>,
        timeout: f64,
    ) -> PyResult<Self> {
        let _ = (local_rank, local_size, node_rank, num_nodes);
        let joined = py.detach(|| join_job(join, rank, size, servers, settings, duration(timeout)));
        let engine = joined.map_err(|error| errors::raise(py, &error))?;
        Ok(Self::new(Place::Joined(Box::new(engine))))
    }

    /// A job of one worker, without any server.
    #[staticmethod]
    fn local(py: Python<'_>, settings: BTreeMap<String, String>) -> PyResult<Self> {
        // Most settings mean nothing here, but a typing error in one should show in a trial run on a laptop.
        let alone = config(&settings).and_then(|config| Ok(Place::Alone(Alone::new(&config, devices(&config))?)));
        alone.map(Self::new).map_err(|error| errors::raise(py, &error))
    }

    #[getter]
    fn rank(&self) -> u32 {
        match &*self.place {
            Place::Joined(engine) => engine.rank().0,
            Place::Alone(_) => 0,
        }
    }

    #[getter]
    fn size(&self) -> u32 {
        match &*self.place {
            Place::Joined(engine) => engine.size(),
            Place::Alone(_) => 1,
        }
    }

    /// Declares tensors `(name, dtype, shape)` in one round trip.
    fn declare(
        &self,
        py: Python<'_>,
        tensors: Vec<(String, String, Vec<u64>)>,
        fuse: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let specs = tensors
            .into_iter()
            .map(|(name, dtype, shape)| Ok(TensorSpec { name, dtype: dtype.parse()?, shape }))
            .collect::<Result<Vec<_>>>();
        let outcome = specs.and_then(|specs| match &*self.place {
            Place::Joined(engine) => py.detach(|| engine.declare(specs, fuse, timeout.map(duration))),
            Place::Alone(_) => Ok(()),
        });
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Submits a reduction. `source` and `destination` are addresses of as many bytes as the shape says, kept valid by `owner`. With
    /// `waits` the caller is about to wait for it, and does meanwhile what it can do itself. The memory is that of `device`, or the host's;
    /// `streams` are those whose work so far comes before source and destination are touched.
    #[pyo3(signature = (name, dtype, shape, source, destination, op, root, weight, priority, timeout, owner, waits = false, device = None, streams = (None, None)))]
    #[expect(clippy::too_many_arguments, reason = "called once from Python, per tensor")]
    fn submit(
        &self,
        py: Python<'_>,
        name: String,
        dtype: &str,
        shape: Vec<u64>,
        source: usize,
        destination: usize,
        op: &str,
        root: u32,
        weight: f64,
        priority: i32,
        timeout: Option<f64>,
        owner: Py<PyAny>,
        waits: bool,
        device: Option<u16>,
        streams: (Option<u64>, Option<u64>),
    ) -> PyResult<Handle> {
        self.owners.release(py);
        let submission = || {
            let op = reduction(op, root)?;
            let tensor = TensorSpec { name, dtype: dtype.parse()?, shape };
            let bytes = length(&tensor)?;
            let mut lender = Lender::new(self.place.devices(), device);
            let (from, to) = streams;
            let (source, destination) = (lender.lend(source, bytes, from)?, lender.lend(destination, bytes, to)?);
            let (priority, timeout) = (Priority(priority), timeout.map(duration));
            Ok(Submission { tensor, source, destination, op, weight, priority, timeout })
        };
        let inner = self.hand_in(py, owner, |ended| match &*self.place {
            Place::Joined(engine) => match waits {
                // No longer than a slice of any wait, so that Ctrl-C is seen.
                true => engine.begin_to_reduce(submission()?, SLICE, ended),
                false => engine.push_pull(submission()?, ended),
            },
            Place::Alone(alone) => alone.reduce(vec![submission()?], ended),
        });
        let inner = inner.map_err(|error| errors::raise(py, &error))?;
        Ok(Handle { inner, owners: Arc::clone(&self.owners) })
    }

    /// Submits the reduction of all tensors of a batch at once. `sources` and `destinations`, unless it is in place, are addresses in the
    /// batch's order, of as many bytes as each shape says, kept valid by `owner`; the first tensor has `priority`, each one after it one less. `waits` and
    /// `device` as for `submit`; `streams` are those of the sources, then those of the destinations if there are any, or none at all.
    #[pyo3(signature = (batch, sources, destinations, op, root, weight, priority, timeout, owner, waits = false, device = None, streams = Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "called once from Python, per batch")]
    fn submit_all(
        &self,
        py: Python<'_>,
        batch: PyRef<'_, Batch>,
        sources: Vec<usize>,
        destinations: Option<Vec<usize>>,
        op: &str,
        root: u32,
        weight: f64,
        priority: i32,
        timeout: Option<f64>,
        owner: Py<PyAny>,
        waits: bool,
        device: Option<u16>,
        streams: Vec<Option<u64>>,
    ) -> PyResult<Handle> {
        self.owners.release(py);
        let (batch, timeout) = (&*batch, timeout.map(duration));
        let inner = self.hand_in(py, owner, |ended| {
            let op = reduction(op, root)?;
            let lender = Lender::new(self.place.devices(), device);
            let members = batch.lent(lender, &sources, destinations.as_deref(), &streams, priority)?;
            match &*self.place {
                Place::Joined(engine) => {
                    let submission = BatchSubmission { batch: batch.of(), members, op, weight, timeout };
                    match waits {
                        true => engine.begin_to_reduce_all(submission, SLICE, ended),
                        false => engine.push_pull_all(submission, ended),
                    }
                }
                Place::Alone(alone) => {
                    let each = batch.of().tensors().iter().zip(members);
                    let each = each.map(|(tensor, Member { source, destination, priority })| {
                        let tensor = tensor.clone();
                        Submission { tensor, source, destination, op, weight, priority, timeout }
                    });
                    alone.reduce(each.collect(), ended)
                }
            }
        });
        let inner = inner.map_err(|error| errors::raise(py, &error))?;
        Ok(Handle { inner, owners: Arc::clone(&self.owners) })
    }

    /// Waits until all workers arrived.
    fn barrier(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<()> {
        let outcome = match &*self.place {
            Place::Joined(engine) => {
                let handle = engine.arrive(name, timeout.map(duration));
                wait_interruptibly(py, None, |slice| handle.wait(Some(slice)))?
            }
            Place::Alone(_) => Ok(()),
        };
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Counters since the start.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.owners.release(py);
        metrics::values(py, &self.counted())
    }

    /// The same in Prometheus' text format.
    fn metrics_text(&self, py: Python<'_>) -> String {
        self.owners.release(py);
        prometheus(&[self.counted()])
    }

    /// The parts of every declared tensor, one a line.
    fn layout(&self) -> String {
        match &*self.place {
            Place::Joined(engine) => engine.layout(),
            Place::Alone(_) => String::new(),
        }
    }

    /// Records from now on what this worker does, in the file whose path is returned.
    fn start_timeline(&self, py: Python<'_>, place: PathBuf) -> PyResult<PathBuf> {
        let started = match &*self.place {
            Place::Joined(engine) => py.detach(|| engine.start_timeline(&place)),
            Place::Alone(alone) => alone.timeline().start(&place, WorkerId(0)),
        };
        started.map_err(|error| errors::raise(py, &error))
    }

    /// Completes the file of the timeline; does nothing if none is recorded.
    fn stop_timeline(&self, py: Python<'_>) {
        py.detach(|| match &*self.place {
            Place::Joined(engine) => engine.stop_timeline(),
            Place::Alone(alone) => alone.timeline().stop(),
        });
    }

    /// Adds what a thread did, in nanoseconds since 1970, to the timeline; does nothing if none is recorded.
    fn record_span(&self, thread: u64, thread_name: &str, name: &str, start_ns: u64, end_ns: u64) {
        let timeline = match &*self.place {
            Place::Joined(engine) => engine.timeline(),
            Place::Alone(alone) => alone.timeline(),
        };
        timeline.record(Thread { id: thread, name: thread_name }, name, start_ns, end_ns);
    }

    /// Ids of operations that ended since the last call; waits up to `timeout` seconds for the first. Operations that were submitted
    /// before the first call are not reported.
    fn next_done(&self, py: Python<'_>, timeout: f64) -> Vec<u64> {
        self.finished.wanted.store(true, Ordering::Relaxed);
        let receiver = &self.finished.receiver;
        py.detach(|| {
            let first = receiver.recv_timeout(duration(timeout));
            first.into_iter().chain(std::iter::from_fn(|| receiver.try_recv().ok())).collect()
        })
    }

    /// Leaves the job: pending operations fail, and the other workers are waited for at most `timeout` seconds. Idempotent.
    fn shutdown(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let outcome = match &*self.place {
            Place::Joined(engine) => py.detach(|| engine.shutdown(duration(timeout))),
            Place::Alone(alone) => {
                py.detach(|| alone.leave());
                Ok(())
            }
        };
        self.owners.release(py);
        outcome.map_err(|error| errors::raise(py, &error))
    }
}

impl Session {
    fn new(place: Place) -> Self {
        let (sender, receiver) = crossbeam_channel::unbounded();
        let finished = Finished { wanted: Arc::default(), sender, receiver };
        Self { place: OwnProcess::new(place), owners: Arc::default(), finished }
    }

    /// The metrics of this worker.
    fn counted(&self) -> Instance {
        match &*self.place {
            Place::Joined(engine) => engine.metrics().instance(engine.rank().0),
            // Nothing travels; the names are there all the same.
            Place::Alone(_) => engine::Metrics::default().instance(0),
        }
    }

    /// Submits by `submit`, which is given what is to be called in the end, and holds `owner` until then.
    fn hand_in(
        &self,
        py: Python<'_>,
        owner: Py<PyAny>,
        submit: impl FnOnce(Box<dyn FnOnce(u64) + Send>) -> Result<engine::Handle> + Send,
    ) -> Result<engine::Handle> {
        let (owners, wanted, sender) =
            (Arc::clone(&self.owners), Arc::clone(&self.finished.wanted), self.finished.sender.clone());
        let ended = Box::new(move |id| {
            owners.note_end(id);
            if wanted.load(Ordering::Relaxed) {
                let _ = sender.send(id);
            }
        });
        let handle = py.detach(|| submit(ended))?;
        self.owners.hold(handle.id(), owner);
        Ok(handle)
    }
}

impl Place {
    /// What reaches the devices of this process.
    fn devices(&self) -> &dyn Device {
        match self {
            Self::Joined(engine) => &**engine.device().expect("given to the engine when it joined"),
            Self::Alone(alone) => &**alone.devices(),
        }
    }
}

fn join_job(
    join: &str,
    rank: Option<u32>,
    size: u32,
    servers: u32,
    settings: BTreeMap<String, String>,
    patience: Duration,
) -> Result<Engine> {
    let config = config(&settings)?;
    let join: JoinString = join.parse()?;
    let credentials = Arc::new(Credentials::enroll(&join, Role::Worker, patience)?);
    let copies = Copies::default();
    let devices = devices(&config);
    let transport = Roads::new(&config, &credentials, &copies)?;
    let member = gradlane_core::cluster::MemberConfig {
        requested: rank,
        workers: size,
        servers,
        join_timeout: patience,
        ..process::member(Role::Worker, &config)
    };
    Engine::start(EngineOptions {
        config,
        member,
        coordinator: join.address,
        credentials,
        transport: Arc::new(transport),
        copies,
        device: Some(devices),
    })
}

/// The operation that Python calls `op`.
fn reduction(op: &str, root: u32) -> Result<Op> {
    Ok(match op {
        "sum" => Op::Sum,
        "mean" => Op::Mean,
        "min" => Op::Min,
        "max" => Op::Max,
        "weighted_mean" => Op::WeightedMean,
        "broadcast" => Op::Broadcast { root: WorkerId(root) },
        other => {
            return Err(Error::InvalidArgument {
                what: format!("op {other:?}"),
                hint: "use sum, mean, min, max, weighted_mean or broadcast".to_owned(),
            });
        }
    })
}
