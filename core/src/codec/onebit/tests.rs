use proptest::prelude::*;

use super::super::testing::{ORDERS, at_a_tie, encoded, finished};
use super::*;

const KERNELS: fn() -> Kernels = Kernels::portable;

fn codec(text: &str) -> OneBit {
    OneBit::new(text.parse().unwrap(), DType::F32)
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)).collect()
}

fn body(codec: OneBit, values: &[f32]) -> Vec<u8> {
    encoded(&codec, KERNELS(), 1.0, &bytes(values), values.len() as u64).unwrap()
}

fn decoded(codec: OneBit, kernels: Kernels, body: &[u8], len: usize) -> Vec<f32> {
    let mut elements = vec![0xee; 4 * len];
    codec.decode(kernels, body, &mut elements).unwrap();
    floats(&elements)
}

/// Two words, worked out by hand.
#[test]
fn a_body_has_a_bit_for_each_element_from_the_highest_on_and_a_scale() {
    let mut values = [1.0; 36];
    (values[0], values[3], values[31], values[33]) = (-1.0, -4.0, -2.0, -3.0);
    (values[34], values[35]) = (0.0, -0.0);
    let signs = [0x9000_0001_u32, 0x4000_0000].map(u32::to_le_bytes).concat();
    let scaled = [&signs[..], &(40.0_f32 / 36.0).to_le_bytes()].concat();
    assert_eq!(body(codec("onebit"), &values), scaled);
    assert_eq!(body(codec("onebit:scaling=0"), &values), [&signs[..], &1.0_f32.to_le_bytes()].concat());
    assert_eq!(codec("onebit").body_bytes(0), BodyBytes::Exact(0));
}

#[test]
fn an_element_becomes_the_mean_magnitude_with_its_sign() {
    let values = [3.0, -1.0, 0.0, -0.0, 4.0];
    assert_eq!(decoded(codec("onebit"), KERNELS(), &body(codec("onebit"), &values), 5), [1.6, -1.6, 1.6, 1.6, 1.6]);
    let signs = codec("onebit:scaling=0");
    assert_eq!(decoded(signs, KERNELS(), &body(signs, &values), 5), [1.0, -1.0, 1.0, 1.0, 1.0]);
    assert_eq!(decoded(codec("onebit"), KERNELS(), &body(codec("onebit"), &[0.0, -0.0]), 2), [0.0; 2]);
    let largest = [f32::MAX, -f32::MAX, f32::MAX];
    assert_eq!(decoded(codec("onebit"), KERNELS(), &body(codec("onebit"), &largest), 3), largest);
    assert_eq!(body(codec("onebit"), &[]), [0; 0]);
}

#[test]
fn magnitudes_are_added_in_one_order_whatever_vectors_there_are() {
    for (places, is_kept) in ORDERS {
        let values = at_a_tie(places);
        let below = 2.0_f32.powi(100 - 17);
        for kernels in Kernels::all() {
            let body = encoded(&codec("onebit"), kernels, 1.0, &bytes(&values), values.len() as u64).unwrap();
            let scale = floats(&body).last().copied();
            assert_eq!(scale, Some(if is_kept { below.next_up() } else { below }), "{kernels}, {places:?}");
        }
    }
}

#[test]
fn a_nan_or_an_infinity_makes_all_of_its_part_nan() {
    for strange in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (codec, at) in [codec("onebit"), codec("onebit:scaling=0")].into_iter().zip([0, 69]) {
            let mut values = [1.0; 70];
            values[at] = strange;
            let found = decoded(codec, KERNELS(), &body(codec, &values), 70);
            assert!(found.iter().all(|value| value.is_nan()), "{strange} at {at}");
            let answer = finished(&codec, KERNELS(), Op::Sum, 1.0, &bytes(&values)).unwrap();
            assert!(decoded(codec, KERNELS(), &answer, 70).iter().all(|value| value.is_nan()), "{strange} at {at}");
        }
    }
}

