//! Which blocks go to whom.

use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{CodecSpec, DType, Op};
use gradlane_core::wire::Body;

use super::*;
use crate::node::aggregate::tests::{slot, sum};
use crate::node::command::{Order, SumSpec, Upload};

#[test]
fn all_who_listen_get_every_block_as_soon_as_it_is_complete() {
    let mut play = Play::new(&[0]);
    play.step(Step::Publish { divisor: 1.0, residual: None });
    play.answer(0);
    play.receive(0, &[1; 20]);
    play.answer(1);
    assert_eq!(play.sent(), ["answer 0", "block 0", "answer 1", "block 1"]);
    play.receive(0, &[1; 20]);
    assert_eq!(play.sent(), ["block 0", "block 1"]);
    play.step(Step::Seal);
    assert_eq!(play.sent(), ["block 0", "block 1", "end 0", "end 1"]);
}

#[test]
fn a_worker_that_asks_again_gets_the_sum_from_its_first_block_on_its_new_exchange_only() {
    let mut play = Play::new(&[0]);
    play.step(Step::Publish { divisor: 1.0, residual: None });
    play.answer(0);
    play.receive(0, &[1; 20]);
    play.step(Step::Answer { worker: WorkerId(0), exchange: ExchangeId(7), header: sum(0) });
    play.receive(0, &[1; 20]);
    assert_eq!(play.sent(), ["answer 0", "block 0", "answer 7", "block 7", "block 7"]);
}

#[test]
fn a_sum_is_sent_again_while_it_is_kept() {
    let mut play = Play::new(&[0]);
    play.receive(0, &[1; 40]);
    play.step(Step::Publish { divisor: 1.0, residual: None });
    play.step(Step::Seal);
    play.answer(1);
    assert_eq!(play.sent(), ["answer 1", "block 1", "block 1", "block 1", "end 1"]);
}

#[test]
fn a_sum_that_was_lost_is_an_error_and_not_a_silence() {
    let mut play = Play::new(&[0]);
    play.step(Step::Publish { divisor: 1.0, residual: None });
    play.answer(0);
    let mut events = Vec::new();
    play.sums.lose_all(&mut |event| events.push(event));
    play.events.extend(events);
    play.answer(1);
    assert_eq!(play.sent(), ["answer 0", "reject 0", "reject 1"]);
}

#[test]
fn bytes_for_a_sum_that_is_gone_are_dropped() {
    let mut play = Play::new(&[0]);
    play.step(Step::Drop);
    play.receive(0, &[1; 40]);
    assert!(play.sent().is_empty() && play.sums.is_empty());
}

/// A sum of 40 bytes in blocks of 16, of workers that have begun.
struct Play {
    sums: Sums,
    events: Vec<Event>,
}

impl Play {
    fn new(senders: &[u32]) -> Self {
        let pool = Pool::new();
        let resources = SumResources { kernels: Kernels::portable(), pool, copies: Copies::default(), defect: None };
        let mut play = Self { sums: Sums::new(resources), events: Vec::new() };
        let senders: Vec<WorkerId> = senders.iter().copied().map(WorkerId).collect();
        let (dtype, codec, order) = (DType::U8, CodecSpec::PLAIN, Order::Arrival);
        let spec = SumSpec { bytes: 40, dtype, codec, op: Op::Sum, senders: senders.clone(), order, block_bytes: 16 };
        play.step(Step::Begin(spec));
        for worker in senders {
            let upload = Upload { body: Body::plain(0), weight: 1.0, checksum: None, landed: 0 };
            play.step(Step::Receive { worker, exchange: ExchangeId(u64::from(worker.0)), upload });
        }
        play
    }

    fn step(&mut self, step: Step) {
        let events = &mut self.events;
        self.sums.step(slot(0), step, &mut |event| events.push(event));
    }

    fn answer(&mut self, rank: u32) {
        let exchange = ExchangeId(u64::from(rank));
        self.step(Step::Answer { worker: WorkerId(rank), exchange, header: sum(0) });
    }

    fn receive(&mut self, rank: u32, chunk: &[u8]) {
        let events = &mut self.events;
        let exchange = ExchangeId(u64::from(rank));
        self.sums.receive(slot(0), WorkerId(rank), exchange, &[chunk], &mut |event| events.push(event));
    }

    /// What was sent since the last call, and to which exchange.
    fn sent(&mut self) -> Vec<String> {
        let sent = |event| match event {
            Event::Send(Outgoing::Answer { exchange, .. }) => Some(format!("answer {}", exchange.0)),
            Event::Send(Outgoing::Block { exchange, .. }) => Some(format!("block {}", exchange.0)),
            Event::Send(Outgoing::End { exchange, .. }) => Some(format!("end {}", exchange.0)),
            Event::Send(Outgoing::Reject { exchange, .. }) => Some(format!("reject {}", exchange.0)),
            Event::Send(other) => panic!("{other:?}"),
            Event::Receipt { .. }
            | Event::Squares { .. }
            | Event::Served(_)
            | Event::Waits(_)
            | Event::Frozen { .. } => None,
        };
        std::mem::take(&mut self.events).into_iter().filter_map(sent).collect()
    }
}
