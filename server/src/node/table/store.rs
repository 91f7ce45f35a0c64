//! The tables of a lane: takes bodies, does uses when they are whole, and answers.
//!
//! **Done once.** Of each worker the latest change is known that was done to a part. A repeat of it is answered and not done again: rows are
//! read as they are then, and counts are those of the first time. That is kept here and not with [`Tables`](super::Tables), because whether a
//! use can be done depends on rows, and a repeat may come while the first is under way.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::codec::RowCodec;
use gradlane_core::error::{Error, Result};
use gradlane_core::mem::Lease;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, NodeId, PartId, Round, RowAction, Turns, Version, WorkerId};
use gradlane_core::wire::scan::{Begin, Next};
use gradlane_core::wire::{Response, Rows as Header, RowsAnswer, Target, checksum};

use super::merge::Merged;
use super::rows::{Counts, Gradients, Pulled, Rows};
use super::upload::Upload;
use super::waiting::Waiting;
use crate::node::accumulator::SumResources;
use crate::node::command::{AskedRows, Missing, RowsStep, Served};
use crate::node::event::{Event, Waits};
use crate::node::refusals::out_of_order;

/// The parts of tables of a lane.
#[derive(Debug)]
pub struct RowStore {
    resources: SumResources,
    parts: BTreeMap<PartId, Part>,
    /// Whether it says for which workers uses wait.
    says_waits: bool,
    /// How often it has said that.
    changes: u64,
}

#[derive(Debug)]
struct Part {
    id: PartId,
    /// `None` if a defect has lost them.
    rows: Option<Rows>,
    codec: RowCodec,
    /// The latest change of each worker that was done.
    ledger: BTreeMap<NodeId, Done>,
    uploads: BTreeMap<ExchangeId, Upload>,
    /// Uploads that came whole, and wait.
    waiting: Waiting,
    /// The workers for which all of them wait, as it was said last.
    missing: Missing,
}

/// A change that was done.
#[derive(Clone, Copy, Debug)]
struct Done {
    round: Round,
    counts: Counts,
}

/// Whether a use may be done.
enum Turn {
    /// It is done now.
    Now,
    /// It was done before, and this is what it counted.
    Before(Counts),
    /// It waits.
    Later,
}

/// What comes back of a use.
enum Answer {
    Nothing,
    Rows(Vec<u64>, Pulled),
    Counts(Counts),
    Page(Vec<u8>),
}

impl RowStore {
    /// No tables.
    pub fn new(resources: SumResources) -> Self {
        Self { resources, parts: BTreeMap::new(), says_waits: false, changes: 0 }
    }

    /// The same, which says for which workers uses wait if `says_waits`.
    #[must_use]
    pub fn saying_waits(self, says_waits: bool) -> Self {
        Self { says_waits, ..self }
    }

