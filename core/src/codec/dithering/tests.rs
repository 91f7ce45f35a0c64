use proptest::prelude::*;

use super::super::testing::{ORDERS_OF_SQUARES, at_a_tie_of_squares, encoded, finished};
use super::super::{Seed, Workspace};
use super::*;
use crate::types::{PartId, Round, TensorKey};

const KERNELS: fn() -> Kernels = Kernels::portable;

fn codec(text: &str) -> Dithering {
    Dithering::new(text.parse().unwrap(), DType::F32)
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect()
}

fn body(codec: Dithering, kernels: Kernels, round: u64, values: &[f32]) -> Result<Vec<u8>, Refusal> {
    let mut body = vec![0xee; 4 * values.len()];
    let seed = Seed::of(PartId { key: TensorKey(5), index: 6 }, Round(round));
    let tools = Tools { kernels, seed, workspace: &mut Workspace::default() };
    let used = codec.encode(tools, 1.0, &bytes(values), &mut body)?;
    body.truncate(used);
    Ok(body)
}

fn decoded(codec: Dithering, body: &[u8], len: usize) -> Result<Vec<f32>, Malformed> {
    let mut elements = vec![0xee; 4 * len];
    let outcome = codec.decode(KERNELS(), body, &mut elements);
    assert_eq!(codec.check(body, len as u64), outcome);
    outcome.map(|()| floats(&elements))
}

/// Words of these bits, written as they are read.
fn words(bits: &str) -> Vec<u8> {
    let bits: String = bits.chars().filter(|bit| *bit != ' ').collect();
    let padded = format!("{bits:0<width$}", width = bits.len().div_ceil(32) * 32);
    let words = padded.as_bytes().chunks(32).map(|word| {
        let word = word.iter().fold(0, |word, bit| word << 1 | u32::from(*bit == b'1'));
        word.to_le_bytes()
    });
    words.flatten().chain((bits.len() as u32).to_le_bytes()).collect()
}

fn form(bits: &str, scale: f32) -> Vec<u8> {
    [words(bits), scale.to_le_bytes().to_vec()].concat()
}

/// Parts whose elements are levels, so that chance has no say, worked out by hand. Elias' delta codes: 1 is 1, 2 is 0100, 3 is 0101, 4 is
/// 01100, 8 is 00100000, 17 is 001010001.
#[test]
fn a_body_has_distance_sign_and_level_of_each_element_that_is_not_zero() {
    let mut values = [0.0; 24];
    (values[0], values[1], values[18], values[20]) = (4.0, -1.0, 3.0, -0.0);
    let due = form("1 0 01100  1 1 1  001010001 0 0101", 4.0);
    assert_eq!(body(codec("dithering:s=4"), KERNELS(), 0, &values), Ok(due));
    values[18] = 2.0;
    // The levels are 1, 2, 4 and 8.
    let due = form("1 0 00100000  1 1 0100  001010001 0 01100", 4.0);
    assert_eq!(body(codec("dithering:s=4,natural=1"), KERNELS(), 0, &values), Ok(due));
    // The root of 16 * 1 is 4.
    let due = form(&"1 1 1".repeat(16), 4.0);
    assert_eq!(body(codec("dithering:s=4,norm=1"), KERNELS(), 0, &[-1.0; 16]), Ok(due));
    assert_eq!(body(codec("dithering"), KERNELS(), 0, &[0.0; 3]), Ok(form("", 0.0)));
}

#[test]
fn levels_survive_the_way_back_and_forth() {
    for (text, levels) in [
        ("dithering:s=1", vec![1.0]),
        ("dithering:s=127", (1..=127).map(|level| level as f32).collect()),
        ("dithering:s=1,natural=1", vec![1.0]),
        ("dithering:s=16,natural=1", (0..16).map(|power| 2.0_f32.powi(power)).collect()),
    ] {
        let values: Vec<f32> = levels.iter().flat_map(|level| [0.0, *level, -level, 0.0, 0.0, 0.0]).collect();
        for kernels in Kernels::all() {
            let made = body(codec(text), kernels, 0, &values).unwrap();
            assert_eq!(decoded(codec(text), &made, values.len()).unwrap(), values, "{text} {kernels}");
        }
    }
    let mut far = vec![0.0; 300_000];
    (far[7], far[299_999]) = (1.0, -1.0);
    let made = body(codec("dithering"), KERNELS(), 0, &far).unwrap();
    assert!(made.len() < 30 && decoded(codec("dithering"), &made, far.len()).unwrap() == far, "{} bytes", made.len());
}

