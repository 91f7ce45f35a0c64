use proptest::prelude::*;

use super::super::{Seed, Workspace, testing};
use super::*;
use crate::types::{PartId, Round, TensorKey};

const KERNELS: fn() -> Kernels = Kernels::portable;

const GRIDS: [Encoding; 4] = [Encoding::Int8, Encoding::Int4, Encoding::Fp8E4M3, Encoding::Fp8E5M2];

fn codec_of(encoding: Encoding, block: u32, elements: DType) -> Blocks {
    Blocks::new(CodecSpec::with_parameters(encoding, &[block]).unwrap(), elements)
}

fn codec(block: u32, elements: DType) -> Blocks {
    codec_of(Encoding::Int8, block, elements)
}

/// The numbers of a codec's grid that are not negative, in rising order, by the definition of the format.
fn numbers(encoding: Encoding) -> Vec<f32> {
    let floats = |fractions: i32, bias: i32, largest: f32| {
        let number = |code: i32| {
            let (exponent, fraction) = (code / fractions, (code % fractions) as f32 / fractions as f32);
            let leading = if exponent == 0 { 0.0 } else { 1.0 };
            (leading + fraction) * 2.0_f32.powi(exponent.max(1) - bias)
        };
        (0..128).map(number).take_while(|number| *number <= largest).collect()
    };
    match encoding {
        Encoding::Int8 => (0..=127).map(|whole| whole as f32).collect(),
        Encoding::Int4 => (0..=7).map(|whole| whole as f32).collect(),
        Encoding::Fp8E4M3 => floats(8, 7, 448.0),
        _ => floats(4, 15, 57344.0),
    }
}

/// The number of the grid beside `value`, from below and from above.
fn neighbours(numbers: &[f32], value: f32) -> [f32; 2] {
    let above = numbers.partition_point(|number| *number < value).min(numbers.len() - 1);
    let below = if numbers[above] == value { above } else { above.saturating_sub(1) };
    [numbers[below], numbers[above]]
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect()
}

fn decoded(codec: Blocks, kernels: Kernels, body: &[u8], len: usize) -> Vec<f32> {
    let mut elements = vec![0; 4 * len];
    codec.decode(kernels, body, &mut elements).unwrap();
    floats(&elements)
}

