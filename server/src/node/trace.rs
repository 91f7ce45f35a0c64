//! The timeline of a server: when a sum got its first byte and the last one of each worker, when it was whole, and who has taken it.
//!
//! Two rows a part. SUM lasts from the first contribution until all of them are whole; the moments on it are the first and the last byte of
//! each worker.
//! SEND lasts from the time when all contributions have begun, from which on blocks may go, until the last listener has the sum.
//!
//! While nothing is recorded, each place that asks reads one atomic, and no clock.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use gradlane_core::runtime::timeline::{Clocks, Event, Gate, Group, Of, Owner, Span, Window, Writer};
use gradlane_core::types::{ExchangeId, PartId, ServerId, Time, WorkerId};
use gradlane_core::{Error, Result};

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

    /// The sum has been taken on this exchange.
    pub(crate) fn taken(&self, now: Time, exchange: ExchangeId) {
        self.record(|recorder| recorder.taken(now.signed_ns(), exchange));
    }

    fn record(&self, event: impl FnOnce(&mut Recorder)) {
        let mut state = self.state();
        let Some(recorder) = &mut state.recorder else { return };
        event(recorder);
        if recorder.gate.is_over() && recorder.courses.is_empty() {
            self.is_on.store(false, Ordering::Relaxed);
            if let Some(recorder) = state.recorder.take() {
                recorder.writer.end_apart();
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
    writer: Writer,
    gate: Gate,
    rows: BTreeMap<PartId, Rows>,
    courses: BTreeMap<SlotId, Course>,
    /// Who takes which sum on an exchange.
    exchanges: BTreeMap<ExchangeId, (SlotId, WorkerId)>,
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
        let writer = Writer::open(&path, owner, means.bytes_max, means.clocks.clone())?;
        tracing::info!(path = %path.display(), "recording a timeline");
        Ok(Self {
            writer,
            gate: Gate::new(*window),
            rows: BTreeMap::new(),
            courses: BTreeMap::new(),
            exchanges: BTreeMap::new(),
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
        let start_ns = course.began_ns.unwrap_or(now).max(rows.summed_ns);
        let of = of(slot, course.bytes, course.whole.clone(), outcome);
        self.write(rows.sums, "SUM", start_ns, now, of);
        self.rows.insert(slot.part, Rows { summed_ns: now, ..rows });
    }

    fn write_send(&mut self, now: i64, slot: SlotId, outcome: &'static str) {
        let rows = self.rows(slot.part);
        let Some(course) = self.courses.get_mut(&slot) else { return };
        let start_ns = course.flows_ns.unwrap_or(now).max(rows.sent_ns);
        let of = of(slot, course.bytes, std::mem::take(&mut course.taken), outcome);
        self.write(rows.sends, "SEND", start_ns, now, of);
        self.rows.insert(slot.part, Rows { sent_ns: now, ..rows });
    }

    fn write(&self, row: u64, name: &'static str, start_ns: i64, end_ns: i64, of: Of) {
        let (group, name) = (Group::Parts, name.into());
        self.writer.send(Event::Span(Span { group, row, name, start_ns, end_ns, of: Some(of) }));
    }

    fn moment(&self, row: u64, name: &'static str, at_ns: i64, slot: SlotId, worker: WorkerId) {
        let SlotId { part, round } = slot;
        self.writer.send(Event::Moment { row, name, at_ns, part, round, worker });
    }

    /// The rows of a part, which get their names at its first sum.
    fn rows(&mut self, part: PartId) -> Rows {
        let sums = 2 * self.rows.len() as u64 + 1;
        let writer = &self.writer;
        *self.rows.entry(part).or_insert_with(|| {
            writer.send(Event::SumRow { row: sums, part, what: "" });
            writer.send(Event::SumRow { row: sums + 1, part, what: " to workers" });
            Rows { sums, summed_ns: i64::MIN, sends: sums + 1, sent_ns: i64::MIN }
        })
    }
}

fn of(slot: SlotId, bytes: u64, workers: Vec<WorkerId>, outcome: &'static str) -> Of {
    Of::Sum { part: slot.part, round: slot.round, bytes, workers, outcome }
}

#[cfg(test)]
mod tests;
