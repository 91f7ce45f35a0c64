//! Sums whose codec has error feedback, against a scalar model of the whole pipeline: the contributions' feedback, the sum, its own feedback.

use gradlane_core::codec::{self, AnyCodec, testing};
use gradlane_core::types::{CodecSpec, DType, Op};
use gradlane_core::wire::Body;

use super::*;
use crate::node::command::Order;

#[test]
fn answers_are_those_of_a_scalar_model_and_go_on_from_round_to_round() {
    for (spec, block_bytes) in [
        ("bf16:feedback=1", 64),
        ("fp16:feedback=1", 1 << 20),
        ("int8:block=32,feedback=1", 80),
        ("onebit:feedback=1", 80),
    ] {
        for workers in [2, 3] {
            let mut pipeline = Pipeline::new(spec, workers, block_bytes);
            let mut model = Model::new(spec, workers);
            for round in 0..20 {
                let given = |rank: u32| (0..LEN).map(move |index| value(rank, index, round)).collect::<Vec<f32>>();
                let given: Vec<Vec<f32>> = (0..workers).map(given).collect();
                let (bodies, due) = model.round(&given);
                assert_eq!(
                    pipeline.round(Start::Kept, &bodies, |_| {}),
                    due,
                    "{spec}, {workers} workers, round {round}"
                );
            }
        }
    }
}

#[test]
fn a_sum_that_flows_block_by_block_has_the_same_answer_as_one_that_comes_at_once() {
    let spec = "int8:block=32,feedback=1";
    let [mut flowing, mut whole] = [80, 1 << 20].map(|block_bytes| Pipeline::new(spec, 1, block_bytes));
    let mut model = Model::new(spec, 1);
    for round in 0..3 {
        let (bodies, _) = model.round(&[(0..LEN).map(|index| value(0, index, round)).collect()]);
        let mut ready = Vec::new();
        let first = flowing.round(Start::Kept, &bodies, |sum| ready.push(sum.ready().len()));
        assert!(ready.windows(2).any(|pair| pair[0] < pair[1]), "{ready:?}");
        assert_eq!(first, whole.round(Start::Kept, &bodies, |_| {}));
    }
}

#[test]
fn a_residual_that_begins_at_zero_makes_the_answer_of_the_first_round() {
    let spec = "bf16:feedback=1";
    let (mut pipeline, mut model) = (Pipeline::new(spec, 2, 64), Model::new(spec, 2));
    let (bodies, _) = model.round(&[0, 1].map(|rank| (0..LEN).map(|index| value(rank, index, 0)).collect()));
    let first = pipeline.round(Start::Zero, &bodies, |_| {});
    assert_ne!(pipeline.round(Start::Kept, &bodies, |_| {}), first, "it adds what was lost");
    assert_eq!(pipeline.round(Start::Zero, &bodies, |_| {}), first);
}

#[test]
fn answers_that_are_taken_back_change_none_that_come_later() {
    for (spec, block_bytes) in [("int8:block=32,feedback=1", 80), ("int8:block=32,feedback=1", 1 << 20)] {
        let [mut pipeline, mut other] = [0; 2].map(|_| Pipeline::new(spec, 2, block_bytes));
        pipeline.residual.as_mut().unwrap().hold();
        let (mut model, mut unused) = (Model::new(spec, 2), Model::new(spec, 2));
        let given = |round| [0, 1].map(|rank| (0..LEN).map(|index| value(rank, index, round)).collect::<Vec<f32>>());
        for round in 0..6 {
            let mut start = Start::Kept;
            for _ in 0..round % 3 {
                pipeline.round(start, &unused.round(&given(70 + round)).0, |_| {});
                start = Start::Before;
            }
            let (bodies, _) = model.round(&given(round));
            let due = other.round(Start::Kept, &bodies, |_| {});
            assert_eq!(pipeline.round(start, &bodies, |_| {}), due, "{spec}, round {round}");
        }
    }
}

/// Several blocks and units, the last ones shorter.
const LEN: usize = 150;

