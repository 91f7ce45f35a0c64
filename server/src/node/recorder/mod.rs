//! The flight recorder of a server: what it did last, which sums have begun that not all have taken, and which uses of parameters and tables
//! have not ended. It is always on, in memory of a fixed size.
//!
//! Events are written where the timeline of a server has its marks, and at refusals, withdrawals, links, epochs and orders. A dump takes no
//! lock of the node ([`recording`](gradlane_core::runtime::recording)), so it also tells what a stuck server waits for.
//!
//! A server knows tensors by their keys alone. `gradlane explain` finds the names in the dumps of workers.

mod dump;
mod event;
mod open;
mod sum;
mod used;
mod uses;
mod waits;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gradlane_core::error::Error;
use gradlane_core::runtime::recording::{self, Copied, OpenTable, Recorder as _, Ring, UNKNOWN};
use gradlane_core::types::{ControlCommand, ExchangeId, LinkId, PartId, Time, View, WorkerId, whole_ns};
use gradlane_core::wire::{About, Target};

use event::{Event, Head, Kind};
use open::{Open, OpenId};
use sum::{OpenSum, RANKS, Standing};

use crate::node::command::{Command, Receipt, SlotId, Step, SumSpec, Work};

/// The recorder of a server, and where it is dumped.
pub(crate) type Flight = recording::Flight<Recorder>;

/// The recorder of one server.
///
/// Events come from any thread. What is about sums, uses and exchanges is recorded with the lock of the node: the table of what is open has one
/// writer.
#[derive(Debug)]
pub(crate) struct Recorder {
    ring: Ring,
    open: OpenTable<Open>,
    /// The highest rank that ever contributed, and 1.
    ranks: AtomicU32,
}

impl Recorder {
    /// A recorder of the newest `events`, and of all open sums and uses. It records nothing if `events` is 0.
    pub(crate) fn new(events: u32) -> Self {
        Self { ring: Ring::new(events), open: OpenTable::of_recorder(events), ranks: AtomicU32::new(0) }
    }

    /// The node gives this command to its driver.
    #[inline]
    pub(crate) fn commanded(&self, now: Time, command: &Command) {
        if self.is_on() {
            self.note(now, command);
        }
    }

    fn note(&self, now: Time, command: &Command) {
        match command {
            Command::Step(Work::Sum { slot, step }) => self.step(now, *slot, step),
            Command::Step(Work::Parameter { step, .. }) => self.value_step(now, step),
            Command::Step(Work::Table { step, .. }) => self.rows_step(step),
            Command::Reject { exchange, about, error } => self.refused(now, *exchange, about, error),
            Command::Disconnect { link, reason } => {
                self.write(Event { id: link.0, ..of_nothing(now, Head::failed(Kind::Disconnected, reason)) });
            }
            Command::Stalled { stall } => {
                let (round, id, amount) = (stall.round.0, stall.missing.len() as u64, whole_ns(stall.waited));
                self.write(Event { round, id, amount, ..of_part(now, Head::of(Kind::Stalled), stall.part) });
            }
            Command::Accept { .. }
            | Command::Unroute { .. }
            | Command::Grant { .. }
            | Command::Short { .. }
            | Command::Archive(_)
            | Command::Obeyed { .. }
            | Command::Timed { .. }
            | Command::Measured { .. } => {}
        }
    }

    /// A contribution was taken, or could not be.
    pub(crate) fn received(&self, now: Time, slot: SlotId, worker: WorkerId, exchange: ExchangeId, receipt: Receipt) {
        let kind = Kind::of_receipt(receipt);
        let standing = Some(Standing::Whole).filter(|_| receipt == Receipt::Whole);
        self.of_worker(now, kind, slot, (worker, exchange), standing, 0);
    }

    /// A worker has taken the sum.
    pub(crate) fn taken(&self, now: Time, slot: SlotId, worker: WorkerId, exchange: ExchangeId) {
        self.of_worker(now, Kind::Taken, slot, (worker, exchange), Some(Standing::Taken), 0);
    }

    /// A worker says that it will not contribute.
    fn withdrew(&self, now: Time, worker: Option<WorkerId>, exchange: ExchangeId, target: &Target) {
        let head = Head { worker, ..Head::of(Kind::Withdrew) };
        self.write(Event { round: target.round.0, id: exchange.0, ..of_part(now, head, target.part) });
    }

    /// An exchange is refused, by the node or by a lane that cannot give what was asked for.
    pub(crate) fn refused(&self, now: Time, exchange: ExchangeId, about: &About, error: &Error) {
        if self.is_on() {
            self.end_use(exchange);
            let refused = Head::failed(Kind::Refused, error);
            self.write(Event { id: exchange.0, ..of_part(now, refused, about.part) });
        }
    }

    /// An exchange broke off.
    pub(crate) fn torn(&self, now: Time, exchange: ExchangeId) {
        if self.is_on() {
            self.end_use(exchange);
            self.write(Event { id: exchange.0, ..of_nothing(now, Head::of(Kind::Torn)) });
        }
    }

