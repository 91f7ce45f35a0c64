//! The flight recorder of a worker: what it did last, and which operations have not ended. It is always on, in memory of a fixed size.
//!
//! ```text
//!  threads of the engine and of callers ──events──► ring: the newest ones          ─┐
//!  under the engine's lock ──begin, change, end──► open: all that has not ended    ─┼─► a dump, without the engine's lock
//!  declarations, errors, notices ──texts──► names, and a few texts, each bounded   ─┘
//! ```
//! A dump must be possible while every thread of the engine is stuck, so it takes no lock of the engine
//! ([`recording`](crate::runtime::recording)).
//!
//! Events carry keys, not names, and take the time from their caller, because an event is written in some nanoseconds. [`dump`] finds
//! the names.

mod dump;
mod event;
mod open;
mod texts;

pub(super) use event::Operation;

use std::sync::Arc;

use event::{Ended, Event, Head, Kind};
use open::{Open, Parts};
use texts::Texts;

use crate::error::{Error, Result};
use crate::pipeline::Stage;
use crate::runtime::recording::{self, Copied, OpenTable, Recorder as _, Ring, UNKNOWN};
use crate::sched::Outcome;
use crate::types::{PartId, Round, ServerId, TensorKey, TensorSpec, Time, View, whole_ns};
use crate::wire::frame::Stall;
use crate::worker::Stuck;

/// The recorder of a worker, and where it is dumped.
pub type Flight = recording::Flight<Recorder>;

/// The recorder of one worker.
#[derive(Debug)]
pub struct Recorder {
    ring: Ring,
    open: OpenTable<Open>,
    texts: Texts,
}

/// The subject of an event of a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) part: PartId,
    pub(super) round: Round,
    pub(super) bytes: u64,
    pub(super) server: ServerId,
    /// What these submissions do: a part in a round may be of a sum, and of a use of its residual.
    pub(super) operation: Operation,
    /// The submissions that the part serves.
    pub(super) submissions: &'a [u64],
}

impl Recorder {
    /// A recorder of the newest `events`, and of all open operations. It records nothing if `events` is 0.
    pub(super) fn new(events: u32) -> Self {
        Self { ring: Ring::new(events), open: OpenTable::of_recorder(events), texts: Texts::default() }
    }

    /// A tensor of a submission was submitted; with the first one, as `is_first` says, the submission begins. The round is `None` if the tensor is
    /// not declared.
    ///
    /// Called with the lock of the engine's state, as are [`queued`](Self::queued), [`taken`](Self::taken), [`finished`](Self::finished) and
    /// [`resolved`](Self::resolved): the table of open operations has one writer.
    pub(super) fn submitted(
        &self,
        now: Time,
        id: u64,
        (key, round): (TensorKey, Option<Round>),
        (operation, bytes): (Operation, u64),
        is_first: bool,
    ) {
        let (key, round) = (key.0, round.map_or(UNKNOWN, |round| round.0));
        let head = Head { operation, ..Head::of(Kind::Submitted) };
        if is_first && self.is_on() {
            let (last, parts) = (head.to_word(), Parts::default());
            self.open.begin(Open { id, key, round, submitted: now.0, moved: now.0, last, parts });
        }
        self.write(Event { at: now, head, key, round, id, amount: bytes });
    }

    /// All tensors of a part were submitted, and it waits for its first stage.
    pub(super) fn queued(&self, now: Time, subject: Subject<'_>) {
        let head = Head { server: subject.server.0, ..Head::of(Kind::Queued) };
        self.part(now, head, subject, |open| {
            open.parts.queued = open.parts.queued.saturating_add(1);
            if open.round == UNKNOWN {
                open.round = subject.round.0;
            }
        });
    }

    /// A stage of a part begins.
    pub(super) fn taken(&self, now: Time, stage: Stage, subject: Subject<'_>) {
        let head = Head { stage: Some(stage), server: subject.server.0, ..Head::of(Kind::Taken) };
        self.part(now, head, subject, |_| {});
    }

