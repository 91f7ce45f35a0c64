use half::{bf16, f16};

use super::super::{Seed, Workspace, testing};
use super::*;
use crate::types::{PartId, Round, TensorKey, WorkerId};

const ONE: NonZeroU32 = NonZeroU32::MIN;

#[test]
fn every_f16_and_every_bf16_survives_the_way_back_and_forth() {
    let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for cast in casts() {
        for kernels in Kernels::all() {
            let mut elements = vec![0; (1 << 16) * usize::try_from(cast.elements.bytes()).unwrap()];
            cast.decode(kernels, &every, &mut elements).unwrap();
            let again = encoded(cast, kernels, &elements);
            for (before, after) in every.chunks(2).zip(again.chunks(2)) {
                assert_eq!(number(cast, after), number(cast, before), "{cast:?} {kernels}: {before:02x?}");
            }
        }
    }
}

#[test]
fn f32_rounds_to_the_nearest_and_of_two_to_the_even() {
    let two = |exponent: i32| 2.0_f32.powi(exponent);
    for (value, as_f16, as_bf16) in [
        (0.0, 0x0000, 0x0000),
        (-0.0, 0x8000, 0x8000),
        (1.0, 0x3c00, 0x3f80),
        // Half a step above 1 and half a step above the next: to even, down and up.
        (1.0 + two(-11), 0x3c00, 0x3f80),
        (1.0 + 3.0 * two(-11), 0x3c02, 0x3f80),
        (1.0 + two(-8), 0x3c04, 0x3f80),
        (1.0 + 3.0 * two(-8), 0x3c0c, 0x3f82),
        // A little more than half a step.
        (f32::from_bits((1.0 + two(-11)).to_bits() + 1), 0x3c01, 0x3f80),
        (f32::from_bits((1.0 + two(-8)).to_bits() + 1), 0x3c04, 0x3f81),
        // The carry goes into the exponent.
        (2.0 - two(-23), 0x4000, 0x4000),
        // The largest of f16; what still rounds to it; what does not.
        (65_504.0, 0x7bff, 0x4780),
        (f32::from_bits(65_520.0_f32.to_bits() - 1), 0x7bff, 0x4780),
        (65_520.0, 0x7c00, 0x4780),
        (-65_536.0, 0xfc00, 0xc780),
        // The largest of f32 is beyond that of bf16; what still rounds to the latter.
        (f32::MAX, 0x7c00, 0x7f80),
        (f32::from_bits(0x7f7f_7fff), 0x7c00, 0x7f7f),
        (f32::INFINITY, 0x7c00, 0x7f80),
        (f32::NEG_INFINITY, 0xfc00, 0xff80),
        // The smallest normal of f16, its largest subnormal, its smallest, half of that, and a little more.
        (two(-14), 0x0400, 0x3880),
        (two(-14) - two(-24), 0x03ff, 0x3880),
        (two(-24), 0x0001, 0x3380),
        (two(-25), 0x0000, 0x3300),
        (f32::from_bits(two(-25).to_bits() + 1), 0x0001, 0x3300),
        (-3.0 * two(-25), 0x8002, 0xb3c0),
        // Subnormals of f32: bf16 has those of its upper half.
        (f32::from_bits(0x0001_0000), 0x0000, 0x0001),
        (f32::from_bits(0x0000_8000), 0x0000, 0x0000),
        (f32::from_bits(0x0000_8001), 0x0000, 0x0001),
        (f32::from_bits(0x807f_ffff), 0x8000, 0x8080),
    ] {
        for kernels in Kernels::all() {
            for (elements, bytes) in
                [(DType::F32, value.to_le_bytes().to_vec()), (DType::F64, f64::from(value).to_le_bytes().to_vec())]
            {
                for (wire, expected) in [(DType::F16, as_f16), (DType::BF16, as_bf16)] {
                    let body = encoded(cast(elements, wire), kernels, &bytes);
                    let found = u16::from_le_bytes([body[0], body[1]]);
                    assert_eq!(found, expected, "{value:e} from {elements} to {wire}, {kernels}: {found:#06x}");
                }
            }
        }
    }
}

