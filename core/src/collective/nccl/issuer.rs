//! The one thread that calls NCCL: connects with the other ranks, issues operations, and polls for errors that NCCL does not report by
//! itself.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::blocks;
use super::comm::{Call, Comm, copy_within, unique_id};
use super::library::Library;
use super::notice::Notice;
use super::program::{self, Step};
use super::work::{FINALIZE_PATIENCE, IssuedGroup, LOCK, LOOK, Work};
use crate::collective::{DeviceMemory, Ordered, Team, Traffic};
use crate::config::{NCCL_ABORT_PATIENCE, NCCL_GRACE};
use crate::cuda::{Context, Event, Kernels, Mark, OnIssue, Reaper, Stream, name};
use crate::error::{Error, Result, Tensors};
use crate::mem::DeviceRegion;
use crate::types::{DType, Done};

/// How long this thread only yields its core between two checks whether NCCL is done with a call. NCCL puts a group on the stream in some
/// ten microseconds, with a thread of its own, and a sleep takes longer than that.
const EAGER: Duration = Duration::from_micros(200);
/// The time between two checks after that, for example while ranks connect.
const ASK: Duration = Duration::from_micros(50);

/// The state of the thread.
pub(super) struct Issuer {
    pub(super) work: Arc<Work>,
    pub(super) library: Arc<Library>,
    pub(super) context: Arc<Context>,
}

/// The handles of the device.
struct Lines {
    stream: Arc<Stream>,
    reaper: Reaper,
    /// Loaded before the first operation, because loading may wait for all work of the device. An error fails the operations that need
    /// them.
    kernels: Result<Kernels>,
}

enum Next {
    /// The operations of a group.
    Issue(Vec<Ordered>),
    Look,
    Close,
    Over,
}

impl Lines {
    /// Copies the contribution times `share` to the memory of the result, where it is reduced in place.
    fn weigh(
        &self,
        share: f64,
        dtype: DType,
        DeviceMemory { source, destination, .. }: DeviceMemory,
    ) -> Result<DeviceMemory> {
        let kernels = self.kernels.as_ref().map_err(Clone::clone)?;
        kernels.scale(&self.stream, share, (dtype, dtype), source.iter().zip(&destination))?;
        let weighed = destination.iter().map(DeviceRegion::again).collect();
        Ok(DeviceMemory { source: weighed, destination, after: Vec::new(), issued: OnIssue::nobody() })
    }

    /// Divides the result in place. Floats are multiplied by the reciprocal.
    fn divide(&self, divisor: u32, dtype: DType, result: &[DeviceRegion]) -> Result<()> {
        let kernels = self.kernels.as_ref().map_err(Clone::clone)?;
        match dtype.is_float() {
            true => {
                let factor = f64::from(divisor).recip();
                kernels.scale(&self.stream, factor, (dtype, dtype), result.iter().zip(result))
            }
            false => kernels.divide(&self.stream, divisor, dtype, result),
        }
    }

    /// Copies the contribution to the memory of the result: several runs with a kernel, if there are kernels.
    fn keep(&self, DeviceMemory { source, destination, .. }: &DeviceMemory) -> Result<()> {
        let mut runs = source.iter().zip(destination);
        match &self.kernels {
            Ok(kernels) if source.len() > 1 => kernels.copy(&self.stream, runs),
            Ok(_) | Err(_) => runs.try_for_each(|(from, to)| copy_within(from, to, &self.stream)),
        }
    }
}

