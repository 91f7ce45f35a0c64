//! The tables of a lane: takes bodies, does uses when they are whole, and answers.
//!
//! **Done once.** Of each worker the latest change is known that was done to a part. A repeat of it is answered and not done again: rows are
//! read as they are then, and counts are those of the first time. That is kept here and not with [`Tables`](super::Tables), because whether a
//! use can be done depends on rows, and a repeat may come while the first is under way.

use std::collections::BTreeMap;

use gradlane_core::error::{Error, Result};
use gradlane_core::mem::Lease;
use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, NodeId, PartId, Round, RowAction, Version};
use gradlane_core::wire::scan::{Begin, Next};
use gradlane_core::wire::{Response, Rows as Header, RowsAnswer, Target, checksum};

use super::rows::{Counts, Rows, SavedMark};
use crate::node::accumulator::SumResources;
use crate::node::command::{AskedRows, RowsStep, Served};
use crate::node::event::Event;
use crate::node::refusals::out_of_order;

/// The parts of tables of a lane.
#[derive(Debug)]
pub struct RowStore {
    resources: SumResources,
    parts: BTreeMap<PartId, Part>,
}

#[derive(Debug)]
struct Part {
    /// `None` if a defect has lost them.
    rows: Option<Rows>,
    /// The latest change of each worker that was done.
    ledger: BTreeMap<NodeId, Done>,
    uploads: BTreeMap<ExchangeId, Upload>,
}

/// A change that was done.
#[derive(Clone, Copy, Debug)]
struct Done {
    round: Round,
    counts: Counts,
}

/// The body of a use, as far as it came.
#[derive(Debug)]
struct Upload {
    asked: Box<AskedRows>,
    body: Vec<u8>,
}

/// What comes back of a use.
enum Answer {
    Nothing,
    Numbers(Vec<f32>),
    Counts(Counts),
    Page(Vec<u8>),
}

impl RowStore {
    /// No tables.
    pub fn new(resources: SumResources) -> Self {
        Self { resources, parts: BTreeMap::new() }
    }