#[test]
fn an_element_becomes_a_level_beside_it_and_is_right_on_average() {
    const ROUNDS: u32 = 10_000;
    let values: Vec<f32> = (0..48).map(|at| (0.8_f32).powi(at) * if at % 3 == 0 { -1.0 } else { 1.0 }).collect();
    let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    for (text, scale) in [
        ("dithering:s=4", 1.0),
        ("dithering:s=100", 1.0),
        ("dithering:s=5,natural=1", 1.0),
        ("dithering:s=3,norm=1", norm),
        ("dithering:s=6,natural=1,norm=1", norm),
    ] {
        let codec = codec(text);
        let levels: Vec<f64> = match codec.natural {
            true => [0]
                .into_iter()
                .chain((0..).map(|power| 1 << power).take_while(|level| *level <= codec.levels))
                .collect(),
            false => (0..=codec.levels).collect::<Vec<_>>(),
        }
        .into_iter()
        .map(|level| f64::from(level) / f64::from(codec.levels) * scale)
        .collect();
        let mut sums = vec![0.0; values.len()];
        for round in 0..ROUNDS {
            let made = body(codec, Kernels::detect(), round.into(), &values).unwrap();
            for (sum, found) in sums.iter_mut().zip(decoded(codec, &made, values.len()).unwrap()) {
                *sum += f64::from(found);
            }
        }
        for (value, sum) in values.iter().map(|value| f64::from(*value)).zip(sums) {
            let above = levels.partition_point(|level| *level < value.abs() * (1.0 - 1e-7)).min(levels.len() - 1);
            let [below, above] = [levels[above.saturating_sub(1)], levels[above]];
            let share = ((value.abs() - below) / (above - below)).clamp(0.0, 1.0);
            // Four standard errors, and the last bit of the scale.
            let error = 4.0 * (above - below) * (share * (1.0 - share) / f64::from(ROUNDS)).sqrt() + 1e-6;
            let mean = sum / f64::from(ROUNDS);
            assert!((mean - value).abs() <= error, "{text}: {value} is {mean} on average, not within {error}");
        }
    }
}

#[test]
fn bits_depend_on_the_part_and_the_round_and_not_on_vectors() {
    let values: Vec<f32> = (0..2 * RUN + 77).map(|at| (at as f32).sin()).collect();
    for text in ["dithering", "dithering:natural=1", "dithering:norm=1", "dithering:s=9,natural=1,norm=1"] {
        let portable = body(codec(text), Kernels::portable(), 3, &values).unwrap();
        for kernels in Kernels::all() {
            assert!(body(codec(text), kernels, 3, &values).unwrap() == portable, "{text} {kernels}");
        }
        assert!(body(codec(text), KERNELS(), 4, &values).unwrap() != portable, "{text}: another round");
    }
}

#[test]
fn what_is_no_number_or_gets_no_shorter_is_refused() {
    for text in ["dithering", "dithering:norm=1"] {
        for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 100];
            values[57] = strange;
            assert_eq!(body(codec(text), KERNELS(), 0, &values), Err(Refusal::NotFinite), "{text}: {strange}");
            let sum = finished(&codec(text), KERNELS(), Op::Sum, 1.0, &bytes(&values));
            assert_eq!(sum, Err(Refusal::NotFinite), "{text}: {strange}");
        }
        assert_eq!(body(codec(text), KERNELS(), 0, &[]), Err(Refusal::NotShorter), "{text}");
        assert_eq!(body(codec(text), KERNELS(), 0, &[1.0, 0.0]), Err(Refusal::NotShorter), "{text}");
    }
    // Their norm is no f32.
    assert_eq!(body(codec("dithering:norm=1"), KERNELS(), 0, &[f32::MAX; 100]), Err(Refusal::NotFinite));
    let largest = body(codec("dithering:s=127"), KERNELS(), 0, &[f32::MAX; 100]).unwrap();
    assert_eq!(decoded(codec("dithering:s=127"), &largest, 100).unwrap(), [f32::MAX; 100]);
}

