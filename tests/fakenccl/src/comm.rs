//! Communicators: a rank's side, what is under way of it, and how it ended.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::codes::{Failure, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Outcome};
use crate::cuda::{Cuda, Place};
use crate::library::Library;
use crate::mail::exchange;
use crate::meeting::{BarrierKind, Meeting};
use crate::operation::{Factor, Memory, Reduction, Task, Turn, collective};
use crate::settings::pass;
use crate::shared::{Own, read, write};

pub(crate) struct Comm {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Whether calls wait until what they began is in the stream.
    pub(crate) blocks: bool,
    pub(crate) place: Place,
    cuda: Cuda,
    meeting: OnceLock<Meeting>,
    aborted: AtomicBool,
    state: Mutex<State>,
    news: Condvar,
    operations: AtomicU64,
    /// Groups that have collective operations.
    groups: AtomicU64,
    splits: AtomicU64,
    scales: Mutex<BTreeMap<u32, Factor>>,
}

#[derive(Default)]
struct State {
    /// Threads that meet or launch.
    busy: usize,
    /// Launches that are in a stream.
    launched: usize,
    /// Launches that are being done.
    running: usize,
    is_finalized: bool,
    is_revoked: bool,
    failure: Option<Failure>,
    scales: u32,
}

/// What one communicator does of a group, in the order of the calls.
pub(crate) struct Job {
    pub(crate) comm: Arc<Comm>,
    pub(crate) tasks: Vec<Task>,
}

/// The bytes that an operation leaves that was stopped.
const ANYTHING: u8 = 0xa5;

/// The first op that is a communicator's own (`ncclNumOps`).
const SCALED_FIRST: u32 = 5;

impl Comm {
    /// A rank that has not met the others yet. The context that is current says where it is.
    pub(crate) fn new(rank: usize, ranks: usize, blocks: bool) -> Outcome<Arc<Self>> {
        let cuda = Cuda::find()?;
        let place = cuda.here()?;
        Ok(Arc::new(Self::at(rank, ranks, blocks, place, cuda)))
    }

    fn at(rank: usize, ranks: usize, blocks: bool, place: Place, cuda: Cuda) -> Self {
        Self {
            rank,
            ranks,
            blocks,
            place,
            cuda,
            meeting: OnceLock::new(),
            aborted: AtomicBool::new(false),
            state: Mutex::default(),
            news: Condvar::new(),
            operations: AtomicU64::new(0),
            groups: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            scales: Mutex::default(),
        }
    }

    /// Meets the others, in a thread.
    pub(crate) fn meet(self: &Arc<Self>, path: PathBuf) {
        self.in_a_thread(move |comm| {
            let settings = Library::get().settings();
            pass(settings.init);
            let device = if settings.duplicates { None } else { Some(comm.place.pci_address.as_str()) };
            let manner = (settings.timeout, settings.is_strict);
            let meeting = Meeting::join(&path, comm.rank, comm.ranks, device, manner, &comm.aborted)?;
            if comm.aborted.load(Ordering::Acquire) {
                meeting.leave(false);
            }
            let is_first = comm.meeting.set(meeting).is_ok();
            assert!(is_first, "a communicator meets once");
            Ok(())
        });
    }

