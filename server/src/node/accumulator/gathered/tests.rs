//! Sums of parts of 16 f32 whose codec sends the largest quarter.

use gradlane_core::codec::testing::{SEED, encoded};
use gradlane_core::mem::{Copies, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{CodecSpec, DType, Op};

use super::*;

#[test]
fn contributions_of_any_length_are_added_and_the_sum_has_the_entries_of_all() {
    for chunk in [1, 3, 100] {
        let mut sum = Sum::new(Order::Arrival, 2);
        for (rank, body) in [sparse(&[(0, 4.0), (9, 1.0)]), sparse(&[(9, 2.0)])].into_iter().enumerate() {
            let exchange = sum.begin(rank, &body, false);
            let receipts: Vec<_> = body.chunks(chunk).map(|chunk| sum.feed(rank, exchange, chunk)).collect();
            let (last, before) = receipts.split_last().unwrap();
            assert!(*last == Some(Receipt::Whole) && before.iter().all(Option::is_none), "{receipts:?}");
        }
        assert_eq!(sum.finish(1.0), (sparse(&[(0, 4.0), (9, 3.0)]), false), "chunks of {chunk} bytes");
    }
}

#[test]
fn nothing_may_be_sent_before_all_contributions_are_whole_and_the_round_has_its_sum() {
    let mut sum = Sum::new(Order::Arrival, 1);
    sum.sum.publish(1.0, None, &mut Workspace::default());
    let body = sparse(&[(1, 1.0)]);
    let exchange = sum.begin(0, &body, false);
    sum.feed(0, exchange, &body[..3]);
    assert!(sum.sum.ready().is_empty() && sum.sum.body().is_none());
    sum.feed(0, exchange, &body[3..]);
    assert!(sum.sum.ready().is_empty() && sum.sum.body().is_none());
    sum.sum.seal();
    assert_eq!(sum.sum.body().map(|body| body.bytes), Some(6));
}

#[test]
fn what_was_refused_is_added_plain_and_a_sum_that_is_refused_is_sent_plain() {
    for order in [Order::Arrival, Order::Rank] {
        let mut sum = Sum::new(order, 2);
        let mut plain = [1.0; LEN];
        plain[3] = f32::NAN;
        sum.whole(0, &floats(&plain), true);
        sum.whole(1, &sparse(&[(5, 3.0)]), false);
        let (body, refused) = sum.finish(2.0);
        assert!(refused && body.len() == 4 * LEN, "{order:?}");
        let found: Vec<f32> = body.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect();
        assert!(found[3].is_nan());
        plain[5] = 4.0;
        assert!((0..LEN).filter(|at| *at != 3).all(|at| found[at] == plain[at] / 2.0), "{order:?}: {found:?}");
    }
}

#[test]
fn in_rank_order_the_sum_has_the_same_bits_whatever_comes_first() {
    let values = [1e30_f32, -1e30, 1.0];
    let sums = [[0, 1, 2], [2, 1, 0], [1, 2, 0]].map(|ranks: [usize; 3]| {
        let mut sum = Sum::new(Order::Rank, 3);
        ranks.into_iter().for_each(|rank| sum.whole(rank, &sparse(&[(7, values[rank])]), false));
        sum.finish(1.0).0
    });
    assert!(sums.iter().all(|sum| *sum == sparse(&[(7, 1.0)])), "{sums:?}");
}

#[test]
fn a_repeat_goes_on_where_the_last_exchange_broke_off() {
    let mut sum = Sum::new(Order::Arrival, 1);
    let body = sparse(&[(1, 1.0), (2, 2.0), (3, 3.0)]);
    let first = sum.begin(0, &body, false);
    sum.feed(0, first, &body[..4]);
    let second = sum.begin(0, &body, false);
    assert_eq!(sum.feed(0, first, &body[4..]), None, "an older exchange brings nothing");
    // What was taken already is skipped, whatever it is now.
    let again = [&[0xff; 4], &body[4..]].concat();
    assert_eq!(sum.feed(0, second, &again), Some(Receipt::Whole));
    let third = sum.sum.begin(WorkerId(0), ExchangeId(9), Upload { landed: 2, ..sum.upload(&body, false) });
    assert_eq!(third, Some(Receipt::Whole), "nothing more is needed, so overwritten bytes do no harm");
    assert_eq!(sum.finish(1.0).0, body);
}

#[test]
fn overwritten_bytes_that_were_not_taken_are_lost() {
    let mut sum = Sum::new(Order::Arrival, 1);
    let upload = Upload { landed: 1, ..sum.upload(&sparse(&[(1, 1.0)]), false) };
    assert_eq!(sum.sum.begin(WorkerId(0), ExchangeId(1), upload), Some(Receipt::Lost));
}

#[test]
fn a_body_that_no_encoder_makes_or_of_another_checksum_is_damaged_and_not_added() {
    let mut sum = Sum::new(Order::Rank, 2);
    let broken = [&[1, 16][..], &1.0_f32.to_le_bytes()].concat();
    let exchange = sum.begin(1, &broken, false);
    assert_eq!(sum.feed(1, exchange, &broken), Some(Receipt::Damaged), "before its turn comes");
    let body = sparse(&[(1, 1.0)]);
    let upload = Upload { checksum: Some(1), ..sum.upload(&body, false) };
    sum.sum.begin(WorkerId(0), ExchangeId(5), upload);
    assert_eq!(sum.feed(0, ExchangeId(5), &body), Some(Receipt::Damaged));
    assert_eq!(sum.sum.added, 0);
}

#[test]
fn a_sum_leaves_in_blocks_and_its_checksum_is_that_of_all_of_them() {
    let mut sum = Sum::new(Order::Arrival, 1);
    let body = sparse(&[(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]);
    sum.whole(0, &body, false);
    let (found, _) = sum.finish(1.0);
    assert_eq!((sum.sum.ready().len(), sum.sum.checksum()), (2, checksum(0, &found)));
    assert!(sum.sum.sum.is_none(), "only the blocks are left");
}

#[test]
fn what_an_answer_loses_comes_with_the_answers_of_later_rounds() {
    let spec: CodecSpec = "dithering:s=2,feedback=1".parse().unwrap();
    let given: Vec<f32> = (0..LEN).map(|at| (at as f32 - 7.5) / 10.0).collect();
    let read =
        |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect() };
    let (mut residual, mut delivered) = (Residual::default(), [0.0; LEN]);
    for round in 1..=40 {
        let mut sum = Sum::of(spec, Order::Arrival, 1);
        sum.whole(0, &floats(&given), true);
        sum.sum.publish(1.0, Some((residual, Start::Kept)), &mut Workspace::default());
        residual = sum.sum.seal().unwrap();
        let (body, refused) = sum.answer();
        assert!(!refused);
        let mut elements = [0; 4 * LEN];
        codec::of(spec, DType::F32).unwrap().decode(Kernels::portable(), &body, &mut elements).unwrap();
        delivered.iter_mut().zip(read(&elements)).for_each(|(all, element)| *all += element);
        for (all, given) in delivered.iter().zip(&given) {
            // An answer is off by less than half of the largest wanted element: the largest given one and what is left of it.
            assert!((all - round as f32 * given).abs() < 0.76, "round {round}: {all} of {given} a round");
        }
    }
    // A sum that is refused travels as it is, and what was lost is still due.
    let before = residual.clone();
    let broken = [f32::NAN; LEN];
    let mut sum = Sum::of(spec, Order::Arrival, 1);
    sum.whole(0, &floats(&broken), true);
    sum.sum.publish(1.0, Some((residual, Start::Kept)), &mut Workspace::default());
    assert_eq!(sum.sum.seal(), Some(before));
    let (body, refused) = sum.answer();
    assert!(refused && read(&body).iter().all(|element| element.is_nan()));
}

const LEN: usize = 16;

struct Sum {
    sum: Gathered,
    exchanges: u64,
}

impl Sum {
    fn new(order: Order, senders: u32) -> Self {
        Self::of(codec(), order, senders)
    }

    fn of(codec: CodecSpec, order: Order, senders: u32) -> Self {
        let resources =
            SumResources { kernels: Kernels::portable(), pool: Pool::new(), copies: Copies::default(), defect: None };
        let spec = SumSpec {
            bytes: 4 * LEN as u64,
            dtype: DType::F32,
            codec,
            op: Op::Mean,
            senders: (0..senders).map(WorkerId).collect(),
            order,
            block_bytes: 16,
        };
        Self { sum: Gathered::new(resources, spec, SEED()), exchanges: 0 }
    }

    fn upload(&self, body: &[u8], refused: bool) -> Upload {
        let body = Body { bytes: body.len() as u64, codec: codec(), refused };
        Upload { body, weight: 1.0, checksum: None, landed: 0 }
    }

    fn begin(&mut self, rank: usize, body: &[u8], refused: bool) -> ExchangeId {
        self.exchanges += 1;
        let (exchange, upload) = (ExchangeId(self.exchanges), self.upload(body, refused));
        self.sum.begin(WorkerId(rank as u32), exchange, upload);
        exchange
    }

    fn feed(&mut self, rank: usize, exchange: ExchangeId, chunk: &[u8]) -> Option<Receipt> {
        self.sum.receive(WorkerId(rank as u32), exchange, &[chunk], &mut Workspace::default())
    }

    fn whole(&mut self, rank: usize, body: &[u8], refused: bool) {
        let exchange = self.begin(rank, body, refused);
        assert_eq!(self.feed(rank, exchange, body), Some(Receipt::Whole));
    }

    /// What travels of the sum, and whether it is plain.
    fn finish(&mut self, divisor: f64) -> (Vec<u8>, bool) {
        self.sum.publish(divisor, None, &mut Workspace::default());
        self.sum.seal();
        self.answer()
    }

    /// What travels of a sum that is sealed, and whether it is plain.
    fn answer(&self) -> (Vec<u8>, bool) {
        let bytes = self.sum.ready().iter().flat_map(|block| block.to_vec()).collect::<Vec<u8>>();
        let body = self.sum.body().unwrap();
        assert_eq!(body.bytes, bytes.len() as u64);
        (bytes, body.refused)
    }
}

fn codec() -> CodecSpec {
    "topk:k=250000".parse().unwrap()
}

/// The wire form of a part with these elements; the others are zero.
fn sparse(entries: &[(usize, f32)]) -> Vec<u8> {
    let mut values = [0.0; LEN];
    entries.iter().for_each(|(index, value)| values[*index] = *value);
    let made = codec::of(codec(), DType::F32).unwrap();
    encoded(&*made, Kernels::portable(), 1.0, &floats(&values), LEN as u64).unwrap()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
