//! What a sum in the making does with bytes, one behaviour a test. Blocks hold 16 bytes.

use gradlane_core::codec::Workspace;
use gradlane_core::codec::testing::{SEED, encoded};
use gradlane_core::types::{CodecSpec, DType, Op};
use gradlane_core::wire::Body;

use super::*;
use crate::node::command::Order;

mod summing {
    use super::*;

    #[test]
    fn contributions_are_added_and_divided() {
        let mut sum = Growing::of(Op::Mean, DType::F32, 8, 2);
        sum.whole(0, &f32s(&[1.0, 2.0]));
        sum.whole(1, &f32s(&[5.0, 8.0]));
        assert_eq!(sum.finish(2.0), f32s(&[3.0, 5.0]));
    }

    #[test]
    fn contributions_are_weighted() {
        let mut sum = Growing::of(Op::WeightedMean, DType::F32, 4, 2);
        sum.begin(0, Upload { weight: 3.0, ..PLAIN });
        sum.feed(0, &f32s(&[1.0]));
        sum.whole(1, &f32s(&[9.0]));
        assert_eq!(sum.finish(4.0), f32s(&[3.0]));
    }

    #[test]
    fn half_size_floats_are_rounded_once() {
        // 256 has no neighbour closer than 2 in bfloat16: added in it, three times 1 would be lost each time.
        let mut sum = Growing::of(Op::Sum, DType::BF16, 2, 5);
        for (rank, value) in (0..).zip([256.0, 1.0, 1.0, 1.0, 1.0]) {
            sum.whole(rank, &bf16s(value));
        }
        assert_eq!(sum.finish(1.0), bf16s(260.0));
    }

    #[test]
    fn what_a_codec_narrowed_is_added_in_f32_and_rounded_once() {
        for (codec, ones) in [(CodecSpec::F16, 2048.0), (CodecSpec::BF16, 256.0)] {
            for dtype in [DType::F32, DType::F64] {
                // The next number of this type is 2 further.
                let mut sum = Growing::encoded(codec, (Op::Sum, dtype, dtype.bytes()), 5, Order::Arrival);
                for (rank, value) in (0..).zip([ones, 1.0, 1.0, 1.0, 1.0]) {
                    sum.whole(rank, &narrow(codec, value));
                }
                assert_eq!(sum.finish(1.0), narrow(codec, ones + 4.0), "{codec} of {dtype}");
            }
        }
    }

    #[test]
    fn what_a_machine_divided_its_sum_by_is_its_weight() {
        for (op, divisor, expected) in [(Op::Sum, 1.0, 25.0), (Op::Mean, 5.0, 5.0), (Op::Max, 1.0, 5.0)] {
            let mut sum = Growing::encoded(CodecSpec::F16, (op, DType::F32, 4), 2, Order::Arrival);
            let weight = if op == Op::Max { 1.0 } else { 4.0 };
            sum.begin(0, Upload { weight, ..PLAIN });
            sum.feed(0, &narrow(CodecSpec::F16, 5.0));
            sum.whole(1, &narrow(CodecSpec::F16, 5.0));
            assert_eq!(sum.finish(divisor), narrow(CodecSpec::F16, expected), "{op}");
        }
    }

    #[test]
    fn units_of_a_codec_may_be_cut_anywhere_and_the_last_one_may_be_shorter() {
        for chunk in 1..12 {
            let mut sum = Growing::in_blocks(40, 2);
            let body = |scale: f32| {
                let block = |len: usize| [&scale.to_le_bytes()[..], &[127], &vec![3; len - 1]].concat();
                [block(32), block(8)].concat()
            };
            for rank in 0..2 {
                sum.begin(rank, PLAIN);
                body(1.0).chunks(chunk).for_each(|chunk| sum.feed(rank, chunk));
            }
            assert_eq!(sum.finish(1.0), body(2.0), "chunks of {chunk} bytes");
        }
    }

    #[test]
    fn a_body_that_is_no_wire_form_counts_as_damaged() {
        let mut sum = Growing::in_blocks(1, 1);
        let exchange = sum.begin(0, PLAIN);
        let negative_scale = [&(-1.0_f32).to_le_bytes()[..], &[1]].concat();
        assert_eq!(sum.receive(0, exchange, &[negative_scale]), Some(Receipt::Damaged));
    }

    #[test]
    fn a_broadcast_keeps_every_bit() {
        // A signalling NaN of f16, which a conversion to f32 and back would quieten.
        let mut sum = Growing::of(Op::Broadcast { root: WorkerId(0) }, DType::F16, 2, 1);
        sum.whole(0, &[0x01, 0x7c]);
        assert_eq!(sum.finish(1.0), [0x01, 0x7c]);
    }