#[test]
fn small_numbers_stay_small() {
    for text in ["dithering", "dithering:norm=1", "dithering:natural=1"] {
        for value in [f32::from_bits(1), f32::from_bits(100), f32::MIN_POSITIVE] {
            let made = body(codec(text), KERNELS(), 0, &[value; 50]).unwrap();
            let found = decoded(codec(text), &made, 50).unwrap();
            assert!(found.iter().all(|found| *found >= 0.0 && *found <= 8.0 * value), "{text}: {value:e}: {found:?}");
        }
    }
}

#[test]
fn contributions_are_added_with_their_weights_and_the_sum_is_encoded_once() {
    let codec = codec("dithering:s=8");
    let (mut one, mut two) = ([0.0; 30], [0.0; 30]);
    (one[0], one[7], one[9]) = (8.0, -3.0, 2.0);
    (two[0], two[7], two[20]) = (8.0, 1.0, 4.0);
    for (op, weights, divisor) in
        [(Op::Sum, [1.0, 1.0], 1.0), (Op::Mean, [1.0, 1.0], 2.0), (Op::WeightedMean, [1.0, 3.0], 4.0)]
    {
        let mut sum = vec![0xff; 4 * 30];
        codec.start(KERNELS(), op, weights[0], &body(codec, KERNELS(), 0, &one).unwrap(), &mut sum).unwrap();
        codec.add(KERNELS(), op, weights[1], &body(codec, KERNELS(), 0, &two).unwrap(), &mut sum).unwrap();
        let due: Vec<f32> =
            one.iter().zip(&two).map(|(one, two)| one * weights[0] as f32 + two * weights[1] as f32).collect();
        assert_eq!(floats(&sum), due, "{op}");
        let answer = finished(&codec, KERNELS(), op, divisor, &sum).unwrap();
        let (step, found) = (due[0] / divisor as f32 / 8.0, decoded(codec, &answer, 30).unwrap());
        for (due, found) in due.iter().zip(found) {
            assert!((due / divisor as f32 - found).abs() < step, "{op}: {found} instead of {due}");
        }
    }
}

#[test]
fn a_machine_divides_what_it_sends() {
    let found = encoded(&codec("dithering:s=2"), KERNELS(), 4.0, &bytes(&[8.0, -4.0, 0.0, 8.0]), 4).unwrap();
    assert_eq!(decoded(codec("dithering:s=2"), &found, 4).unwrap(), [2.0, -1.0, 0.0, 2.0]);
}

#[test]
fn a_body_that_no_encoder_makes_is_refused() {
    let (linear, natural) = (codec("dithering:s=4"), codec("dithering:s=3,natural=1"));
    let whole = form("1 0 1", 1.0);
    assert!(linear.check(&whole, 20).is_ok() && natural.check(&whole, 20).is_ok());
    let padded = {
        let mut padded = whole.clone();
        padded[0] |= 1;
        padded
    };
    for (codec, body, problem) in [
        (linear, vec![], "0 bytes"),
        (linear, vec![0; 4], "4 bytes"),
        (linear, [&whole[..], &[0]].concat(), "13 bytes"),
        (linear, [&[0; 4][..], &whole].concat(), "2 words for 3 bits"),
        (linear, whole[4..].to_vec(), "0 words for 3 bits"),
        (linear, [[0; 4], [0xff; 4], [0; 4]].concat(), "1 words for 4294967295 bits"),
        (linear, padded, "behind the last of 3"),
        (linear, form("1 0 1", f32::NAN), "the scale NaN"),
        (linear, form("1 0 1", f32::INFINITY), "the scale inf"),
        (linear, form("1 0 1", -1.0), "the scale -1"),
        (linear, form("", -0.0), "the scale -0"),
        (linear, form("1 0 1", 0.0), "levels of the scale 0"),
        (linear, form("1", 1.0), "ends within"),
        (linear, form("1 0", 1.0), "ends within"),
        (linear, form("1 0 010", 1.0), "ends within a code"),
        (linear, form("1 0 1 0000", 1.0), "ends within one"),
        (linear, form("000000 1 000000 1", 1.0), "more than 32 bits"),
        // A number of 33 bits.
        (linear, form(&format!("00000 100001 {}", "0".repeat(32)), 1.0), "more than 32 bits"),
        // 2^32 - 1, and 21.
        (linear, form(&format!("00000 100000 {} 0 1", "1".repeat(31)), 1.0), "the element 4294967294 of 20"),
        (linear, form("00 101 0101 0 1", 1.0), "the element 20 of 20"),
        (linear, form("00 101 0100 0 1 1 0 1", 1.0), "the element 20 of 20"),
        (linear, form("1 0 01101", 1.0), "the level 5"),
        (natural, form("1 0 0101", 1.0), "the level 3"),
        (natural, form("1 0 00100000", 1.0), "the level 8"),
    ] {
        let error = decoded(codec, &body, 20).unwrap_err();
        assert!(error.to_string().contains(problem), "{body:02x?}: {error}");
        let mut sum = bytes(&[3.0; 20]);
        assert_eq!(codec.add(KERNELS(), Op::Sum, 1.0, &body, &mut sum), Err(error.clone()));
        assert_eq!(codec.start(KERNELS(), Op::Sum, 1.0, &body, &mut sum), Err(error));
    }
}

