use super::super::testing::finished;
use super::super::{Seed, Workspace};
use super::*;
use crate::types::{Encoding, PartId, Round, TensorKey};

const KERNELS: fn() -> Kernels = Kernels::portable;

fn codec(millionths: u32) -> RandomK {
    RandomK::new(CodecSpec::with_parameters(Encoding::RandomK, &[millionths]).unwrap(), DType::F32)
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect()
}

fn body(codec: RandomK, round: u64, values: &[f32]) -> Vec<u8> {
    let mut body = vec![0xee; usize::try_from(codec.body_bytes(values.len() as u64).max()).unwrap()];
    let seed = Seed::of(PartId { key: TensorKey(5), index: 6 }, Round(round));
    let tools = Tools { kernels: KERNELS(), seed, workspace: &mut Workspace::default() };
    assert_eq!(codec.encode(tools, 1.0, &bytes(values), &mut body), Ok(body.len()));
    body
}

fn decoded(codec: RandomK, body: &[u8], len: usize) -> Vec<f32> {
    let mut elements = vec![0xee; 4 * len];
    codec.decode(KERNELS(), body, &mut elements).unwrap();
    floats(&elements)
}

#[test]
fn a_body_has_a_seed_and_one_value_for_each_run() {
    let codec = codec(250_000);
    for (len, count) in [(0, 0), (1, 1), (3, 1), (8, 2), (9, 3), (1000, 250)] {
        assert_eq!(codec.body_bytes(len), BodyBytes::Exact(8 + 4 * count), "{len} elements");
    }
    let values: Vec<f32> = (1..=8).map(|value| value as f32).collect();
    let found = decoded(codec, &body(codec, 0, &values), 8);
    for run in 0..2 {
        let run = 4 * run..4 * run + 4;
        let sent: Vec<usize> = run.filter(|at| found[*at] != 0.0).collect();
        assert_eq!(sent.len(), 1, "{found:?}");
        assert_eq!(found[sent[0]], 4.0 * values[sent[0]], "one of four elements stands for all of them");
    }
}

#[test]
fn over_many_rounds_the_sum_is_right_on_average() {
    // Runs of 3 and of 4 elements.
    let (codec, len) = (codec(300_000), 10);
    let mut sums = vec![0.0_f64; len];
    const ROUNDS: u32 = 20_000;
    for round in 0..ROUNDS {
        let body = body(codec, u64::from(round), &vec![1.0; len]);
        decoded(codec, &body, len).iter().zip(&mut sums).for_each(|(value, sum)| *sum += f64::from(*value));
    }
    for sum in sums {
        // Four standard errors of a value that is 4 with a chance of 1/4.
        let mean = sum / f64::from(ROUNDS);
        assert!((mean - 1.0).abs() <= 4.0 * (3.0 / f64::from(ROUNDS)).sqrt(), "{mean}");
    }
}

#[test]
fn all_workers_and_the_server_choose_the_same_places() {
    let codec = codec(100_000);
    let contributions = [1.0_f32, 4.0, 16.0].map(|unit| (0..100).map(|at| unit * (at % 7) as f32).collect::<Vec<_>>());
    for (op, divisor) in [(Op::Sum, 1.0), (Op::Mean, 3.0)] {
        let mut sum = vec![0xee; 400];
        for (rank, values) in contributions.iter().enumerate() {
            let body = super::super::testing::encoded(&codec, KERNELS(), 1.0, &bytes(values), 100).unwrap();
            match rank {
                0 => codec.start(KERNELS(), op, 1.0, &body, &mut sum).unwrap(),
                _ => codec.add(KERNELS(), op, 1.0, &body, &mut sum).unwrap(),
            }
        }
        let answer = finished(&codec, KERNELS(), op, divisor, &sum).unwrap();
        let found = decoded(codec, &answer, 100);
        assert_eq!(found.iter().filter(|value| **value != 0.0).count(), {
            let sum = floats(&sum);
            sum.iter().filter(|value| **value != 0.0).count()
        });
        for (at, value) in found.iter().enumerate().filter(|(_, value)| **value != 0.0) {
            // Each of ten elements stands for ten; the digits of the sum count its contributions.
            assert_eq!(*value, 10.0 * 21.0 * (at % 7) as f32 / divisor as f32, "{op}: element {at}");
        }
    }
}

#[test]
fn with_feedback_elements_are_sent_as_they_are() {
    let spec: CodecSpec = "randomk:k=100000,feedback=1".parse().unwrap();
    let codec = RandomK::new(spec, DType::F32);
    let found = decoded(codec, &body(codec, 3, &[2.5; 40]), 40);
    assert_eq!(found.iter().filter(|value| **value == 2.5).count(), 4);
    assert_eq!(found.iter().filter(|value| **value == 0.0).count(), 36);
}

#[test]
fn a_nan_is_noticed_wherever_it_is() {
    let codec = codec(10_000);
    for at in [0, 57, 199] {
        for strange in [f32::NAN, f32::INFINITY] {
            let mut values = vec![1.0; 200];
            values[at] = strange;
            let found = decoded(codec, &body(codec, 1, &values), 200);
            assert_eq!(found.iter().filter(|value| value.is_nan()).count(), 2, "{strange} at {at}");
        }
    }
}
