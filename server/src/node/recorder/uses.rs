//! Records the uses of what a server keeps: parameters, rows of tables, and residuals.
//!
//! Called with the lock of the node, as everything that changes the table of what is open.

use gradlane_core::runtime::recording::Recorder as _;
use gradlane_core::types::{ExchangeId, Time, WorkerId};
use gradlane_core::wire::Request;

use super::Recorder;
use super::event::{Event, Head, Kind};
use super::open::{Open, OpenId};
use super::used::{OpenUse, Progress};
use super::waits::OpenWaits;
use crate::node::command::{Receipt, RowsStep, Served, ValueStep};
use crate::node::event::Waits;

impl Recorder {
    /// A header came. `worker` finds whose it is, if it is of a worker.
    pub(crate) fn opened(
        &self,
        now: Time,
        exchange: ExchangeId,
        request: &Request,
        worker: impl FnOnce() -> Option<WorkerId>,
    ) {
        if !self.is_on() {
            return;
        }
        match request {
            Request::Withdraw(header) => self.withdrew(now, worker(), exchange, &header.target),
            Request::Use(_) | Request::Rows(_) | Request::AnswerResidual(_) => {
                // The node refuses others.
                let Some(used) = worker().and_then(|worker| OpenUse::of(request, worker, exchange, now)) else {
                    return;
                };
                self.open.begin(Open::Use(used));
                self.write_use(now, Kind::Came, &used, request.body_bytes());
            }
            Request::Contribute(_) | Request::Restore(_) | Request::Unknown(_) => {}
        }
    }

    /// The body of a use was taken, or could not be.
    pub(crate) fn use_received(&self, now: Time, exchange: ExchangeId, receipt: Receipt) {
        let kind = Kind::of_receipt(receipt);
        self.change_use(exchange, |used| {
            used.progress = Progress::Waits;
            self.write_use(now, kind, used, 0);
        });
    }

    /// Uses of a part of a table wait until other workers have pushed. One of them may have begun to wait.
    pub(crate) fn waits(&self, now: Time, waits: &Waits) {
        if !self.is_on() {
            return;
        }
        if let Some(exchange) = waits.held {
            self.change_use(exchange, |used| {
                // If it is answered, another thread was quicker to tell that.
                if used.progress != Progress::Answered {
                    used.progress = Progress::Held;
                    self.write_use(now, Kind::Waits, used, waits.missing.count.into());
                }
            });
        }
        let (id, mut known) = (OpenId::Table(waits.part), None);
        self.open.change(id, |open| {
            if let Some(before) = open.waits() {
                known = Some(before.change);
                if before.change < waits.change {
                    *before = OpenWaits::of(*waits);
                }
            }
        });
        match known {
            Some(change) if change < waits.change && waits.missing.is_nobody() => self.open.end(id),
            None if !waits.missing.is_nobody() => self.open.begin(Open::Table(OpenWaits::of(*waits))),
            Some(_) | None => {}
        }
    }

    /// The store is done with a use of a table. One that was refused ends with its refusal.
    pub(crate) fn served(&self, now: Time, served: &Served) {
        if let Served { exchange: Some(exchange), refusal: None, .. } = served {
            self.change_use(*exchange, |used| {
                used.progress = Progress::Answered;
                self.write_use(now, Kind::Answered, used, 0);
            });
        }
    }

    /// The worker of a use has its answer.
    pub(crate) fn use_taken(&self, now: Time, exchange: ExchangeId) {
        self.change_use(exchange, |used| self.write_use(now, Kind::Taken, used, 0));
        self.end_use(exchange);
    }

    pub(super) fn value_step(&self, now: Time, step: &ValueStep) {
        match step {
            ValueStep::Receive { exchange, .. } => self.use_begun(*exchange),
            ValueStep::Answer { exchange, header, .. } => self.use_to_answer(now, *exchange, header.part_bytes),
            ValueStep::Change { .. }
            | ValueStep::Release { .. }
            | ValueStep::Keep { .. }
            | ValueStep::Merge { .. }
            | ValueStep::Apply { .. }
            | ValueStep::Forget { .. }
            | ValueStep::Freeze { .. }
            | ValueStep::Restore { .. }
            | ValueStep::Unread
            | ValueStep::Drop => {}
        }
    }

    pub(super) fn rows_step(&self, step: &RowsStep) {
        match step {
            RowsStep::Serve { exchange, asked } if asked.header.body_bytes() > 0 => self.use_begun(*exchange),
            RowsStep::Serve { .. }
            | RowsStep::Forget { .. }
            | RowsStep::GiveUp { .. }
            | RowsStep::Leave { .. }
            | RowsStep::Drop => {}
        }
    }

    /// The body of a use comes.
    pub(super) fn use_begun(&self, exchange: ExchangeId) {
        self.change_use(exchange, |used| used.progress = Progress::Begun);
    }

    /// The turn of a use has come. The lane says nothing when it sends the answer, because that would cost a lock.
    pub(super) fn use_to_answer(&self, now: Time, exchange: ExchangeId, bytes: u64) {
        self.change_use(exchange, |used| {
            used.progress = Progress::ToAnswer;
            self.write_use(now, Kind::ToAnswer, used, bytes);
        });
    }

    /// An exchange is over, which may be that of a use.
    pub(super) fn end_use(&self, exchange: ExchangeId) {
        self.open.end(OpenId::Use(exchange));
    }

    fn change_use(&self, exchange: ExchangeId, change: impl FnOnce(&mut OpenUse)) {
        if !self.is_on() {
            return;
        }
        self.open.change(OpenId::Use(exchange), |open| {
            if let Some(used) = open.used() {
                change(used);
            }
        });
    }

    fn write_use(&self, at: Time, kind: Kind, used: &OpenUse, amount: u64) {
        let (part, round, id) = (used.slot.part, used.slot.round.0, used.exchange.0);
        let head = Head { worker: Some(used.worker), ..Head::of_use(kind, used.action) };
        self.write(Event { at, head, key: part.key.0, part: part.index.into(), round, id, amount });
    }
}
