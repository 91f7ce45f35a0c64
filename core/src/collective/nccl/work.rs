//! The shared state of a queue's threads: waiting groups, groups under way, and the end.
//!
//! ```text
//!   (nothing) ──first operation──► Meeting ──all ranks there──► Issuing ──shutdown, nothing under way──► Ended
//!                                     └──── abort, error, deadline ────┴──► Ending ──► Ended
//! ```
//! In `Ending`, a separate thread aborts the communicator, because that may hang if a device does, and another one waits until the stream is
//! empty. The waiting operations get the cause after that, or after [`NCCL_ABORT_PATIENCE`]. Until the stream is empty, a device may still write the
//! memory of the operations, so there is [`Doubt`](crate::mem::Doubt) about it, for ever if need be.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use super::comm::Comm;
use crate::collective::{Ordered, Team};
use crate::config::{NCCL_ABORT_PATIENCE, NCCL_GRACE};
use crate::cuda::{Context, Mark, Stream};
use crate::error::{Error, Result};
use crate::mem::doubt::Reason;
use crate::types::{Done, Time};

/// How often the operations under way are checked for errors that NCCL does not report by itself, and for deadlines.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// How long the other ranks may take to end the communicator in order, and how long NCCL may then take to free it.
pub(super) const FINALIZE_PATIENCE: Duration = Duration::from_secs(1);
/// How soon a stream is asked again whether it is empty after an abort; later less often, up to [`LOOK`].
const DRAIN: Duration = Duration::from_millis(1);

/// The shared state of a queue's threads.
pub(super) struct Work {
    pub(super) team: Team,
    context: Arc<Context>,
    state: Mutex<State>,
    /// Notified when the state changes.
    pub(super) bell: Condvar,
    /// Held only during a call.
    pub(super) comm: Mutex<Option<Comm>>,
    /// The stream of all operations, once there is one.
    pub(super) stream: OnceLock<Arc<Stream>>,
}

#[derive(Default)]
pub(super) struct State {
    /// Groups that wait for their turn.
    pub(super) queue: VecDeque<Vec<(Ordered, Done<()>)>>,
    /// Groups on the device's stream, in their order.
    pub(super) issued_groups: BTreeMap<u64, IssuedGroup>,
    pub(super) flown: u64,
    /// The operations of the group that was taken from the queue and is not on the stream yet.
    pub(super) issuing: Vec<Done<()>>,
    /// The thread that issues puts work on the stream now, or may.
    pub(super) is_issuing: bool,
    /// An operation failed, and the cause may still become known.
    failing: bool,
    /// The error after which no operation is issued.
    pub(super) over: Option<Error>,
    /// The communicator is being aborted.
    pub(super) ending: bool,
    /// The queue was shut down.
    pub(super) closing: bool,
}

/// A group, whose operations end together.
pub(super) struct IssuedGroup {
    pub(super) waiting: Vec<Done<()>>,
    /// Its name in errors.
    pub(super) what: &'static str,
    /// The device does not come to it before these marks.
    pub(super) after: Vec<Mark>,
    /// Since when nothing before it keeps it waiting, as far as is known.
    pub(super) since: Time,
}

impl State {
    pub(super) fn is_busy(&self) -> bool {
        !self.queue.is_empty() || !self.issued_groups.is_empty() || !self.issuing.is_empty()
    }

    /// All operations that wait.
    fn take_all(&mut self) -> Vec<Done<()>> {
        let issued = std::mem::take(&mut self.issued_groups).into_values().flat_map(|group| group.waiting);
        let queued = std::mem::take(&mut self.queue).into_iter().flatten().map(|(_, done)| done);
        issued.chain(std::mem::take(&mut self.issuing)).chain(queued).collect()
    }
}

impl Work {
    pub(super) fn new(team: Team, context: Arc<Context>) -> Self {
        let (bell, comm, stream) = (Condvar::new(), Mutex::new(None), OnceLock::new());
        Self { team, context, state: Mutex::default(), bell, comm, stream }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(LOCK)
    }

    pub(super) fn now(&self) -> Time {
        (self.team.clock)()
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }

