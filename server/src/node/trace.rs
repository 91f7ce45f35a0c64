//! The timeline of a server: when a sum got its first byte and the last one of each worker, when it was whole, and who has taken it. [`uses`]
//! shows what parameters and tables are used for.
//!
//! Two rows a part. SUM lasts from the first contribution until all of them are whole; the moments on it are the first and the last byte of
//! each worker.
//! SEND lasts from the time when all contributions have begun, from which on blocks may go, until the last listener has the sum.
//!
//! While nothing is recorded, each place that asks reads one atomic, and no clock.

mod sheet;
mod uses;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use gradlane_core::metrics::TraceCounts;
use gradlane_core::runtime::timeline::{Clocks, Event, Gate, Owner, Times, Window, Writer};
use gradlane_core::types::{ExchangeId, PartId, ServerId, Time, WorkerId};
use gradlane_core::wire::Request;
use gradlane_core::{Error, Result};

use sheet::{NOWHERE, Sheet};
use uses::{Use, Uses};

use crate::node::command::{SlotId, Step};

/// What is recorded, and where.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    is_on: AtomicBool,
    means: OnceLock<Means>,
    state: Mutex<State>,
}

/// Where a timeline goes.
#[derive(Debug)]
pub(crate) struct Place {
    /// As the setting `timeline`.
    pub(crate) place: PathBuf,
    pub(crate) window: Window,
}

/// What every timeline of a server needs.
#[derive(Debug)]
pub(crate) struct Means {
    pub(crate) bytes_max: u64,
    pub(crate) clocks: Clocks,
    pub(crate) counts: TraceCounts,
}

#[derive(Debug, Default)]
struct State {
    /// Known once the server has joined its job.
    index: Option<ServerId>,
    /// Where to record as soon as it has.
    place: Option<Place>,
    recorder: Option<Recorder>,
}

impl Trace {
    /// What timelines need. Comes before everything else, once.
    pub(crate) fn equip(&self, means: Means) {
        let _ = self.means.set(means);
    }

    /// Records at `place` as soon as the server has joined.
    pub(crate) fn start(&self, place: Place) {
        let mut state = self.state();
        state.place = Some(place);
        self.begin(&mut state);
    }

    /// Records at `place` now, and returns the path of the file.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if a timeline is being recorded, or the server has not joined; [`Error::Io`].
    pub(crate) fn start_now(&self, place: &Place) -> Result<PathBuf> {
        let mut state = self.state();
        if state.recorder.is_some() {
            return Err(Error::FailedPrecondition {
                what: "a timeline is being recorded already".to_owned(),
                hint: "stop it before another one is started".to_owned(),
            });
        }
        let Some((index, means)) = state.index.zip(self.means.get()) else {
            let (what, hint) = ("the server has just started".to_owned(), "ask again".to_owned());
            return Err(Error::FailedPrecondition { what, hint });
        };
        let path = Owner::Server(index).path(&place.place);
        state.recorder = Some(Recorder::open(index, place, means)?);
        self.is_on.store(true, Ordering::Relaxed);
        Ok(path)
    }

    /// The server has joined its job.
    pub(crate) fn joined(&self, index: ServerId) {
        let mut state = self.state();
        state.index = Some(index);
        self.begin(&mut state);
    }

    /// Completes the file, with the sums as far as they have come.
    pub(crate) fn stop(&self, now: Time) {
        self.is_on.store(false, Ordering::Relaxed);
        let recorder = std::mem::take(&mut *self.state()).recorder;
        // Without the lock, because this waits for the file.
        if let Some(mut recorder) = recorder {
            let open: Vec<SlotId> = recorder.courses.keys().copied().collect();
            open.into_iter().for_each(|slot| recorder.end(now.signed_ns(), slot));
            recorder.uses.end(now.signed_ns(), &mut recorder.sheet);
        }
    }

    /// Whether anything is recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// A step of a sum is carried out.
    pub(crate) fn step(&self, now: Time, slot: SlotId, step: &Step) {
        self.record(|recorder| recorder.step(now.signed_ns(), slot, step));
    }

    /// All of the contribution of `worker` is in the sum.
    pub(crate) fn received(&self, now: Time, slot: SlotId, worker: WorkerId) {
        self.record(|recorder| recorder.received(now.signed_ns(), slot, worker));
    }

    /// A header came. `worker` finds whose it is, if it is of a worker.
    pub(crate) fn opened(
        &self,
        now: Time,
        exchange: ExchangeId,
        request: &Request,
        worker: impl FnOnce() -> Option<WorkerId>,
    ) {
        if let Some(of) = Use::of(request, worker) {
            self.record(|recorder| recorder.opened(now.signed_ns(), exchange, of));
        }
    }

