use proptest::prelude::*;

use super::super::testing::{encoded, finished};
use super::*;
use crate::reduce::Loops;

const KERNELS: fn() -> Kernels = Kernels::portable;

fn body(dtype: DType, elements: &[u8]) -> Result<Vec<u8>, Refusal> {
    encoded(&Lossless::new(dtype), KERNELS(), 1.0, elements, elements.len() as u64 / dtype.bytes())
}

fn decoded(dtype: DType, kernels: Kernels, body: &[u8], bytes: usize) -> Result<Vec<u8>, Malformed> {
    let (codec, mut elements) = (Lossless::new(dtype), vec![0xee; bytes]);
    let outcome = codec.decode(kernels, body, &mut elements);
    assert_eq!(codec.check(body, bytes as u64 / dtype.bytes()), outcome);
    outcome.map(|()| elements)
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

/// Bytes that look random.
fn random(count: usize) -> Vec<u8> {
    let mut word = 1_u64;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Small numbers of this type, one of ten of which is not zero.
fn sparse(dtype: DType, len: usize) -> Vec<u8> {
    let width = dtype.bytes() as usize;
    let mut elements = vec![0; len * width];
    let values = random(len * width);
    for (at, (element, value)) in elements.chunks_mut(width).zip(values.chunks(width)).enumerate() {
        if at % 10 == 3 {
            element.copy_from_slice(value);
        }
    }
    elements
}

/// The definition of a body, worked out by hand.
#[test]
fn planes_have_the_bytes_of_a_place_and_floats_are_turned_by_a_bit() {
    // 0x8000_0001 turned is 3, and 0x3f80_0000 is 0x7f00_0000.
    let elements = [0x8000_0001_u32, 0x3f80_0000].map(u32::to_le_bytes).concat();
    let mut planes = [0; 8];
    Split { dtype: DType::F32, elements: &elements, planes: &mut planes }.run();
    assert_eq!(planes, [3, 0, 0, 0, 0, 0, 0, 0x7f]);
    Split { dtype: DType::I32, elements: &elements, planes: &mut planes }.run();
    assert_eq!(planes, [1, 0, 0, 0, 0, 0x80, 0x80, 0x3f]);
    // Without streams: a plane of 300 bytes is as it is, or a stream that is shorter.
    let zeros = body(DType::U8, &[0; 300]).unwrap();
    assert_eq!(usize::from(u16::from_le_bytes([zeros[0], zeros[1]])), zeros.len() - 2);
    let plain = [&300_u16.to_le_bytes()[..], &random(300)].concat();
    assert_eq!(decoded(DType::U8, KERNELS(), &plain, 300).unwrap(), random(300));
}

#[test]
fn bodies_that_python_made_are_decoded() {
    for line in include_str!("../vectors/lossless.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let &[dtype, elements, body] = &words[..] else { panic!("three words: {line}") };
        let bytes = |hex: &str| -> Vec<u8> {
            let digits = hex.as_bytes().as_chunks::<2>().0;
            digits.iter().map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
        };
        let (dtype, elements): (DType, Vec<u8>) = (dtype.parse().unwrap(), bytes(elements));
        for kernels in Kernels::all() {
            assert_eq!(decoded(dtype, kernels, &bytes(body), elements.len()).unwrap(), elements, "{dtype} {kernels}");
        }
    }
}

#[test]
fn every_type_gets_its_bits_back_whatever_they_are() {
    for dtype in DType::ALL {
        for len in [100, RUN, 2 * RUN + 77] {
            let elements = sparse(dtype, len);
            let made = body(dtype, &elements).unwrap();
            assert!(made.len() < elements.len() * 3 / 4, "{dtype}: {} of {}", made.len(), elements.len());
            for kernels in Kernels::all() {
                let again = encoded(&Lossless::new(dtype), kernels, 1.0, &elements, len as u64).unwrap();
                assert!(again == made, "{dtype} {kernels}");
                assert!(decoded(dtype, kernels, &made, elements.len()).unwrap() == elements, "{dtype} {kernels}");
            }
        }
    }
    let strange = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0];
    let elements = bytes(&strange.repeat(50));
    assert_eq!(
        decoded(DType::F32, KERNELS(), &body(DType::F32, &elements).unwrap(), elements.len()).unwrap(),
        elements
    );
}

#[test]
fn exponents_alone_save_more_than_a_twentieth() {
    // Sums of random bytes, so that exponents differ.
    let floats: Vec<f32> = random(12 * 40_000)
        .chunks(12)
        .map(|terms| terms.iter().map(|term| f32::from(*term)).sum::<f32>() - 1530.3)
        .collect();
    let elements = bytes(&floats);
    let made = body(DType::F32, &elements).unwrap();
    assert!(made.len() < elements.len() * 9 / 10, "{} of {}", made.len(), elements.len());
}

#[test]
fn what_saves_too_little_is_refused() {
    assert_eq!(body(DType::F32, &[]), Err(Refusal::NotShorter));
    assert_eq!(body(DType::F32, &[0; 4]), Err(Refusal::NotShorter));
    for dtype in DType::ALL {
        assert_eq!(body(dtype, &random(80_000)), Err(Refusal::NotShorter), "{dtype}");
    }
    // A 30th of the elements of a type of one plane are not random.
    let mut elements = random(30_000);
    elements[..1000].fill(0);
    assert_eq!(body(DType::U8, &elements), Err(Refusal::NotShorter));
}

#[test]
fn the_sum_is_that_of_plain_elements_bit_for_bit() {
    for dtype in DType::ALL {
        let codec = Lossless::new(dtype);
        let len = RUN + 100;
        let [one, two] = [1, 5].map(|factor: u8| {
            let mut elements = vec![0; len * dtype.bytes() as usize];
            // The first byte of an integer, and the exponent of a float.
            let place = if dtype.is_float() { dtype.bytes() as usize - 1 } else { 0 };
            elements.chunks_mut(dtype.bytes() as usize).enumerate().for_each(|(at, element)| {
                element[place] = if dtype.is_float() { 0x3c + (at % 3) as u8 } else { (at % 50) as u8 * factor };
            });
            elements
        });
        for (op, weights, divisor) in [
            (Op::Sum, [1.0, 1.0], 1.0),
            (Op::Mean, [1.0, 1.0], 2.0),
            (Op::Max, [1.0, 1.0], 1.0),
            (Op::WeightedMean, [1.0, 3.0], 4.0),
        ] {
            if op.check(dtype).is_err() {
                continue;
            }
            let mut due = vec![0xff; len * codec.sum_type().bytes() as usize];
            let mut sum = due.clone();
            KERNELS().start(op, dtype, weights[0], &one, &mut due);
            KERNELS().add(op, dtype, weights[1], &two, &mut due);
            codec.start(KERNELS(), op, weights[0], &body(dtype, &one).unwrap(), &mut sum).unwrap();
            codec.add(KERNELS(), op, weights[1], &body(dtype, &two).unwrap(), &mut sum).unwrap();
            assert!(sum == due, "{op} of {dtype}");
            let mut plain = vec![0; one.len()];
            KERNELS().finish(op, dtype, divisor, &due, &mut plain);
            let answer = finished(&codec, KERNELS(), op, divisor, &sum).unwrap();
            assert!(decoded(dtype, KERNELS(), &answer, plain.len()).unwrap() == plain, "{op} of {dtype}");
        }
    }
}

#[test]
fn a_body_that_no_encoder_makes_is_refused() {
    let mut deflater = Deflater::default();
    let mut stream = |plain: &[u8]| {
        let mut stream = vec![0; 400];
        let used = deflater.deflate(plain, &mut stream).unwrap();
        stream.truncate(used);
        stream
    };
    let with = |plane: &[u8]| [&(plane.len() as u16).to_le_bytes()[..], plane].concat();
    let whole = with(&stream(&[7; 50]));
    assert_eq!(decoded(DType::U8, KERNELS(), &whole, 50).unwrap(), [7; 50]);
    for (body, problem) in [
        (vec![], "ends where 2 bytes are due and 0 are left"),
        (vec![50], "ends where 2 bytes are due and 1 are left"),
        (whole[..whole.len() - 1].to_vec(), "are left"),
        ([&whole[..], &[0]].concat(), "1 bytes behind"),
        (with(&[]), "a plane of 0 bytes"),
        (with(&[0xff; 7]), "a plane of 7 bytes"),
        (with(&[1; 51]), "a plane of 51 bytes"),
        (with(&stream(&[7; 49])), "do not bring 50"),
        (with(&stream(&[7; 51])), "do not bring 50"),
        // A stream that brings 64 KiB.
        (with(&stream(&[0; 1 << 16])[..]), "do not bring 50"),
        (with(&[&stream(&[7; 50])[..], &[0]].concat()), "do not bring 50"),
        (with(&whole[2..whole.len() - 1]), "do not bring 50"),
    ] {
        let error = decoded(DType::U8, KERNELS(), &body, 50).unwrap_err().to_string();
        assert!(error.contains(problem), "{body:02x?}: {error}");
        let mut sum = [3; 50];
        assert!(Lossless::new(DType::U8).add(KERNELS(), Op::Sum, 1.0, &body, &mut sum).is_err());
        assert!(Lossless::new(DType::U8).start(KERNELS(), Op::Sum, 1.0, &body, &mut sum).is_err());
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_and_shorter(
        dtype in prop::sample::select(DType::ALL.to_vec()),
        values in proptest::collection::vec(prop_oneof![4 => Just(0_u8), 1 => any::<u8>()], 0..4000),
    ) {
        let elements = &values[..values.len() / 8 * 8];
        match body(dtype, elements) {
            Ok(made) => {
                prop_assert!(made.len() * 20 <= elements.len() * 19);
                prop_assert_eq!(decoded(dtype, KERNELS(), &made, elements.len()).unwrap(), elements);
            }
            Err(refusal) => prop_assert_eq!(refusal, Refusal::NotShorter),
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(body in proptest::collection::vec(any::<u8>(), 0..60), len in 0_usize..20) {
        for dtype in [DType::U8, DType::F16, DType::F32] {
            let _ = decoded(dtype, KERNELS(), &body, len * dtype.bytes() as usize);
        }
    }
}