    /// Carries out a step of a part. Results go to `say`.
    pub fn step(&mut self, id: PartId, step: RowsStep, say: &mut impl FnMut(Event)) {
        match step {
            RowsStep::Serve { exchange, asked } => {
                let (spec, shards) = (asked.header.spec, asked.header.shards);
                let part = self.parts.entry(id).or_insert_with(|| Part {
                    rows: Some(Rows::new(spec, shards, self.resources.kernels)),
                    ledger: BTreeMap::new(),
                    uploads: BTreeMap::new(),
                });
                part.uploads.insert(exchange, Upload { asked, body: Vec::new() });
                part.serve_if_whole(&self.resources, id, exchange, say);
            }
            RowsStep::Forget { exchange } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                if part.uploads.remove(&exchange).is_some() {
                    say(part.served(id, Some(exchange), None));
                }
            }
            RowsStep::Leave { node } => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                part.ledger.remove(&node);
                if let Some(rows) = &mut part.rows {
                    rows.end_scan(node);
                }
                say(part.served(id, None, None));
            }
            RowsStep::Drop => {
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
            upload.take(&self.resources, chunk.as_ref());
        }
        part.serve_if_whole(&self.resources, id, exchange, say);
    }

    /// Loses all rows, after a defect left them in an unknown state. Whoever uses one of them, now or later, gets an error.
    pub fn lose_all(&mut self, say: &mut impl FnMut(Event)) {
        for (id, part) in &mut self.parts {
            part.rows = None;
            for exchange in std::mem::take(&mut part.uploads).into_keys() {
                say(part.served(*id, Some(exchange), Some(rows_lost(*id))));
            }
        }
    }

    /// How many parts there are.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl Part {
    fn served(&self, part: PartId, exchange: Option<ExchangeId>, refusal: Option<Error>) -> Event {
        let [bytes, scan_bytes] = [Rows::bytes, Rows::scan_bytes].map(|bytes| self.rows.as_ref().map_or(0, bytes));
        Event::Served(Served { part, exchange, bytes, scan_bytes, refusal })
    }

    /// Does a use whose body is whole, and answers it.
    fn serve_if_whole(
        &mut self,
        resources: &SumResources,
        id: PartId,
        exchange: ExchangeId,
        say: &mut impl FnMut(Event),
    ) {
        let Some(upload) = self.uploads.get(&exchange).filter(|upload| upload.is_whole()) else { return };
        let AskedRows { header, epoch, block_bytes, .. } = *upload.asked;
        let upload = self.uploads.remove(&exchange).expect("it was there");
        let refusal = match self.serve(id, &upload) {
            Ok(answer) => {
                let body_bytes = answer.bytes();
                let answered = RowsAnswer {
                    target: Target { epoch, ..header.target },
                    version: Version(self.rows.as_ref().map_or(0, Rows::version)),
                    body_bytes,
                    checksum: header.checksum.is_some() && body_bytes > 0,
                };
                send(resources, exchange, answered, answer, block_bytes, say);
                None
            }
            Err(error) => Some(error),
        };
        say(self.served(id, Some(exchange), refusal));
    }

    fn serve(&mut self, id: PartId, upload: &Upload) -> Result<Answer> {
        let AskedRows { node, header, refusal, .. } = &*upload.asked;
        let rows = self.rows.as_mut().ok_or_else(|| rows_lost(id))?;
        if header.checksum.is_some_and(|announced| announced != checksum(0, &upload.body)) {
            let (tensor, round) = (id.key.into(), header.target.round);
            return Err(Error::Checksum { tensor, round, from: "the worker".to_owned() });
        }
        let (ids, rest) = upload.parsed();
        let done = self.ledger.get(node).filter(|_| header.action.changes());
        let repeated = match done {
            Some(done) if header.target.round < done.round => {
                return Err(out_of_order("the worker", header.target.round, done.round));
            }
            Some(done) if header.target.round == done.round => Some(done.counts),
            Some(_) | None => None,
        };
        if let (Some(refusal), None) = (refusal, repeated) {
            return Err(refusal.clone());
        }
        let (dim, step) = (usize::try_from(header.spec.dim).expect("DIM_MAX"), header.step);
        let mut counts = Counts::default();
        let answer = match (header.action, repeated) {
            (RowAction::Pull | RowAction::Look, _) => {
                let mut numbers = vec![0.0; ids.len() * dim];
                let trains = header.action == RowAction::Pull && repeated.is_none();
                rows.pull(&ids, trains, step, &mut numbers)?;
                Answer::Numbers(numbers)
            }
            (RowAction::Push, None) => {
                let mut gradients: Vec<f32> =
                    rest.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                rows.push(&ids, step, &mut gradients)?;
                Answer::Nothing
            }
            (RowAction::Shrink, None) => {
                let [decay, min_score, max_idle] = bounds(rest)?;
                counts = rows.shrink(f64::from_bits(decay) as f32, f64::from_bits(min_score) as f32, max_idle);
                Answer::Counts(counts)
            }
            (RowAction::Changed, _) => {
                let begin = Begin::decode(rest)?;
                Answer::Page(rows.begin_scan(&id.key.into(), *node, begin, header.ids)?)
            }
            (RowAction::Page, _) => Answer::Page(rows.next_page(*node, Next::decode(rest), header.ids)?),
            (RowAction::Restore, None) => {
                let (marks, numbers) = rest.split_at(ids.len() * RowAction::MARK_BYTES as usize);
                let mark = |bytes: &[u8; 8]| {
                    let [touched, score] = [0, 1].map(|half| bytes.as_chunks().0[half]);
                    SavedMark { touched: u32::from_le_bytes(touched), score: f32::from_le_bytes(score) }
                };
                let marks: Vec<SavedMark> = marks.as_chunks().0.iter().map(mark).collect();
                let numbers: Vec<f32> = numbers.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                rows.restore(&ids, step, &marks, &numbers)?;
                Answer::Nothing
            }
            (RowAction::Clear, None) => {
                rows.clear();
                Answer::Nothing
            }
            (RowAction::Stats, _) => Answer::Counts(rows.counts()),
            (RowAction::Shrink, Some(counts)) => Answer::Counts(counts),
            (RowAction::Push | RowAction::Clear | RowAction::Restore, Some(_)) => Answer::Nothing,
        };
        if header.action.changes() && repeated.is_none() {
            self.ledger.insert(*node, Done { round: header.target.round, counts });
        }
        Ok(answer)
    }
}