    #[test]
    fn a_sum_of_nothing_is_nothing() {
        for dtype in DType::ALL {
            let mut sum = Growing::of(Op::Sum, dtype, 0, 2);
            assert!(sum.finish(1.0).is_empty());
        }
    }

    #[test]
    fn chunks_may_be_cut_within_an_element() {
        let mut sum = Growing::of(Op::Sum, DType::I64, 40, 2);
        let (one, two): (Vec<u8>, Vec<u8>) = (i64s(0, 5), i64s(10, 5));
        sum.begin(0, PLAIN);
        one.chunks(3).for_each(|chunk| sum.feed(0, chunk));
        sum.begin(1, PLAIN);
        two.chunks(7).for_each(|chunk| sum.feed(1, chunk));
        assert_eq!(sum.finish(1.0), [10_i64, 12, 14, 16, 18].map(i64::to_le_bytes).concat());
    }

    #[test]
    fn the_sum_tells_its_checksum() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 40, 1);
        sum.whole(0, &[7; 40]);
        sum.finish(1.0);
        assert!(sum.sum.is_complete());
        assert_eq!(sum.sum.checksum(), checksum(0, &[7; 40]));
    }

    #[test]
    fn memory_is_taken_as_bytes_come_and_given_back_at_the_end() {
        let mut sum = Growing::of(Op::Sum, DType::F32, 64, 2);
        assert_eq!(sum.pool.bytes_in_use(), 0);
        sum.begin(0, PLAIN);
        sum.feed(0, &[0; 20]);
        assert_eq!(sum.pool.bytes_in_use(), 2 * 1024, "two blocks, in the smallest size class");
        let pool = sum.pool.clone();
        drop(sum);
        assert_eq!(pool.bytes_in_use(), 0);
    }
}

mod flowing {
    use super::*;

    #[test]
    fn a_block_is_ready_when_every_contribution_has_passed_it() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 48, 2);
        sum.publish(1.0);
        sum.whole(0, &[1; 48]);
        assert_eq!(sum.ready(), 0);
        sum.begin(1, PLAIN);
        sum.feed(1, &[2; 15]);
        assert_eq!(sum.ready(), 0);
        sum.feed(1, &[2; 2]);
        assert_eq!(sum.ready(), 1);
        assert_eq!(**sum.sum.ready().next().unwrap(), [3; 16]);
    }

    #[test]
    fn nothing_is_ready_before_the_divisor_is_known() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 48, 1);
        sum.whole(0, &[1; 48]);
        assert_eq!(sum.ready(), 0);
        sum.publish(1.0);
        assert_eq!(sum.ready(), 2);
    }

    #[test]
    fn the_last_block_waits_until_the_sum_is_sealed() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 33, 1);
        sum.publish(1.0);
        sum.whole(0, &[1; 33]);
        assert_eq!((sum.ready(), sum.sum.is_complete()), (2, false));
        sum.sum.seal();
        assert_eq!(sum.ready(), 3);
        assert!(sum.sum.is_complete());
    }

    #[test]
    fn a_sealed_sum_is_incomplete_while_bytes_are_missing() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 33, 1);
        sum.publish(1.0);
        sum.sum.seal();
        sum.begin(0, PLAIN);
        sum.feed(0, &[1; 32]);
        assert_eq!((sum.ready(), sum.sum.is_complete()), (2, false));
    }
}

mod repeating {
    use super::*;

    #[test]
    fn a_repeat_continues_where_the_first_attempt_broke_off() {
        let mut sum = Growing::of(Op::Sum, DType::F32, 32, 1);
        let body = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        sum.begin(0, PLAIN);
        // Broken within an element.
        sum.feed(0, &body[..18]);
        sum.whole(0, &body);
        assert_eq!(sum.finish(1.0), body);
    }

