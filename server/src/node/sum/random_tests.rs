//! A node and its sums together: three workers, two parts, some rounds, and every fault a stream can have, from one seed.
//!
//! Rank r contributes 4^r, so that the base-4 digits of a sum are the counts of the ranks: 0 lost, 1 right, 2 or 3 counted twice or
//! thrice. Bodies arrive in pieces, sums land in pieces on top of the contributions, both break off anywhere.
//!
//! With a codec whose bodies vary in length, the contributions are sparse, and in every other round the last rank's is refused.

use std::collections::BTreeSet;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::codec;
use gradlane_core::codec::testing::encoded;
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{CodecSpec, DType, Defect, Epoch, LinkId, Op, Phase, Time};
use gradlane_core::wire::{Contribute, Contribution, Request, checksum};

use super::*;
use crate::node::aggregate::tests::{config, header, in_epoch, in_part, node as process, sized, view};
use crate::node::command::{Command, Work};
use crate::node::config::NodeConfig;
use crate::node::machine::Node;

const WORKERS: u32 = 3;
const PARTS: u32 = 2;
const ROUNDS: u64 = 8;
const ELEMENTS: usize = 10;
const BYTES: usize = 4 * ELEMENTS;
const EVERY_DIGIT_ONE: f32 = 21.0;
const LAST_DIGIT_ONE: f32 = 16.0;

#[test]
fn every_sum_has_every_worker_once_and_every_exchange_one_end() {
    for codec in [CodecSpec::PLAIN, topk()] {
        for seed in 0..300 {
            let run = Play::new(seed, codec, None).run();
            run.unwrap_or_else(|violation| panic!("seed {seed} of {codec}: {violation}"));
        }
    }
}

#[cfg(feature = "testing")]
#[test]
fn every_planted_defect_shows_as_what_it_is() {
    for (defect, violation) in [
        (Defect::PrefixIgnored, "instead of"),
        (Defect::BlockSentEarly, "instead of"),
        (Defect::ResumedGarbage, "rejected: "),
        (Defect::StaleEpochAccepted, "past membership"),
        (Defect::OneSlot, "another round"),
        (Defect::TornCounted, "do not get on"),
        (Defect::AnswerOldRound, "another round"),
        (Defect::MissingWaiterLost, "waits for a sum that exists"),
        (Defect::DivisorWrong, "is 42 instead of 21"),
    ] {
        let shows =
            |seed| Play::new(seed, CodecSpec::PLAIN, Some(defect)).run().is_err_and(|found| found.contains(violation));
        assert!((0..300).any(shows), "{defect:?}");
    }
}

/// Fine so far, or what was violated.
type Verdict = std::result::Result<(), String>;

/// One run: the server's machines, the workers and what is under way between them.
struct Play {
    random: u64,
    node: Node,
    sums: Sums,
    now: Time,
    number: u32,
    op: Op,
    codec: CodecSpec,
    workers: Vec<Worker>,
    sealed: BTreeSet<SlotId>,
    /// Receipts that the node has not heard of.
    untold: Vec<(Route, ExchangeId, Receipt)>,
    /// Exchanges without an end, seen from the server.
    under_way: BTreeMap<ExchangeId, UnderWay>,
    exchanges: u64,
}

struct Worker {
    /// The membership it knows.
    number: u32,
    parts: Vec<Place>,
}

struct Place {
    round: u64,
    /// The contribution, at the front, and where the sum lands.
    memory: Vec<u8>,
    /// The form of the contribution.
    body: Body,
    /// So many of its bytes are overwritten.
    landed: usize,
    /// What it listens to.
    exchange: Option<ExchangeId>,
}

struct UnderWay {
    rank: u32,
    part: u32,
    header: Contribute,
    /// It was opened with an epoch before the node's.
    stale: bool,
    /// The contribution as it is sent.
    body: Vec<u8>,
    /// Where the body goes, once it is accepted.
    slot: Option<SlotId>,
    /// Bytes of it that have arrived, and those of them that the server has looked at.
    sent: usize,
    read: usize,
    /// The form of the answer, and its bytes.
    answer: Option<(Body, Vec<u8>)>,
    ended: Option<u32>,
}

