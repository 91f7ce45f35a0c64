//! The road of one rank: what waits for its turn, what is under way, and how all of it ends.
//!
//! ```text
//!   (nothing) ──first operation──► Meeting ──all ranks there──► Issuing ──shutdown, nothing under way──► Ended
//!                                     └──── abort, error, deadline ────┴──► Ending ──► Ended
//! ```
//! While it ends, a thread of its own aborts the communicator, because that may hang when a device does; whoever waits for an operation
//! hears of the cause then, or after [`ABORT_PATIENCE`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use super::Places;
use super::comm::{Comm, ID_BYTES, OwnOp, copy_within, unique_id};
use super::library::{Absent, Library};
use super::program::{self, Step};
use crate::collective::{DeviceMemory, DeviceRoad, Goal, Ordered, Team};
use crate::cuda::{Context, Driver, Event, Reaper, Stream, name};
use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::mem::Ordinal;
use crate::sched::order::Claim;
use crate::types::{Done, Time};

/// How long to sleep before NCCL is asked again whether it is done with a call.
const ASK: Duration = Duration::from_micros(50);
/// How often what is under way is looked after: errors that nobody reports, and deadlines.
const LOOK: Duration = Duration::from_millis(50);
/// How long an error of NCCL waits for its cause: a rank that dies is noticed by its neighbours at about the same time.
const GRACE: Duration = Duration::from_secs(1);
/// How long NCCL may take to abort before whoever waits is told nevertheless.
const ABORT_PATIENCE: Duration = Duration::from_secs(5);
/// How long the other ranks may take to end the communicator in order.
const FINALIZE_PATIENCE: Duration = Duration::from_secs(1);

/// One rank's road.
pub(super) struct Road {
    places: Places,
    library: OnceLock<std::result::Result<Arc<Library>, Absent>>,
    /// From the first operation on.
    started: Mutex<Option<Started>>,
    work: Arc<Work>,
}

struct Started {
    device: Ordinal,
    /// Keeps the device's context.
    _driver: Arc<Driver>,
    thread: OwnThread,
}

/// What the threads of a road share.
struct Work {
    team: Team,
    state: Mutex<State>,
    /// Something of the state changed.
    bell: Condvar,
    /// Held for the moment of a call.
    comm: Mutex<Option<Comm>>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Ordered, Done<()>)>,
    /// On the device's stream, by the order in which they came there.
    flying: BTreeMap<u64, Flying>,
    flown: u64,
    /// Taken out of the queue and not on the stream yet.
    issuing: Option<Done<()>>,
    /// Something failed, and its cause may still be found.
    failing: bool,
    /// Why nothing is done any more.
    over: Option<Error>,
    /// Nothing more will come.
    closing: bool,
}

struct Flying {
    done: Done<()>,
    /// What it is, for errors.
    what: &'static str,
    deadline: Time,
}

impl Road {
    pub(super) fn new(team: Team, places: Places) -> Self {
        let work = Work { team, state: Mutex::default(), bell: Condvar::new(), comm: Mutex::new(None) };
        Self { places, library: OnceLock::new(), started: Mutex::new(None), work: Arc::new(work) }
    }

    /// Starts on the device of the first operation; later ones must be of the same.
    fn start(&self, device: Ordinal) -> Result<()> {
        let mut started = self.started.lock().expect(LOCK);
        if let Some(Started { device: first, .. }) = &*started {
            return if *first == device { Ok(()) } else { Err(elsewhere(*first, device)) };
        }
        let library = self.library.get_or_init(|| Library::find(self.places.nccl.as_deref()).map(Arc::new));
        let library = library.clone().map_err(|absent| absent.error())?;
        let driver = Driver::load(self.places.cuda.as_deref()).map_err(|absent| absent.error())?;
        let context = driver.device(device)?;
        tracing::info!(%library, device = name(device), "devices of this machine are reduced by NCCL");
        let issuer = Issuer { work: Arc::clone(&self.work), library, context };
        let thread = OwnThread::start("gl-nccl", move || issuer.run())?;
        *started = Some(Started { device, _driver: driver, thread });
        Ok(())
    }
}