/// The order in which `Squares` says that it adds. Kernels of devices follow it.
#[test]
fn squares_are_added_by_lanes_and_blocks() {
    let codec = Dithering::new("dithering:norm=1".parse().unwrap(), DType::F32);
    for (places, are_together) in ORDERS_OF_SQUARES {
        let elements: Vec<u8> = at_a_tie_of_squares(places).into_iter().flat_map(f32::to_le_bytes).collect();
        for kernels in Kernels::all() {
            let scale = codec.scale(kernels, elements.as_chunks().0).unwrap();
            assert_eq!(scale, if are_together { 1.0 + f32::EPSILON } else { 1.0 }, "{places:?}");
        }
    }
}

#[test]
fn no_body_is_longer_than_the_longest() {
    for text in ["dithering:s=1", "dithering:s=127", "dithering:s=9,natural=1", "dithering:s=3,norm=1"] {
        let codec = Dithering::new(text.parse().unwrap(), DType::F32);
        // All of the largest level, and ever fewer elements that are not zero.
        for every in [1, 2, 3, 4, 8, 17, 100] {
            let values = (0..1000).map(|at| if at % every == every - 1 { -1.0_f32 } else { 0.0 });
            let elements: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            let body = encoded(&codec, Kernels::portable(), 1.0, &elements, 1000).unwrap();
            let most = codec.encoded_bytes_max(1000, Round(0));
            assert!(body.len() as u64 <= most, "{text}, each {every}th: {} of {most}", body.len());
            assert!(
                every > 1 || text.contains("norm") || body.len() as u64 == most,
                "{text}: {most} are none too many"
            );
        }
    }
}

proptest! {
    #[test]
    fn an_element_is_off_by_less_than_the_distance_of_two_levels(
        values in proptest::collection::vec(prop_oneof![Just(0.0_f32), -1e6_f32..1e6, -1.0_f32..1.0], 0..400),
        s in 1_u32..=16,
        natural: bool,
        norm: bool,
        round: u64,
    ) {
        let codec = codec(&format!("dithering:s={s},natural={},norm={}", u32::from(natural), u32::from(norm)));
        match body(codec, KERNELS(), round, &values) {
            Ok(made) => {
                prop_assert!(made.len() < 4 * values.len());
                let scale = codec.scale(KERNELS(), values.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>().as_slice()).unwrap();
                let step = scale / codec.levels as f32;
                for (value, found) in values.iter().zip(decoded(codec, &made, values.len()).unwrap()) {
                    let most = if natural { step.max(value.abs()) } else { step };
                    prop_assert!((value - found).abs() <= most * 1.0001, "{value} became {found}");
                    prop_assert!(value * found >= 0.0, "{value} became {found}");
                }
            }
            Err(refusal) => prop_assert_eq!(refusal, Refusal::NotShorter),
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(body in proptest::collection::vec(any::<u8>(), 0..60), len in 0_usize..40) {
        // Nearly always refused by its number of bits, so that is corrected in most of them.
        let mut body = body;
        if body.len() >= 8 && body.len().is_multiple_of(4) {
            let bytes = body.len() - 8;
            let (words, tail) = body.split_at_mut(bytes);
            tail[..4].copy_from_slice(&(words.len() as u32 * 8).to_le_bytes());
        }
        for text in ["dithering", "dithering:natural=1"] {
            if let Ok(elements) = decoded(codec(text), &body, len) {
                prop_assert!(elements.iter().all(|element| element.is_finite()));
            }
        }
    }
}
