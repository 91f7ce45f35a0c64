use proptest::prelude::*;

use super::super::Workspace;
use super::super::testing::{encoded, finished};
use super::*;
use crate::types::{Encoding, PartId, TensorKey};

const KERNELS: fn() -> Kernels = Kernels::portable;

fn codec(millionths: u32) -> TopK {
    TopK::new(CodecSpec::with_parameters(Encoding::TopK, &[millionths, 0, 0]).unwrap(), DType::F32)
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect()
}

fn body(codec: TopK, values: &[f32]) -> Result<Vec<u8>, Refusal> {
    encoded(&codec, KERNELS(), 1.0, &bytes(values), values.len() as u64)
}

fn decoded(body: &[u8], len: usize) -> Result<Vec<f32>, Malformed> {
    let mut elements = vec![0xee; 4 * len];
    let outcome = codec(10_000).decode(KERNELS(), body, &mut elements);
    assert_eq!(codec(10_000).check(body, len as u64), outcome);
    outcome.map(|()| floats(&elements))
}

/// The elements that a contribution keeps, by sorting all of them.
fn kept(values: &[f32], count: usize) -> Vec<f32> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|one, other| values[*other].abs().total_cmp(&values[*one].abs()).then(one.cmp(other)));
    let mut kept = vec![0.0; values.len()];
    order[..count].iter().for_each(|index| kept[*index] = values[*index]);
    kept
}

/// A part of 600 elements, worked out by hand.
#[test]
fn a_body_is_the_count_the_gaps_and_the_values() {
    let mut values = vec![0.25; 600];
    (values[3], values[4], values[300], values[599]) = (-2.0, 1.0, 8.0, -0.5);
    // 4 of 600.
    let found = body(codec(6_000), &values).unwrap();
    // 300 - 5 = 295 = 2 * 128 + 39, and 599 - 301 = 298 = 2 * 128 + 42.
    let due = [&[4, 3, 0, 0x80 | 39, 2, 0x80 | 42, 2][..], &bytes(&[-2.0, 1.0, 8.0, -0.5])].concat();
    assert_eq!(found, due);
}