impl DeviceRoad for Road {
    fn check(&self, goal: &Goal, claim: &Claim, memory: &DeviceMemory) -> Result<()> {
        program::check(goal, claim)?;
        let mut regions = memory.source.iter().chain(&memory.destination);
        let Some(device) = regions.next().map(crate::mem::DeviceRegion::device) else {
            return Err(Error::Internal { what: "an operation on devices without memory of any".to_owned() });
        };
        if let Some(other) = regions.find(|region| region.device() != device) {
            return Err(elsewhere(device, other.device()));
        }
        self.start(device)
    }

    fn issue(&self, ordered: Ordered, done: Done<()>) {
        let mut state = self.work.lock();
        if let Some(cause) = &state.over {
            let cause = cause.clone();
            drop(state);
            return done.err(cause);
        }
        state.queue.push_back((ordered, done));
        drop(state);
        self.work.bell.notify_all();
    }

    fn abort(&self, cause: Error) {
        self.work.end(cause);
    }

    fn shutdown(&self) {
        self.work.lock().closing = true;
        self.work.bell.notify_all();
        if let Some(Started { thread, .. }) = &*self.started.lock().expect(LOCK) {
            thread.join(FINALIZE_PATIENCE);
        }
        // Whoever ends it reports to everybody, or has taken it upon itself to.
        let is_busy = |state: &mut State| state.over.is_some() && state.is_busy();
        drop(self.work.bell.wait_timeout_while(self.work.lock(), ABORT_PATIENCE, is_busy));
    }
}

impl Drop for Road {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl State {
    fn is_busy(&self) -> bool {
        !self.queue.is_empty() || !self.flying.is_empty() || self.issuing.is_some()
    }

    /// Everybody who waits.
    fn take_all(&mut self) -> Vec<Done<()>> {
        let flying = std::mem::take(&mut self.flying).into_values().map(|flying| flying.done);
        let queued = std::mem::take(&mut self.queue).into_iter().map(|(_, done)| done);
        flying.chain(self.issuing.take()).chain(queued).collect()
    }
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(LOCK)
    }

    fn now(&self) -> Time {
        (self.team.clock)()
    }

    fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }

    /// Ends everything with `cause`, unless it has ended. Does not wait.
    fn end(self: &Arc<Self>, cause: Error) {
        let mut state = self.lock();
        if state.over.is_some() {
            return;
        }
        state.over = Some(cause.clone());
        let idle = !state.is_busy();
        drop(state);
        self.bell.notify_all();
        if idle && self.comm.try_lock().is_ok_and(|comm| comm.is_none()) {
            return;
        }
        let work = Arc::clone(self);
        let finish = move || {
            work.abort_comm();
            work.report_all(&cause);
        };
        // It ends within its patience, and nobody needs to wait for it.
        if std::thread::Builder::new().name("gl-nccl-end".to_owned()).spawn(finish).is_err() {
            self.report_all(&self.lock().over.clone().expect("set above"));
        }
    }

    /// Aborts the communicator, so that nothing of anybody's memory is used any more; gives up after a while.
    fn abort_comm(self: &Arc<Self>) {
        let (aborting, aborted) = crossbeam_channel::bounded::<()>(0);
        let work = Arc::clone(self);
        let abort = move || {
            // Dropped when it is done.
            let _aborting = aborting;
            // Taken first: whoever only asks for it must not wait for the abort.
            let comm = work.comm.lock().expect(LOCK).take();
            if let Some(comm) = comm {
                comm.abort();
            }
        };
        if std::thread::Builder::new().name("gl-nccl-abort".to_owned()).spawn(abort).is_ok()
            && aborted.recv_timeout(ABORT_PATIENCE) == Err(crossbeam_channel::RecvTimeoutError::Timeout)
        {
            tracing::error!("NCCL does not end what is under way; its memory may still be written");
        }
    }

    fn report_all(&self, cause: &Error) {
        let waiting = self.lock().take_all();
        self.bell.notify_all();
        for done in waiting {
            done.err(cause.clone());
        }
    }

    /// The stream has come to an operation's end.
    fn landed(self: &Arc<Self>, number: u64, outcome: Result<()>) {
        // Not what an abort has ended, and not what NCCL knows to have failed.
        let outcome = outcome.and_then(|()| match &*self.comm.lock().expect(LOCK) {
            Some(comm) => comm.state().map(drop),
            None => Ok(()),
        });
        if let Err(error) = outcome {
            return self.fail(error);
        }
        let mut state = self.lock();
        if state.over.is_some() {
            return;
        }
        let landed = state.flying.remove(&number);
        drop(state);
        self.bell.notify_all();
        if let Some(Flying { done, .. }) = landed {
            done.ok(());
        }
    }

    /// Something of this rank's failed. What becomes of it is said by whoever notices first that a rank is lost, or after a while by this.
    fn fail(self: &Arc<Self>, error: Error) {
        let mut state = self.lock();
        if state.over.is_some() || std::mem::replace(&mut state.failing, true) {
            return;
        }
        drop(state);
        let work = Arc::clone(self);
        let wait = move || {
            let (state, _) =
                work.bell.wait_timeout_while(work.lock(), GRACE, |state| state.over.is_none()).expect(LOCK);
            drop(state);
            work.end(error);
        };
        // Not on this thread, which may be the reaper's.
        if let Err(refused) = std::thread::Builder::new().name("gl-nccl-fail".to_owned()).spawn(wait) {
            self.end(Error::Io { what: "starting a thread".to_owned(), cause: refused.to_string() });
        }
    }
}