/// Off the grid of every codec.
fn value(rank: u32, index: usize, round: u32) -> f32 {
    ((index as u32 * 37 + rank * 101 + round * 11) % 801) as f32 / 100.0 - 4.0 + 0.001
}

/// The sums of a part, round after round.
struct Pipeline {
    spec: SumSpec,
    residual: Option<Residual>,
}

impl Pipeline {
    fn new(codec: &str, workers: u32, block_bytes: u64) -> Self {
        let (codec, senders) = (codec.parse().unwrap(), (0..workers).map(WorkerId).collect());
        let (dtype, op, order) = (DType::F32, Op::Mean, Order::Rank);
        let spec = SumSpec { bytes: 4 * LEN as u64, dtype, codec, op, senders, order, block_bytes };
        Self { spec, residual: Some(Residual::default()) }
    }

    /// The answer of a round. Calls `look` after each chunk of a body.
    fn round(&mut self, start: Start, bodies: &[Vec<u8>], mut look: impl FnMut(&Accumulator)) -> Vec<u8> {
        let pool = Pool::new();
        let resources = SumResources { kernels: Kernels::detect(), pool, copies: Copies::default(), defect: None };
        let (mut sum, workspace) =
            (Accumulator::new(resources, self.spec.clone(), testing::SEED()), &mut Workspace::default());
        sum.publish(bodies.len() as f64, self.residual.take().map(|residual| (residual, start)), workspace);
        for (rank, body) in (0..).zip(bodies) {
            let (worker, exchange) = (WorkerId(rank), ExchangeId(u64::from(rank)));
            let form = Body { bytes: body.len() as u64, codec: self.spec.codec, refused: false };
            sum.begin(worker, exchange, Upload { body: form, weight: 1.0, checksum: None, landed: 0 });
            for chunk in body.chunks(7) {
                sum.receive(worker, exchange, &[chunk], workspace);
                look(&sum);
            }
        }
        self.residual = sum.seal();
        assert!(sum.is_complete());
        sum.ready().flat_map(|block| block.to_vec()).collect()
    }
}

/// The same, element by element and without blocks.
struct Model {
    codec: AnyCodec,
    /// Of each worker, and of the server.
    residuals: Vec<Vec<f32>>,
}

impl Model {
    fn new(codec: &str, workers: u32) -> Self {
        let codec = codec::of(codec.parse::<CodecSpec>().unwrap(), DType::F32).unwrap();
        Self { codec, residuals: vec![vec![0.0; LEN]; workers as usize + 1] }
    }

    /// The contributions of a round as they travel, and the answer to them.
    fn round(&mut self, given: &[Vec<f32>]) -> (Vec<Vec<u8>>, Vec<u8>) {
        let sent: Vec<(Vec<u8>, Vec<f32>)> =
            given.iter().enumerate().map(|(rank, given)| self.send(rank, given)).collect();
        let mut sum = sent[0].1.clone();
        for (_, decoded) in &sent[1..] {
            sum.iter_mut().zip(decoded).for_each(|(sum, next)| *sum += next);
        }
        let mean: Vec<f32> = sum.iter().map(|sum| (f64::from(*sum) / given.len() as f64) as f32).collect();
        let (answer, _) = self.send(given.len(), &mean);
        (sent.into_iter().map(|(body, _)| body).collect(), answer)
    }

    /// p = given + residual; sends C(p); residual = p - C(p).
    fn send(&mut self, of: usize, given: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let (kernels, residual) = (Kernels::portable(), &mut self.residuals[of]);
        let padded: Vec<f32> = given.iter().zip(&*residual).map(|(given, lost)| given + lost).collect();
        let bytes: Vec<u8> = padded.iter().flat_map(|element| element.to_le_bytes()).collect();
        let body = testing::encoded(&*self.codec, kernels, 1.0, &bytes, LEN as u64).unwrap();
        let mut decoded = vec![0; 4 * LEN];
        self.codec.decode(kernels, &body, &mut decoded).unwrap();
        let decoded: Vec<f32> = decoded.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect();
        *residual = padded.iter().zip(&decoded).map(|(padded, sent)| padded - sent).collect();
        (body, decoded)
    }
}
