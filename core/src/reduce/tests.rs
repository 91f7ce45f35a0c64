//! What a reduction means, on numbers that can be checked by eye. Also checks that all kernels agree.

use half::{bf16, f16};

use super::*;
use crate::types::WorkerId;

const BROADCAST: Op = Op::Broadcast { root: WorkerId(0) };

#[test]
fn a_sum_adds_every_contribution() {
    assert_eq!(
        f32s(&reduce(Op::Sum, DType::F32, &[of_f32(&[1.0, -2.0]), of_f32(&[10.0, 20.0]), of_f32(&[0.5, 0.25])])),
        [11.5, 18.25]
    );
}

#[test]
fn a_mean_divides_by_the_number_of_contributors() {
    assert_eq!(f32s(&reduce(Op::Mean, DType::F32, &[of_f32(&[1.0, 3.0]), of_f32(&[2.0, -4.0])])), [1.5, -0.5]);
}

#[test]
fn integer_sums_wrap() {
    assert_eq!(reduce(Op::Sum, DType::U8, &[vec![250, 1], vec![10, 1]]), [4, 2]);
    let sum = reduce(Op::Sum, DType::I32, &[of_i32(&[i32::MAX]), of_i32(&[1])]);
    assert_eq!(i32s(&sum), [i32::MIN]);
}

#[test]
fn an_integer_mean_rounds_down() {
    let mean = reduce(Op::Mean, DType::I32, &[of_i32(&[7, -7, -1]), of_i32(&[0, 0, 0])]);
    assert_eq!(i32s(&mean), [3, -4, -1]);
}

#[test]
fn an_integer_mean_may_have_more_contributors_than_its_type_counts() {
    let mut accumulator = vec![100_u8, 0x80];
    Kernels::portable().finish_in_place(Op::Mean, DType::I8, 200.0, &mut accumulator);
    assert_eq!(accumulator, [0, 0xff], "100 / 200 and -128 / 200");
}

#[test]
fn half_floats_are_added_in_f32_and_rounded_once() {
    // 2048 + 1 is not an f16. With rounding after each addition, each one would be lost.
    let ones = [2048.0, 1.0, 1.0, 1.0, 1.0].map(|x| of_f16(&[x]));
    assert_eq!(f16s(&reduce(Op::Sum, DType::F16, &ones)), [2052.0]);
    let ones = [256.0, 1.0, 1.0, 1.0, 1.0].map(|x| of_bf16(&[x]));
    assert_eq!(bf16s(&reduce(Op::Sum, DType::BF16, &ones)), [260.0]);
}

#[test]
fn elements_are_added_to_others_as_a_sum_of_the_two() {
    for dtype in DType::ALL {
        let [from, into] = [1, 2].map(|seed| noise(dtype, 100, seed));
        let mut sum = into.clone();
        Kernels::detect().add_elements(dtype, &from, &mut sum, |bytes| vec![0; bytes]);
        assert_eq!(sum, reduce(Op::Sum, dtype, &[into, from]), "{dtype}");
    }
}

#[test]
fn a_half_float_mean_does_not_overflow_on_its_way() {
    assert_eq!(f16s(&reduce(Op::Mean, DType::F16, &[of_f16(&[65504.0]), of_f16(&[65504.0])])), [65504.0]);
}

#[test]
fn ties_round_to_even() {
    assert_eq!(f16s(&reduce(Op::Sum, DType::F16, &[of_f16(&[2048.0, 2050.0]), of_f16(&[1.0, 1.0])])), [2048.0, 2052.0]);
    assert_eq!(bf16s(&reduce(Op::Sum, DType::BF16, &[of_bf16(&[256.0, 258.0]), of_bf16(&[1.0, 1.0])])), [256.0, 260.0]);
}