    /// Does something in a thread; until it is done, the communicator says that it is in progress.
    pub(crate) fn in_a_thread(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) -> Outcome + Send + 'static) {
        self.lock().busy += 1;
        let comm = self.clone();
        let thread = std::thread::Builder::new().name("fakenccl".to_owned()).spawn(move || {
            let outcome = work(&comm);
            let mut state = comm.lock();
            state.busy -= 1;
            comm.keep(&mut state, outcome);
            drop(state);
            comm.news.notify_all();
        });
        drop(thread.expect("a communicator has a thread"));
    }

    /// The code of its state: success, in progress, or that of its failure.
    pub(crate) fn result(&self) -> u32 {
        let state = self.lock();
        match &state.failure {
            _ if state.is_revoked && state.running > 0 => crate::codes::IN_PROGRESS,
            Some(failure) => failure.code,
            None if state.busy > 0 || (state.is_finalized && state.launched > 0) => crate::codes::IN_PROGRESS,
            None => crate::codes::SUCCESS,
        }
    }

    /// Why it failed, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    /// A call was wrong: where calls do not block, that is the communicator's failure too.
    pub(crate) fn spoil(&self, failure: Failure) {
        let mut state = self.lock();
        self.keep(&mut state, Err(failure));
    }

    /// Whether something new may be called.
    pub(crate) fn ready(&self) -> Outcome<&Meeting> {
        let state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.is_revoked {
            return Err(Failure::new(INVALID_USAGE, "the communicator was revoked"));
        }
        if state.busy > 0 || state.is_finalized {
            let text = "Attempt to use communicator before the previous operation returned ncclSuccess";
            return Err(Failure::argument(text));
        }
        self.meeting.get().ok_or_else(|| Failure::new(INTERNAL_ERROR, "it has not met"))
    }

    /// Waits until nothing is begun and not in the stream.
    pub(crate) fn wait_until_idle(&self) -> Outcome {
        let state = self.news.wait_while(self.lock(), |state| state.busy > 0);
        state.unwrap_or_else(PoisonError::into_inner).failure.clone().map_or(Ok(()), Err)
    }

    /// Whether this task may be called on this stream, as far as the caller's thread can say.
    pub(crate) fn check(&self, task: &Task, stream: usize) -> Outcome {
        self.ready()?;
        self.cuda.check_stream(stream, &self.place)?;
        self.memory(task)?;
        task.check_overlap(self.rank, self.ranks)
    }

    fn memory(&self, task: &Task) -> Outcome<Memory> {
        let (reads, writes) = task.bytes(self.rank, self.ranks);
        let at = |address: usize, bytes: usize| if bytes == 0 { Ok(0) } else { self.cuda.memory(address, bytes) };
        Ok(Memory { send: at(task.send, reads)?, receive: at(task.receive, writes)? })
    }

    /// Puts what a group asks of this communicator into the stream.
    pub(crate) fn launch(self: &Arc<Self>, stream: usize, tasks: Vec<Task>) -> Outcome {
        self.lock().launched += 1;
        let job = Box::into_raw(Box::new(Job { comm: self.clone(), tasks }));
        let outcome = self.cuda.launch(&self.place, stream, run, job.cast());
        if outcome.is_err() {
            drop(take(job.cast()));
            self.lock().launched -= 1;
            self.news.notify_all();
        }
        outcome
    }

    /// Does a launch, in the stream's turn.
    fn execute(&self, tasks: &[Task]) -> Outcome {
        if self.lock().failure.is_some() || self.aborted.load(Ordering::Acquire) {
            return Ok(());
        }
        let meeting = self.meeting.get().ok_or_else(|| Failure::new(INTERNAL_ERROR, "it has not met"))?;
        let library = Library::get();
        let mut letters = Vec::new();
        let (posted, together): (Vec<&Task>, Vec<&Task>) = tasks.iter().partition(|task| task.is_a_letter());
        let grouped = together.len() as u64;
        // Letters need no partner in the same group.
        let group = self.groups.fetch_add(u64::from(grouped > 0), Ordering::AcqRel);
        for task in shuffled(together, group).into_iter().chain(posted) {
            library.pass_on(&self.aborted);
            if let Some(code) = library.faults.strike(task.name(), Some(self.rank)) {
                return Err(Failure::new(code, format!("{} fails because a test wants it to", task.name())));
            }
            // It was memory when it was called.
            let memory = self.memory(task).inspect_err(|_| self.cuda.illegal_address(&self.place))?;
            if task.is_a_letter() {
                letters.push((task, memory));
                continue;
            }
            let factor = self.factor(task)?;
            let number = self.operations.fetch_add(1, Ordering::AcqRel);
            let turn = Turn { number, group, grouped };
            library.begun.fetch_add(1, Ordering::AcqRel);
            let done = collective(meeting, task, memory, factor.as_deref(), turn, &self.aborted);
            if done.is_err() && self.aborted.load(Ordering::Acquire) && library.settings().is_strict {
                // What a kernel that is stopped leaves is anything, and it is written until the abort has returned.
                let (_, writes) = task.bytes(self.rank, self.ranks);
                write(memory.receive, &vec![ANYTHING; writes]);
            }
            done?;
            library.executed.fetch_add(1, Ordering::AcqRel);
        }
        exchange(meeting, &letters, &self.aborted)?;
        library.executed.fetch_add(letters.len() as u64, Ordering::AcqRel);
        Ok(())
    }

    fn factor(&self, task: &Task) -> Outcome<Option<Vec<u8>>> {
        let Some(Reduction::Scaled(factor)) = task.kind.reduction() else { return Ok(None) };
        match factor {
            Factor::Here(bytes) => Ok(Some(bytes.clone())),
            Factor::OnDevice(address) => {
                let mut bytes = vec![0; task.dtype.bytes()];
                read(self.cuda.memory(*address, bytes.len())?, &mut bytes);
                Ok(Some(bytes))
            }
        }
    }

    /// Makes an op out of a factor; its code.
    pub(crate) fn add_scale(&self, factor: Factor) -> u32 {
        let code = SCALED_FIRST + self.lock().scales;
        self.lock().scales += 1;
        self.scales.lock().unwrap_or_else(PoisonError::into_inner).insert(code, factor);
        code
    }

    pub(crate) fn scale(&self, code: u32) -> Outcome<Factor> {
        let scales = self.scales.lock().unwrap_or_else(PoisonError::into_inner);
        scales.get(&code).cloned().ok_or_else(|| Failure::argument(format!("op {code} is none of this communicator")))
    }

    /// What is called already keeps its factor.
    pub(crate) fn remove_scale(&self, code: u32) -> Outcome {
        let mut scales = self.scales.lock().unwrap_or_else(PoisonError::into_inner);
        scales
            .remove(&code)
            .map(drop)
            .ok_or_else(|| Failure::argument(format!("op {code} is none of this communicator")))
    }

    /// Which of the ranks with this color it will be, of how many, and where they meet. All ranks call it.
    pub(crate) fn split(&self, color: i32, key: i32) -> Outcome<Option<(usize, usize, PathBuf)>> {
        let meeting = self.meeting.get().ok_or_else(|| Failure::new(INTERNAL_ERROR, "it has not met"))?;
        let number = self.splits.fetch_add(1, Ordering::AcqRel);
        let what = || format!("CommSplit {number}");
        // One more than it is, so that every number of a key is in its order, and none is 0.
        let own = |own: Own, rank: usize| meeting.shared.own(rank, own);
        own(Own::Color, self.rank).store(shifted(color), Ordering::Release);
        own(Own::Key, self.rank).store(shifted(key), Ordering::Release);
        meeting.barrier(BarrierKind::Calls, &what, &self.aborted)?;
        let said = |rank: usize| {
            (own(Own::Color, rank).load(Ordering::Acquire), own(Own::Key, rank).load(Ordering::Acquire), rank)
        };
        let mut same: Vec<(u64, u64, usize)> = (0..self.ranks).map(said).collect();
        meeting.barrier(BarrierKind::Calls, &what, &self.aborted)?;
        if color < 0 {
            return Ok(None);
        }
        same.retain(|(other, ..)| *other == shifted(color));
        same.sort_unstable();
        let rank = same.iter().position(|(.., rank)| *rank == self.rank);
        let rank = rank.ok_or_else(|| Failure::new(INTERNAL_ERROR, "a rank has its own color"))?;
        let name = format!("{}.{number}.{color}", meeting.path.display());
        Ok(Some((rank, same.len(), PathBuf::from(name))))
    }

    /// The rank of a new communicator on the same device.
    pub(crate) fn child(&self, rank: usize, ranks: usize, blocks: bool) -> Outcome<Arc<Self>> {
        Ok(Arc::new(Self::at(rank, ranks, blocks, self.place.clone(), Cuda::find()?)))
    }

    /// Nothing more is called; what was is still done.
    pub(crate) fn finalize(&self) -> Outcome {
        self.ready()?;
        self.lock().is_finalized = true;
        Ok(())
    }

    /// Waits until everything that was called is done, as long as that may take.
    pub(crate) fn drain(&self) -> Outcome {
        let patience = Library::get().settings().timeout * 2;
        let under_way = |state: &mut State| state.launched > 0 && state.failure.is_none();
        let (state, waited) =
            self.news.wait_timeout_while(self.lock(), patience, under_way).unwrap_or_else(PoisonError::into_inner);
        drop(state);
        if waited.timed_out() {
            return Err(Failure::new(INTERNAL_ERROR, "what was called does not end"));
        }
        Ok(())
    }

    /// Ends in order: nothing is under way. If it is strict, this waits for the other ranks.
    pub(crate) fn leave(&self) {
        if let Some(meeting) = self.meeting.get() {
            meeting.leave(true);
            if Library::get().settings().is_strict {
                meeting.part();
            }
        }
    }

    /// Ends at once: whatever waits for other ranks stops. The others hear of it, unless it is strict.
    pub(crate) fn abort(&self) {
        Library::get().take(|settings| settings.abort);
        self.stop();
        let stops = |state: &mut State| state.running > 0 || state.busy > 0;
        // What runs looks for this every 10 ms at most.
        let waited = self.news.wait_timeout_while(self.lock(), Duration::from_secs(2), stops);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        if Library::get().settings().is_strict {
            self.cuda.free_something(&self.place);
        }
    }

    /// What is under way stops, and nothing is freed; [`result`](Self::result) tells when it has.
    pub(crate) fn revoke(&self) {
        Library::get().take(|settings| settings.abort);
        self.lock().is_revoked = true;
        self.stop();
    }

    fn stop(&self) {
        self.aborted.store(true, Ordering::Release);
        if let Some(meeting) = self.meeting.get() {
            meeting.leave(false);
        }
    }

    /// Keeps the first failure.
    fn keep(&self, state: &mut State, outcome: Outcome) {
        let Err(failure) = outcome else { return };
        let library = Library::get();
        library.note(&failure);
        // What is stopped on purpose has not failed.
        if state.failure.is_none() && !state.is_revoked {
            state.failure = Some(failure.clone());
        }
        if let Some(meeting) = self.meeting.get()
            && failure.code != INVALID_ARGUMENT
            && !self.aborted.load(Ordering::Acquire)
        {
            meeting.fail(&failure);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The operations of a group in the order in which they are done. NCCL promises none, and has many under way at once. It is the same on all
/// ranks, because they must meet.
fn shuffled<T>(mut tasks: Vec<T>, group: u64) -> Vec<T> {
    let mut number = group;
    for last in (1..tasks.len()).rev() {
        // Knuth's numbers for a linear congruential generator; the high half is random enough.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tasks.swap(last, (number >> 33) as usize % (last + 1));
    }
    tasks
}

/// What the stream calls.
extern "C" fn run(job: *mut c_void) {
    let job = take(job);
    job.comm.lock().running += 1;
    let outcome = job.comm.execute(&job.tasks);
    let mut state = job.comm.lock();
    state.running -= 1;
    state.launched -= 1;
    job.comm.keep(&mut state, outcome);
    drop(state);
    job.comm.news.notify_all();
}

#[expect(unsafe_code, reason = "a host function's argument is a pointer")]
fn take(job: *mut c_void) -> Box<Job> {
    // SAFETY: made by `Comm::launch`, and given back once: by the stream, or by `launch` if the stream did not take it.
    unsafe { Box::from_raw(job.cast::<Job>()) }
}

/// In the order of the numbers, and never 0.
fn shifted(number: i32) -> u64 {
    (i64::from(number) - i64::from(i32::MIN)).cast_unsigned() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_of_a_group_are_done_in_one_order_everywhere_and_seldom_in_that_of_the_calls() {
        let called: Vec<u32> = (0..8).collect();
        let orders: Vec<Vec<u32>> = (0..100).map(|group| shuffled(called.clone(), group)).collect();
        assert_eq!(orders, (0..100).map(|group| shuffled(called.clone(), group)).collect::<Vec<_>>());
        assert!(orders.iter().filter(|order| **order == called).count() < 3);
        assert!(orders.iter().all(|order| called.iter().all(|one| order.contains(one))));
    }
}
