//! One direction of copies of a device: a stream, and the thread that submits to it.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::caster::Caster;
use super::copies::{chunks, copy_in, copy_out, copy_within};
use crate::cuda::{Context, Mark, OnIssue, Reaper, Stream};
use crate::device::Transfer;
use crate::error::{Error, Result};
use crate::local::OwnThread;
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
    jobs: Sender<Command>,
    thread: OwnThread,
}

enum Command {
    Copy(Job),
    End,
}

impl CopyQueue {
    /// Makes the stream and starts the thread.
    ///
    /// # Errors
    /// [`Error::Device`] if the device cannot make a stream, [`Error::Io`] if the system cannot start a thread.
    pub(super) fn start(context: &Arc<Context>, direction: Direction, reaper: Arc<Reaper>) -> Result<Self> {
        let stream = context.stream()?;
        let (jobs, commands) = unbounded();
        let thread_name = match direction {
            Direction::Out => "gradlane-d2h",
            Direction::In => "gradlane-h2d",
            Direction::Within => "gradlane-d2d",
        };
        let thread = OwnThread::start(thread_name, move || run(&stream, &reaper, &commands))?;
        Ok(Self { jobs, thread })
    }

    /// Submits a copy, which is made after all earlier ones.
    pub(super) fn submit(&self, job: Job) {
        if let Err(unsent) = self.jobs.send(Command::Copy(job))
            && let Command::Copy(job) = unsent.into_inner()
        {
            job.done.err(ended());
        }
    }

    /// Makes the thread fail all copies that it has not begun, and end. Returns it, so that the caller can wait for it.
    pub(super) fn close(self) -> OwnThread {
        // The thread may have ended already.
        let _ = self.jobs.send(Command::End);
        self.thread
    }
}

fn run(stream: &Stream, reaper: &Reaper, commands: &Receiver<Command>) {
    let bound = stream.context().bind();
    // Loaded for the first transfer that casts: most jobs have none.
    let mut caster = None;
    while let Ok(Command::Copy(job)) = commands.recv() {
        let Job { transfer, after, issued, done } = job;
        let what = match &transfer {
            Transfer::Out { .. } => "a copy to the host",
            Transfer::In { .. } => "a copy from the host",
            Transfer::Encode { .. } => "a cast and a copy to the host",
            Transfer::Decode { .. } => "a copy from the host and a cast",
            Transfer::Within { .. } => "a copy on the device",
        };
        let submitted = bound.clone().and_then(|()| submit(stream, &mut caster, &transfer, &after));
        match (submitted, stream.record()) {
            (Ok(()), Ok(event)) => {
                // Before the reaper can report the end.
                issued.issued(Mark::Event(Arc::clone(&event)));
                reaper.when(event, what, done);
            }
            // Copies that were submitted before the failure still use the memory, so the error is reported after their end.
            (Err(error), Ok(event)) => reaper.when(event, what, Done::new(move |_: Result<()>| done.err(error))),
            (Err(error), Err(_)) | (Ok(()), Err(error)) => done.err(error),
        }
    }
    for command in commands.try_iter() {
        if let Command::Copy(job) = command {
            job.done.err(ended());
        }
    }
}

/// Submits the waits and the copies without waiting, so that the device always has the next chunk.
fn submit(stream: &Stream, caster: &mut Option<Caster>, transfer: &Transfer, after: &[Mark]) -> Result<()> {
    after.iter().try_for_each(|mark| stream.wait(mark))?;
    match transfer {
        Transfer::Out { from, to } => {
            let mut at = 0;
            for chunk in from.iter().flat_map(chunks) {
                let host = to.part(Span { offset: at, bytes: chunk.len() as u64 });
                at += chunk.len() as u64;
                copy_out(stream, &chunk, host)?;
            }
        }
        Transfer::In { from, to } => {
            let mut at = 0;
            for chunk in to.iter().flat_map(chunks) {
                let host = from.part(Span { offset: at, bytes: chunk.len() as u64 });
                at += chunk.len() as u64;
                copy_in(stream, &host, &chunk)?;
            }
        }
        Transfer::Encode { from, to, coding } => loaded(caster, stream)?.encode(stream, from, to, coding)?,
        Transfer::Decode { from, to, coding } => loaded(caster, stream)?.decode(stream, from, to, coding)?,
        Transfer::Within { from, to } => {
            if from.address() != to.address() {
                copy_within(stream, from, to)?;
            }
        }
    }
    Ok(())
}

fn loaded<'caster>(caster: &'caster mut Option<Caster>, stream: &Stream) -> Result<&'caster Caster> {
    if caster.is_none() {
        *caster = Some(Caster::load(stream.context())?);
    }
    Ok(caster.as_ref().expect("loaded above"))
}

/// The error of a copy that comes after the shutdown.
pub(super) fn ended() -> Error {
    Error::FailedPrecondition {
        what: "the engine was shut down before the copy was made".to_owned(),
        hint: "wait for all handles before shutdown".to_owned(),
    }
}