#[test]
fn a_weighted_mean_divides_by_the_sum_of_the_weights() {
    let mut accumulator = vec![0; 8];
    let kernels = Kernels::detect();
    kernels.start(Op::WeightedMean, DType::F32, 3.0, &of_f32(&[1.0, 8.0]), &mut accumulator);
    kernels.add(Op::WeightedMean, DType::F32, 1.0, &of_f32(&[5.0, 0.0]), &mut accumulator);
    kernels.finish_in_place(Op::WeightedMean, DType::F32, 4.0, &mut accumulator);
    assert_eq!(f32s(&accumulator), [2.0, 6.0]);
}

#[test]
fn a_worker_without_samples_does_not_spoil_a_weighted_mean() {
    for kernels in Kernels::all() {
        let (empty, full) = (of_f16(&[f32::NAN]), of_f16(&[6.0]));
        let mut accumulator = vec![0xff; 4];
        kernels.start(Op::WeightedMean, DType::F16, 0.0, &empty, &mut accumulator);
        kernels.add(Op::WeightedMean, DType::F16, 2.0, &full, &mut accumulator);
        kernels.add(Op::WeightedMean, DType::F16, 0.0, &empty, &mut accumulator);
        let mut mean = vec![0; 2];
        kernels.finish(Op::WeightedMean, DType::F16, 2.0, &accumulator, &mut mean);
        assert_eq!(f16s(&mean), [6.0], "{kernels}");
    }
}

#[test]
fn nan_wins_a_minimum_and_a_maximum_in_any_order() {
    let (number, nan) = (of_f32(&[1.0]), of_f32(&[f32::NAN]));
    for op in [Op::Min, Op::Max] {
        assert!(f32s(&reduce(op, DType::F32, &[number.clone(), nan.clone()]))[0].is_nan(), "{op}");
        assert!(f32s(&reduce(op, DType::F32, &[nan.clone(), number.clone()]))[0].is_nan(), "{op}");
    }
}

#[test]
fn negative_zero_is_below_zero_in_any_order() {
    let zeros = [0.0_f32, -0.0].map(|x| of_f32(&[x]));
    let reversed = [-0.0_f32, 0.0].map(|x| of_f32(&[x]));
    for contributions in [zeros, reversed] {
        assert_eq!(reduce(Op::Min, DType::F32, &contributions), of_f32(&[-0.0]));
        assert_eq!(reduce(Op::Max, DType::F32, &contributions), of_f32(&[0.0]));
    }
}

#[test]
fn a_minimum_and_a_maximum_choose_by_value() {
    let contributions = [of_i32(&[-3, 9]), of_i32(&[4, -9])];
    assert_eq!(i32s(&reduce(Op::Min, DType::I32, &contributions)), [-3, -9]);
    assert_eq!(i32s(&reduce(Op::Max, DType::I32, &contributions)), [4, 9]);
    let contributions = [of_bf16(&[-3.0, f32::INFINITY]), of_bf16(&[4.0, 0.0])];
    assert_eq!(bf16s(&reduce(Op::Min, DType::BF16, &contributions)), [-3.0, 0.0]);
    assert_eq!(bf16s(&reduce(Op::Max, DType::BF16, &contributions)), [4.0, f32::INFINITY]);
}

#[test]
fn a_broadcast_keeps_every_bit_pattern() {
    let every_half: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in DType::ALL {
        assert!(reduce(BROADCAST, dtype, std::slice::from_ref(&every_half)) == every_half, "{dtype}");
    }
}

#[test]
fn scaling_rounds_a_float_once_and_an_integer_down() {
    let kernels = Kernels::detect();
    let mut halves = of_f16(&[3.0, -5.0]);
    kernels.scale(DType::F16, 0.5, &mut halves);
    assert_eq!(f16s(&halves), [1.5, -2.5]);
    let mut integers = of_i32(&[3, -5, i32::MAX]);
    kernels.scale(DType::I32, 0.5, &mut integers);
    assert_eq!(i32s(&integers), [1, -3, i32::MAX / 2]);
    kernels.scale(DType::I32, 1e9, &mut integers);
    assert_eq!(i32s(&integers), [1_000_000_000, i32::MIN, i32::MAX], "clamped");
}