    /// Runs `call`, which may take for ever, on a thread of its own that has the device's context. Waits for it for `patience`; returns
    /// whether it ended by then. If it cannot be run, `call` is dropped.
    pub(super) fn apart(&self, name: &'static str, patience: Duration, call: impl FnOnce() + Send + 'static) -> bool {
        let (calling, called) = crossbeam_channel::bounded::<()>(0);
        let context = Arc::clone(&self.context);
        let run = move || {
            // Its drop signals the end.
            let _calling = calling;
            match context.bind() {
                Ok(()) => call(),
                // Without a context, NCCL would make one on the first device.
                Err(error) => tracing::error!(%error, thread = name, "a communicator is not ended"),
            }
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(run).is_ok()
            && called.recv_timeout(patience) != Err(crossbeam_channel::RecvTimeoutError::Timeout)
    }

    /// Waits until no operation is under way, for `patience` at most; returns whether none is.
    pub(super) fn settles(&self, patience: Duration) -> bool {
        let busy = |state: &mut State| state.is_busy();
        let (state, _) = self.bell.wait_timeout_while(self.lock(), patience, busy).expect(LOCK);
        !state.is_busy()
    }

    /// Ends everything with `cause`, unless it has ended. Does not wait.
    pub(super) fn end(self: &Arc<Self>, cause: Error) {
        let mut state = self.lock();
        if state.over.is_some() {
            return;
        }
        state.over = Some(cause.clone());
        let is_idle = !state.is_busy() && self.comm.try_lock().is_ok_and(|comm| comm.is_none());
        state.ending = !is_idle;
        drop(state);
        self.bell.notify_all();
        if is_idle {
            return;
        }
        let (work, of_end) = (Arc::clone(self), cause.clone());
        let finish = move || {
            work.abort_comm();
            work.report_all(&of_end);
        };
        // No thread needs to wait for it, because it ends within its patience.
        if std::thread::Builder::new().name("gl-nccl-end".to_owned()).spawn(finish).is_err() {
            self.team.doubt.raise().keep();
            self.report_all(&cause);
        }
    }

    /// Aborts the communicator, so that no memory is used any more. Gives up after a while, with doubt about the memory.
    fn abort_comm(self: &Arc<Self>) {
        // Before anything is reported. The thread that aborts ends it.
        let reason = KeptUnlessEnded(Some(self.team.doubt.raise()));
        let work = Arc::clone(self);
        let stop = move || {
            work.stop();
            reason.end();
        };
        if !self.apart("gl-nccl-stop", NCCL_ABORT_PATIENCE, stop) {
            tracing::error!("NCCL does not end what is under way; its memory may still be written, so it is not freed");
        }
    }

    /// Stops what is under way, and returns when the stream is empty. The communicator is freed beside that or later, because NCCL frees
    /// memory for it, and for this the driver waits until all work of the device has ended, that of the framework too. The thread has the
    /// device's context.
    fn stop(self: &Arc<Self>) {
        // Taken out first, because a thread that only needs the lock must not wait for the abort.
        let comm = self.comm.lock().expect(LOCK).take();
        let Some(comm) = comm else { return self.drain() };
        let is_revoked = comm.revoke();
        let is_settled = self.settles_soon(&comm, is_revoked);
        if is_revoked && is_settled && self.drains(NCCL_ABORT_PATIENCE) {
            self.abort_apart(comm);
            return;
        }
        let aborted = self.abort_apart(comm);
        if !is_settled {
            // A thread of NCCL may put work on the stream until the abort returns, which drops the sender. This thread has nothing else to
            // do, and the doubt about the memory lasts as long.
            let _ = aborted.recv();
        }
        self.drain();
    }

    /// Whether no thread of NCCL puts work on the stream any more. One that was revoked may take some time until then.
    fn settles_soon(&self, comm: &Comm, is_revoked: bool) -> bool {
        let begun = self.now();
        let mut nap = DRAIN;
        loop {
            // A failed communicator has ended its calls too.
            if !matches!(comm.state(), Ok(false)) {
                return true;
            }
            if !is_revoked || self.now().since(begun) >= NCCL_ABORT_PATIENCE {
                return false;
            }
            drop(self.bell.wait_timeout(self.lock(), nap));
            nap = (nap * 2).min(LOOK);
        }
    }

    /// Aborts on a thread of its own; the receiver ends when that has ended.
    fn abort_apart(&self, comm: Comm) -> crossbeam_channel::Receiver<()> {
        let (aborting, aborted) = crossbeam_channel::bounded::<()>(0);
        let abort = move || {
            let _aborting = aborting;
            comm.abort();
        };
        self.apart("gl-nccl-abort", Duration::ZERO, abort);
        aborted
    }

    /// Waits until the stream is empty, for as long as that takes.
    fn drain(&self) {
        while !self.drains(NCCL_ABORT_PATIENCE) {}
    }

    /// Waits until the stream is empty, for `patience` at most; returns whether it is. Kernels and copies of ours wait there for work of the
    /// framework, and write memory after it. The thread has the device's context.
    fn drains(&self, patience: Duration) -> bool {
        let begun = self.now();
        let left = || patience.saturating_sub(self.now().since(begun));
        // The thread that issues puts its own kernels on the stream until it sees the end.
        let (state, _) = self.bell.wait_timeout_while(self.lock(), left(), |state| state.is_issuing).expect(LOCK);
        let is_issuing = state.is_issuing;
        drop(state);
        if is_issuing {
            return false;
        }
        let Some(stream) = self.stream.get() else { return true };
        // After a fault of the device nothing runs there any more.
        let Ok(end) = stream.record() else { return true };
        let mut nap = DRAIN;
        while let Ok(false) = end.is_reached("what was under way at an abort") {
            if left().is_zero() {
                return false;
            }
            drop(self.bell.wait_timeout(self.lock(), nap));
            nap = (nap * 2).min(LOOK);
        }
        true
    }

    fn report_all(&self, cause: &Error) {
        let mut state = self.lock();
        let waiting = state.take_all();
        state.ending = false;
        drop(state);
        self.bell.notify_all();
        for done in waiting {
            done.err(cause.clone());
        }
    }

    /// The stream has reached the end of a group.
    pub(super) fn landed(self: &Arc<Self>, number: u64, outcome: Result<()>) {
        // Ignores groups that an abort has ended, and groups that NCCL reports as failed.
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
        let (landed, now) = (state.issued_groups.remove(&number), self.now());
        if let Some(mut next) = state.issued_groups.first_entry() {
            next.get_mut().since = now;
        }
        drop(state);
        self.team.moved.note(now);
        self.bell.notify_all();
        for done in landed.into_iter().flat_map(|group| group.waiting) {
            done.ok(());
        }
    }

    /// An error on this rank's queue, which ends the queue.
    pub(super) fn fail(self: &Arc<Self>, error: Error) {
        let mut state = self.lock();
        if state.over.is_some() || std::mem::replace(&mut state.failing, true) {
            return;
        }
        drop(state);
        // A rank reports its own fault at once. It does not report a fault of another rank: that rank does, or the watch does if it is lost.
        let is_elsewhere = self.comm.lock().expect(LOCK).as_ref().is_some_and(Comm::blames_another);
        if !is_elsewhere {
            return self.end(error);
        }
        let work = Arc::clone(self);
        let wait = move || {
            let (state, _) =
                work.bell.wait_timeout_while(work.lock(), NCCL_GRACE, |state| state.over.is_none()).expect(LOCK);
            drop(state);
            work.end(error);
        };
        // On a separate thread, because this one may be the reaper's.
        if let Err(refused) = std::thread::Builder::new().name("gl-nccl-fail".to_owned()).spawn(wait) {
            self.end(Error::Io { what: "starting a thread".to_owned(), cause: refused.to_string() });
        }
    }
}

/// A reason for doubt that lasts for ever if the thread that has it does not come to the end of its work.
struct KeptUnlessEnded(Option<Reason>);

impl KeptUnlessEnded {
    /// The memory is not used any more.
    fn end(mut self) {
        drop(self.0.take());
    }
}

impl Drop for KeptUnlessEnded {
    fn drop(&mut self) {
        if let Some(reason) = self.0.take() {
            reason.keep();
        }
    }
}

pub(super) const LOCK: &str = "nobody panics while holding it";