    /// A process has connected. It may be a worker.
    pub(crate) fn linked(&self, now: Time, link: LinkId, worker: Option<WorkerId>) {
        self.write(Event { id: link.0, ..of_nothing(now, Head { worker, ..Head::of(Kind::Linked) }) });
    }

    /// A connection has ended.
    pub(crate) fn unlinked(&self, now: Time, link: LinkId, worker: Option<WorkerId>) {
        self.write(Event { id: link.0, ..of_nothing(now, Head { worker, ..Head::of(Kind::Unlinked) }) });
    }

    /// The job has these members now.
    pub(crate) fn formed(&self, now: Time, view: &View) {
        let (term, number) = (u64::from(view.epoch.term), u64::from(view.epoch.number));
        let amount = view.workers().count() as u64;
        self.write(Event { round: number, id: term, amount, ..of_nothing(now, Head::of(Kind::Formed)) });
    }

    /// An operator gave this order.
    pub(crate) fn ordered(&self, now: Time, number: u64, command: &ControlCommand) {
        if let Some(head) = Head::ordered(command) {
            self.write(Event { id: number, ..of_nothing(now, head) });
        }
    }

    fn step(&self, now: Time, slot: SlotId, step: &Step) {
        match step {
            Step::Begin(spec) => self.begin(now, slot, spec),
            Step::Receive { worker, exchange, upload } => {
                let bytes = upload.body.bytes;
                self.of_worker(now, Kind::Came, slot, (*worker, *exchange), Some(Standing::Begun), bytes);
            }
            Step::Publish { .. } => self.of_sum(now, Kind::Flows, slot, 0),
            Step::Answer { worker, exchange, header } => {
                self.of_worker(now, Kind::Answered, slot, (*worker, *exchange), None, header.body.bytes);
            }
            Step::Seal => self.of_sum(now, Kind::Published, slot, 0),
            Step::Drop => {
                self.of_sum(now, Kind::Dropped, slot, 0);
                self.end(slot);
            }
            Step::TakeGift { exchange, .. } => self.use_begun(*exchange),
            Step::AnswerResidual { exchange, header, .. } => self.use_to_answer(now, *exchange, header.body.bytes),
            Step::DropResidual | Step::DropGift => {}
        }
    }

    fn begin(&self, now: Time, slot: SlotId, spec: &SumSpec) {
        self.of_sum(now, Kind::Begun, slot, spec.bytes);
        // One that begins again was void.
        self.end(slot);
        let ranks = spec.senders.iter().map(|worker| worker.0.saturating_add(1)).max().unwrap_or(0);
        self.ranks.fetch_max(ranks, Ordering::Relaxed);
        // By rank, so those of a block follow each other.
        for due in spec.senders.chunk_by(|one, next| OpenSum::block_of(*one) == OpenSum::block_of(*next)) {
            self.open.begin(Open::Sum(OpenSum::new(slot, OpenSum::block_of(due[0]), now, due.iter().copied())));
        }
    }

    fn end(&self, slot: SlotId) {
        let blocks = self.ranks.load(Ordering::Relaxed).div_ceil(RANKS);
        (0..blocks).filter_map(|block| u16::try_from(block).ok()).for_each(|block| {
            self.open.end(OpenId::Sum(slot, block));
        });
    }

    fn of_sum(&self, now: Time, kind: Kind, slot: SlotId, amount: u64) {
        self.write(Event { round: slot.round.0, amount, ..of_part(now, Head::of(kind), slot.part) });
    }

    fn of_worker(
        &self,
        now: Time,
        kind: Kind,
        slot: SlotId,
        (worker, exchange): (WorkerId, ExchangeId),
        standing: Option<Standing>,
        amount: u64,
    ) {
        if !self.is_on() {
            return;
        }
        let head = Head { worker: Some(worker), ..Head::of(kind) };
        self.write(Event { round: slot.round.0, id: exchange.0, amount, ..of_part(now, head, slot.part) });
        let Some(standing) = standing else { return };
        let (id, mut is_over) = (OpenId::Sum(slot, OpenSum::block_of(worker)), false);
        self.open.change(id, |open| {
            if let Some(sum) = open.sum() {
                sum.set(worker, standing);
                is_over = sum.is_over();
            }
        });
        if is_over {
            self.open.end(id);
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
        let (newest, open) = (self.ring.read(), self.open.read());
        Arc::new(move || dump::recorded(&newest, &open))
    }

    fn counts(&self) -> (u64, u64) {
        self.ring.counts()
    }
}

/// An event that is about no part.
fn of_nothing(at: Time, head: Head) -> Event {
    Event { at, head, key: 0, part: 0, round: UNKNOWN, id: 0, amount: 0 }
}

fn of_part(at: Time, head: Head, PartId { key, index }: PartId) -> Event {
    Event { key: key.0, part: index.into(), ..of_nothing(at, head) }
}

#[cfg(test)]
mod tests;