/// The thread that issues.
struct Issuer {
    work: Arc<Work>,
    library: Arc<Library>,
    context: Arc<Context>,
}

/// What the device is told and heard by.
struct Lines {
    stream: Stream,
    reaper: Reaper,
}

enum Next {
    Issue(Ordered),
    Look,
    Close,
    Over,
}

impl Issuer {
    fn run(self) {
        let lines = match self.lines() {
            Ok(lines) => lines,
            Err(error) => return self.work.fail(error),
        };
        if let Err(error) = self.serve(&lines) {
            self.work.fail(error);
        }
        // The stream stays until nobody waits for what is on it.
        let patience = GRACE + ABORT_PATIENCE + LOOK;
        drop(self.work.bell.wait_timeout_while(self.work.lock(), patience, |state| state.is_busy()));
    }

    fn lines(&self) -> Result<Lines> {
        self.context.bind()?;
        Ok(Lines { stream: self.context.stream()?, reaper: Reaper::start()? })
    }

    fn serve(&self, lines: &Lines) -> Result<()> {
        loop {
            match self.next() {
                Next::Issue(ordered) => self.issue(lines, ordered)?,
                Next::Look => self.look()?,
                Next::Close => return self.close(),
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
            if let Some((ordered, done)) = state.queue.pop_front() {
                state.issuing = Some(done);
                return Next::Issue(ordered);
            }
            if state.closing && state.flying.is_empty() {
                return Next::Close;
            }
            if state.flying.is_empty() {
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

    fn issue(&self, lines: &Lines, ordered: Ordered) -> Result<()> {
        let Ordered { walk, claim, weights, memory } = ordered;
        let step = program::step(walk, &claim, &weights, self.work.team.me);
        if !self.is_met() {
            self.meet()?;
        }
        if step != Step::Nothing {
            for mark in &memory.after {
                lines.stream.wait(mark)?;
            }
        }
        match step {
            Step::Nothing => {}
            Step::Keep => {
                for (source, destination) in memory.source.iter().zip(&memory.destination) {
                    copy_within(source, destination, &lines.stream)?;
                }
            }
            _ => {
                let own = self.with_comm(|comm| comm.call(step, claim.dtype, &memory, &lines.stream))?;
                self.settle("issuing a collective operation", self.work.team.step_timeout)?;
                if let Some(Some(own)) = own {
                    self.forget(own)?;
                }
            }
        }
        let what = what(step);
        let event = match step {
            Step::Nothing => None,
            _ => Some(lines.stream.record()?),
        };
        self.fly(lines, event, what);
        Ok(())
    }

    /// Gives back what was made for one operation, which is on its stream.
    fn forget(&self, own: OwnOp) -> Result<()> {
        self.with_comm(|comm| comm.forget(own)).map(drop)
    }

    /// What was issued is on its way, or done if there was nothing to do.
    fn fly(&self, lines: &Lines, event: Option<Arc<Event>>, what: &'static str) {
        let mut state = self.work.lock();
        // Absent if it was reported meanwhile.
        let Some(done) = state.issuing.take() else { return };
        let Some(event) = event else {
            drop(state);
            return done.ok(());
        };
        let number = state.flown;
        state.flown += 1;
        let deadline = self.work.now() + self.work.team.step_timeout;
        state.flying.insert(number, Flying { done, what, deadline });
        drop(state);
        let work = Arc::clone(&self.work);
        lines.reaper.when(event, what, Done::new(move |outcome| work.landed(number, outcome)));
    }

    fn is_met(&self) -> bool {
        self.work.comm.lock().expect(LOCK).is_some()
    }

    /// Meets the other ranks, all of which come to their first operation now.
    fn meet(&self) -> Result<()> {
        let Team { me, ranks, bulletin, join_timeout, .. } = &self.work.team;
        let device = self.context.device();
        let id = if *me == 0 {
            let id = unique_id(&self.library, device)?;
            bulletin.post(&id);
            id
        } else {
            let notice = bulletin.read(*join_timeout, &|| self.work.is_over());
            let id: Option<[u8; ID_BYTES]> = notice.and_then(|notice| notice.try_into().ok());
            id.ok_or_else(|| Error::Device {
                device: name(device),
                what: "meeting the devices of this machine".to_owned(),
                cause: format!("the first worker of the machine has not begun to within {join_timeout:?}"),
            })?
        };
        let mut comm = self.work.comm.lock().expect(LOCK);
        if self.work.is_over() {
            return Ok(());
        }
        *comm = Some(Comm::meet(&self.library, device, id, *me, *ranks)?);
        drop(comm);
        self.settle("meeting the devices of this machine", *join_timeout)
    }

    /// Calls NCCL, unless all is over: `None` then.
    fn with_comm<T>(&self, call: impl FnOnce(&Comm) -> Result<T>) -> Result<Option<T>> {
        self.work.comm.lock().expect(LOCK).as_ref().map(call).transpose()
    }

    /// Waits until NCCL is done with what it was called for, or all is over.
    fn settle(&self, what: &str, patience: Duration) -> Result<()> {
        let deadline = self.work.now() + patience;
        loop {
            if self.with_comm(Comm::state)?.unwrap_or(true) {
                return Ok(());
            }
            if self.work.now() >= deadline {
                return Err(self.late(what, patience));
            }
            let state = self.work.lock();
            if state.over.is_some() {
                return Ok(());
            }
            drop(self.work.bell.wait_timeout(state, ASK));
        }
    }

    /// Looks for what nobody reports.
    fn look(&self) -> Result<()> {
        self.with_comm(Comm::state)?;
        let now = self.work.now();
        let state = self.work.lock();
        match state.flying.values().next() {
            Some(first) if first.deadline <= now => {
                let what = first.what;
                drop(state);
                Err(self.late(what, self.work.team.step_timeout))
            }
            _ => Ok(()),
        }
    }

    fn late(&self, what: &str, patience: Duration) -> Error {
        Error::Device {
            device: name(self.context.device()),
            what: what.to_owned(),
            cause: format!("it did not end within {patience:?}: another worker of this machine may hang"),
        }
    }

    /// Ends the communicator, with the other ranks if they end it too.
    fn close(&self) -> Result<()> {
        self.with_comm(Comm::finalize)?;
        let ended = self.settle("ending the communicator", FINALIZE_PATIENCE);
        if let Some(comm) = self.work.comm.lock().expect(LOCK).take() {
            match ended {
                Ok(()) => comm.destroy(),
                Err(error) => {
                    tracing::debug!(%error, "the communicator is aborted");
                    comm.abort();
                }
            }
        }
        Ok(())
    }
}

/// What a step is called.
const fn what(step: Step) -> &'static str {
    match step {
        Step::AllReduce(_) => "ncclAllReduce",
        Step::Reduce { .. } => "ncclReduce",
        Step::Broadcast { .. } => "ncclBroadcast",
        Step::Send { .. } => "ncclSend",
        Step::Receive { .. } => "ncclRecv",
        Step::Keep => "a copy within the device",
        Step::Nothing => "nothing",
    }
}

fn elsewhere(first: Ordinal, device: Ordinal) -> Error {
    Error::InvalidArgument {
        what: format!("memory of {}, while the workers of this machine reduce that of {}", name(device), name(first)),
        hint: "start one worker a device and move the tensor to its device, or set local_reduce=off on all workers of the machine"
            .to_owned(),
    }
}

const LOCK: &str = "nobody panics while holding it";