#[test]
fn the_accumulator_of_a_half_float_is_twice_as_long() {
    for dtype in DType::ALL {
        let times = if matches!(dtype, DType::F16 | DType::BF16) { 2 } else { 1 };
        assert_eq!(accumulator_bytes(dtype, 1 << 33), times << 33, "{dtype}");
    }
}

#[test]
fn all_kernels_give_the_same_bits_at_any_address_and_length() {
    for dtype in DType::ALL {
        for op in ops_of(dtype) {
            for (elements, misplaced) in [(0, 0), (1, 1), (7, 3), (16, 0), (67, 5), (1000, 1)] {
                let expected = rounds_at(Kernels::portable(), op, dtype, elements, 0);
                for kernels in Kernels::all() {
                    let found = rounds_at(kernels, op, dtype, elements, misplaced);
                    assert!(found == expected, "{kernels} {op} {dtype}, {elements} elements, {misplaced} bytes off");
                }
            }
        }
    }
}

#[test]
fn all_kernels_round_every_half_float_back_to_itself() {
    let finite = |infinity: u16| move |bits: &u16| bits & 0x7fff <= infinity;
    for kernels in Kernels::all() {
        for (dtype, infinity) in [(DType::F16, 0x7c00), (DType::BF16, 0x7f80)] {
            let every: Vec<u8> = (0..=u16::MAX).filter(finite(infinity)).flat_map(u16::to_le_bytes).collect();
            assert!(reduce_with(kernels, Op::Sum, dtype, std::slice::from_ref(&every)) == every, "{kernels} {dtype}");
        }
    }
}

#[test]
fn all_kernels_add_and_divide_every_half_float_alike() {
    // Every bit pattern, including subnormals and infinities, at an odd address and with a tail. Where one kernel gives NaN, all do.
    let every: Vec<u8> = (0..=u16::MAX).chain(0..5).flat_map(u16::to_le_bytes).collect();
    let other = of_f16(&[1.5]).repeat(every.len() / 2);
    for op in [Op::Sum, Op::Mean, Op::WeightedMean] {
        let result = |kernels: Kernels| {
            let displaced = |bytes: &[u8]| [&[0], bytes].concat();
            let (every, other) = (displaced(&every), displaced(&other));
            let mut accumulator = vec![0; 2 * (every.len() - 1) + 1];
            kernels.start(op, DType::F16, 0.5, &other[1..], &mut accumulator[1..]);
            kernels.add(op, DType::F16, 3.0, &every[1..], &mut accumulator[1..]);
            let mut out = vec![0; every.len()];
            kernels.finish(op, DType::F16, 3.5, &accumulator[1..], &mut out[1..]);
            f16s(&out[1..]).into_iter().map(|x| if x.is_nan() { 0x7e00 } else { x.to_bits() }).collect::<Vec<_>>()
        };
        let expected = result(Kernels::portable());
        for kernels in Kernels::all() {
            assert!(result(kernels) == expected, "{kernels} {op}");
        }
    }
}

#[test]
fn a_part_may_be_cut_into_runs_of_whole_elements() {
    for dtype in DType::ALL {
        for op in ops_of(dtype) {
            let contributions = [noise(dtype, 100, 1), noise(dtype, 100, 2)];
            let cut = 37 * dtype.bytes() as usize;
            let (heads, tails): (Vec<_>, Vec<_>) =
                contributions.iter().map(|x| (x[..cut].to_vec(), x[cut..].to_vec())).unzip();
            let pieces = [reduce(op, dtype, &heads), reduce(op, dtype, &tails)].concat();
            assert!(reduce(op, dtype, &contributions) == pieces, "{op} {dtype}");
        }
    }
}

#[test]
#[should_panic(expected = "an accumulator fits its contributions")]
fn an_accumulator_of_another_length_is_refused() {
    Kernels::portable().add(Op::Sum, DType::F16, 1.0, &[0; 4], &mut [0; 4]);
}