impl Play {
    fn new(seed: u64, codec: CodecSpec, defect: Option<Defect>) -> Self {
        let mut node = Node::new(NodeConfig {
            deterministic: seed.is_multiple_of(3),
            defect,
            memory_bytes_max: if codec.varies() { 512 } else { 256 },
            block_bytes_max: 16,
            block_bytes_min: 16,
            ..config()
        });
        node.handle_member(MemberEvent::View(view(WORKERS, 1, Phase::Running)));
        (0..WORKERS).for_each(|rank| node.handle_link_up(link(rank), process(rank)));
        let resources =
            SumResources { kernels: Kernels::portable(), pool: Pool::new(), copies: Copies::default(), defect };
        let op = if seed.is_multiple_of(2) { Op::Sum } else { Op::WeightedMean };
        let worker = |rank| Worker { number: 1, parts: (0..PARTS).map(|_| Place::new(op, codec, rank, 0)).collect() };
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            node,
            sums: Sums::new(resources),
            now: Time::ZERO,
            number: 1,
            op,
            codec,
            workers: (0..WORKERS).map(worker).collect(),
            sealed: BTreeSet::new(),
            untold: Vec::new(),
            under_way: BTreeMap::new(),
            exchanges: 0,
        }
    }

    /// Runs to the end or to the first violation.
    fn run(mut self) -> Verdict {
        for _ in 0..40_000 {
            if self.workers.iter().all(|worker| worker.parts.iter().all(|part| part.round == ROUNDS)) {
                return self.end();
            }
            self.step()?;
        }
        Err("the workers do not get on".to_owned())
    }

    /// Something happens to some worker's exchange, or a worker begins one, or the node hears of a contribution.
    fn step(&mut self) -> Verdict {
        if self.below(100) == 0 && self.number < 4 {
            self.number += 1;
            self.node.handle_member(MemberEvent::View(view(WORKERS, self.number, Phase::Running)));
        }
        let (rank, part) = (self.below(WORKERS), self.below(PARTS));
        let count = u32::try_from(self.under_way.len()).unwrap();
        if !self.untold.is_empty() && self.below(3) == 0 {
            let index = self.below(u32::try_from(self.untold.len()).unwrap()) as usize;
            let (route, exchange, receipt) = self.untold.remove(index);
            self.node.handle_receipt(self.now, route, exchange, receipt.into());
        } else if count == 0 || self.below(4) == 0 {
            self.begin(rank, part);
        } else {
            let index = self.below(count) as usize;
            let exchange = *self.under_way.keys().nth(index).unwrap();
            self.advance(exchange)?;
        }
        self.obey()?;
        self.check_nobody_forgotten()
    }

    /// A worker pushes, or pushes again because it believes its link lost while the server still has the old exchange.
    fn begin(&mut self, rank: u32, part: u32) {
        let reconnects = self.below(8) == 0;
        let forgets_view = self.below(3) == 0;
        let worker = &mut self.workers[rank as usize];
        let place = &mut worker.parts[part as usize];
        if place.round == ROUNDS || (place.exchange.is_some() && !reconnects) {
            return;
        }
        if !forgets_view {
            worker.number = self.number;
        }
        self.exchanges += 1;
        let exchange = ExchangeId(self.exchanges);
        place.exchange = Some(exchange);
        let epoch = Epoch { term: 1, number: worker.number };
        let header = in_epoch(epoch, in_part(part, sized(BYTES as u64, header(place.round))));
        // With a codec, the weight in a sum is what the worker divided its contribution by.
        let weight = if self.op == Op::Sum && self.codec.varies() { 1.0 } else { f64::from(rank + 1) };
        let header = Contribute { op: self.op, weight, ..header };
        let sent = place.contribution().to_vec();
        let contribution = match place.landed {
            0 => Contribution::First { body: place.body, checksum: Some(checksum(0, &sent)) },
            landed => Contribution::Resumed { body: place.body, landed: place.body.bytes.min(landed as u64) },
        };
        let header = Contribute { contribution, ..header };
        let under_way = UnderWay {
            rank,
            part,
            header: header.clone(),
            stale: worker.number < self.number,
            body: sent,
            slot: None,
            sent: 0,
            read: 0,
            answer: None,
            ended: None,
        };
        self.under_way.insert(exchange, under_way);
        self.node.handle_opened(self.now, link(rank), exchange, &Request::Contribute(header));
    }

    fn advance(&mut self, exchange: ExchangeId) -> Verdict {
        let (torn, run, read) = (self.below(25) == 0, self.below(20) as usize + 1, self.below(3) > 0);
        let under_way = self.under_way.get_mut(&exchange).unwrap();
        let (rank, part) = (under_way.rank, under_way.part);
        let place = &mut self.workers[rank as usize].parts[part as usize];
        let listens = place.exchange == Some(exchange);
        if torn {
            if listens {
                place.exchange = None;
            }
            self.under_way.remove(&exchange);
            self.node.handle_torn(exchange);
            return Ok(());
        }
        if let Some(slot) = under_way.slot
            && read
            && under_way.read < under_way.sent
        {
            let chunk = &under_way.body[under_way.read..(under_way.read + run).min(under_way.sent)];
            under_way.read += chunk.len();
            let mut events = Vec::new();
            self.sums.receive(slot, WorkerId(rank), exchange, &[chunk], &mut |event| events.push(event));
            return self.hear(events);
        }
        if under_way.slot.is_some() && under_way.sent < under_way.body.len() {
            under_way.sent = (under_way.sent + run).min(under_way.body.len());
            return Ok(());
        }
        let Some((form, answer)) = &under_way.answer else { return Ok(()) };
        // The body has arrived, though the server may not have looked at all of it: now its place may be overwritten.
        let landed = run.min(answer.len());
        if listens && landed > 0 {
            place.memory[..landed].copy_from_slice(&answer[..landed]);
            place.landed = place.landed.max(landed);
        }
        let Some(sent) = under_way.ended else { return Ok(()) };
        let (form, answer, round) = (*form, answer.clone(), under_way.header.target.round.0);
        if listens {
            *place = Place::new(self.op, self.codec, rank, round + 1);
        }
        self.under_way.remove(&exchange);
        self.node.handle_answered(exchange);
        if checksum(0, &answer) != sent {
            return Err("a checksum is not that of its sum".to_owned());
        }
        check(form, &answer, round)
    }

    /// The driver.
    fn obey(&mut self) -> Verdict {
        while let Some(command) = self.node.next_command() {
            match command {
                Command::Step(Work::Parameter { .. } | Work::Table { .. }) => {
                    return Err("works for another kind".to_owned());
                }
                Command::Step(Work::Sum { slot, step }) => {
                    self.look_at(slot, &step)?;
                    let mut events = Vec::new();
                    self.sums.step(slot, step, &mut |event| events.push(event));
                    self.hear(events)?;
                }
                Command::Reject { exchange, error, .. } => {
                    let under_way = self.under_way.remove(&exchange).ok_or("rejected an exchange that had ended")?;
                    let place = &mut self.workers[under_way.rank as usize].parts[under_way.part as usize];
                    let listens = place.exchange == Some(exchange);
                    if listens {
                        place.exchange = None;
                    }
                    if listens && !error.retryable() && !matches!(error, Error::Fenced { .. }) {
                        return Err(format!("rejected: {error}"));
                    }
                }
                Command::Unroute { .. } => {}
                Command::Accept { .. } => return Err("accepted a withdrawal that nobody sent".to_owned()),
                Command::Grant { .. } | Command::Timed { .. } => {}
                Command::Disconnect { .. } => return Err("closed the only link of a process".to_owned()),
                Command::Short { .. } => {}
                Command::Measured { .. } | Command::Stalled { .. } => {
                    return Err("stalled though no time passed".to_owned());
                }
                Command::Archive(_) | Command::Obeyed { .. } => return Err("nobody orders a checkpoint".to_owned()),
            }
        }
        Ok(())
    }

    fn look_at(&mut self, slot: SlotId, step: &Step) -> Verdict {
        match step {
            Step::Receive { exchange, .. } => {
                let under_way = self.under_way.get_mut(exchange).ok_or("received an exchange that had ended")?;
                under_way.slot = Some(slot);
                if slot.round != under_way.header.target.round {
                    return Err("a contribution to another round".to_owned());
                }
            }
            Step::Answer { exchange, header, .. } => {
                let under_way = self.under_way.get(exchange).ok_or("answered an exchange that had ended")?;
                if under_way.stale {
                    return Err("answered a push of a past membership".to_owned());
                }
                if slot.round != header.target.round || header.target.round != under_way.header.target.round {
                    return Err("answered with another round".to_owned());
                }
            }
            Step::Seal => drop(self.sealed.insert(slot)),
            Step::Drop => drop(self.sealed.remove(&slot)),
            Step::Begin(_) | Step::Publish { .. } | Step::DropResidual => {}
            Step::TakeGift { .. } | Step::DropGift | Step::AnswerResidual { .. } => {
                return Err("used a residual, for which nobody asked".to_owned());
            }
        }
        Ok(())
    }

    /// What the sums have to say. Exchanges that ended hear nothing more.
    fn hear(&mut self, events: Vec<Event>) -> Verdict {
        for event in events {
            match event {
                Event::Receipt { route, exchange, receipt } => self.untold.push((route, exchange, receipt)),
                Event::Frozen { .. } => return Err("nobody orders a checkpoint".to_owned()),
                Event::Send(Outgoing::Answer { exchange, header: Response::Sum(header) }) => {
                    if let Some(under_way) = self.under_way.get_mut(&exchange)
                        && under_way.answer.replace((header.body, Vec::new())).is_some()
                    {
                        return Err("answered twice".to_owned());
                    }
                }
                Event::Send(Outgoing::Block { exchange, block }) => {
                    if let Some(under_way) = self.under_way.get_mut(&exchange) {
                        let (_, bytes) = under_way.answer.as_mut().ok_or("a block before its header")?;
                        bytes.extend_from_slice(&block);
                    }
                }
                Event::Send(Outgoing::End { exchange, checksum }) => {
                    if let Some(under_way) = self.under_way.get_mut(&exchange) {
                        under_way.ended = Some(checksum);
                    }
                }
                Event::Squares { .. } | Event::Served(_) | Event::Waits(_) => {
                    return Err("no word of a sum".to_owned());
                }
                Event::Send(other) => return Err(format!("sends {other:?}")),
            }
        }
        Ok(())
    }

    fn check_nobody_forgotten(&self) -> Verdict {
        let forgotten = self.under_way.values().find(|under_way| {
            let slot = SlotId { part: under_way.header.target.part, round: under_way.header.target.round };
            under_way.answer.is_none() && self.sealed.contains(&slot)
        });
        forgotten.map_or(Ok(()), |under_way| Err(format!("worker {} waits for a sum that exists", under_way.rank)))
    }

    /// All workers have all sums; what is still under way are exchanges they had given up.
    fn end(mut self) -> Verdict {
        let left: Vec<ExchangeId> = std::mem::take(&mut self.under_way).into_keys().collect();
        for exchange in left {
            self.node.handle_torn(exchange);
        }
        self.obey()?;
        if self.node.progress().pending == 0 && self.sums.len() == PARTS as usize {
            return Ok(());
        }
        Err("exchanges or sums are left over".to_owned())
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.random >> 33).expect("31 bits") % limit
    }
}

