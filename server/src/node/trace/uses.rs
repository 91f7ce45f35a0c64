//! The uses of parameters and tables on the timeline of a server.
//!
//! A row for each part and worker, because the uses of several workers overlap. USE lasts from the header of a use until its answer begins, and
//! ANSWER from then until the worker has the answer.

use std::collections::BTreeMap;

use gradlane_core::runtime::timeline::{Event, Times};
use gradlane_core::types::{ExchangeId, PartId, WorkerId};
use gradlane_core::wire::{Request, Target};

use super::sheet::{NOWHERE, Sheet};
use crate::node::command::SlotId;

/// The uses under way, and their rows.
#[derive(Default, Debug)]
pub(super) struct Uses {
    rows: BTreeMap<(PartId, WorkerId), Row>,
    courses: BTreeMap<ExchangeId, Course>,
}

/// A row, and when its last span ends, because spans of a row must not overlap.
#[derive(Clone, Copy, Debug)]
struct Row {
    number: u64,
    until_ns: i64,
}

/// A use from its header to its end.
#[derive(Clone, Copy, Debug)]
struct Course {
    of: Use,
    /// When it came where it is.
    since_ns: i64,
    is_answered: bool,
}

/// What a use is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    slot: SlotId,
    worker: WorkerId,
    /// Its round is that of the next sum.
    is_residual: bool,
    /// Of the body of the request.
    bytes: u64,
}

impl Use {
    /// What a request is about, if it is a use. `worker` finds whose it is, if it is of a worker.
    pub(super) fn of(request: &Request, worker: impl FnOnce() -> Option<WorkerId>) -> Option<Self> {
        let (Target { part, round, .. }, is_residual) = match request {
            Request::Use(header) => (header.target, false),
            Request::Rows(header) => (header.target, false),
            Request::AnswerResidual(header) => (header.target, true),
            Request::Contribute(_) | Request::Withdraw(_) | Request::Restore(_) | Request::Unknown(_) => return None,
        };
        Some(Self { slot: SlotId { part, round }, worker: worker()?, is_residual, bytes: request.body_bytes() })
    }
}

impl Uses {
    /// Whether none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.courses.is_empty()
    }

    /// The header of a use came.
    pub(super) fn opened(&mut self, now: i64, exchange: ExchangeId, of: Use) {
        self.courses.insert(exchange, Course { of, since_ns: now, is_answered: false });
    }

    /// The answer on this exchange begins, which may be that of a use.
    pub(super) fn answered(&mut self, now: i64, exchange: ExchangeId, sheet: &mut Sheet) {
        let Some(course) = self.courses.get_mut(&exchange) else { return };
        let used = std::mem::replace(course, Course { since_ns: now, is_answered: true, ..*course });
        self.write(now, &used, "answered", sheet);
    }

    /// An exchange has ended, which may be that of a use.
    pub(super) fn ended(&mut self, now: i64, exchange: ExchangeId, outcome: &'static str, sheet: &mut Sheet) {
        if let Some(course) = self.courses.remove(&exchange) {
            self.write(now, &course, outcome, sheet);
        }
    }

    /// Nothing more is recorded.
    pub(super) fn end(&mut self, now: i64, sheet: &mut Sheet) {
        for course in std::mem::take(&mut self.courses).into_values() {
            self.write(now, &course, "not ended", sheet);
        }
    }

    fn write(&mut self, now: i64, course: &Course, outcome: &'static str, sheet: &mut Sheet) {
        let Course { of: Use { slot: SlotId { part, round }, worker, is_residual, bytes }, since_ns, is_answered } =
            *course;
        let id = (part, worker);
        if !self.rows.contains_key(&id)
            && let Some(number) = sheet.add_row(part, format!(" of {worker}"))
        {
            self.rows.insert(id, Row { number, until_ns: i64::MIN });
        }
        let before = self.rows.get(&id).copied().unwrap_or(Row { number: NOWHERE, until_ns: i64::MIN });
        let times = Times { start_ns: since_ns.max(before.until_ns), end_ns: now };
        let (row, name, workers) = (before.number, if is_answered { "ANSWER" } else { "USE" }, vec![worker]);
        sheet.send(Event::Sum { row, name, times, round, bytes, workers, is_residual, outcome });
        self.rows.entry(id).and_modify(|row| row.until_ns = now);
    }
}