    /// The answer on this exchange begins: the value of a parameter, or rows of a table.
    pub(crate) fn answered(&self, now: Time, exchange: ExchangeId) {
        self.record(|Recorder { uses, sheet, .. }| uses.answered(now.signed_ns(), exchange, sheet));
    }

    /// The sum, or the answer of a use, has been taken on this exchange.
    pub(crate) fn taken(&self, now: Time, exchange: ExchangeId) {
        self.record(|recorder| {
            recorder.taken(now.signed_ns(), exchange);
            recorder.uses.ended(now.signed_ns(), exchange, "taken", &mut recorder.sheet);
        });
    }

    /// This exchange was refused, or broke off.
    pub(crate) fn failed(&self, now: Time, exchange: ExchangeId, outcome: &'static str) {
        self.record(|Recorder { uses, sheet, .. }| uses.ended(now.signed_ns(), exchange, outcome, sheet));
    }

    fn record(&self, event: impl FnOnce(&mut Recorder)) {
        let mut state = self.state();
        let Some(recorder) = &mut state.recorder else { return };
        event(recorder);
        if recorder.gate.is_over() && recorder.courses.is_empty() && recorder.uses.is_empty() {
            self.is_on.store(false, Ordering::Relaxed);
            if let Some(recorder) = state.recorder.take() {
                recorder.sheet.into_writer().end_apart();
            }
        }
    }