#[test]
fn of_equal_magnitudes_the_lower_index_is_sent() {
    let found = body(codec(250_000), &[1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0]).unwrap();
    assert_eq!(decoded(&found, 8).unwrap(), [1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn a_count_is_a_number_of_elements_of_each_part_whatever_its_length() {
    let codec = TopK::new("topk:count=3".parse().unwrap(), DType::F32);
    for len in [20, 50_000] {
        let values: Vec<f32> = (0..len).map(|at| (at * 7 % len) as f32 + 1.0).collect();
        assert!(decoded(&body(codec, &values).unwrap(), len).unwrap() == kept(&values, 3), "{len} elements");
    }
    assert_eq!(body(codec, &[1.0; 2]), Err(Refusal::NotShorter));
}

#[test]
fn a_warm_up_sends_more_at_first_and_a_quarter_of_it_with_each_step() {
    let sent = |text: &str, round: u64| TopK::new(text.parse().unwrap(), DType::F32).count(1_000_000, Round(round));
    let text = "topk:k=500,warmup=10";
    for (rounds, count) in [
        (0..10, 250_000),
        (10..20, 62_500),
        (20..30, 15_625),
        (30..40, 3_906),
        (40..50, 976),
        (50..60, 500),
        (1_000_000..1_000_002, 500),
    ] {
        assert!(rounds.clone().all(|round| sent(text, round) == count), "rounds {rounds:?}");
    }
    assert_eq!(
        [0, 9, 10, 39, 40, u64::MAX].map(|round| sent("topk:count=2000,warmup=10", round)),
        [250_000, 250_000, 62_500, 3_906, 2_000, 2_000]
    );
    assert_eq!([0, u64::MAX].map(|round| sent("topk:k=500", round)), [500; 2]);
    // It reaches the encoder with the seed.
    let codec = TopK::new("topk:count=1,warmup=1".parse().unwrap(), DType::F32);
    let values: Vec<f32> = (1..=64).map(|value| value as f32).collect();
    let sent = [0, 1, 2, 3].map(|round| {
        let seed = Seed::of(PartId { key: TensorKey(5), index: 6 }, Round(round));
        let (mut body, workspace) = ([0; 256], &mut Workspace::default());
        let tools = Tools { kernels: KERNELS(), seed, workspace };
        let used = codec.encode(tools, 1.0, &bytes(&values), &mut body).unwrap();
        decoded(&body[..used], 64).unwrap().iter().filter(|value| **value != 0.0).count()
    });
    assert_eq!(sent, [16, 4, 1, 1]);
}

#[test]
fn zeros_are_not_sent() {
    let mut values = vec![0.0; 100];
    (values[7], values[50]) = (-0.0, f32::from_bits(1));
    let found = body(codec(250_000), &values).unwrap();
    assert_eq!(found, [&[1, 50][..], &f32::from_bits(1).to_le_bytes()].concat());
    assert_eq!(body(codec(10_000), &[0.0; 100]).unwrap(), [0]);
}

#[test]
fn what_is_no_number_or_gets_no_shorter_is_refused() {
    for strange in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for len in [100, 50_000] {
            let mut values = vec![1.0; len];
            values[len / 3] = strange;
            assert_eq!(body(codec(10_000), &values), Err(Refusal::NotFinite), "{strange} of {len}");
            let sum = finished(&codec(10_000), KERNELS(), Op::Sum, 1.0, &bytes(&values));
            assert!(sum.is_err(), "{strange} of {len}");
        }
    }
    assert_eq!(body(codec(10_000), &[1.0]), Err(Refusal::NotShorter));
    assert_eq!(body(codec(10_000), &[]), Err(Refusal::NotShorter));
    assert_eq!(finished(&codec(1), KERNELS(), Op::Sum, 1.0, &bytes(&[1.0; 100])), Err(Refusal::NotShorter));
}

#[test]
fn a_sum_keeps_all_its_entries_and_a_mean_of_them_is_divided() {
    let (one, two) = ([4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0]);
    for (op, weights, divisor, due) in [
        (Op::Sum, [1.0, 1.0], 1.0, [4.0, 2.0]),
        (Op::Mean, [1.0, 1.0], 2.0, [2.0, 1.0]),
        (Op::WeightedMean, [1.0, 3.0], 4.0, [1.0, 1.5]),
    ] {
        let codec = codec(250_000);
        let mut sum = vec![0xff; 32];
        codec.start(KERNELS(), op, weights[0], &body(codec, &one).unwrap(), &mut sum).unwrap();
        codec.add(KERNELS(), op, weights[1], &body(codec, &two).unwrap(), &mut sum).unwrap();
        let found = finished(&codec, KERNELS(), op, divisor, &sum).unwrap();
        let found = decoded(&found, 8).unwrap();
        assert_eq!(found[..2], due, "{op}");
        assert_eq!(found[2..6], [0.0; 4], "{op}");
    }
}

#[test]
fn a_machine_divides_what_it_sends() {
    let found = encoded(&codec(100_000), KERNELS(), 4.0, &bytes(&[8.0; 10]), 10).unwrap();
    assert_eq!(found, [&[1, 0][..], &2.0_f32.to_le_bytes()].concat());
}

#[test]
fn a_body_that_no_encoder_makes_is_refused_and_changes_nothing() {
    let one = 1.0_f32.to_le_bytes();
    let with = |head: &[u8], values: &[[u8; 4]]| [head, values.as_flattened()].concat();
    for (body, problem) in [
        (vec![], "ends within a number"),
        (vec![0x80], "ends within a number"),
        (with(&[0x81, 0], &[one]), "a number that nobody writes so"),
        (with(&[0xff, 0xff, 0xff, 0xff, 0x1f], &[]), "a number that nobody writes so"),
        (with(&[0xff, 0xff, 0xff, 0xff, 0xff, 1], &[]), "more than 32 bits"),
        (with(&[11], &[]), "11 entries of 10 elements"),
        (with(&[1, 10], &[one]), "the element 10 of 10"),
        (with(&[2, 9, 0], &[one, one]), "the element 10 of 10"),
        (with(&[1, 0xff, 0xff, 0xff, 0xff, 0x0f], &[one]), "the element 4294967295 of 10"),
        (with(&[2, 0, 0], &[one]), "4 bytes of values for 2 entries"),
        (with(&[1, 0], &[one, one]), "8 bytes of values for 1 entries"),
        (with(&[1, 0, 0], &[one]), "5 bytes of values"),
        (with(&[0, 0], &[]), "1 bytes of values for 0 entries"),
        (with(&[1, 0], &[f32::NAN.to_le_bytes()]), "the value NaN"),
        (with(&[1, 0], &[f32::NEG_INFINITY.to_le_bytes()]), "the value -inf"),
        (with(&[1, 0], &[[0, 0, 0, 0x80]]), "the value -0"),
    ] {
        let error = decoded(&body, 10).unwrap_err().to_string();
        assert!(error.contains(problem), "{body:02x?}: {error}");
        let mut sum = bytes(&[3.0; 10]);
        assert!(codec(1).add(KERNELS(), Op::Sum, 1.0, &body, &mut sum).is_err());
        assert_eq!(sum, bytes(&[3.0; 10]), "{body:02x?}");
    }
}

/// Parts that are large enough for a guess, with few or many large elements, and where nearly all are equal or zero.
#[test]
fn the_largest_elements_of_long_parts_are_found_exactly() {
    let len = 40_000;
    let parts: [fn(usize) -> f32; 5] = [
        |index| ((index * 7_919) % 10_007) as f32 - 5_000.0,
        |index| if index % 997 == 3 { index as f32 } else { 0.0 },
        |index| if index < 100 { 1e9 - index as f32 * 1e4 } else { 1e-9 },
        |_| 0.5,
        |index| if index % 64 == 0 { 100.0 + (index / 64) as f32 } else { 1.0 / (index + 1) as f32 },
    ];
    for (which, part) in parts.iter().enumerate() {
        let values: Vec<f32> = (0..len).map(part).collect();
        for millionths in [1, 1_000, 10_000, 100_000] {
            let count = (len * millionths as usize).div_ceil(1_000_000);
            let found = decoded(&body(codec(millionths), &values).unwrap(), len).unwrap();
            assert!(found == kept(&values, count), "part {which}, {millionths} millionths");
        }
    }
}

proptest! {
    #[test]
    fn the_elements_that_arrive_are_the_largest_and_are_unchanged(
        values in proptest::collection::vec(prop_oneof![Just(0.0_f32), Just(-1.0), Just(1.0), -1e30_f32..1e30], 0..400),
        millionths in 1_u32..=250_000,
    ) {
        let count = (values.len() * millionths as usize).div_ceil(1_000_000).max(1).min(values.len());
        match body(codec(millionths), &values) {
            Ok(body) => {
                prop_assert!(body.len() < 4 * values.len());
                prop_assert_eq!(decoded(&body, values.len()).unwrap(), kept(&values, count));
            }
            Err(refusal) => {
                prop_assert_eq!(refusal, Refusal::NotShorter);
                prop_assert!(values.len() < 3, "{} elements", values.len());
            }
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(body in proptest::collection::vec(any::<u8>(), 0..60), len in 0_usize..40) {
        if let Ok(elements) = decoded(&body, len) {
            let most = body.len() / 5;
            prop_assert!(elements.iter().filter(|element| **element != 0.0).count() <= most);
        }
    }
}