impl Place {
    fn new(op: Op, codec: CodecSpec, rank: u32, round: u64) -> Self {
        // A weighted mean over 1 + 2 + 3 of six times the digit over the weight is the sum of the digits.
        let factor = if op == Op::Sum { 1.0 } else { 6.0 / (rank as f32 + 1.0) };
        let refused = codec.varies() && is_dense(round) && rank == WORKERS - 1;
        let is_there = |at| !codec.varies() || refused || is_in_all(at);
        let element = |at| if is_there(at) { factor * 4_f32.powi(rank as i32) * value(round, at) } else { 0.0 };
        let elements: Vec<u8> = (0..ELEMENTS).flat_map(|at| element(at).to_le_bytes()).collect();
        let mut memory = match codec::of(codec, DType::F32) {
            Some(made) if !refused => encoded(&*made, Kernels::portable(), 1.0, &elements, ELEMENTS as u64).unwrap(),
            _ => elements,
        };
        let body = Body { bytes: memory.len() as u64, codec, refused };
        memory.resize(BYTES, 0xee);
        Self { round, memory, body, landed: 0, exchange: None }
    }

    fn contribution(&self) -> &[u8] {
        &self.memory[..self.body.bytes as usize]
    }
}

fn link(rank: u32) -> LinkId {
    LinkId(rank.into())
}