    #[test]
    fn a_repeat_may_break_off_before_it_comes_to_anything_new() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 32, 1);
        sum.begin(0, PLAIN);
        sum.feed(0, &[1; 20]);
        sum.begin(0, PLAIN);
        sum.feed(0, &[1; 10]);
        sum.whole(0, &[1; 32]);
        assert_eq!(sum.finish(1.0), [1; 32]);
    }

    #[test]
    fn an_exchange_that_was_followed_by_another_brings_nothing_more() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 4, 1);
        let old = sum.begin(0, PLAIN);
        sum.begin(0, PLAIN);
        assert_eq!(sum.receive(0, old, &[[9_u8; 4]]), None);
        sum.feed(0, &[1; 4]);
        assert_eq!(sum.finish(1.0), [1; 4]);
    }

    #[test]
    fn what_the_sum_has_overwritten_is_not_looked_at() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 40, 2);
        sum.publish(1.0);
        sum.whole(0, &[1; 40]);
        sum.begin(1, PLAIN);
        sum.feed(1, &[2; 20]);
        assert_eq!(sum.ready(), 1, "16 bytes of the sum may have landed");
        sum.begin(1, Upload { landed: 16, ..PLAIN });
        sum.feed(1, &[[3; 16].as_slice(), &[2; 24]].concat());
        assert_eq!(sum.finish(1.0), [3; 40]);
    }

    #[test]
    fn bytes_that_were_never_taken_and_are_overwritten_are_lost() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 40, 1);
        sum.begin(0, PLAIN);
        sum.feed(0, &[1; 7]);
        let exchange = ExchangeId(99);
        assert_eq!(sum.sum.begin(WorkerId(0), exchange, Upload { landed: 8, ..PLAIN }), Some(Receipt::Lost));
        assert_eq!(sum.receive(0, exchange, &[[9_u8; 40]]), None, "and what it brings is not added");
    }

    #[test]
    fn a_whole_contribution_is_acknowledged_to_every_repeat() {
        let mut sum = Growing::of(Op::Sum, DType::U8, 4, 1);
        sum.whole(0, &[1; 4]);
        assert_eq!(sum.sum.begin(WorkerId(0), ExchangeId(99), PLAIN), Some(Receipt::Whole));
        sum.receive(0, ExchangeId(99), &[[9_u8; 4]]);
        assert_eq!(sum.finish(1.0), [1; 4]);
    }
}

mod checking {
    use super::*;

    #[test]
    fn a_contribution_is_compared_with_what_was_announced() {
        for (announced, receipt) in [(checksum(0, &[1; 5]), Receipt::Whole), (1, Receipt::Damaged)] {
            let mut sum = Growing::of(Op::Sum, DType::U8, 5, 1);
            let exchange = sum.begin(0, Upload { checksum: Some(announced), ..PLAIN });
            assert_eq!(sum.receive(0, exchange, &[[1_u8; 3]]), None);
            assert_eq!(sum.receive(0, exchange, &[[1_u8; 2]]), Some(receipt));
        }
    }

    #[test]
    fn the_checksum_is_that_of_the_bytes_that_were_taken_whichever_exchange_brought_them() {
        let body: Vec<u8> = (0..40).collect();
        let upload = Upload { checksum: Some(checksum(0, &body)), ..PLAIN };
        let mut sum = Growing::of(Op::Sum, DType::U8, 40, 1);
        sum.begin(0, upload);
        sum.feed(0, &body[..20]);
        let exchange = sum.begin(0, Upload { landed: 16, ..upload });
        let overwritten = [&[0; 16], &body[16..]].concat();
        assert_eq!(sum.receive(0, exchange, &[&overwritten]), Some(Receipt::Whole));
    }
}

mod in_rank_order {
    use super::*;

    #[test]
    fn a_late_rank_waits_for_the_one_before_it() {
        let mut sum = Growing::ordered(DType::F32, 8, 3);
        // (a + b) + c is not a + (b + c): the order shows.
        let [a, b, c] = [1e8_f32, -1e8, 1.0];
        sum.whole(2, &f32s(&[c, c]));
        sum.whole(1, &f32s(&[b, b]));
        sum.whole(0, &f32s(&[a, a]));
        assert_eq!(sum.finish(1.0), f32s(&[(a + b) + c; 2]));
        assert_eq!(sum.copied(), 16, "two bodies that came too early");
    }

    #[test]
    fn nothing_is_copied_where_the_ranks_come_in_order() {
        let mut sum = Growing::ordered(DType::F32, 8, 2);
        sum.whole(0, &f32s(&[1.0, 2.0]));
        sum.whole(1, &f32s(&[1.0, 2.0]));
        assert_eq!(sum.copied(), 0);
    }

    #[test]
    fn a_rank_follows_the_one_before_it_block_by_block() {
        let mut sum = Growing::ordered(DType::U8, 48, 2);
        sum.publish(1.0);
        sum.whole(1, &[2; 48]);
        sum.begin(0, PLAIN);
        sum.feed(0, &[1; 17]);
        assert_eq!(sum.ready(), 1);
        sum.feed(0, &[1; 31]);
        assert_eq!(sum.finish(1.0), [3; 48]);
    }

