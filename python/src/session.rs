//! `gradlane._core.Session`: the membership of a process in a job.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gradlane_core::engine::{FeedbackState, ParameterUse, Step, Thread};
use gradlane_core::metrics::prometheus;
use gradlane_core::runtime::{JobClock, WallOffset};
use gradlane_core::types::{HostPlace, Passage, Priority, StoreAsk, TensorSpec};
use gradlane_session::{
    Completions, Found, JoinRequest, Lent, Place, access_named, config, dtype_named, published, tensor_bytes,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::batch::{Batch, specs};
use crate::embedded::Embedded;
use crate::errors;
use crate::handle::Handle;
use crate::metrics;
use crate::own_process::Own;
use crate::owners::{Owners, release};
use crate::parameter::{self, Told};
use crate::parts::Parts;
use crate::reduction::Reduction;
use crate::store;
use crate::wait::{SLICE, duration, in_background, wait_interruptibly};

/// The membership of a process in a job. All blocking calls release the interpreter lock.
#[pyclass(frozen, module = "gradlane._core")]
pub(crate) struct Session(pub(crate) Own<Parts>);

/// The number of a step, and the ranks of the workers behind it.
type Passed = (u64, Vec<u32>);

#[pymethods]
impl Session {
    /// Joins a job and returns once it runs. `file`, or the `job` of this user's state directory, is where the join string was found, and
    /// where a newer one is looked for if its coordinator does not answer. `embedded` is the coordinator in this process, if it has one.
    #[staticmethod]
    #[pyo3(signature = (join, *, rank, size, servers, local_rank, local_size, node_rank, num_nodes, settings, timeout, software, file = None, job = None, embedded = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python call")]
    fn join(
        py: Python<'_>,
        join: String,
        rank: Option<u32>,
        size: u32,
        servers: u32,
        local_rank: u32,
        local_size: u32,
        node_rank: u32,
        num_nodes: u32,
        settings: BTreeMap<String, String>,
        timeout: f64,
        software: BTreeMap<String, String>,
        file: Option<PathBuf>,
        job: Option<String>,
        embedded: Option<PyRef<'_, Embedded>>,
    ) -> PyResult<Self> {
        let _ = (local_rank, local_size, node_rank, num_nodes);
        let request = JoinRequest { rank, workers: size, servers, patience: duration(timeout), software };
        let embedded = embedded.map(|embedded| embedded.inner.get(py).cloned()).transpose()?;
        let joined = in_background(py, move || {
            let config = config(&settings)?;
            let place = match (file, job) {
                (Some(path), _) => Place::File(path),
                (None, Some(job)) => published(&config, &job)?,
                (None, None) => Place::Given,
            };
            let found = Found { join: join.parse()?, place };
            match &embedded {
                Some(embedded) => gradlane_session::Session::join_beside(embedded, found, request, config),
                None => gradlane_session::Session::join(found, request, config),
            }
        })?;
        joined.map(Self::new).map_err(|error| errors::raise(py, &error))
    }

    /// A job of one worker, without any server.
    #[staticmethod]
    fn local(py: Python<'_>, settings: BTreeMap<String, String>) -> PyResult<Self> {
        // Most settings have no effect here, but a trial run on a laptop should report a typing error in one.
        let alone = config(&settings).and_then(|config| gradlane_session::Session::alone(&config));
        alone.map(Self::new).map_err(|error| errors::raise(py, &error))
    }

    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.0.get(py)?.inner.rank())
    }

    /// The key that only the coordinator and the workers of the job have.
    #[getter]
    fn workers_key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let key = self.0.get(py)?.inner.workers_key().map_err(|error| errors::raise(py, &error))?;
        Ok(PyBytes::new(py, &key.0))
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.0.get(py)?.inner.size())
    }

    #[getter]
    fn first_size(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.0.get(py)?.inner.first_size())
    }

    #[getter]
    fn ranks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.0.get(py)?.inner.ranks())
    }

    /// Declares tensors `(name, dtype, shape)` in one round trip.
    #[pyo3(signature = (tensors, fuse, timeout, codec = "none"))]
    fn declare(
        &self,
        py: Python<'_>,
        tensors: Vec<(String, String, Vec<u64>)>,
        fuse: bool,
        timeout: Option<f64>,
        codec: &str,
    ) -> PyResult<()> {
        let inner = &self.0.get(py)?.inner;
        let declared =
            specs(tensors, codec).and_then(|specs| py.detach(|| inner.declare(specs, fuse, timeout.map(duration))));
        declared.map_err(|error| errors::raise(py, &error))
    }

    /// Says that this worker uses these names no more.
    fn undeclare(&self, py: Python<'_>, names: Vec<String>, timeout: Option<f64>) -> PyResult<()> {
        let inner = &self.0.get(py)?.inner;
        py.detach(|| inner.undeclare(&names, timeout.map(duration))).map_err(|error| errors::raise(py, &error))
    }

    /// Submits a reduction. `source` and `destination` are addresses; the shape gives their length, and `owner` keeps them valid. With
    /// `waits` the caller waits for it next, and this thread does a part of the work. The memory is on `device`, or on the host; the work
    /// so far of `streams` must end before source and destination are used.
    #[pyo3(signature = (name, dtype, shape, source, destination, reduction, owner, waits = false, device = None, streams = (None, None)))]
    #[expect(clippy::too_many_arguments, reason = "called once from Python, per tensor")]
    #[expect(unsafe_code, reason = "Python gives addresses")]
    fn submit(
        &self,
        py: Python<'_>,
        name: String,
        dtype: &str,
        shape: Vec<u64>,
        source: usize,
        destination: usize,
        reduction: Reduction,
        owner: Py<PyAny>,
        waits: bool,
        device: Option<u16>,
        streams: (Option<u64>, Option<u64>),
    ) -> PyResult<Handle> {
        let (parts, Reduction(reduction)) = (self.0.get(py)?, reduction);
        release(py, &parts.owners);
        parts.hand_in(py, owner, |ended| {
            let tensor = parts.inner.declaration(TensorSpec::new(name, dtype_named(dtype)?, shape), &reduction)?;
            let bytes = tensor_bytes(&tensor)?;
            let mut lender = parts.inner.lender(device);
            let (from, to) = streams;
            // SAFETY: the package's Python code takes the address and the length from one tensor, whose owner `hand_in` holds until the
            // operation has ended. The public documentation requires that nothing else writes to it meanwhile.
            let memory = unsafe { (lender.lend(source, bytes, from)?, lender.lend(destination, bytes, to)?) };
            let begun = parts.inner.submit(reduction.submission(tensor, memory), waits.then_some(SLICE), ended)?;
            Ok(parts.inner.operation(begun))
        })
    }

    /// Submits the reduction of all tensors of a batch at once. `sources` and, unless it is in place, `destinations` are addresses in the
    /// batch's order; the shapes give their lengths, and `owner` keeps them valid. The first tensor has the priority of `reduction`, each
    /// further one has one less than the one before. The codec is that of the batch, and all workers take part. `waits` and `device` are as
    /// for `submit`. `streams` are those of the sources, followed by those of the destinations if there are any; or none.
    #[pyo3(signature = (batch, sources, destinations, reduction, owner, waits = false, device = None, streams = Vec::new()))]
    #[expect(clippy::too_many_arguments, reason = "called once from Python, per batch")]
    #[expect(unsafe_code, reason = "Python gives addresses")]
    fn submit_all(
        &self,
        py: Python<'_>,
        batch: PyRef<'_, Batch>,
        sources: Vec<usize>,
        destinations: Option<Vec<usize>>,
        reduction: Reduction,
        owner: Py<PyAny>,
        waits: bool,
        device: Option<u16>,
        streams: Vec<Option<u64>>,
    ) -> PyResult<Handle> {
        let (parts, Reduction(reduction)) = (self.0.get(py)?, reduction);
        release(py, &parts.owners);
        let batch = &*batch;
        parts.hand_in(py, owner, |ended| {
            let lent = Lent { sources: &sources, destinations: destinations.as_deref(), streams: &streams };
            // SAFETY: as for `submit`; `owner` keeps all of these tensors.
            let members = unsafe { batch.inner.lend(parts.inner.lender(device), lent, reduction.priority) }?;
            let submission = reduction.of_batch(&batch.inner, members);
            let begun = parts.inner.submit_all(submission, waits.then_some(SLICE), ended)?;
            Ok(parts.inner.operation(begun))
        })
    }

    /// Uses a parameter: at `address` is what it sends, or where the value goes, and `into` is that of a push_pull that is not in place.
    #[pyo3(signature = (name, dtype, shape, address, into, access, priority, timeout, owner, waits = false, device = None, streams = (None, None), kind = (None, None, None, 0)))]
    #[expect(clippy::too_many_arguments, reason = "called once from Python, per use")]
    #[expect(unsafe_code, reason = "Python gives addresses")]
    fn access(
        &self,
        py: Python<'_>,
        name: String,
        dtype: &str,
        shape: Vec<u64>,
        address: usize,
        into: Option<usize>,
        access: &str,
        priority: i32,
        timeout: Option<f64>,
        owner: Py<PyAny>,
        waits: bool,
        device: Option<u16>,
        streams: (Option<u64>, Option<u64>),
        kind: parameter::Kind<'_>,
    ) -> PyResult<Handle> {
        let parts = self.0.get(py)?;
        release(py, &parts.owners);
        parts.hand_in(py, owner, |ended| {
            let (tensor, clock_at) = (parameter::declared(name, dtype, shape, kind)?, kind.3);
            let bytes = tensor_bytes(&tensor)?;
            let mut lender = parts.inner.lender(device);
            // SAFETY: as for `submit`.
            let (memory, into) = unsafe {
                let memory = lender.lend(address, bytes, streams.0)?;
                (memory, into.map(|into| lender.lend(into, bytes, streams.1)).transpose()?)
            };
            let (access, priority, timeout) = (access_named(access)?, Priority(priority), timeout.map(duration));
            let asked = ParameterUse { tensor, access, clock_at, memory, into, priority, timeout };
            parts.inner.access(asked, waits.then_some(SLICE), ended)
        })
    }

    /// Finishes a round, with its samples, of the clock of this name and mode, and waits until this worker may begin its next one.
    fn tick(
        &self,
        py: Python<'_>,
        clock: (String, String),
        round: (u64, u64),
        how: (bool, bool, Option<f64>),
    ) -> PyResult<Told> {
        parameter::tick(py, &self.0.get(py)?.inner, clock, round, how)
    }

    /// Begins the first reduction of a tensor without elements. The handle resolves once all workers have come.
    fn agree_on_empty(
        &self,
        py: Python<'_>,
        name: String,
        dtype: &str,
        shape: Vec<u64>,
        reduction: Reduction,
    ) -> PyResult<Handle> {
        let (parts, Reduction(reduction)) = (self.0.get(py)?, reduction);
        let tensor =
            dtype_named(dtype).and_then(|dtype| TensorSpec::new(name, dtype, shape).compressed(reduction.codec));
        let begun = tensor.and_then(|tensor| py.detach(|| parts.inner.agree_on_empty(tensor, reduction.timeout)));
        let begun = begun.map_err(|error| errors::raise(py, &error))?;
        Ok(parts.watched(parts.inner.operation(begun)))
    }

    /// What error feedback keeps of a tensor on this worker: its residual and its velocity, as bytes of float32.
    fn feedback<'py>(&self, py: Python<'py>, name: &str) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let state = self.0.get(py)?.inner.feedback(name).map_err(|error| errors::raise(py, &error))?;
        Ok((PyBytes::new(py, &state.residual), PyBytes::new(py, &state.velocity)))
    }

    /// Puts that back.
    fn set_feedback(&self, py: Python<'_>, name: &str, residual: Vec<u8>, velocity: Vec<u8>) -> PyResult<()> {
        let state = FeedbackState { residual, velocity };
        self.0.get(py)?.inner.set_feedback(name, &state).map_err(|error| errors::raise(py, &error))
    }

    /// Keeps, from the next round on, also what error feedback of a tensor had before each round.
    fn hold_feedback(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.0.get(py)?.inner.hold_feedback(name).map_err(|error| errors::raise(py, &error))
    }

    /// Takes back what the latest round has changed.
    fn take_back_feedback(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.0.get(py)?.inner.take_back_feedback(name).map_err(|error| errors::raise(py, &error))
    }

    /// Waits until all workers have called it.
    fn barrier(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<()> {
        let handle = self.0.get(py)?.inner.arrive(name, timeout.map(duration));
        let outcome = wait_interruptibly(py, None, |slice| handle.wait(Some(slice)))?;
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Begins a step of the training. Returns `begun`, `left` if this worker has left the job, or `forms again` if all have left it and it forms
    /// again with others; and, if the workers may be others than in the step before, the number of that step and their ranks.
    fn begin_step(&self, py: Python<'_>) -> PyResult<(&'static str, Option<Passed>)> {
        let inner = &self.0.get(py)?.inner;
        let begun = match inner.begin_step_at_once().map_err(|error| errors::raise(py, &error))? {
            Some(step) => step,
            None => {
                let inner = Arc::clone(inner);
                in_background(py, move || inner.begin_step())?.map_err(|error| errors::raise(py, &error))?
            }
        };
        let passed = |it: Passage| (it.step, it.workers.iter().map(|worker| worker.0).collect());
        Ok(match begun {
            Step::Begun(passage) => ("begun", passage.map(passed)),
            Step::Left => ("left", None),
            Step::FormsAgain(passage) => ("forms again", Some(passed(passage))),
        })
    }

    /// Leaves this session, and joins the job as it forms again.
    fn join_again(&self, py: Python<'_>) -> PyResult<Self> {
        let inner = Arc::clone(&self.0.get(py)?.inner);
        let joined = in_background(py, move || inner.join_again())?;
        joined.map(Self::new).map_err(|error| errors::raise(py, &error))
    }

    /// How often the job had formed before.
    #[getter]
    fn times_formed(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.0.get(py)?.inner.formed_before())
    }

    /// Its place by host: local rank, local size, number of the host, number of hosts.
    #[getter]
    fn local_place(&self, py: Python<'_>) -> PyResult<(u32, u32, u32, u32)> {
        let HostPlace { local_rank, local_size, node_rank, num_nodes } = self.0.get(py)?.inner.host_place();
        Ok((local_rank, local_size, node_rank, num_nodes))
    }

    /// The loop over the steps has ended.
    fn end_steps(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get(py)?.inner.end_steps();
        Ok(())
    }

    /// Whether the others go on if this worker leaves.
    #[getter]
    fn may_leave(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.get(py)?.inner.may_leave())
    }

    /// Asks to leave the job at the next boundary between two steps.
    fn ask_to_leave(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get(py)?.inner.ask_to_leave().map_err(|error| errors::raise(py, &error))
    }

    /// Gives a key of the job's store a value, if it has the `expected` one, or any if that is None. Returns whether it did, and else the
    /// present value.
    #[pyo3(signature = (key, value, expected = None, timeout = None))]
    fn store_put<'py>(
        &self,
        py: Python<'py>,
        key: String,
        value: Vec<u8>,
        expected: Option<Vec<u8>>,
        timeout: Option<f64>,
    ) -> PyResult<(bool, Option<Bound<'py, PyBytes>>)> {
        store::put(py, &self.0.get(py)?.inner, StoreAsk::Put { key, value, expected }, timeout)
    }

    /// Adds to a number of the job's store, and returns the sum.
    fn store_add(&self, py: Python<'_>, key: String, amount: i64, timeout: Option<f64>) -> PyResult<i64> {
        store::count(py, &self.0.get(py)?.inner, StoreAsk::Add { key, amount }, timeout)
    }

    /// Puts bytes behind a value of the job's store.
    fn store_append(&self, py: Python<'_>, key: String, value: Vec<u8>, timeout: Option<f64>) -> PyResult<()> {
        store::put(py, &self.0.get(py)?.inner, StoreAsk::Append { key, value }, timeout).map(drop)
    }

    /// The value of a key of the job's store. If it is absent: None, or with `waits` an error after `timeout`.
    fn store_get<'py>(
        &self,
        py: Python<'py>,
        key: String,
        waits: bool,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        // How long a read waits follows from the timeout.
        let wait = waits.then_some(Duration::ZERO);
        store::put(py, &self.0.get(py)?.inner, StoreAsk::Get { key, wait }, timeout).map(|(_, value)| value)
    }

    /// Removes a key of the job's store, or all keys that begin with it; returns how many there were.
    fn store_delete(&self, py: Python<'_>, key: String, is_prefix: bool, timeout: Option<f64>) -> PyResult<i64> {
        store::count(py, &self.0.get(py)?.inner, StoreAsk::Delete { key, is_prefix }, timeout)
    }

    /// The keys of the job's store that begin with `prefix`.
    fn store_keys(&self, py: Python<'_>, prefix: String, timeout: Option<f64>) -> PyResult<Vec<String>> {
        store::keys(py, &self.0.get(py)?.inner, prefix, timeout)
    }

    /// The integer by which op libraries submit to this session, through the functions at `engine_table()`. Valid as long as the session.
    fn lend(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.get(py)?.lend(py)
    }

    /// Counters since the start.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let parts = self.0.get(py)?;
        release(py, &parts.owners);
        metrics::values(py, &parts.inner.metrics())
    }

    /// The metrics in Prometheus' text format.
    fn metrics_text(&self, py: Python<'_>) -> PyResult<String> {
        let parts = self.0.get(py)?;
        release(py, &parts.owners);
        Ok(prometheus(&[parts.inner.metrics()]))
    }

    /// The parts of every declared tensor, one a line.
    fn layout(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.inner.layout())
    }

    /// The names of tensors that are sent together, a list for each message.
    fn companions(&self, py: Python<'_>) -> PyResult<Vec<Vec<String>>> {
        Ok(self.0.get(py)?.inner.companions())
    }

    /// Records from now on what this worker does, and returns the path of the file.
    fn start_timeline(&self, py: Python<'_>, place: PathBuf) -> PyResult<PathBuf> {
        let inner = &self.0.get(py)?.inner;
        py.detach(|| inner.start_timeline(&place)).map_err(|error| errors::raise(py, &error))
    }

    /// Completes the file of the timeline; does nothing if no timeline is being recorded.
    fn stop_timeline(&self, py: Python<'_>) -> PyResult<()> {
        let inner = &self.0.get(py)?.inner;
        py.detach(|| inner.stop_timeline());
        Ok(())
    }

    /// Adds a span of a thread, in nanoseconds of `time.monotonic_ns()`, to the timeline; does nothing if no timeline is being recorded,
    /// and in a forked child.
    fn record_span(&self, thread: u64, thread_name: &str, name: &str, start_ns: i64, end_ns: i64) {
        if let Some(parts) = self.0.find() {
            parts.inner.timeline().record(Thread { id: thread, name: thread_name }, name, start_ns, end_ns);
        }
    }

    /// What to add to `time.time()` of this host for the time of the coordinator's clock, and its error, in seconds; `None` if not known.
    fn clock_offset(&self, py: Python<'_>) -> PyResult<Option<(f64, f64)>> {
        let offset = self.0.get(py)?.inner.job_clock().and_then(JobClock::ahead_of_wall);
        Ok(offset.map(|WallOffset { ns, error }| (ns as f64 / 1e9, error.as_secs_f64())))
    }

    /// Ids of operations that became ready since the last call: `follow` of their handles returns at once. Waits up to `timeout` seconds for
    /// the first. Operations that were submitted before the first call are not reported.
    fn next_ready(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<u64>> {
        let parts = self.0.get(py)?;
        Ok(py.detach(|| parts.completions.next(duration(timeout))))
    }

    /// Waits until all operations have ended for which streams wait, at most `timeout` seconds, and raises the first error among them that
    /// nobody was told of.
    fn settle(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let parts = self.0.get(py)?;
        let settled = wait_interruptibly(py, timeout, |slice| parts.inner.settle(Some(slice)))?;
        release(py, &parts.owners);
        settled.map_err(|error| errors::raise(py, &error))
    }

    /// Ends the work of this process because of `cause`, which every member of the job gets. Waits at most `timeout` seconds until the
    /// coordinator knows. Does nothing after this process has left.
    fn give_up(&self, py: Python<'_>, cause: String, timeout: f64) -> PyResult<()> {
        let parts = self.0.get(py)?;
        let outcome = py.detach(|| parts.inner.give_up(cause, duration(timeout)));
        release(py, &parts.owners);
        outcome.map_err(|error| errors::raise(py, &error))
    }

    /// Leaves the job: pending operations fail. Waits at most `timeout` seconds for the other workers. Idempotent.
    fn shutdown(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let parts = self.0.get(py)?;
        let inner = Arc::clone(&parts.inner);
        let outcome = in_background(py, move || inner.shutdown(duration(timeout)))?;
        release(py, &parts.owners);
        outcome.map_err(|error| errors::raise(py, &error))
    }
}

impl Session {
    fn new(inner: gradlane_session::Session) -> Self {
        let owners = Arc::new(Owners::new(inner.doubt().clone()));
        let inner = Arc::new(inner);
        Self(Own::new(Parts { inner, owners, completions: Completions::default(), lent: OnceLock::new() }))
    }
}