/// Tells one round and one element from another.
fn value(round: u64, at: usize) -> f32 {
    (1 + 16 * round + at as u64) as f32
}

/// Whether the last rank's sparse contribution is refused in this round, and has all elements.
fn is_dense(round: u64) -> bool {
    round % 2 == 1
}

/// Whether all ranks contribute to this element where contributions are sparse.
fn is_in_all(at: usize) -> bool {
    at % 4 == 1
}

fn topk() -> CodecSpec {
    "topk:k=250000".parse().unwrap()
}

fn check(form: Body, sum: &[u8], round: u64) -> Verdict {
    if form.bytes != sum.len() as u64 || form.check(DType::F32, BYTES as u64).is_err() {
        return Err(format!("a sum of {} bytes instead of {}", sum.len(), form.bytes));
    }
    let mut elements = vec![0xee; BYTES];
    match codec::of(form.encoding(), DType::F32) {
        Some(made) => made.decode(Kernels::portable(), sum, &mut elements).map_err(|error| error.to_string())?,
        None => elements.copy_from_slice(sum),
    }
    for (at, bytes) in elements.as_chunks().0.iter().enumerate() {
        let digits = f32::from_le_bytes(*bytes) / value(round, at);
        let due = match (form.codec.varies(), is_dense(round)) {
            (false, _) => EVERY_DIGIT_ONE,
            (true, _) if is_in_all(at) => EVERY_DIGIT_ONE,
            (true, true) => LAST_DIGIT_ONE,
            (true, false) => 0.0,
        };
        if digits != due {
            return Err(format!("element {at} is {digits} instead of {due}"));
        }
    }
    Ok(())
}