    #[test]
    fn staged_bytes_are_not_asked_for_again() {
        let mut sum = Growing::ordered(DType::F32, 8, 2);
        sum.begin(1, PLAIN);
        sum.feed(1, &f32s(&[5.0, 6.0])[..6]);
        sum.whole(1, &f32s(&[5.0, 6.0]));
        sum.whole(0, &f32s(&[1.0, 2.0]));
        assert_eq!(sum.finish(1.0), f32s(&[6.0, 8.0]));
        assert_eq!(sum.copied(), 8);
    }
}

/// A sum and what feeds it.
struct Growing {
    sum: Accumulator,
    pool: Pool,
    exchanges: u64,
    latest: Vec<ExchangeId>,
    workspace: Workspace,
}

const PLAIN: Upload = Upload { body: Body::plain(0), weight: 1.0, checksum: None, landed: 0 };

impl Growing {
    fn of(op: Op, dtype: DType, bytes: u64, senders: u32) -> Self {
        Self::new(op, dtype, bytes, senders, Order::Arrival)
    }

    fn ordered(dtype: DType, bytes: u64, senders: u32) -> Self {
        Self::new(Op::Sum, dtype, bytes, senders, Order::Rank)
    }

    fn new(op: Op, dtype: DType, bytes: u64, senders: u32, order: Order) -> Self {
        Self::encoded(CodecSpec::PLAIN, (op, dtype, bytes), senders, order)
    }

    fn encoded(codec: CodecSpec, (op, dtype, bytes): (Op, DType, u64), senders: u32, order: Order) -> Self {
        let pool = Pool::new();
        let resources =
            SumResources { kernels: Kernels::detect(), pool: pool.clone(), copies: Copies::default(), defect: None };
        let senders: Vec<WorkerId> = (0..senders).map(WorkerId).collect();
        let latest = vec![ExchangeId(0); senders.len()];
        let spec = SumSpec { bytes, dtype, codec, op, senders, order, block_bytes: 16 };
        Self {
            sum: Accumulator::new(resources, spec, SEED()),
            workspace: Workspace::default(),
            pool,
            exchanges: 0,
            latest,
        }
    }

    /// A sum of f32 in units of 32 elements and their scale.
    fn in_blocks(len: u64, senders: u32) -> Self {
        Self::encoded("int8:block=32".parse().unwrap(), (Op::Sum, DType::F32, 4 * len), senders, Order::Arrival)
    }

    fn begin(&mut self, rank: u32, upload: Upload) -> ExchangeId {
        self.exchanges += 1;
        let exchange = ExchangeId(self.exchanges);
        self.latest[rank as usize] = exchange;
        self.sum.begin(WorkerId(rank), exchange, upload);
        exchange
    }

    fn feed(&mut self, rank: u32, chunk: &[u8]) {
        self.receive(rank, self.latest[rank as usize], &[chunk]);
    }

    fn receive(&mut self, rank: u32, exchange: ExchangeId, chunks: &[impl AsRef<[u8]>]) -> Option<Receipt> {
        self.sum.receive(WorkerId(rank), exchange, chunks, &mut self.workspace)
    }

    fn publish(&mut self, divisor: f64) {
        self.sum.publish(divisor, None, &mut self.workspace);
    }

    fn whole(&mut self, rank: u32, body: &[u8]) {
        let exchange = self.begin(rank, PLAIN);
        assert_eq!(self.receive(rank, exchange, &[body]), Some(Receipt::Whole));
    }

    fn copied(&self) -> u64 {
        self.sum.resources.copies.bytes()
    }

    fn ready(&self) -> usize {
        self.sum.ready().len()
    }

    fn finish(&mut self, divisor: f64) -> Vec<u8> {
        self.publish(divisor);
        self.sum.seal();
        assert!(self.sum.is_complete());
        self.sum.ready().flat_map(|block| block.to_vec()).collect()
    }
}

/// A number in the wire form of a cast.
fn narrow(codec: CodecSpec, value: f32) -> Vec<u8> {
    let codec = gradlane_core::codec::of(codec, DType::F32).expect("a cast");
    encoded(&*codec, Kernels::portable(), 1.0, &value.to_le_bytes(), 1).unwrap()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn i64s(first: i64, len: i64) -> Vec<u8> {
    (first..first + len).flat_map(i64::to_le_bytes).collect()
}

/// The upper half of the f32, exact for the small integers used here.
fn bf16s(value: f32) -> Vec<u8> {
    value.to_le_bytes()[2..].to_vec()
}