#[test]
#[should_panic(expected = "a buffer holds whole elements")]
fn a_torn_element_is_refused() {
    Kernels::portable().scale(DType::F32, 2.0, &mut [0; 6]);
}

/// The result of a round in which every contribution has weight 1.
fn reduce(op: Op, dtype: DType, contributions: &[Vec<u8>]) -> Vec<u8> {
    reduce_with(Kernels::detect(), op, dtype, contributions)
}

fn reduce_with(kernels: Kernels, op: Op, dtype: DType, contributions: &[Vec<u8>]) -> Vec<u8> {
    let (first, others) = contributions.split_first().expect("a round has a contributor");
    let mut accumulator = vec![0xaa; accumulator_bytes(dtype, first.len() as u64) as usize];
    kernels.start(op, dtype, 1.0, first, &mut accumulator);
    for other in others {
        kernels.add(op, dtype, 1.0, other, &mut accumulator);
    }
    let mut out = vec![0xaa; first.len()];
    kernels.finish(op, dtype, contributions.len() as f64, &accumulator, &mut out);
    if dtype == dtype.accumulator() {
        kernels.finish_in_place(op, dtype, contributions.len() as f64, &mut accumulator);
        assert!(accumulator == out, "in place and copied, {op} {dtype}");
    }
    out
}

/// Accumulator and result of three weighted contributions, then scaled. The buffers start `misplaced` bytes into their allocations.
fn rounds_at(kernels: Kernels, op: Op, dtype: DType, elements: usize, misplaced: usize) -> (Vec<u8>, Vec<u8>) {
    let bytes = elements * dtype.bytes() as usize;
    let shifted = |content: &[u8]| [&vec![0; misplaced], content].concat();
    let mut accumulator = shifted(&vec![0; accumulator_bytes(dtype, bytes as u64) as usize]);
    for (seed, weight) in [(1, 0.75), (2, 3.0), (3, 0.1)] {
        let contribution = shifted(&noise(dtype, elements, seed));
        match seed {
            1 => kernels.start(op, dtype, weight, &contribution[misplaced..], &mut accumulator[misplaced..]),
            _ => kernels.add(op, dtype, weight, &contribution[misplaced..], &mut accumulator[misplaced..]),
        }
    }
    let mut out = shifted(&vec![0; bytes]);
    kernels.finish(op, dtype, 3.0, &accumulator[misplaced..], &mut out[misplaced..]);
    kernels.scale(dtype, 1.7, &mut out[misplaced..]);
    (accumulator[misplaced..].to_vec(), out[misplaced..].to_vec())
}

fn ops_of(dtype: DType) -> impl Iterator<Item = Op> {
    let all = [Op::Sum, Op::Mean, Op::Min, Op::Max, Op::WeightedMean, BROADCAST];
    all.into_iter().filter(move |op| op.check(dtype).is_ok())
}

/// Random bits without NaN and infinities: the top bit of the exponent is cleared. An addition may choose the payload of a NaN, and
/// infinities can give NaN.
fn noise(dtype: DType, elements: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut state = seed;
    for _ in 0..elements {
        // The multiplier and increment of Knuth's MMIX generator; the upper bits are the random ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 7;
        match dtype {
            DType::F32 => bytes.extend((random as u32 & !(1 << 30)).to_le_bytes()),
            DType::F64 => bytes.extend((random & !(1 << 62)).to_le_bytes()),
            DType::F16 | DType::BF16 => bytes.extend((random as u16 & !(1 << 14)).to_le_bytes()),
            DType::I32 => bytes.extend((random as u32).to_le_bytes()),
            DType::I64 => bytes.extend(random.to_le_bytes()),
            DType::I8 | DType::U8 => bytes.push(random as u8),
        }
    }
    bytes
}

fn of_f32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn of_i32(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn of_f16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
}

fn of_bf16(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

fn i32s(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|x| i32::from_le_bytes(*x)).collect()
}

fn f16s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).to_f32()).collect()
}

fn bf16s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32()).collect()
}