#[test]
fn contributions_are_added_with_their_weights_and_the_sum_is_encoded_once() {
    let codec = codec("onebit");
    let len = RUN + 37;
    // All magnitudes of a contribution are equal, so nothing is lost before the sum.
    let row = |magnitude: f32, period: usize| {
        (0..len).map(|at| if at % period == 0 { -magnitude } else { magnitude }).collect::<Vec<_>>()
    };
    let (one, two) = (row(1.0, 3), row(2.0, 5));
    for (op, weights, divisor) in
        [(Op::Sum, [1.0, 1.0], 1.0), (Op::Mean, [1.0, 1.0], 2.0), (Op::WeightedMean, [1.0, 3.0], 4.0)]
    {
        let mut sum = vec![0xff; 4 * len];
        codec.start(KERNELS(), op, weights[0], &body(codec, &one), &mut sum).unwrap();
        codec.add(KERNELS(), op, weights[1], &body(codec, &two), &mut sum).unwrap();
        let due: Vec<f32> =
            one.iter().zip(&two).map(|(one, two)| one * weights[0] as f32 + two * weights[1] as f32).collect();
        assert!(floats(&sum) == due, "{op}");
        let answer = finished(&codec, KERNELS(), op, divisor, &sum).unwrap();
        let mean = due.iter().map(|value| f64::from(value.abs()) / divisor).sum::<f64>() / len as f64;
        for (due, found) in due.iter().zip(decoded(codec, KERNELS(), &answer, len)) {
            assert_eq!(found, (mean as f32).copysign(*due), "{op}");
        }
    }
}

#[test]
fn a_machine_divides_what_it_sends() {
    let found = encoded(&codec("onebit"), KERNELS(), 4.0, &bytes(&[8.0, -8.0]), 2).unwrap();
    assert_eq!(decoded(codec("onebit"), KERNELS(), &found, 2), [2.0, -2.0]);
}

#[test]
fn a_body_that_no_encoder_makes_is_refused() {
    let (scaled, signs) = (codec("onebit"), codec("onebit:scaling=0"));
    let with = |words: [u32; 2], scale: f32| [words[0], words[1], scale.to_bits()].map(u32::to_le_bytes).concat();
    for (codec, body, problem) in [
        (scaled, with([7, 0], -1.0), "the scale -1"),
        (scaled, with([7, 0], -0.0), "the scale -0"),
        (scaled, with([7, 0], f32::INFINITY), "the scale inf"),
        (signs, with([7, 0], 2.0), "the scale 2"),
        (signs, with([7, 0], 0.0), "the scale 0"),
        (scaled, with([7, 1], 1.0), "behind the last of 34"),
        (signs, with([7, 1 << 29], 1.0), "behind the last of 34"),
    ] {
        let error = codec.check(&body, 34).unwrap_err();
        assert!(error.to_string().contains(problem), "{body:02x?}: {error}");
        let mut sum = bytes(&[3.0; 34]);
        assert_eq!(codec.decode(KERNELS(), &body, &mut [0; 4 * 34]), Err(error.clone()));
        assert_eq!(codec.start(KERNELS(), Op::Sum, 1.0, &body, &mut sum), Err(error.clone()));
        assert_eq!(codec.add(KERNELS(), Op::Sum, 1.0, &body, &mut sum), Err(error));
        assert_eq!(sum, bytes(&[3.0; 34]), "nothing was changed");
    }
    for scale in [0.0, 1.0, f32::MAX, f32::NAN] {
        assert_eq!(scaled.check(&with([u32::MAX, 3 << 30], scale), 34), Ok(()), "{scale}");
    }
}

proptest! {
    #[test]
    fn signs_are_kept_and_magnitudes_become_their_mean(
        values in proptest::collection::vec(prop_oneof![Just(0.0_f32), Just(-0.0), -1e30_f32..1e30, -1e-3_f32..1e-3], 0..300),
        scales: bool,
    ) {
        let codec = if scales { codec("onebit") } else { codec("onebit:scaling=0") };
        let made = body(codec, &values);
        prop_assert_eq!(codec.check(&made, values.len() as u64), Ok(()));
        let mean = values.iter().map(|value| f64::from(value.abs())).sum::<f64>() / values.len().max(1) as f64;
        for kernels in Kernels::all() {
            let again = encoded(&codec, kernels, 1.0, &bytes(&values), values.len() as u64).unwrap();
            prop_assert!(again == made, "{kernels}");
            for (value, found) in values.iter().zip(decoded(codec, kernels, &made, values.len())) {
                prop_assert_eq!(found.is_sign_negative(), *value < 0.0);
                let due = if scales { mean } else { 1.0 };
                // An f32 has 24 bits, and the order of a few hundred additions in f64 shows in none of them but the last.
                prop_assert!((f64::from(found.abs()) - due).abs() <= due * 2.0_f64.powi(-23), "{found} for {due}");
            }
        }
    }
}