    /// Carries out a step of a part. Results go to `say`.
    pub fn step(&mut self, id: PartId, step: RowsStep, say: &mut impl FnMut(Event)) {
        match step {
            RowsStep::Serve { exchange, asked } => {
                let part = self.parts.entry(id).or_insert_with(|| Part::of(id, &asked, &self.resources));
                let are_others = part.waiting.know(&asked.workers);
                part.uploads.insert(exchange, Upload::of(asked, &self.resources.pool));
                if are_others {
                    self.say_waits(id, None, say);
                }
                self.serve_if_whole(id, exchange, say);
            }
            RowsStep::Forget { exchange } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                part.waiting.forget(exchange);
                if part.uploads.remove(&exchange).is_some() {
                    say(part.served(Some(exchange), None));
                }
                self.say_waits(id, None, say);
            }
            RowsStep::GiveUp { exchanges, waited } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                part.give_up(&self.resources, &exchanges, waited, say);
                self.say_waits(id, None, say);
            }
            RowsStep::Leave { node } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                part.ledger.remove(&node);
                if let Some(rows) = &mut part.rows {
                    rows.end_scan(node);
                }
                say(part.served(None, None));
                part.waiting.leave(node);
                part.go_on(&self.resources, say);
                self.say_waits(id, None, say);
            }
            RowsStep::Drop => {
                // Its uses were forgotten before, so that none waits.
                let part = self.parts.remove(&id).into_iter();
                for exchange in part.flat_map(|part| part.uploads.into_keys()) {
                    let exchange = Some(exchange);
                    say(Event::Served(Served { part: id, exchange, bytes: 0, scan_bytes: 0, refusal: None }));
                }
            }
        }
    }

    /// Takes the next bytes that `exchange` brought; of one that is over it takes none.
    pub fn receive(
        &mut self,
        id: PartId,
        exchange: ExchangeId,
        chunks: &[impl AsRef<[u8]>],
        say: &mut impl FnMut(Event),
    ) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        let Some(upload) = part.uploads.get_mut(&exchange) else { return };
        for chunk in chunks {
            upload.take(&self.resources.copies, chunk.as_ref());
        }
        self.serve_if_whole(id, exchange, say);
    }

    /// Loses all rows, after a defect left them in an unknown state. Whoever uses one of them, now or later, gets an error.
    pub fn lose_all(&mut self, say: &mut impl FnMut(Event)) {
        for (id, part) in &mut self.parts {
            part.rows = None;
            for exchange in std::mem::take(&mut part.uploads).into_keys() {
                part.waiting.forget(exchange);
                say(part.served(Some(exchange), Some(rows_lost(*id))));
            }
        }
        let ids: Vec<PartId> = self.parts.keys().copied().collect();
        ids.into_iter().for_each(|id| self.say_waits(id, None, say));
    }

    /// How many parts there are.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Does a use whose body is whole, unless it waits, and then what has waited for it.
    fn serve_if_whole(&mut self, id: PartId, exchange: ExchangeId, say: &mut impl FnMut(Event)) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        let is_whole = part.uploads.get(&exchange).is_some_and(Upload::is_whole);
        if !is_whole || part.waiting.has(exchange) {
            return;
        }
        part.serve_in_turn(&self.resources, exchange, say);
        part.go_on(&self.resources, say);
        let held = Some(exchange).filter(|exchange| part.uploads.contains_key(exchange));
        self.say_waits(id, held, say);
    }

    /// Says for which workers the uses of a part wait, if that has changed or if the use `held` begins to wait.
    fn say_waits(&mut self, id: PartId, held: Option<ExchangeId>, say: &mut impl FnMut(Event)) {
        let Some(part) = self.parts.get_mut(&id).filter(|_| self.says_waits) else { return };
        let missing = part.waiting.missing();
        if held.is_some() || missing != part.missing {
            part.missing = missing;
            self.changes += 1;
            say(Event::Waits(Waits { part: id, held, missing, change: self.changes }));
        }
    }
}

impl Part {
    fn of(id: PartId, asked: &AskedRows, resources: &SumResources) -> Self {
        let (spec, kernels) = (asked.header.spec, resources.kernels);
        Self {
            id,
            rows: Some(Rows::new(spec, asked.header.shards, kernels)),
            codec: RowCodec::of(&spec, kernels),
            ledger: BTreeMap::new(),
            uploads: BTreeMap::new(),
            waiting: Waiting::new(spec.turns),
            missing: Missing::default(),
        }
    }

    fn served(&self, exchange: Option<ExchangeId>, refusal: Option<Error>) -> Event {
        let [bytes, scan_bytes] = [Rows::bytes, Rows::scan_bytes].map(|bytes| self.rows.as_ref().map_or(0, bytes));
        Event::Served(Served { part: self.id, exchange, bytes, scan_bytes, refusal })
    }

