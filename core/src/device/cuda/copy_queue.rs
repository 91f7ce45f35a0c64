//! One direction of copies of a device: a stream, and the thread that submits to it.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::copies::{chunks, copy_in, copy_out, copy_within};
use super::relay::{Relay, are_small};
use crate::cuda::{Context, Event, Mark, OnIssue, Reaper, Stream};
use crate::device::Transfer;
use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::mem::{DeviceRegion, Region};
use crate::types::{Done, Span};

/// The direction of a copy. A device has one copy engine for each direction, which two streams would only share, so one stream is enough.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Direction {
    /// To the host.
    Out,
    /// From the host.
    In,
    /// On the device.
    Within,
}

/// A submitted copy.
pub(super) struct Job {
    pub(super) transfer: Transfer,
    pub(super) after: Vec<Mark>,
    pub(super) issued: OnIssue,
    pub(super) done: Done<()>,
}

/// The stream and the thread for one direction.
pub(super) struct CopyQueue {
    entrance: Entrance,
    thread: OwnThread,
}

/// The way into a queue.
#[derive(Clone)]
pub(super) struct Entrance {
    line: Arc<Line>,
    jobs: Sender<Command>,
}

enum Command {
    Copy(Job),
    End,
}

/// The stream of a direction. One thread at a time submits to it.
struct Line {
    stream: Stream,
    reaper: Arc<Reaper>,
    turn: Mutex<Turn>,
    /// Jobs that the queue's thread has not submitted.
    queued: AtomicUsize,
}

/// What the thread that submits has.
#[derive(Default)]
struct Turn {
    relay: Lazy,
    /// The end of the last job.
    last: Option<Arc<Event>>,
    /// The queue's thread has ended.
    over: bool,
}

/// The relay of a direction. It is loaded for the first transfer that needs it, because loading may wait for all work of the device.
/// Without it, small runs are copied one by one, and encoding fails.
type Lazy = OnceCell<Result<Relay>>;

impl CopyQueue {
    /// Makes the stream and starts the thread.
    ///
    /// # Errors
    /// [`Error::Device`] if the device cannot make a stream, [`Error::Io`] if the system cannot start a thread.
    pub(super) fn start(context: &Arc<Context>, direction: Direction, reaper: Arc<Reaper>) -> Result<Self> {
        let stream = context.stream()?;
        let line = Arc::new(Line { stream, reaper, turn: Mutex::default(), queued: AtomicUsize::new(0) });
        let (jobs, commands) = unbounded();
        let thread_name = match direction {
            Direction::Out => "gl-d2h",
            Direction::In => "gl-h2d",
            Direction::Within => "gl-d2d",
        };
        let entrance = Entrance { line: Arc::clone(&line), jobs };
        let thread = OwnThread::start(thread_name, move || line.run(&commands))?;
        Ok(Self { entrance, thread })
    }

    /// Where copies are submitted, all after the earlier ones.
    pub(super) fn entrance(&self) -> &Entrance {
        &self.entrance
    }

    /// Makes the thread fail all copies that it has not begun, and end. Returns it, so that the caller can wait for it.
    pub(super) fn close(self) -> OwnThread {
        // The thread may have ended already.
        let _ = self.entrance.jobs.send(Command::End);
        self.thread
    }
}

impl Entrance {
    /// Has the queue's thread submit a copy.
    pub(super) fn submit(&self, job: Job) {
        self.line.queued.fetch_add(1, Ordering::SeqCst);
        if let Err(unsent) = self.jobs.send(Command::Copy(job))
            && let Command::Copy(job) = unsent.into_inner()
        {
            job.done.err(ended());
        }
    }

    /// Submits a copy of memory that is pinned, unless others wait for that, or it needs kernels that are not loaded.
    pub(super) fn submit_here(&self, job: Job) {
        let line = &*self.line;
        let turn = match line.turn.try_lock() {
            Ok(turn) if line.queued.load(Ordering::SeqCst) == 0 && turn.suits(&job.transfer) => Some(turn),
            _ => None,
        };
        let Some(mut turn) = turn else { return self.submit(job) };
        let mut job = Some(job);
        let entered = line.stream.context().within(|| {
            let job = job.take().expect("entered once");
            line.put(&mut turn, job, Ok(()));
            Ok(())
        });
        if let (Err(error), Some(job)) = (entered, job) {
            job.done.err(error);
        }
    }
}

impl Turn {
    /// Whether any thread may submit this transfer without waiting for the device.
    fn suits(&self, transfer: &Transfer) -> bool {
        let is_loaded = match transfer {
            Transfer::Out { from: runs, .. } | Transfer::In { to: runs, .. } => {
                runs.len() < Relay::RUNS_MIN || self.relay.get().is_some()
            }
            Transfer::Encode { .. } | Transfer::Decode { .. } => match self.relay.get() {
                Some(Ok(relay)) => relay.is_ready(transfer),
                Some(Err(_)) => true,
                None => false,
            },
            Transfer::Within { .. } => true,
        };
        !self.over && is_loaded
    }
}