impl Answer {
    fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Nothing => 0,
            Self::Numbers(numbers) => 4 * numbers.len(),
            Self::Counts(counts) => 8 * counts.len(),
            Self::Page(page) => page.len(),
        };
        bytes as u64
    }
}

impl Upload {
    fn take(&mut self, resources: &SumResources, bytes: &[u8]) {
        let whole = usize::try_from(self.asked.header.body_bytes()).expect("PART_BYTES_MAX");
        if self.body.capacity() < whole {
            self.body.reserve_exact(whole - self.body.len());
        }
        let at = self.body.len();
        let taken = bytes.len().min(whole - at);
        self.body.resize(at + taken, 0);
        resources.copies.copy(&bytes[..taken], &mut self.body[at..]);
    }

    fn is_whole(&self) -> bool {
        self.body.len() as u64 == self.asked.header.body_bytes()
    }

    /// The ids, and what follows them.
    fn parsed(&self) -> (Vec<u64>, &[u8]) {
        let Header { action, ids, .. } = self.asked.header;
        let ids = if action.has_ids() { ids } else { 0 };
        let (ids, rest) = self.body.split_at(usize::try_from(8 * ids).expect("IDS_MAX"));
        (ids.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect(), rest)
    }
}

/// The numbers of a shrink, of which the first two are floats.
fn bounds(body: &[u8]) -> Result<[u64; 3]> {
    let (numbers, _) = body.as_chunks::<8>();
    let numbers = [0, 1, 2].map(|index| u64::from_le_bytes(numbers[index]));
    let [decay, min_score] = [numbers[0], numbers[1]].map(f64::from_bits);
    if !(0.0..=1.0).contains(&decay) || !min_score.is_finite() {
        let problem = format!("are a decay of {decay} and a score of {min_score}");
        return Err(Error::Protocol { peer: "the worker".to_owned(), field: "bounds".to_owned(), problem });
    }
    Ok(numbers)
}

/// Sends an answer and its body, in blocks.
fn send(
    resources: &SumResources,
    exchange: ExchangeId,
    header: RowsAnswer,
    answer: Answer,
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
    match answer {
        Answer::Nothing => {}
        Answer::Numbers(numbers) => {
            let run = usize::try_from(block_bytes / 4).expect("a block").max(1);
            for numbers in numbers.chunks(run) {
                block(4 * numbers.len(), &mut |to| {
                    to.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_le_bytes());
                });
            }
        }
        Answer::Page(page) => {
            let run = usize::try_from(block_bytes).unwrap_or(usize::MAX).max(1);
            page.chunks(run).for_each(|bytes| block(bytes.len(), &mut |to| resources.copies.copy(bytes, to)));
        }
        Answer::Counts(counts) => block(8 * counts.len(), &mut |to| {
            to.as_chunks_mut().0.iter_mut().zip(counts).for_each(|(to, count)| *to = count.to_le_bytes());
        }),
    }
    say(Event::Send(Outgoing::End { exchange, checksum: crc }));
}

/// The answer to a use of a part whose memory a defect of the server has lost.
fn rows_lost(part: PartId) -> Error {
    Error::Internal { what: format!("the rows of part {} of table {} were lost", part.index, part.key) }
}
