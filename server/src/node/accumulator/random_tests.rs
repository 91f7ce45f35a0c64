//! Contributions in random pieces, broken off anywhere, begun anew with a front that the sum has overwritten, from one seed.
//!
//! Rank r contributes `4^r`, so that the base-4 digits of each element of the sum are the counts of the ranks.

use gradlane_core::codec::Workspace;
use gradlane_core::codec::testing::SEED;
use gradlane_core::types::{CodecSpec, DType, Op};
use gradlane_core::wire::Body;

use super::*;
use crate::node::command::Order;

const WORKERS: u32 = 3;
const EVERY_DIGIT_ONE: u8 = 0b01_01_01;

#[test]
fn every_byte_of_every_contribution_is_added_once() {
    for seed in 0..2000 {
        assert_eq!(Play::new(seed, None).run(), Ok(()), "seed {seed}");
    }
}

#[cfg(feature = "testing")]
#[test]
fn every_planted_defect_shows() {
    for defect in [Defect::PrefixIgnored, Defect::BlockSentEarly, Defect::ResumedGarbage] {
        let shows = |seed| Play::new(seed, Some(defect)).run().is_err();
        assert!((0..300).any(shows), "{defect:?}");
    }
}

/// Fine so far, or what was violated.
type Verdict = std::result::Result<(), String>;

struct Play {
    random: u64,
    sum: Accumulator,
    bytes: u64,
    size: u64,
    workers: Vec<Worker>,
    exchanges: u64,
    published: bool,
}

#[derive(Clone, Default)]
struct Worker {
    exchange: Option<ExchangeId>,
    /// Bytes that its exchange has carried.
    sent: u64,
    /// Bytes of its memory that the sum has overwritten.
    landed: u64,
    whole: bool,
}

impl Play {
    fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let dtype = [DType::U8, DType::I32, DType::I64][below(&mut random, 3) as usize];
        let bytes = below(&mut random, 40) * dtype.bytes();
        let order = if below(&mut random, 3) == 0 { Order::Rank } else { Order::Arrival };
        let resources =
            SumResources { kernels: Kernels::portable(), pool: Pool::new(), copies: Copies::default(), defect };
        let senders = (0..WORKERS).map(WorkerId).collect();
        let spec = SumSpec { bytes, dtype, codec: CodecSpec::PLAIN, op: Op::Sum, senders, order, block_bytes: 24 };
        Self {
            random,
            sum: Accumulator::new(resources, spec, SEED()),
            bytes,
            size: dtype.bytes(),
            workers: vec![Worker { whole: bytes == 0, ..Worker::default() }; WORKERS as usize],
            exchanges: 0,
            published: false,
        }
    }

    fn run(mut self) -> Verdict {
        while !self.workers.iter().all(|worker| worker.whole) {
            let rank = self.below(u64::from(WORKERS)) as u32;
            match self.below(8) {
                0 => self.workers[rank as usize].exchange = None,
                1 => self.land(rank),
                _ => self.send(rank)?,
            }
            if !self.published && self.workers.iter().all(|worker| worker.exchange.is_some()) {
                self.published = true;
                self.sum.publish(1.0, None, &mut Workspace::default());
            }
            self.check()?;
        }
        self.sum.publish(1.0, None, &mut Workspace::default());
        self.sum.seal();
        self.check()?;
        if self.sum.is_complete() { Ok(()) } else { Err("is not complete".to_owned()) }
    }

    /// The next bytes of a contribution, or the first of an exchange.
    fn send(&mut self, rank: u32) -> Verdict {
        let id = WorkerId(rank);
        let worker = &mut self.workers[rank as usize];
        let Some(exchange) = worker.exchange else {
            self.exchanges += 1;
            (worker.exchange, worker.sent) = (Some(ExchangeId(self.exchanges)), 0);
            let upload = Upload { body: Body::plain(0), weight: 1.0, checksum: None, landed: worker.landed };
            let receipt = self.sum.begin(id, ExchangeId(self.exchanges), upload);
            if receipt == Some(Receipt::Lost) {
                return Err("a byte of the sum left before a prefix had passed it".to_owned());
            }
            return Ok(());
        };
        let (at, landed) = (worker.sent, worker.landed);
        let run = (below(&mut self.random, 30) + 1).min(self.bytes - at);
        let worker = &mut self.workers[rank as usize];
        worker.sent += run;
        let chunk: Vec<u8> = (at..at + run)
            .map(|place| match place {
                place if place < landed => 0xff,
                place if place.is_multiple_of(self.size) => 1 << (2 * rank),
                _ => 0,
            })
            .collect();
        if run > 0 {
            worker.whole |= self.sum.receive(id, exchange, &[chunk], &mut Workspace::default()) == Some(Receipt::Whole);
        }
        Ok(())
    }

    /// Bytes of the sum arrive at a worker whose exchange has carried its whole contribution, and overwrite it.
    fn land(&mut self, rank: u32) {
        let ready: u64 = self.sum.ready().map(|block| block.len() as u64).sum();
        let most = below(&mut self.random, ready + 1);
        let worker = &mut self.workers[rank as usize];
        worker.landed = worker.landed.max(most);
    }

    /// What may be sent has every rank once.
    fn check(&self) -> Verdict {
        let ready = self.sum.ready().flat_map(|block| block.to_vec());
        for (place, byte) in (0..).zip(ready) {
            let due = if u64::is_multiple_of(place, self.size) { EVERY_DIGIT_ONE } else { 0 };
            if byte != due {
                return Err(format!("byte {place} is {byte:b}"));
            }
        }
        Ok(())
    }

    fn below(&mut self, limit: u64) -> u64 {
        below(&mut self.random, limit)
    }
}

fn below(random: &mut u64, limit: u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) % limit
}