impl Line {
    fn run(&self, commands: &Receiver<Command>) {
        let bound = self.stream.context().bind();
        while let Ok(Command::Copy(job)) = commands.recv() {
            let mut turn = self.turn();
            self.put(&mut turn, job, bound.clone());
            drop(turn);
            self.queued.fetch_sub(1, Ordering::SeqCst);
        }
        let Turn { relay, last, .. } = std::mem::replace(&mut *self.turn(), Turn { over: true, ..Turn::default() });
        for command in commands.try_iter() {
            if let Command::Copy(job) = command {
                job.done.err(ended());
            }
        }
        // To free it would wait for all work of the device, with the driver's lock held. These copies may never end.
        if last.is_some_and(|event| event.is_reached("the last copies") == Ok(false)) {
            std::mem::forget(relay);
        }
    }

    /// Submits a copy; `ready` says whether this thread has the context.
    fn put(&self, turn: &mut Turn, job: Job, ready: Result<()>) {
        let Job { transfer, after, issued, done } = job;
        let what = match &transfer {
            Transfer::Out { .. } => "a copy to the host",
            Transfer::In { .. } => "a copy from the host",
            Transfer::Encode { .. } => "an encoding and a copy to the host",
            Transfer::Decode { .. } => "a copy from the host and a decoding",
            Transfer::Within { .. } => "a copy on the device",
        };
        let submitted = ready.and_then(|()| submit(&self.stream, &turn.relay, &transfer, &after));
        let event = self.stream.record();
        turn.last = event.as_ref().ok().cloned();
        match (submitted, event) {
            (Ok(()), Ok(event)) => {
                // Before the reaper can report the end.
                issued.issued(Mark::Event(Arc::clone(&event)));
                self.reaper.when(event, what, done);
            }
            // Copies that were submitted before the failure still use the memory, so the error is reported after their end.
            (Err(error), Ok(event)) => self.reaper.when(event, what, Done::new(move |_: Result<()>| done.err(error))),
            (Err(error), Err(_)) | (Ok(()), Err(error)) => done.err(error),
        }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Submits the waits and the copies without waiting, so that the device always has the next chunk.
fn submit(stream: &Stream, relay: &Lazy, transfer: &Transfer, after: &[Mark]) -> Result<()> {
    after.iter().try_for_each(|mark| stream.wait(mark))?;
    let mut at = 0;
    match transfer {
        Transfer::Out { from, to } => {
            for runs in from.chunk_by(are_small) {
                let host = take(to, &mut at, runs);
                match for_small(relay, stream, runs) {
                    Some(relay) => relay.copy_out(stream, runs, &host, None)?,
                    None => each_chunk(runs, |chunk, span| copy_out(stream, chunk, host.part(span)))?,
                }
            }
        }
        Transfer::In { from, to } => {
            for runs in to.chunk_by(are_small) {
                let host = take(from, &mut at, runs);
                match for_small(relay, stream, runs) {
                    Some(relay) => relay.copy_in(stream, &host, runs, None)?,
                    None => each_chunk(runs, |chunk, span| copy_in(stream, &host.part(span), chunk))?,
                }
            }
        }
        Transfer::Encode { from, to, coding, seed } => {
            loaded(relay, stream)?.copy_out(stream, from, to, Some((coding, *seed)))?;
        }
        Transfer::Decode { from, to, coding } => loaded(relay, stream)?.copy_in(stream, from, to, Some(coding))?,
        Transfer::Within { from, to } => {
            if from.address() != to.address() {
                copy_within(stream, from, to)?;
            }
        }
    }
    Ok(())
}

/// The bytes of the host for `runs`, from `at` on, which moves behind them.
fn take(host: &Region, at: &mut u64, runs: &[DeviceRegion]) -> Region {
    let bytes = runs.iter().map(|run| run.len() as u64).sum();
    let part = host.part(Span { offset: *at, bytes });
    *at += bytes;
    part
}

/// Has `copy` submit each chunk of `runs`, with its place among them.
fn each_chunk(runs: &[DeviceRegion], mut copy: impl FnMut(&DeviceRegion, Span) -> Result<()>) -> Result<()> {
    let mut offset = 0;
    runs.iter().flat_map(chunks).try_for_each(|chunk| {
        let span = Span { offset, bytes: chunk.len() as u64 };
        offset += span.bytes;
        copy(&chunk, span)
    })
}

fn loaded<'relay>(relay: &'relay Lazy, stream: &Stream) -> Result<&'relay Relay> {
    relay.get_or_init(|| Relay::load(stream.context())).as_ref().map_err(Clone::clone)
}

/// The relay, if these runs are better copied through it than one by one, and if the device could load one.
fn for_small<'relay>(relay: &'relay Lazy, stream: &Stream, runs: &[DeviceRegion]) -> Option<&'relay Relay> {
    if runs.len() < Relay::RUNS_MIN { None } else { loaded(relay, stream).ok() }
}

/// The error of a copy or a look that comes after the shutdown.
pub(super) fn ended() -> Error {
    Error::FailedPrecondition {
        what: "the engine was shut down before the device had done its work".to_owned(),
        hint: "wait for all handles before shutdown".to_owned(),
    }
}