#[test]
fn f32_of_every_exponent_rounds_like_the_reference() {
    let lows = [0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
    let values: Vec<f32> =
        (0..=u16::MAX).flat_map(|high| lows.map(|low| f32::from_bits(u32::from(high) << 16 | low))).collect();
    let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for kernels in Kernels::all() {
        for wire in [DType::F16, DType::BF16] {
            let cast = self::cast(DType::F32, wire);
            let body = encoded(cast, kernels, &elements);
            for (value, found) in values.iter().zip(body.chunks(2)) {
                let reference = match wire {
                    DType::F16 => f16::from_f32(*value).to_bits(),
                    _ => bf16::from_f32(*value).to_bits(),
                };
                assert_eq!(number(cast, found), number(cast, &reference.to_le_bytes()), "{value:e} to {wire}");
            }
        }
    }
}

#[test]
fn by_chance_a_value_becomes_one_of_its_neighbours_and_is_right_on_average() {
    let (low, step) = (1.0_f32, 2.0_f32.powi(-7));
    let shares = [0.0_f32, 1.0 / 65536.0, 0.25, 0.5, 0.9];
    let values: Vec<f32> = shares.iter().flat_map(|share| [low + share * step, -(low + share * step)]).collect();
    let elements: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let cast = Cast::new(CodecSpec::BF16.with_stochastic(), DType::F32);
    let mut ups = vec![0_u32; values.len()];
    for round in 0..10_000 {
        let body = by_chance(cast, Kernels::detect(), round, 0, &elements);
        let mut back = vec![0; elements.len()];
        cast.decode(Kernels::detect(), &body, &mut back).unwrap();
        for ((value, found), up) in values.iter().zip(f32s(&back)).zip(&mut ups) {
            assert!(found.abs() == low || found.abs() == low + step, "{value} became {found}");
            assert_eq!(found.is_sign_negative(), value.is_sign_negative());
            *up += u32::from(found.abs() > low);
        }
    }
    for (share, up) in shares.iter().flat_map(|share| [share; 2]).zip(ups) {
        // Four standard errors.
        let error = 4.0 * (10_000.0 * share * (1.0 - share)).sqrt();
        assert!((up as f32 - 10_000.0 * share).abs() <= error, "{share} of a step: {up} of 10,000 times up");
    }
}

#[test]
fn by_chance_bits_depend_on_the_element_and_not_on_vectors_or_runs() {
    let elements: Vec<u8> = (0..2 * RUN + 7).flat_map(|index| (0.1 * index as f32).to_le_bytes()).collect();
    let cast = Cast::new(CodecSpec::BF16.with_stochastic(), DType::F32);
    let whole = by_chance(cast, Kernels::portable(), 3, 0, &elements);
    for kernels in Kernels::all() {
        let (head, tail) = elements.split_at(4 * 13);
        let runs = [by_chance(cast, kernels, 3, 0, head), by_chance(cast, kernels, 3, 13, tail)];
        assert_eq!(runs.concat(), whole, "{kernels}");
    }
    assert_ne!(by_chance(cast, Kernels::detect(), 4, 0, &elements), whole, "another round");
    let doubles: Vec<u8> = f32s(&elements).iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
    let of_doubles = Cast::new(CodecSpec::BF16.with_stochastic(), DType::F64);
    assert_eq!(by_chance(of_doubles, Kernels::detect(), 3, 0, &doubles), whole);
}

#[test]
fn by_chance_finite_values_stay_finite_and_others_stay_what_they_are() {
    let bits = [0x7f7f_ffff, 0xff7f_ffff, 0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0xffff_ffff, 1, 0x8000_0000_u32];
    let elements: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let cast = Cast::new(CodecSpec::BF16.with_stochastic(), DType::F32);
    for round in 0..100 {
        let body = by_chance(cast, Kernels::detect(), round, 0, &elements);
        let found: Vec<bf16> = body.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect();
        assert_eq!(found[..4], [bf16::MAX, bf16::MIN, bf16::INFINITY, bf16::NEG_INFINITY]);
        assert!(found[4].is_nan() && found[5].is_nan() && found[5].is_sign_negative());
        assert!(found[6].to_bits() <= 1 && found[7].to_bits() == 0x8000, "{found:?}");
    }
}

#[test]
fn nan_stays_nan_and_keeps_its_sign() {
    for kernels in Kernels::all() {
        for cast in casts().filter(|cast| cast.elements == DType::F32) {
            for bits in [0x7fc0_0000_u32, 0xffc0_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff] {
                let body = encoded(cast, kernels, &bits.to_le_bytes());
                let mut back = [0; 4];
                cast.decode(kernels, &body, &mut back).unwrap();
                let back = f32::from_le_bytes(back);
                assert!(back.is_nan(), "{bits:#010x} is {back}");
                assert_eq!(back.is_sign_negative(), bits >> 31 == 1, "{bits:#010x}");
            }
        }
    }
}

#[test]
fn f64_beyond_f32_is_infinite_and_below_it_zero() {
    for cast in casts().filter(|cast| cast.elements == DType::F64) {
        let elements: Vec<u8> = [1e300, -1e300, 1e-300].into_iter().flat_map(f64::to_le_bytes).collect();
        let mut back = vec![0; elements.len()];
        cast.decode(Kernels::detect(), &encoded(cast, Kernels::detect(), &elements), &mut back).unwrap();
        assert_eq!(f64s(&back), [f64::INFINITY, f64::NEG_INFINITY, 0.0]);
    }
}

#[test]
fn a_part_may_be_cut_into_runs_of_whole_units() {
    for cast in casts() {
        let size = usize::try_from(cast.elements.bytes()).unwrap();
        // More than is cast at a time, and an odd number.
        let len = 2 * RUN + 7;
        let elements: Vec<u8> = (0..len)
            .flat_map(|index| match cast.elements {
                DType::F32 => (0.1 * index as f32).to_le_bytes().to_vec(),
                _ => (0.1 * index as f64).to_le_bytes().to_vec(),
            })
            .collect();
        let whole = encoded(cast, Kernels::detect(), &elements);
        let (head, tail) = elements.split_at(13 * size);
        let runs = [head, tail].map(|run| encoded(cast, Kernels::portable(), run));
        assert_eq!(runs.concat(), whole, "{cast:?}");
        let mut back = vec![0; elements.len()];
        let (head, tail) = back.split_at_mut(13 * size);
        cast.decode(Kernels::portable(), &whole[..26], head).unwrap();
        cast.decode(Kernels::portable(), &whole[26..], tail).unwrap();
        assert_eq!(encoded(cast, Kernels::detect(), &back), whole, "{cast:?}");
    }
}

#[test]
fn a_server_adds_in_f32_and_rounds_once() {
    // Rounded after each addition the ones would vanish: 2048 + 1 is no f16, and 256 + 1 no bf16.
    for (wire, large) in [(DType::F16, 2048.0), (DType::BF16, 256.0)] {
        let cast = self::cast(DType::F32, wire);
        let sum = reduced(cast, (Op::Sum, 2), 1.0, &[[large], [1.0], [1.0], [1.0], [1.0]]);
        assert_eq!(sum, [large + 4.0], "{wire}");
    }
}

#[test]
fn the_digits_of_a_sum_count_its_contributions() {
    // Rank r contributes 4^r times a small number. So the base-4 digits of the sum show how often each rank is in it.
    for cast in casts().filter(|cast| cast.elements == DType::F32) {
        let contributions: Vec<[f32; 3]> =
            (0..3).map(|rank| [1.0, 0.5, -0.125].map(|unit| unit * 4.0_f32.powi(rank))).collect();
        assert_eq!(reduced(cast, (Op::Sum, 2), 1.0, &contributions), [21.0, 10.5, -2.625]);
        assert_eq!(reduced(cast, (Op::Mean, 2), 1.0, &contributions[..2]), [2.5, 1.25, -0.3125]);
    }
}

#[test]
fn a_machine_whose_sum_leaves_f16_has_a_mean_all_the_same() {
    let cast = self::cast(DType::F32, DType::F16);
    let ranks = NonZeroU32::new(3).unwrap();
    let divisor = cast.divisor(Op::Mean, ranks);
    assert_eq!(divisor, 4.0);
    // Each of the three ranks on each of two machines had 60,000. Their machine added these to 180,000.
    let mean = reduced(cast, (Op::Mean, 6), divisor, &[[180_000.0], [180_000.0]]);
    assert_eq!(mean, [60_000.0]);
    assert_eq!(cast.divisor(Op::Mean, ONE), 1.0);
    assert_eq!(cast.divisor(Op::Max, ranks), 1.0, "a maximum is no larger than what each has");
    assert_eq!(self::cast(DType::F32, DType::BF16).divisor(Op::Sum, ranks), 1.0, "bf16 has the range of f32");
}

#[test]
fn a_sum_beyond_f16_is_infinite() {
    let cast = self::cast(DType::F32, DType::F16);
    assert_eq!(
        reduced(cast, (Op::Sum, 2), 1.0, &[[60_000.0, -60_000.0], [60_000.0, -60_000.0]]),
        [f32::INFINITY, f32::NEG_INFINITY]
    );
}

#[test]
fn minimum_and_maximum_choose_among_the_rounded_values() {
    for cast in casts().filter(|cast| cast.elements == DType::F32) {
        let contributions = [[1.0 + 2.0_f32.powi(-20), -3.0], [0.5, f32::NAN]];
        let max = reduced(cast, (Op::Max, 2), 1.0, &contributions);
        assert!(max[0] == 1.0 && max[1].is_nan(), "{max:?}");
        let min = reduced(cast, (Op::Min, 2), 1.0, &contributions);
        assert!(min[0] == 0.5 && min[1].is_nan(), "{min:?}");
    }
}

#[test]
fn the_length_of_a_body_is_checked_before_anything() {
    for cast in casts() {
        let due = cast.body_bytes(10);
        assert_eq!((due, cast.unit(10)), (BodyBytes::Exact(20), Unit { len: 1, bytes: 2 }));
        assert_eq!(due.check(20), Ok(()));
        for wrong in [0, 19, 21, 40, u64::MAX] {
            let problem = due.check(wrong).unwrap_err().problem;
            assert!(problem.contains(&wrong.to_string()) && problem.contains("20"), "{problem}");
        }
    }
}

#[test]
#[should_panic(expected = "a broadcast is not encoded")]
fn a_broadcast_is_refused() {
    let cast = self::cast(DType::F32, DType::F16);
    let _ = cast.start(Kernels::portable(), Op::Broadcast { root: WorkerId(0) }, 1.0, &[0; 2], &mut [0; 4]);
}

#[test]
#[should_panic(expected = "an accumulator fits its contributions")]
fn a_body_that_does_not_fit_is_refused() {
    let (kernels, workspace) = (Kernels::portable(), &mut Workspace::default());
    let tools = Tools { kernels, seed: testing::SEED(), workspace };
    let _ = cast(DType::F32, DType::F16).encode(tools, 1.0, &[0; 8], &mut [0; 2]);
}

fn cast(elements: DType, wire: DType) -> Cast {
    Cast::new(if wire == DType::F16 { CodecSpec::F16 } else { CodecSpec::BF16 }, elements)
}

fn casts() -> impl Iterator<Item = Cast> {
    let pairs = [DType::F32, DType::F64].into_iter().flat_map(|from| [DType::F16, DType::BF16].map(|to| (from, to)));
    pairs.map(|(from, to)| cast(from, to))
}

/// The body of these elements, of which the first is the element `first` of a part.
fn by_chance(cast: Cast, kernels: Kernels, round: u64, first: u64, elements: &[u8]) -> Vec<u8> {
    let mut body = vec![0; elements.len() / usize::try_from(cast.elements.bytes()).unwrap() * 2];
    let seed = Seed::of(PartId { key: TensorKey(5), index: 0 }, Round(round)).from_element(first);
    cast.encode(Tools { kernels, seed, workspace: &mut Workspace::default() }, 1.0, elements, &mut body).unwrap();
    body
}

fn encoded(cast: Cast, kernels: Kernels, elements: &[u8]) -> Vec<u8> {
    let len = elements.len() as u64 / cast.elements.bytes();
    testing::encoded(&cast, kernels, 1.0, elements, len).unwrap()
}

/// The result that each worker gets of a round with these contributions. Each is divided by `divisor` on its way to the server.
fn reduced<const LEN: usize>(
    cast: Cast,
    (op, workers): (Op, u32),
    divisor: f64,
    contributions: &[[f32; LEN]],
) -> [f32; LEN] {
    let kernels = Kernels::detect();
    let mut sum = vec![0xaa; LEN * F32_BYTES];
    for (rank, contribution) in contributions.iter().enumerate() {
        let elements: Vec<u8> = contribution.iter().flat_map(|x| x.to_le_bytes()).collect();
        let body = testing::encoded(&cast, kernels, divisor, &elements, LEN as u64).unwrap();
        let fold = if rank == 0 { Cast::start } else { Cast::add };
        fold(&cast, kernels, op, divisor, &body, &mut sum).unwrap();
    }
    let body = testing::finished(&cast, kernels, op, f64::from(workers), &sum).unwrap();
    let mut elements = [[0; F32_BYTES]; LEN];
    cast.decode(kernels, &body, elements.as_flattened_mut()).unwrap();
    elements.map(f32::from_le_bytes)
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

fn f64s(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|x| f64::from_le_bytes(*x)).collect()
}

/// The bits of an element of the wire type. They are the same for every NaN, because the payload of a NaN may change.
fn number(cast: Cast, bytes: &[u8]) -> u16 {
    let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
    let infinity = if cast.wire == DType::F16 { 0x7c00 } else { 0x7f80 };
    if bits & 0x7fff > infinity { u16::MAX } else { bits }
}