impl Issuer {
    pub(super) fn run(self) {
        // By default the kernel adds up to 50 µs to every sleep of a thread.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let lines = match self.lines() {
            Ok(lines) => lines,
            Err(error) => return self.work.fail(error),
        };
        if let Err(error) = self.serve(&lines) {
            self.work.fail(error);
        }
        // Keeps the stream until all operations on it have ended.
        let patience = NCCL_GRACE + NCCL_ABORT_PATIENCE + LOOK;
        self.work.settles(patience);
        if self.work.team.doubt.exists() {
            // Unloading kernels waits for all that run, with the driver's lock held.
            std::mem::forget(lines.kernels);
        }
    }

    fn lines(&self) -> Result<Lines> {
        self.context.bind()?;
        let kernels = Kernels::load(&self.context);
        let stream = Arc::new(self.context.stream()?);
        let stream = Arc::clone(self.work.stream.get_or_init(|| stream));
        Ok(Lines { stream, reaper: Reaper::start()?, kernels })
    }

    fn serve(&self, lines: &Lines) -> Result<()> {
        loop {
            match self.next() {
                Next::Issue(group) => {
                    let issued = self.issue(lines, group);
                    self.work.lock().is_issuing = false;
                    self.work.bell.notify_all();
                    issued?;
                }
                Next::Look => self.look()?,
                Next::Close => {
                    self.close();
                    return Ok(());
                }
                Next::Over => return Ok(()),
            }
        }
    }

    fn next(&self) -> Next {
        let mut state = self.work.lock();
        let mut looked = false;
        loop {
            if state.over.is_some() {
                return Next::Over;
            }
            if let Some(group) = state.queue.pop_front() {
                let (group, waiting) = group.into_iter().unzip();
                state.issuing = waiting;
                state.is_issuing = true;
                return Next::Issue(group);
            }
            if state.closing && state.issued_groups.is_empty() {
                return Next::Close;
            }
            if state.issued_groups.is_empty() {
                state = self.work.bell.wait(state).expect(LOCK);
                continue;
            }
            if looked {
                return Next::Look;
            }
            let (woken, timeout) = self.work.bell.wait_timeout(state, LOOK).expect(LOCK);
            (state, looked) = (woken, timeout.timed_out());
        }
    }

    /// Puts a group on the stream: first the waits and the local work of its operations, then the calls of all of them as one group of
    /// NCCL, which is the same on all ranks.
    fn issue(&self, lines: &Lines, group: Vec<Ordered>) -> Result<()> {
        if !self.is_met() {
            self.meet()?;
        }
        let begun_at = self.work.now();
        self.work.team.moved.note(begun_at);
        let (mut steps, mut calls) = (Vec::new(), Vec::new());
        let (me, lengths) = (self.work.team.me, blocks::lengths(&group, self.work.team.ranks));
        let mut told = Vec::with_capacity(group.len());
        let mut after: Vec<Mark> = Vec::new();
        let mut rest = group.into_iter();
        for length in lengths {
            let mut run = Vec::new();
            for mut ordered in rest.by_ref().take(length) {
                told.push(std::mem::take(&mut ordered.memory.issued));
                for mark in &ordered.memory.after {
                    if !after.iter().any(|known| known.is(mark)) {
                        after.push(mark.clone());
                    }
                }
                let step = program::step(ordered.dataflow, &ordered.claim, me);
                steps.push(step);
                run.extend(self.prepare(lines, step, ordered)?);
            }
            if length > 1 {
                run = blocks::join(run, me)?;
                let begun = steps.len() - length;
                steps[begun..].fill(run[0].step);
            }
            calls.extend(run);
        }
        self.count(&calls);
        if !calls.is_empty() {
            self.with_comm(|comm| comm.call(&calls, &lines.stream))?;
            // Until NCCL has settled, its work is not on the stream, and an event would come too early.
            self.settle("issuing a collective operation", self.work.team.step_timeout)?;
            // Only after NCCL is done with the calls, because only then its own work is on the stream. Not after an abort, because then the
            // memory may belong to another tensor.
            let divided = calls.iter().filter_map(|call| Some((call.divisor?, call)));
            for (divisor, Call { dtype, memory, .. }) in divided {
                self.with_comm(|_| lines.divide(divisor, *dtype, &memory.destination))?;
            }
            let Traffic { groups, issue_nanoseconds, .. } = &self.work.team.traffic;
            groups.fetch_add(1, Ordering::Relaxed);
            let took = self.work.now().since(begun_at).as_nanos();
            issue_nanoseconds.fetch_add(u64::try_from(took).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        let has_work = steps.iter().any(|step| *step != Step::Nothing);
        let event = if has_work { Some(lines.stream.record()?) } else { None };
        self.fly(lines, event, (&steps, after), told);
        Ok(())
    }

    /// Puts the local work of an operation on the stream; returns the calls of NCCL that are left.
    fn prepare(&self, lines: &Lines, step: Step, ordered: Ordered) -> Result<Option<Call>> {
        let Ordered { dataflow, claim, weights, memory, .. } = ordered;
        if step == Step::Nothing {
            return Ok(None);
        }
        for mark in &memory.after {
            lines.stream.wait(mark)?;
        }
        if step == Step::Keep {
            return lines.keep(&memory).map(|()| None);
        }
        let divisor = program::divisor(dataflow, &claim, self.work.team.ranks);
        let memory = match program::share(dataflow, &claim, &weights, self.work.team.me) {
            Some(share) => lines.weigh(share, claim.dtype, memory)?,
            None => memory,
        };
        Ok(Some(Call { step, dtype: claim.dtype, memory, divisor }))
    }

    /// Counts the bytes of the operations.
    fn count(&self, calls: &[Call]) {
        let (Traffic { all_reduce, reduce_scatter, reduce, all_gather, broadcast, .. }, ranks) =
            (&self.work.team.traffic, self.work.team.ranks as u64);
        for call in calls {
            let (counter, bytes) = match call.step {
                Step::AllReduce(_) => (all_reduce, call.bytes()),
                Step::ReduceScatter(_) => (reduce_scatter, call.bytes()),
                Step::Reduce { .. } => (reduce, call.bytes()),
                Step::AllGather => (all_gather, call.bytes() * ranks),
                Step::Broadcast { .. } | Step::Send { .. } | Step::Receive { .. } => (broadcast, call.bytes()),
                Step::Keep | Step::Nothing => continue,
            };
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Records that the group is on the stream, or done if there was no work. Tells the submitters of the operations, `told`.
    fn fly(&self, lines: &Lines, event: Option<Arc<Event>>, (steps, after): (&[Step], Vec<Mark>), told: Vec<OnIssue>) {
        let mut state = self.work.lock();
        // `None` if they were reported meanwhile.
        let (mut over, mut waiting) = (Vec::new(), Vec::new());
        for (done, step) in std::mem::take(&mut state.issuing).into_iter().zip(steps) {
            if *step == Step::Nothing { over.push(done) } else { waiting.push(done) }
        }
        let flies = event.filter(|_| !waiting.is_empty()).map(|event| {
            let (number, what) = (state.flown, what_of(steps));
            state.flown += 1;
            let now = self.work.now();
            self.work.team.moved.note(now);
            state.issued_groups.insert(number, IssuedGroup { waiting, what, after, since: now });
            (event, what, number)
        });
        drop(state);
        if let Some((event, what, number)) = flies {
            // Before the reaper can report an end.
            for (told, _) in told.into_iter().zip(steps).filter(|(_, step)| **step != Step::Nothing) {
                told.issued(Mark::Event(Arc::clone(&event)));
            }
            let work = Arc::clone(&self.work);
            lines.reaper.when(event, what, Done::new(move |outcome| work.landed(number, outcome)));
        }
        for done in over {
            done.ok(());
        }
    }

    fn is_met(&self) -> bool {
        self.work.comm.lock().expect(LOCK).is_some()
    }

    /// Connects with the other ranks, all of which come to their first operation now.
    fn meet(&self) -> Result<()> {
        let Team { me, ranks, bootstrap, join_timeout, .. } = &self.work.team;
        let device = self.context.device();
        let id = if *me == 0 {
            let id = unique_id(&self.library, device)?;
            bootstrap.post(&Notice { id, version: self.library.version }.bytes());
            id
        } else {
            let notice = bootstrap.read(*join_timeout, &|| self.work.is_over());
            let notice = notice.and_then(|notice| Notice::read(&notice)).ok_or_else(|| Error::Device {
                device: name(device),
                what: "meeting the devices of this machine".to_owned(),
                tensor: Tensors::Unknown,
                cause: format!(
                    "the first worker of the machine did not begin to connect within {:.1} s",
                    join_timeout.as_secs_f64()
                ),
            })?;
            notice.check(&self.library)?;
            notice.id
        };
        let mut comm = self.work.comm.lock().expect(LOCK);
        if self.work.is_over() {
            return Ok(());
        }
        let (made, begun) = Comm::meet(&self.library, device, id, *me, *ranks);
        // Also if it failed, so that it is aborted with everything else.
        *comm = made;
        drop(comm);
        begun?;
        self.settle("meeting the devices of this machine", *join_timeout)
    }

    /// Calls NCCL; `None` if everything has ended.
    fn with_comm<T>(&self, call: impl FnOnce(&Comm) -> Result<T>) -> Result<Option<T>> {
        self.work.comm.lock().expect(LOCK).as_ref().map(call).transpose()
    }

    /// Waits until NCCL is done with its calls, or everything has ended.
    fn settle(&self, what: &str, patience: Duration) -> Result<()> {
        let begun = self.work.now();
        loop {
            if self.with_comm(Comm::state)?.unwrap_or(true) {
                return Ok(());
            }
            let waited = self.work.now().since(begun);
            if waited >= patience {
                return Err(self.late(what, patience));
            }
            if waited < EAGER && !self.work.is_over() {
                std::thread::yield_now();
                continue;
            }
            let state = self.work.lock();
            if state.over.is_some() {
                return Ok(());
            }
            drop(self.work.bell.wait_timeout(state, ASK));
        }
    }

    /// Polls for errors that NCCL does not report by itself.
    fn look(&self) -> Result<()> {
        self.with_comm(Comm::state)?;
        let now = self.work.now();
        let state = self.work.lock();
        let Some((number, first)) = state.issued_groups.first_key_value() else { return Ok(()) };
        let (number, what, since, after) = (*number, first.what, first.since, first.after.clone());
        drop(state);
        // The time of an operation begins when the device has come to it. What comes before was given to the device by the program, and
        // nobody else can say how long it takes.
        if !after.iter().all(Mark::is_reached) {
            if let Some(first) = self.work.lock().issued_groups.get_mut(&number) {
                first.since = now;
            }
            return Ok(());
        }
        if since + self.work.team.step_timeout <= now {
            return Err(self.late(what, self.work.team.step_timeout));
        }
        Ok(())
    }

    fn late(&self, what: &str, patience: Duration) -> Error {
        Error::Device {
            device: name(self.context.device()),
            what: what.to_owned(),
            tensor: Tensors::Unknown,
            cause: format!(
                "it did not end within {:.1} s: another worker of this machine may hang, or the workers may have started the \
                 collectives of another communicator on this device (torch.distributed, tensor parallelism, FSDP, SyncBatchNorm) and \
                 these in different orders, so that each waits for the other; start them in one order on all workers",
                patience.as_secs_f64()
            ),
        }
    }

    /// Ends the communicator, in order if it has not failed and the other ranks end it too.
    fn close(&self) {
        let ended =
            self.with_comm(Comm::finalize).and_then(|_| self.settle("ending the communicator", FINALIZE_PATIENCE));
        // Taken out first, because a thread that only needs the lock must not wait for the end.
        let comm = self.work.comm.lock().expect(LOCK).take();
        let freed = match (comm, ended) {
            (None, _) => true,
            // It waits for the other ranks. One of them may have died by now, and nothing can abort it any more.
            (Some(comm), Ok(())) if comm.state().is_ok_and(|is_over| is_over) => {
                self.work.apart("gl-nccl-destroy", FINALIZE_PATIENCE, || comm.destroy())
            }
            // NCCL would not free one that is still in progress, for example because everything ended meanwhile.
            (Some(comm), ended) => {
                tracing::debug!(?ended, "the communicator is aborted");
                self.work.apart("gl-nccl-abort", FINALIZE_PATIENCE, || comm.abort())
            }
        };
        if !freed {
            tracing::warn!("NCCL does not free a communicator; this process goes on without waiting for it");
        }
    }
}

/// The name of a group in errors.
fn what_of(steps: &[Step]) -> &'static str {
    let mut names = steps.iter().filter(|step| **step != Step::Nothing).map(|step| what(*step));
    let first = names.next().unwrap_or("nothing");
    if names.all(|name| name == first) { first } else { "a group of operations" }
}

/// The name of an operation in errors.
const fn what(step: Step) -> &'static str {
    match step {
        Step::AllReduce(_) => "ncclAllReduce",
        Step::ReduceScatter(_) => "ncclReduceScatter",
        Step::AllGather => "ncclAllGather",
        Step::Reduce { .. } => "ncclReduce",
        Step::Broadcast { .. } => "ncclBroadcast",
        Step::Send { .. } => "ncclSend",
        Step::Receive { .. } => "ncclRecv",
        Step::Keep => "a copy within the device",
        Step::Nothing => "nothing",
    }
}