    /// Does a use whose body is whole, unless it waits.
    fn serve_in_turn(&mut self, resources: &SumResources, exchange: ExchangeId, say: &mut impl FnMut(Event)) {
        match self.turn_of(exchange) {
            Ok(Turn::Later) => {}
            Ok(Turn::Now) => self.serve(resources, exchange, None, say),
            Ok(Turn::Before(counts)) => self.serve(resources, exchange, Some(counts), say),
            Err(error) => self.end(resources, exchange, Err(error), say),
        }
    }

    /// Does what waits no more.
    fn go_on(&mut self, resources: &SumResources, say: &mut impl FnMut(Event)) {
        if let Some(pushes) = self.waiting.whole_round() {
            let done = self.push_merged(&pushes);
            for (_, exchange) in pushes {
                let answer = done.clone().map(|()| self.note(exchange, Counts::default())).map(|()| Answer::Nothing);
                self.end(resources, exchange, answer, say);
            }
        }
        while let Some(exchange) = self.waiting.next_pull() {
            self.serve(resources, exchange, None, say);
        }
    }

    /// Refuses what has waited too long for other workers.
    fn give_up(
        &mut self,
        resources: &SumResources,
        exchanges: &[ExchangeId],
        waited: Duration,
        say: &mut impl FnMut(Event),
    ) {
        let late = exchanges.iter().filter(|exchange| self.uploads.contains_key(exchange));
        // Who is missing is known before the first of them is over.
        let late: Vec<(ExchangeId, Error)> = late.map(|late| (*late, self.stalled(*late, waited))).collect();
        for (exchange, error) in late {
            self.waiting.forget(exchange);
            self.end(resources, exchange, Err(error), say);
        }
    }

    /// The workers for which a use waits.
    fn missing(&self, exchange: ExchangeId) -> Vec<WorkerId> {
        let AskedRows { node, header, .. } = &*self.uploads[&exchange].asked;
        match header.action.pushes() {
            true => self.waiting.not_in_round().collect(),
            false => self.waiting.too_far_behind(*node).collect(),
        }
    }

    fn stalled(&self, exchange: ExchangeId, waited: Duration) -> Error {
        let header = &self.uploads[&exchange].asked.header;
        Error::Stalled {
            tensor: self.id.key.into(),
            round: header.target.round,
            missing: self.missing(exchange),
            waited,
            notice: Box::default(),
            detail: format!("a {} of this table waits for every worker", header.action).into(),
        }
    }

    /// Whether the use may be done now.
    ///
    /// # Errors
    /// What is wrong with it, as far as that is known before.
    fn turn_of(&mut self, exchange: ExchangeId) -> Result<Turn> {
        let Self { id, rows, codec, ledger, uploads, waiting, .. } = self;
        let upload = &uploads[&exchange];
        let AskedRows { node, header, refusal, .. } = &*upload.asked;
        let rows = rows.as_mut().ok_or_else(|| rows_lost(*id))?;
        if header.checksum.is_some_and(|announced| announced != checksum(0, &upload.body)) {
            let (tensor, round) = (id.key.into(), header.target.round);
            return Err(Error::Checksum { tensor, round, from: "the worker".to_owned() });
        }
        match ledger.get(node).filter(|_| header.action.changes()) {
            Some(done) if header.target.round < done.round => {
                return Err(out_of_order("the worker", header.target.round, done.round));
            }
            Some(done) if header.target.round == done.round => return Ok(Turn::Before(done.counts)),
            Some(_) | None => {}
        }
        // What others wait for is done: they had begun before the server drained.
        let is_due = header.action.pushes() && waiting.has_round();
        if let Some(refusal) = refusal.as_ref().filter(|_| !is_due) {
            return Err(refusal.clone());
        }
        let waits = match header.action {
            action if action.pushes() && waiting.gathers() => {
                rows.check_push(&upload.ids(), &upload.gradients(*codec))?;
                waiting.hold_push(*node, exchange);
                true
            }
            RowAction::Pull => waiting.holds_pull(*node, exchange),
            _ => false,
        };
        Ok(if waits { Turn::Later } else { Turn::Now })
    }

