use proptest::prelude::*;

use super::super::testing;
use super::*;
use crate::types::Encoding;

const KERNELS: fn() -> Kernels = Kernels::portable;

fn codec(block: u32, elements: DType) -> Int8 {
    Int8::new(CodecSpec::with_parameters(Encoding::Int8, &[block]).unwrap(), elements)
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect()
}

fn encoded(codec: Int8, elements: &[u8]) -> Vec<u8> {
    let len = elements.len() as u64 / codec.elements.bytes();
    testing::encoded(&codec, KERNELS(), 1.0, elements, len).unwrap()
}

/// The blocks of these values, worked out by hand: the largest magnitude of a block is 127 steps.
#[test]
fn a_block_is_its_scale_and_a_byte_for_each_element() {
    let mut values = vec![0.0; 40];
    // The scale of the first block is 2, that of the second 0.5; halves go to the even neighbour.
    values[..8].copy_from_slice(&[254.0, -254.0, 1.0, 3.0, -1.0, -3.0, 5.1, 0.0]);
    values[32..36].copy_from_slice(&[-63.5, 0.25, 0.75, 0.2]);
    let body = encoded(codec(32, DType::F32), &bytes(&values));
    assert_eq!(body.len(), 40 + 2 * 4);
    assert_eq!(body[..4], 2.0_f32.to_le_bytes());
    let signed = |bytes: &[u8]| bytes.iter().map(|byte| byte.cast_signed()).collect::<Vec<_>>();
    assert_eq!(signed(&body[4..12]), [127, -127, 0, 2, 0, -2, 3, 0]);
    assert_eq!(body[36..40], 0.5_f32.to_le_bytes());
    assert_eq!(signed(&body[40..44]), [-127, 0, 2, 0]);
}

#[test]
fn a_block_without_numbers_is_seen_and_its_neighbours_are_not_harmed() {
    let codec = codec(32, DType::F32);
    for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![1.0; 96];
        values[40] = strange;
        let mut elements = vec![0; 4 * 96];
        codec.decode(KERNELS(), &encoded(codec, &bytes(&values)), &mut elements).unwrap();
        let found = floats(&elements);
        assert!(found[32..64].iter().all(|value| value.is_nan()), "{strange}");
        assert!(found[..32].iter().chain(&found[64..]).all(|value| *value == 1.0), "{strange}");
    }
}

#[test]
fn zeros_and_the_smallest_numbers_stay_small() {
    let codec = codec(32, DType::F32);
    for value in [0.0, -0.0, f32::from_bits(1), f32::from_bits(1000), f32::MIN_POSITIVE] {
        let mut elements = vec![0; 4 * 32];
        codec.decode(KERNELS(), &encoded(codec, &bytes(&[value; 32])), &mut elements).unwrap();
        assert!(floats(&elements).iter().all(|found| *found >= 0.0 && *found <= 2.0 * value.abs()), "{value:e}");
    }
}

#[test]
fn contributions_are_added_with_their_weights_and_the_sum_is_encoded_once() {
    let codec = codec(32, DType::F32);
    // Whole numbers up to 127 survive with a scale of 1.
    let row = |factor: f32| {
        (0..40).map(|at| if at % 32 == 0 { 127.0 } else { factor * (at % 10) as f32 }).collect::<Vec<_>>()
    };
    let (one, two) = (row(1.0), row(3.0));
    for (op, weights, divisor) in [
        (Op::Sum, [1.0, 1.0], 1.0),
        (Op::Mean, [1.0, 1.0], 2.0),
        (Op::WeightedMean, [1.0, 3.0], 4.0),
        (Op::Max, [1.0, 1.0], 1.0),
    ] {
        let mut sum = vec![0xff; 4 * 40];
        codec.start(KERNELS(), op, weights[0], &encoded(codec, &bytes(&one)), &mut sum).unwrap();
        codec.add(KERNELS(), op, weights[1], &encoded(codec, &bytes(&two)), &mut sum).unwrap();
        let body = testing::finished(&codec, KERNELS(), op, divisor, &sum).unwrap();
        let mut elements = vec![0; 4 * 40];
        codec.decode(KERNELS(), &body, &mut elements).unwrap();
        for ((one, two), found) in one.iter().zip(&two).zip(floats(&elements)) {
            let due = match op {
                Op::Max => one.max(*two),
                _ => (one * weights[0] as f32 + two * weights[1] as f32) / divisor as f32,
            };
            assert!((found - due).abs() <= 254.0 / 254.0, "{op}: {found} instead of {due}");
        }
    }
}

#[test]
fn a_body_that_no_encoder_makes_is_refused() {
    let codec = codec(32, DType::F32);
    let body = encoded(codec, &bytes(&[1.0; 32]));
    for scale in [f32::INFINITY, f32::NEG_INFINITY, -1.0] {
        let broken = [&scale.to_le_bytes()[..], &body[4..]].concat();
        let problem = codec.decode(KERNELS(), &broken, &mut [0; 128]).unwrap_err().to_string();
        assert!(problem.contains("scale"), "{problem}");
    }
}

proptest! {
    #[test]
    fn an_element_is_off_by_at_most_a_254th_of_the_largest_of_its_block(
        block in prop::sample::select(vec![32_u32, 33, 256, 4096]),
        values in proptest::collection::vec(-1e6_f32..1e6, 0..600),
        is_double: bool,
    ) {
        let codec = codec(block, if is_double { DType::F64 } else { DType::F32 });
        let elements: Vec<u8> = match is_double {
            true => values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect(),
            false => bytes(&values),
        };
        let body = encoded(codec, &elements);
        let mut decoded = vec![0; elements.len()];
        codec.decode(KERNELS(), &body, &mut decoded).unwrap();
        let found: Vec<f32> = match is_double {
            true => decoded.as_chunks().0.iter().map(|double| f64::from_le_bytes(*double) as f32).collect(),
            false => floats(&decoded),
        };
        for (values, found) in values.chunks(block as usize).zip(found.chunks(block as usize)) {
            let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            for (value, found) in values.iter().zip(found) {
                prop_assert!((value - found).abs() <= largest / 254.0 * 1.0001, "{value} became {found}");
            }
        }
    }
}
