//! Three workers, two parts, some rounds, and every fault a stream can have, from one seed.
//!
//! Rank r contributes 4^r, so that the base-4 digits of a sum are the counts of the ranks: 0 lost, 1 right, 2 or 3 counted twice or
//! thrice. The driver below does the arithmetic on numbers instead of bytes.

use std::collections::BTreeMap;

use gradlane_core::types::{Epoch, ExchangeId, Op, PartId, Phase, TensorKey};
use gradlane_core::wire::Flags;

use super::tests::{config, header, node, view};
use super::*;

const WORKERS: u32 = 3;
const PARTS: u32 = 2;
const ROUNDS: u64 = 8;
const EVERY_DIGIT_ONE: u64 = 0b01_01_01;

#[test]
fn every_sum_has_every_worker_once_and_every_exchange_one_end() {
    for seed in 0..300 {
        Play::new(seed, None).run().unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}

#[cfg(feature = "testing")]
#[test]
fn every_planted_defect_shows_as_what_it_is() {
    for (defect, violation) in [
        (Defect::DuplicateCounted, "digits"),
        (Defect::StaleEpochAccepted, "past membership"),
        (Defect::PublishBeforeAll, "digits"),
        (Defect::OneSlot, "strangers true"),
        (Defect::TornCounted, "digits"),
        (Defect::AnswerOldRound, "strangers true"),
        (Defect::MissingWaiterLost, "waits for a sum that exists"),
        (Defect::DivisorWrong, "divisor 3"),
    ] {
        let shows = |seed| Play::new(seed, Some(defect)).run().is_err_and(|found| found.contains(violation));
        assert!((0..300).any(shows), "{defect:?}");
    }
}

/// Fine so far, or what was violated.
type Verdict = std::result::Result<(), String>;

/// One run: the aggregator, its driver's memory, the workers and what is under way between them.
struct Play {
    random: u64,
    aggregator: Aggregator,
    now: Time,
    number: u32,
    op: Op,
    /// Bodies that landed, by exchange: whose they are and of which slot they were meant.
    bodies: BTreeMap<ExchangeId, Body>,
    slots: BTreeMap<SlotId, Sum>,
    workers: Vec<Worker>,
    /// Exchanges without an end, seen from the driver.
    under_way: BTreeMap<ExchangeId, UnderWay>,
    exchanges: u64,
}

#[derive(Clone, Copy)]
struct Body {
    rank: u32,
    slot: SlotId,
}

#[derive(Clone, Default)]
struct Sum {
    digits: u64,
    strangers: bool,
    divisor: f64,
    frozen: bool,
}

struct Worker {
    /// The membership it knows.
    number: u32,
    parts: Vec<Place>,
}

struct Place {
    round: u64,
    /// What it listens to.
    exchange: Option<ExchangeId>,
    /// It has received the begin of a sum, so its contribution may be overwritten.
    landing_begun: bool,
}

struct UnderWay {
    rank: u32,
    part: u32,
    header: Header,
    /// It was opened with an epoch before the aggregator's.
    stale: bool,
    stage: Stage,
}

enum Stage {
    Opened,
    Landing,
    Answering(Sum),
}

impl Play {
    fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut aggregator = Aggregator::new(AggregatorConfig {
            deterministic: seed.is_multiple_of(3),
            defect,
            memory_bytes_max: 128,
            ..config()
        });
        aggregator.handle_view(Time::ZERO, &view(WORKERS, 1, Phase::Running));
        let progress = || Place { round: 0, exchange: None, landing_begun: false };
        let worker = || Worker { number: 1, parts: (0..PARTS).map(|_| progress()).collect() };
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            aggregator,
            now: Time::ZERO,
            number: 1,
            op: if seed.is_multiple_of(2) { Op::Sum } else { Op::WeightedMean },
            bodies: BTreeMap::new(),
            slots: BTreeMap::new(),
            workers: (0..WORKERS).map(|_| worker()).collect(),
            under_way: BTreeMap::new(),
            exchanges: 0,
        }
    }

    /// Runs to the end or to the first violation.
    fn run(mut self) -> Verdict {
        for _ in 0..20_000 {
            if self.workers.iter().all(|worker| worker.parts.iter().all(|part| part.round == ROUNDS)) {
                return self.end();
            }
            self.step()?;
        }
        Err("the workers do not get on".to_owned())
    }

    /// Something happens to some worker's exchange, or a worker begins one.
    fn step(&mut self) -> Verdict {
        if self.below(60) == 0 && self.number < 4 {
            self.number += 1;
            self.aggregator.handle_view(self.now, &view(WORKERS, self.number, Phase::Running));
        }
        let (rank, part) = (self.below(WORKERS), self.below(PARTS));
        let count = u32::try_from(self.under_way.len()).unwrap();
        if count == 0 || self.below(4) == 0 {
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
        let reconnects = self.below(5) == 0;
        let forgets_view = self.below(3) == 0;
        let worker = &mut self.workers[rank as usize];
        let progress = &mut worker.parts[part as usize];
        if progress.round == ROUNDS || (progress.exchange.is_some() && !reconnects) {
            return;
        }
        if !forgets_view {
            worker.number = self.number;
        }
        self.exchanges += 1;
        let exchange = ExchangeId(self.exchanges);
        progress.exchange = Some(exchange);
        let flags = if progress.landing_begun { Flags::NO_BODY.with(Flags::PULL_ONLY) } else { Flags::default() };
        let header = Header {
            flags,
            epoch: Epoch { term: 1, number: worker.number },
            part: PartId { key: TensorKey(1), index: part },
            op: self.op,
            weight: f64::from(rank + 1),
            ..header(progress.round)
        };
        let stale = worker.number < self.number;
        self.under_way.insert(exchange, UnderWay { rank, part, header, stale, stage: Stage::Opened });
        self.aggregator.handle_opened(self.now, node(rank), exchange, &header);
    }

    fn advance(&mut self, exchange: ExchangeId) -> Verdict {
        let torn = self.below(6) == 0;
        let (checksum_ok, begun) = (self.below(20) != 0, self.below(2) == 0);
        let UnderWay { rank, part, header, stage, .. } = &mut self.under_way.get_mut(&exchange).unwrap();
        let (rank, part, header) = (*rank, *part, *header);
        let progress = &mut self.workers[rank as usize].parts[part as usize];
        let listens = progress.exchange == Some(exchange);
        if torn {
            if listens {
                progress.exchange = None;
                progress.landing_begun |= begun && matches!(stage, Stage::Answering(_));
            }
            self.under_way.remove(&exchange);
            self.aggregator.handle_torn(self.now, exchange);
            return Ok(());
        }
        match stage {
            Stage::Opened => {}
            Stage::Landing => {
                *stage = Stage::Opened;
                let slot = SlotId { part: header.part, round: header.round };
                self.bodies.insert(exchange, Body { rank, slot });
                self.aggregator.handle_landed(self.now, exchange, checksum_ok);
            }
            Stage::Answering(sum) => {
                let sum = sum.clone();
                if listens {
                    *progress = Place { round: header.round.0 + 1, exchange: None, landing_begun: false };
                }
                self.under_way.remove(&exchange);
                self.aggregator.handle_answered(self.now, exchange);
                self.check(&sum)?;
            }
        }
        Ok(())
    }

    fn check(&self, sum: &Sum) -> Verdict {
        let divisor = if self.op == Op::Sum { 1.0 } else { 6.0 };
        if sum.digits != EVERY_DIGIT_ONE || sum.strangers || sum.divisor != divisor {
            return Err(format!("digits {:b}, strangers {}, divisor {}", sum.digits, sum.strangers, sum.divisor));
        }
        Ok(())
    }

    /// The driver.
    fn obey(&mut self) -> Verdict {
        while let Some(command) = self.aggregator.next_command() {
            match command {
                Command::Land { exchange, .. } => {
                    if let Some(under_way) = self.under_way.get_mut(&exchange) {
                        under_way.stage = Stage::Landing;
                    }
                }
                Command::Start { slot, exchange, .. } => {
                    if self.slots.insert(slot, Sum::default()).is_some() {
                        return Err(format!("{slot:?} started twice"));
                    }
                    self.add(slot, exchange)?;
                }
                Command::Add { slot, exchange, .. } => self.add(slot, exchange)?,
                Command::Publish { slot, divisor } => {
                    let sum = self.slots.get_mut(&slot).ok_or("published before it was started")?;
                    (sum.divisor, sum.frozen) = (divisor, true);
                }
                Command::Answer { slot, exchange, header } => {
                    let sum = self.slots.get(&slot).ok_or("answered from a slot that is gone")?.clone();
                    let under_way = self.under_way.get_mut(&exchange).ok_or("answered an exchange that had ended")?;
                    if under_way.stale || header.round != under_way.header.round {
                        return Err("answered a push of a past membership, or with another round".to_owned());
                    }
                    let wrong_round = slot.round != header.round;
                    under_way.stage = Stage::Answering(Sum { strangers: sum.strangers || wrong_round, ..sum });
                }
                Command::Reject { exchange, error, .. } => {
                    let under_way = self.under_way.remove(&exchange).ok_or("rejected an exchange that had ended")?;
                    let progress = &mut self.workers[under_way.rank as usize].parts[under_way.part as usize];
                    let listens = progress.exchange == Some(exchange);
                    if listens {
                        progress.exchange = None;
                    }
                    let expected = error.retryable() || matches!(error, Error::Checksum { .. } | Error::Fenced { .. });
                    if listens && !expected {
                        return Err(format!("rejected: {error}"));
                    }
                }
                Command::Discard { exchange } => {
                    self.bodies.remove(&exchange);
                }
                Command::Drop { slot } => {
                    self.slots.remove(&slot).ok_or("dropped a slot that is gone")?;
                }
                Command::Stalled { .. } => return Err("stalled though no time passed".to_owned()),
            }
        }
        Ok(())
    }

    fn add(&mut self, slot: SlotId, exchange: ExchangeId) -> Verdict {
        let body = self.bodies.remove(&exchange).ok_or("added a body that is not there")?;
        let sum = self.slots.get_mut(&slot).ok_or("added to a slot that was not started")?;
        if sum.frozen {
            return Err("added to a published sum".to_owned());
        }
        sum.digits += 4_u64.pow(body.rank);
        sum.strangers |= body.slot != slot;
        Ok(())
    }

    fn check_nobody_forgotten(&self) -> Verdict {
        let forgotten = self.under_way.values().find(|under_way| {
            let slot = SlotId { part: under_way.header.part, round: under_way.header.round };
            let answering = matches!(under_way.stage, Stage::Answering(_));
            !answering && self.slots.get(&slot).is_some_and(|sum| sum.frozen)
        });
        forgotten.map_or(Ok(()), |under_way| Err(format!("worker {} waits for a sum that exists", under_way.rank)))
    }

    /// All workers have all sums; what is still under way are exchanges they had given up.
    fn end(mut self) -> Verdict {
        let left: Vec<ExchangeId> = std::mem::take(&mut self.under_way).into_keys().collect();
        for exchange in left {
            self.aggregator.handle_torn(self.now, exchange);
        }
        self.obey()?;
        if self.bodies.is_empty() && self.aggregator.exchanges.is_empty() && self.slots.len() == PARTS as usize {
            return Ok(());
        }
        Err("bodies, exchanges or sums are left over".to_owned())
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.random >> 33).expect("31 bits") % limit
    }
}