    /// Does a use, unless it was done `before`, and answers it.
    fn serve(
        &mut self,
        resources: &SumResources,
        exchange: ExchangeId,
        before: Option<Counts>,
        say: &mut impl FnMut(Event),
    ) {
        let answer = self.answer(exchange, before);
        self.end(resources, exchange, answer, say);
    }

    fn answer(&mut self, exchange: ExchangeId, before: Option<Counts>) -> Result<Answer> {
        let Self { id, rows, codec, uploads, .. } = self;
        let upload = &uploads[&exchange];
        let header = upload.asked.header;
        let rows = rows.as_mut().ok_or_else(|| rows_lost(*id))?;
        let answer = match (header.action, before) {
            (RowAction::Pull | RowAction::Look, _) => {
                let ids = upload.ids();
                let pulled = rows.pull(&ids, header.action == RowAction::Pull && before.is_none(), header.step)?;
                Answer::Rows(ids, pulled)
            }
            (RowAction::Push | RowAction::PushScored, None) => {
                rows.push(&upload.ids(), header.step, &upload.gradients(*codec))?;
                Answer::Nothing
            }
            (RowAction::Shrink, None) => Answer::Counts(rows.shrink(upload.bounds()?)),
            (RowAction::Changed, _) => {
                let begin = Begin::decode(&upload.body)?;
                Answer::Page(rows.begin_scan(&id.key.into(), upload.asked.node, begin, header.ids)?)
            }
            (RowAction::Page, _) => {
                Answer::Page(rows.next_page(upload.asked.node, Next::decode(&upload.body), header.ids)?)
            }
            (RowAction::Restore, None) => {
                let (marks, numbers) = upload.saved();
                rows.restore(&upload.ids(), header.step, &marks, &numbers)?;
                Answer::Nothing
            }
            (RowAction::Clear, None) => {
                rows.clear();
                Answer::Nothing
            }
            (RowAction::Stats, _) => Answer::Counts(rows.counts()),
            (RowAction::Shrink, Some(counts)) => Answer::Counts(counts),
            (RowAction::Push | RowAction::PushScored | RowAction::Clear | RowAction::Restore, Some(_)) => {
                Answer::Nothing
            }
        };
        if header.action.changes() && before.is_none() {
            let counts = if let Answer::Counts(counts) = answer { counts } else { Counts::default() };
            self.note(exchange, counts);
        }
        Ok(answer)
    }

    /// Does the pushes of a round as one.
    fn push_merged(&mut self, pushes: &[(WorkerId, ExchangeId)]) -> Result<()> {
        let Self { id, rows, codec, uploads, .. } = self;
        let rows = rows.as_mut().ok_or_else(|| rows_lost(*id))?;
        let uploads: Vec<(WorkerId, &Upload)> =
            pushes.iter().map(|(worker, exchange)| (*worker, &uploads[exchange])).collect();
        let (first, Header { target, spec, step, .. }) = (uploads[0].0, uploads[0].1.asked.header);
        let mut steps = uploads.iter().map(|(worker, upload)| (worker, upload.asked.header.step));
        if let Some((worker, other)) = steps.find(|(_, other)| *other != step) {
            // One of them has missed a round, as after an error on some servers alone.
            return Err(Error::FailedPrecondition {
                what: format!("table {}: {worker} pushes for step {other}, and {first} for step {step}", id.key),
                hint: "let all workers push at each step, with the same step; after a failed push begin the table anew"
                    .to_owned(),
            });
        }
        let Turns::Sync { merge } = spec.turns else { unreachable!("pushes of other tables do not gather") };
        let mut merged = Merged::new(codec.dim(), codec.kernels());
        uploads.iter().for_each(|(_, upload)| merged.add(&upload.ids(), &upload.gradients(*codec)));
        merged.finish(merge, uploads.len());
        if !merged.all_finite() {
            let (tensor, round) = (id.key.into(), target.round);
            return Err(Error::NotFinite { tensor, round, from: "the sum of all workers".to_owned() });
        }
        rows.push(merged.ids(), step, &merged)
    }