fn encoded(codec: Blocks, elements: &[u8]) -> Vec<u8> {
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

/// As above. With 7 as the largest magnitude the scale is 1, and two elements share a byte.
#[test]
fn a_block_of_half_bytes_has_a_short_scale_and_two_elements_a_byte() {
    let mut values = vec![0.0; 35];
    values[..6].copy_from_slice(&[7.0, -7.0, 0.5, 1.5, -2.5, -3.4]);
    values[32..].copy_from_slice(&[0.7, -0.3, 0.1]);
    let body = encoded(codec_of(Encoding::Int4, 32, DType::F32), &bytes(&values));
    assert_eq!(body.len(), 2 + 16 + 2 + 2);
    // 1 as bf16. Halves go to the even neighbour: 0, 2, -2.
    assert_eq!(body[..5], [0x80, 0x3f, 0x97, 0x20, 0xde]);
    // 0.1 is 0x3dcc_cccd, and its scale is rounded up. 0.7 becomes 6.96 steps, -0.3 becomes -2.99 and 0.1 becomes 1.
    assert_eq!(body[18..], [0xcd, 0x3d, 0xd7, 0x01]);
}

#[test]
fn every_number_of_a_grid_survives_the_way_back_and_forth() {
    for encoding in GRIDS {
        let numbers = numbers(encoding);
        let largest = *numbers.last().unwrap();
        // Each block has the largest number, so its scale is 1.
        let values: Vec<f32> = numbers.iter().flat_map(|number| [*number, -number, largest, 0.0]).collect();
        let codec = codec_of(encoding, 32, DType::F32);
        for kernels in Kernels::all() {
            let found = decoded(codec, kernels, &encoded(codec, &bytes(&values)), values.len());
            assert_eq!(found, values, "{encoding} {kernels}");
        }
    }
}

#[test]
fn an_element_becomes_the_nearest_number_and_of_two_the_even() {
    for encoding in GRIDS {
        let numbers = numbers(encoding);
        let largest = *numbers.last().unwrap();
        let between = numbers.windows(2).enumerate().flat_map(|(at, pair)| {
            let middle = f32::midpoint(pair[0], pair[1]);
            let even = pair[at % 2];
            let beside = |up: bool| f32::from_bits(if up { middle.to_bits() + 1 } else { middle.to_bits() - 1 });
            [(middle, even), (-middle, -even), (beside(true), pair[1]), (beside(false), pair[0])]
        });
        let (values, due): (Vec<f32>, Vec<f32>) =
            between.flat_map(|(value, due)| [(largest, largest), (value, due)]).unzip();
        let codec = codec_of(encoding, 32, DType::F32);
        for kernels in Kernels::all() {
            let body = testing::encoded(&codec, kernels, 1.0, &bytes(&values), values.len() as u64).unwrap();
            for ((value, due), found) in values.iter().zip(&due).zip(decoded(codec, kernels, &body, values.len())) {
                assert_eq!(found, *due, "{encoding} {kernels}: {value}");
            }
        }
    }
}

#[test]
fn by_chance_an_element_becomes_a_neighbour_and_is_right_on_average() {
    for encoding in GRIDS {
        let numbers = numbers(encoding);
        let largest = *numbers.last().unwrap();
        // Steps of different size, small numbers of the float formats among them.
        let values = (0..31).map(|at| largest * 0.83_f32.powi(at * 2 + 1) * if at % 2 == 0 { 1.0 } else { -1.0 });
        let values: Vec<f32> = [largest].into_iter().chain(values).collect();
        let spec = CodecSpec::with_parameters(encoding, &[32]).unwrap().with_stochastic();
        let codec = Blocks::new(spec, DType::F32);
        let mut sums = vec![0.0_f64; values.len()];
        const ROUNDS: u32 = 10_000;
        for round in 0..ROUNDS {
            let body = by_chance(codec, Kernels::detect(), u64::from(round), 0, &bytes(&values));
            for ((value, found), sum) in
                values.iter().zip(decoded(codec, Kernels::detect(), &body, values.len())).zip(&mut sums)
            {
                let beside = neighbours(&numbers, value.abs());
                assert!(beside.contains(&found.abs()) && found * value >= 0.0, "{encoding}: {value} became {found}");
                *sum += f64::from(found);
            }
        }
        for (value, sum) in values.iter().zip(sums) {
            let [below, above] = neighbours(&numbers, value.abs()).map(f64::from);
            let share = if above > below { (f64::from(value.abs()) - below) / (above - below) } else { 0.0 };
            let error = 4.0 * (above - below) * (share * (1.0 - share) / f64::from(ROUNDS)).sqrt();
            let mean = sum / f64::from(ROUNDS);
            assert!(
                (mean - f64::from(*value)).abs() <= error,
                "{encoding}: {value} is {mean} on average, not within {error}"
            );
        }
    }
}

#[test]
fn by_chance_bits_depend_on_the_element_and_not_on_vectors_or_runs() {
    for encoding in GRIDS {
        let spec = CodecSpec::with_parameters(encoding, &[32]).unwrap().with_stochastic();
        let codec = Blocks::new(spec, DType::F32);
        let elements = bytes(&(0..2 * BLOCK_MAX + 7).map(|at| (at as f32).sin()).collect::<Vec<_>>());
        let whole = by_chance(codec, Kernels::portable(), 3, 0, &elements);
        let (head, tail) = elements.split_at(4 * 96);
        for kernels in Kernels::all() {
            let runs = [by_chance(codec, kernels, 3, 0, head), by_chance(codec, kernels, 3, 96, tail)];
            assert_eq!(runs.concat(), whole, "{encoding} {kernels}");
        }
        assert_ne!(by_chance(codec, Kernels::detect(), 4, 0, &elements), whole, "{encoding}: another round");
        let doubles: Vec<u8> = floats(&elements).iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
        assert_eq!(by_chance(Blocks::new(spec, DType::F64), Kernels::detect(), 3, 0, &doubles), whole, "{encoding}");
    }
}

#[test]
fn a_block_without_numbers_is_seen_and_its_neighbours_are_not_harmed() {
    let codecs = GRIDS.map(|encoding| codec_of(encoding, 32, DType::F32));
    let strange = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for (codec, strange) in codecs.iter().flat_map(|codec| strange.map(|strange| (*codec, strange))) {
        let mut values = vec![1.0; 96];
        values[40] = strange;
        let mut elements = vec![0; 4 * 96];
        codec.decode(KERNELS(), &encoded(codec, &bytes(&values)), &mut elements).unwrap();
        let found = floats(&elements);
        assert!(found[32..64].iter().all(|value| value.is_nan()), "{strange}");
        assert!(found[..32].iter().chain(&found[64..]).all(|value| (value - 1.0).abs() < 0.01), "{strange}");
    }
}

#[test]
fn zeros_and_the_smallest_numbers_stay_small() {
    let codecs = GRIDS.map(|encoding| codec_of(encoding, 32, DType::F32));
    for (codec, value) in codecs.iter().flat_map(|codec| {
        [0.0, -0.0, f32::from_bits(1), f32::from_bits(1000), f32::MIN_POSITIVE].map(|value| (*codec, value))
    }) {
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
    for encoding in GRIDS {
        let codec = codec_of(encoding, 32, DType::F32);
        let body = encoded(codec, &bytes(&[1.0; 33]));
        let problem = |body: &[u8]| {
            let problem = codec.decode(KERNELS(), body, &mut [0; 132]).unwrap_err();
            assert_eq!(codec.check(body, 33), Err(problem.clone()));
            assert_eq!(codec.start(KERNELS(), Op::Sum, 1.0, body, &mut [0; 132]), Err(problem.clone()));
            assert_eq!(codec.add(KERNELS(), Op::Sum, 1.0, body, &mut [0; 132]), Err(problem.clone()));
            problem.to_string()
        };
        let scale_bytes = if encoding == Encoding::Int4 { 2 } else { 4 };
        for scale in [f32::INFINITY, f32::NEG_INFINITY, -1.0] {
            let broken = [&scale.to_le_bytes()[4 - scale_bytes..], &body[scale_bytes..]].concat();
            assert!(problem(&broken).contains("scale"), "{encoding}");
        }
        let strange: &[u8] = match encoding {
            Encoding::Int8 => &[0x80],
            Encoding::Int4 => &[0x08, 0x81, 0x87],
            Encoding::Fp8E4M3 => &[0x7f, 0xff],
            _ => &[0x7c, 0x7d, 0xff],
        };
        for code in strange {
            let mut broken = body.clone();
            broken[scale_bytes] = *code;
            assert!(problem(&broken).contains("stands for no number"), "{encoding}: {code:#x}");
        }
    }
    // The half byte behind the last element is empty.
    let codec = codec_of(Encoding::Int4, 32, DType::F32);
    let mut body = encoded(codec, &bytes(&[1.0; 33]));
    *body.last_mut().unwrap() |= 0x10;
    assert!(codec.check(&body, 33).is_err());
}

proptest! {
    #[test]
    fn an_element_is_off_by_at_most_what_the_table_says(
        encoding in prop::sample::select(GRIDS.to_vec()),
        block in prop::sample::select(vec![32_u32, 33, 256, 4096]),
        values in proptest::collection::vec(-1e6_f32..1e6, 0..600),
        is_double: bool,
        stochastic: bool,
    ) {
        let spec = CodecSpec::with_parameters(encoding, &[block]).unwrap();
        let spec = if stochastic { spec.with_stochastic() } else { spec };
        let codec = Blocks::new(spec, if is_double { DType::F64 } else { DType::F32 });
        let elements: Vec<u8> = match is_double {
            true => values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect(),
            false => bytes(&values),
        };
        let body = encoded(codec, &elements);
        prop_assert_eq!(codec.check(&body, values.len() as u64), Ok(()));
        let mut decoded = vec![0; elements.len()];
        codec.decode(Kernels::detect(), &body, &mut decoded).unwrap();
        let found: Vec<f32> = match is_double {
            true => decoded.as_chunks().0.iter().map(|double| f64::from_le_bytes(*double) as f32).collect(),
            false => floats(&decoded),
        };
        for (values, found) in values.chunks(block as usize).zip(found.chunks(block as usize)) {
            let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            for (value, found) in values.iter().zip(found) {
                let most = match encoding {
                    Encoding::Int8 => largest / 254.0,
                    Encoding::Int4 => largest / 13.8,
                    Encoding::Fp8E4M3 => (value.abs() / 16.0).max(largest / 2.0_f32.powi(18)),
                    _ => (value.abs() / 8.0).max(largest / 2.0_f32.powi(32)),
                };
                let most = if stochastic { 2.0 * most } else { most };
                prop_assert!((value - found).abs() <= most * 1.0001, "{spec}: {value} became {found}");
            }
        }
    }
}

/// The body of these elements, of which the first is the element `first` of a part.
fn by_chance(codec: Blocks, kernels: Kernels, round: u64, first: u64, elements: &[u8]) -> Vec<u8> {
    let len = elements.len() as u64 / codec.elements.bytes();
    let mut body = vec![0; usize::try_from(codec.body_bytes(len).max()).unwrap()];
    let seed = Seed::of(PartId { key: TensorKey(5), index: 0 }, Round(round)).from_element(first);
    codec.encode(Tools { kernels, seed, workspace: &mut Workspace::default() }, 1.0, elements, &mut body).unwrap();
    body
}