    fn begin(&self, state: &mut State) {
        let Some(means) = self.means.get() else { return };
        let Some((index, place)) = state.index.zip(state.place.take_if(|_| state.index.is_some())) else { return };
        match Recorder::open(index, &place, means) {
            Ok(recorder) => {
                state.recorder = Some(recorder);
                self.is_on.store(true, Ordering::Relaxed);
            }
            // A server that sums without a timeline is better than none.
            Err(error) => tracing::warn!(%error, "no timeline of this server is recorded"),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Recorder {
    sheet: Sheet,
    gate: Gate,
    rows: BTreeMap<PartId, Rows>,
    courses: BTreeMap<SlotId, Course>,
    /// Who takes which sum on an exchange.
    exchanges: BTreeMap<ExchangeId, (SlotId, WorkerId)>,
    uses: Uses,
}

/// The rows of a part, and when their last spans end, because spans of a row must not overlap.
#[derive(Clone, Copy, Debug)]
struct Rows {
    sums: u64,
    summed_ns: i64,
    sends: u64,
    sent_ns: i64,
}

/// A sum from its beginning to its end.
#[derive(Debug, Default)]
struct Course {
    bytes: u64,
    /// When its first contribution began.
    began_ns: Option<i64>,
    /// When all contributions had begun.
    flows_ns: Option<i64>,
    /// Whose contributions are whole.
    whole: Vec<WorkerId>,
    is_sealed: bool,
    /// Who takes it now, and on which exchange.
    takes: BTreeMap<WorkerId, ExchangeId>,
    /// Who has taken it since the last SEND was written.
    taken: Vec<WorkerId>,
}

impl Recorder {
    fn open(index: ServerId, Place { place, window }: &Place, means: &Means) -> Result<Self> {
        let owner = Owner::Server(index);
        let path = owner.path(place);
        let writer = Writer::open(&path, owner, means.bytes_max, means.clocks.clone(), means.counts.clone())?;
        tracing::info!(path = %path.display(), "recording a timeline");
        Ok(Self {
            sheet: Sheet::new(writer),
            gate: Gate::new(*window),
            rows: BTreeMap::new(),
            courses: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            uses: Uses::default(),
        })
    }

    /// A sum that had begun before anybody recorded is left out.
    fn step(&mut self, now: i64, slot: SlotId, step: &Step) {
        if let Step::Begin(spec) = step {
            // A round that begins again was void.
            self.end(now, slot);
            if self.gate.begins(slot.round) {
                self.courses.insert(slot, Course { bytes: spec.bytes, ..Course::default() });
            }
        }
        if let Step::AnswerResidual { exchange, .. } = step {
            self.uses.answered(now, *exchange, &mut self.sheet);
        }
        let Some(course) = self.courses.get_mut(&slot) else { return };
        match step {
            Step::Receive { worker, .. } => {
                course.began_ns.get_or_insert(now);
                let row = self.rows(slot.part).sums;
                self.moment(row, "FIRST BYTE", now, slot, *worker);
            }
            Step::Publish { .. } => {
                course.flows_ns.get_or_insert(now);
            }
            Step::Answer { worker, exchange, .. } => {
                if let Some(older) = course.takes.insert(*worker, *exchange) {
                    self.exchanges.remove(&older);
                }
                self.exchanges.insert(*exchange, (slot, *worker));
            }
            Step::Seal => {
                course.is_sealed = true;
                self.write_sum(now, slot, "published");
            }
            Step::Drop => self.end(now, slot),
            Step::Begin(_)
            | Step::DropResidual
            | Step::TakeGift { .. }
            | Step::DropGift
            | Step::AnswerResidual { .. } => {}
        }
    }

    /// Uses have no rounds by which steps are counted, so those are recorded that begin in the same time as the sums.
    fn opened(&mut self, now: i64, exchange: ExchangeId, of: Use) {
        if self.gate.records() {
            self.uses.opened(now, exchange, of);
        }
    }

    fn received(&mut self, now: i64, slot: SlotId, worker: WorkerId) {
        let Some(course) = self.courses.get_mut(&slot) else { return };
        course.whole.push(worker);
        let row = self.rows(slot.part).sums;
        self.moment(row, "LAST BYTE", now, slot, worker);
    }

    fn taken(&mut self, now: i64, exchange: ExchangeId) {
        let Some((slot, worker)) = self.exchanges.remove(&exchange) else { return };
        let row = self.rows(slot.part).sends;
        self.moment(row, "TAKEN", now, slot, worker);
        let course = self.courses.get_mut(&slot).expect("its exchanges go with it");
        course.takes.remove(&worker);
        course.taken.push(worker);
        if course.takes.is_empty() {
            self.write_send(now, slot, "taken");
        }
    }

    /// The memory of a sum is free, or what it had is void.
    fn end(&mut self, now: i64, slot: SlotId) {
        let Some(course) = self.courses.get(&slot) else { return };
        let (is_sealed, is_sent) = (course.is_sealed, course.takes.is_empty());
        if !is_sealed {
            self.write_sum(now, slot, "given up");
        }
        if !is_sent {
            self.write_send(now, slot, "not taken by all");
        }
        let course = self.courses.remove(&slot).unwrap_or_default();
        for exchange in course.takes.values() {
            self.exchanges.remove(exchange);
        }
    }

    fn write_sum(&mut self, now: i64, slot: SlotId, outcome: &'static str) {
        let rows = self.rows(slot.part);
        let Some(course) = self.courses.get(&slot) else { return };
        // A sum of nobody's bytes, as of a barrier, took no time.
        let times = Times { start_ns: course.began_ns.unwrap_or(now).max(rows.summed_ns), end_ns: now };
        let (round, bytes, workers) = (slot.round, course.bytes, course.whole.clone());
        self.sheet.send(Event::Sum {
            row: rows.sums,
            name: "SUM",
            times,
            round,
            bytes,
            workers,
            is_residual: false,
            outcome,
        });
        self.rows.entry(slot.part).and_modify(|rows| rows.summed_ns = now);
    }

    fn write_send(&mut self, now: i64, slot: SlotId, outcome: &'static str) {
        let rows = self.rows(slot.part);
        let Some(course) = self.courses.get_mut(&slot) else { return };
        let times = Times { start_ns: course.flows_ns.unwrap_or(now).max(rows.sent_ns), end_ns: now };
        let (round, bytes, workers) = (slot.round, course.bytes, std::mem::take(&mut course.taken));
        self.sheet.send(Event::Sum {
            row: rows.sends,
            name: "SEND",
            times,
            round,
            bytes,
            workers,
            is_residual: false,
            outcome,
        });
        self.rows.entry(slot.part).and_modify(|rows| rows.sent_ns = now);
    }

    fn moment(&self, row: u64, name: &'static str, at_ns: i64, slot: SlotId, worker: WorkerId) {
        self.sheet.send(Event::Moment { row, name, at_ns, round: slot.round, worker });
    }

    /// The rows of a part, which get their names at its first sum.
    fn rows(&mut self, part: PartId) -> Rows {
        if let Some(rows) = self.rows.get(&part) {
            return *rows;
        }
        let added =
            self.sheet.add_row(part, "").and_then(|sums| Some((sums, self.sheet.add_row(part, " to workers")?)));
        let (sums, sends) = added.unwrap_or((NOWHERE, NOWHERE));
        let rows = Rows { sums, summed_ns: i64::MIN, sends, sent_ns: i64::MIN };
        if added.is_some() {
            self.rows.insert(part, rows);
        }
        rows
    }
}

#[cfg(test)]
mod tests;