    /// Notes that a change was done.
    fn note(&mut self, exchange: ExchangeId, counts: Counts) {
        let AskedRows { node, header, .. } = &*self.uploads[&exchange].asked;
        self.ledger.insert(*node, Done { round: header.target.round, counts });
        if header.action.pushes() {
            self.waiting.pushed(*node);
        }
    }

    /// A use is over.
    fn end(
        &mut self,
        resources: &SumResources,
        exchange: ExchangeId,
        answer: Result<Answer>,
        say: &mut impl FnMut(Event),
    ) {
        let upload = self.uploads.remove(&exchange).expect("it is under way");
        let AskedRows { header, epoch, block_bytes, .. } = *upload.asked;
        let refusal = match answer {
            Ok(answer) => {
                let body_bytes = match &answer {
                    Answer::Page(page) => page.len() as u64,
                    _ => header.answer_bytes(),
                };
                let answered = RowsAnswer {
                    target: Target { epoch, ..header.target },
                    version: Version(self.rows.as_ref().map_or(0, Rows::version)),
                    body_bytes,
                    checksum: header.checksum.is_some() && body_bytes > 0,
                };
                self.send(resources, exchange, answered, &answer, block_bytes, say);
                None
            }
            Err(error) => Some(error),
        };
        say(self.served(Some(exchange), refusal));
    }

    /// Sends an answer and its body, in blocks.
    fn send(
        &self,
        resources: &SumResources,
        exchange: ExchangeId,
        header: RowsAnswer,
        answer: &Answer,
        block_bytes: u64,
        say: &mut impl FnMut(Event),
    ) {
        say(Event::Send(Outgoing::Answer { exchange, header: Response::Rows(header) }));
        let mut crc = 0;
        let mut block = |bytes: usize, write: &mut dyn FnMut(&mut [u8])| {
            let mut lease: Lease = resources.pool.lease(bytes);
            write(&mut lease);
            if header.checksum {
                crc = checksum(crc, &lease);
            }
            say(Event::Send(Outgoing::Block { exchange, block: lease.freeze() }));
        };
        match (answer, &self.rows) {
            (Answer::Rows(ids, pulled), Some(rows)) => {
                let row_bytes = self.codec.row_bytes();
                let run = usize::try_from(block_bytes).unwrap_or(usize::MAX) / row_bytes;
                for first in (0..ids.len()).step_by(run.max(1)) {
                    let some = first..ids.len().min(first.saturating_add(run.max(1)));
                    block(some.len() * row_bytes, &mut |to| {
                        rows.read(pulled, ids, some.clone(), |at, row| {
                            self.codec.write(row, &mut to[at * row_bytes..][..row_bytes]);
                        });
                    });
                }
            }
            (Answer::Page(page), _) => {
                let run = usize::try_from(block_bytes).unwrap_or(usize::MAX).max(1);
                page.chunks(run).for_each(|bytes| block(bytes.len(), &mut |to| resources.copies.copy(bytes, to)));
            }
            (Answer::Counts(counts), _) => block(8 * counts.len(), &mut |to| {
                to.as_chunks_mut().0.iter_mut().zip(counts).for_each(|(to, count)| *to = count.to_le_bytes());
            }),
            (Answer::Nothing | Answer::Rows(..), _) => {}
        }
        say(Event::Send(Outgoing::End { exchange, checksum: crc }));
    }
}

/// The answer to a use of a part whose memory a defect of the server has lost.
fn rows_lost(part: PartId) -> Error {
    Error::Internal { what: format!("the rows of part {} of table {} were lost", part.index, part.key) }
}