    /// A stage of a part has ended.
    pub(super) fn finished(&self, now: Time, stage: Stage, outcome: &Outcome, subject: Subject<'_>) {
        let ended = match outcome {
            Outcome::Done => Ended::Done,
            Outcome::Retry { .. } => Ended::Again,
            Outcome::Failed(_) => Ended::Failed,
        };
        let head = Head { stage: Some(stage), ended, server: subject.server.0, ..Head::of(Kind::Finished) };
        self.part(now, head, subject, |open| match (stage, ended) {
            (Stage::Push, Ended::Done) => open.parts.handed_over = open.parts.handed_over.saturating_add(1),
            (Stage::Pull, Ended::Done) => open.parts.answered = open.parts.answered.saturating_add(1),
            // It goes back to PUSH.
            (Stage::Pull, Ended::Again) => open.parts.handed_over = open.parts.handed_over.saturating_sub(1),
            _ => {}
        });
    }

    /// A submission ends by this error.
    pub(super) fn failed(&self, now: Time, id: u64, error: &Error) {
        if self.is_on() {
            self.texts.failed(now, id, error);
        }
    }

    /// A submission of so many tensors has ended. If it has [failed](Self::failed), that was told before.
    pub(super) fn resolved(&self, now: Time, id: u64, tensors: u64, outcome: &Result<()>) {
        if !self.is_on() {
            return;
        }
        let ended = if outcome.is_ok() { Ended::Done } else { Ended::Failed };
        let head = Head { ended, ..Head::of(Kind::Resolved) };
        self.write(Event { at: now, head, key: 0, round: UNKNOWN, id, amount: tensors });
        self.open.end(id);
    }

    /// The job has these members now.
    pub(super) fn formed(&self, now: Time, view: &View) {
        let workers = view.workers().count() as u64;
        let (term, number) = (u64::from(view.epoch.term), u64::from(view.epoch.number));
        let head = Head::of(Kind::Formed);
        self.write(Event { at: now, head, key: term, round: number, id: 0, amount: workers });
    }

    /// This worker warns of a submission.
    pub(super) fn stalled(&self, now: Time, Stuck { report, .. }: &Stuck) {
        let (stage, server) = report.at.map_or((None, 0), |(stage, server)| (Some(stage), server.0));
        let head = Head { stage, server, ..Head::of(Kind::Stalled) };
        let amount = whole_ns(report.waited);
        let key = TensorKey::of(&report.name).0;
        self.write(Event { at: now, head, key, round: report.round.0, id: u64::from(report.parts), amount });
    }

    /// A thread of the caller waits for a handle from now on.
    pub(super) fn waits(&self, now: Time, handle: u64) {
        self.write(Event { at: now, head: Head::of(Kind::Waits), key: 0, round: UNKNOWN, id: handle, amount: 0 });
    }

    /// A thread of the caller does not wait for a handle any longer, for which it has waited since `since`.
    pub(super) fn waited(&self, now: Time, handle: u64, since: Time) {
        let amount = now.0.saturating_sub(since.0);
        self.write(Event { at: now, head: Head::of(Kind::Waited), key: 0, round: UNKNOWN, id: handle, amount });
    }

    /// These tensors are called so.
    pub(super) fn name(&self, tensors: &[TensorSpec]) {
        if self.is_on() {
            self.texts.name(tensors);
        }
    }

    /// These names are not used any more.
    pub(super) fn forget(&self, names: &[String]) {
        self.texts.forget(names);
    }

    /// The coordinator says that a sum waits for other workers.
    pub(super) fn told(&self, now: Time, tensor: &str, stall: &Stall, detail: &str) {
        self.texts.notice(now, tensor, stall, detail);
    }

    /// An event of a part, and what it changes in the operations to which the part belongs.
    fn part(&self, now: Time, head: Head, subject: Subject<'_>, change: impl Fn(&mut Open)) {
        if !self.is_on() {
            return;
        }
        let Subject { part: PartId { key, index }, round, bytes, operation, submissions, .. } = subject;
        let head = Head { operation, ..head };
        self.write(Event { at: now, head, key: key.0, round: round.0, id: u64::from(index), amount: bytes });
        for id in submissions {
            self.open.change(*id, |open| {
                (open.moved, open.last) = (now.0, head.to_word());
                change(open);
            });
        }
    }

    fn write(&self, event: Event) {
        self.ring.write(event.to_words());
    }
}

impl recording::Recorder for Recorder {
    fn is_on(&self) -> bool {
        self.ring.is_on()
    }

    fn copy(&self) -> Copied {
        let (newest, open, told) = (self.ring.read(), self.open.read(), self.texts.read());
        Arc::new(move || dump::recorded(&newest, &open, &told))
    }

    fn counts(&self) -> (u64, u64) {
        self.ring.counts()
    }
}

#[cfg(test)]
mod tests;
