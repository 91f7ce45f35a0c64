//! What every contribution is and what every result must be, computed without the code under test.
//!
//! Rank r contributes `4^r * v(round, tensor, element)` with v in {1, 2, 4}. Every sum is exact in any order, and the base-4 digits of
//! `sum / v` say how often each rank was counted: 0 lost, 1 right, 2 or 3 counted twice or thrice. v tells one round and one tensor from
//! another. Where a type has too few bits for all ranks, other ranks carry digits in each element and the rest contribute 0.
//!
//! Rough tensors are the other mode: ranks contribute numbers of very different size, so that a sum in another order has other bits. What
//! is expected there is the sum in the order of the ranks, in the type in which the server adds, rounded once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use gradlane_core::codec::{self, testing};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{CodecSpec, DType, Encoding, Op, WorkerId};
use half::{bf16, f16};

mod parameters;

pub(super) use self::parameters::{assigned, change, counted, gradient, values};

use super::workload::{self, Plan};
use crate::random::mix;

/// A value in every element of a buffer whose content must not matter.
pub(super) const JUNK: u8 = 0xa5;

/// What was computed before: every worker and every part asks for the same bytes.
#[derive(Debug, Default)]
pub(super) struct Memo(RefCell<BTreeMap<Key, Rc<[u8]>>>);

/// What of which tensor and round.
type Key = (What, usize, u64);

/// What of a round of a tensor; of which rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum What {
    Contribution(u32),
    /// The ranks by their bits.
    Pushed(u64),
    Result,
}

impl Memo {
    fn recall(&self, what: What, tensor: usize, round: u64, compute: impl FnOnce() -> Vec<u8>) -> Rc<[u8]> {
        Rc::clone(self.0.borrow_mut().entry((what, tensor, round)).or_insert_with(|| compute().into()))
    }
}

/// The contribution of `rank` to a round of a tensor.
pub(super) fn contribution(plan: &Plan, tensor: usize, round: u64, rank: u32) -> Rc<[u8]> {
    plan.memo.recall(What::Contribution(rank), tensor, round, || contribute(plan, tensor, round, rank))
}

/// What the ranks of a machine that are left, of which `rank` is one, have to add to a round of a tensor together; `rank` alone where machines
/// do not add that type.
pub(super) fn pushed(plan: &Plan, tensor: usize, round: u64, rank: u32, team: &[u32]) -> Rc<[u8]> {
    let spec = &plan.tensors[tensor].spec;
    if team.len() <= 1 || spec.dtype == DType::F16 || !spec.participants.is_everybody() {
        return contribution(plan, tensor, round, rank);
    }
    let ranks = team.iter().fold(0, |ranks, rank| ranks | 1 << rank);
    plan.memo.recall(What::Pushed(ranks), tensor, round, || reduce(plan, tensor, round, team))
}

/// What a round of a tensor leaves in the destination of `rank`: the result, or what was there before.
pub(super) fn result(plan: &Plan, tensor: usize, round: u64, rank: u32) -> Rc<[u8]> {
    let workload::Tensor { spec, in_place, .. } = &plan.tensors[tensor];
    match (spec.participants.receives(WorkerId(rank)), in_place) {
        (true, _) => plan.memo.recall(What::Result, tensor, round, || {
            let members: Vec<u32> = plan.members(tensor).collect();
            result_of(plan, tensor, round, &members)
        }),
        (false, true) => contribution(plan, tensor, round, rank),
        (false, false) => vec![JUNK; spec.bytes().expect("small") as usize].into(),
    }
}

fn contribute(plan: &Plan, tensor: usize, round: u64, rank: u32) -> Vec<u8> {
    let op = plan.op(tensor, round);
    if matches!(op, Op::Broadcast { root } if root.0 != rank) {
        return vec![JUNK; plan.tensors[tensor].spec.bytes().expect("small") as usize];
    }
    if plan.tensors[tensor].rough {
        return elements(plan, tensor, |element| rough(plan, tensor, round, rank, element));
    }
    let factor = factor(plan, tensor, round);
    elements(plan, tensor, |element| share(plan, tensor, round, rank, element, factor))
}

/// What `rank` contributes to an element; `factor` is that of a mean.
fn share(plan: &Plan, tensor: usize, round: u64, rank: u32, element: u64, factor: f64) -> f64 {
    match plan.op(tensor, round) {
        Op::Sum | Op::Mean | Op::WeightedMean => {
            factor * digit(plan, tensor, round, rank, element) * value(plan, tensor, round, element)
        }
        Op::Min | Op::Max => {
            let place = (u64::from(rank) + element + round) % u64::from(plan.workers);
            10.0 + 4.0 * place as f64 + value(plan, tensor, round, element)
        }
        Op::Broadcast { .. } => 8.0 * f64::from(rank) + value(plan, tensor, round, element),
    }
}

/// What the ranks of a machine make of their contributions.
fn reduce(plan: &Plan, tensor: usize, round: u64, team: &[u32]) -> Vec<u8> {
    let (op, factor) = (plan.op(tensor, round), factor(plan, tensor, round));
    let weights: Vec<f64> = team.iter().map(|rank| plan.weight(tensor, round, *rank) as f64).collect();
    let total = if op == Op::WeightedMean { weights.iter().sum() } else { 1.0 };
    elements(plan, tensor, |element| {
        let contribution = |rank: &u32| share(plan, tensor, round, *rank, element, factor);
        let contributions = weights.iter().zip(team.iter().map(contribution));
        match op {
            Op::Sum | Op::Mean | Op::WeightedMean => {
                contributions.map(|(weight, value)| weight * value).sum::<f64>() / total
            }
            Op::Min => contributions.map(|(_, value)| value).fold(f64::INFINITY, f64::min),
            Op::Max => contributions.map(|(_, value)| value).fold(f64::NEG_INFINITY, f64::max),
            // Only the machine of the root sends something.
            Op::Broadcast { root } => share(plan, tensor, round, root.0, element, factor),
        }
    })
}

/// The result of a round of a tensor to which only these ranks contributed, in ascending order.
pub(super) fn result_of(plan: &Plan, tensor: usize, round: u64, ranks: &[u32]) -> Vec<u8> {
    if plan.tensors[tensor].rough {
        return elements(plan, tensor, |element| rough_sum(plan, tensor, round, ranks, element));
    }
    let place = |rank: &u32, element| (u64::from(*rank) + element + round) % u64::from(plan.workers);
    let (factor, divisor) = (factor(plan, tensor, round), divisor_of(plan, tensor, round, ranks));
    let value = |element| value(plan, tensor, round, element);
    let weights: Vec<f64> = (0..plan.workers).map(|rank| plan.weight(tensor, round, rank) as f64).collect();
    elements(plan, tensor, |element| match plan.op(tensor, round) {
        Op::Sum | Op::Mean | Op::WeightedMean => {
            let counted = |rank: &u32| weights[*rank as usize] * digit(plan, tensor, round, *rank, element);
            factor * ranks.iter().map(counted).sum::<f64>() * value(element) / divisor
        }
        Op::Min => {
            10.0 + 4.0 * ranks.iter().map(|rank| place(rank, element)).min().unwrap_or(0) as f64 + value(element)
        }
        Op::Max => {
            10.0 + 4.0 * ranks.iter().map(|rank| place(rank, element)).max().unwrap_or(0) as f64 + value(element)
        }
        Op::Broadcast { root } => 8.0 * f64::from(root.0) + value(element),
    })
}

/// These elements of a tensor as they travel, divided by what keeps them in the range of their wire form.
pub(super) fn on_wire(plan: &Plan, tensor: usize, elements: &[u8], codec: CodecSpec, divisor: f64) -> Vec<u8> {
    if codec == CodecSpec::LOSSLESS {
        // Nothing says which of many streams a plane has, so it is asked which. What they bring is what came.
        let (dtype, kernels) = (plan.tensors[tensor].spec.dtype, Kernels::portable());
        let lossless = codec::of(codec, dtype).expect("a codec");
        let body = testing::encoded(&*lossless, kernels, 1.0, elements, elements.len() as u64 / dtype.bytes());
        return body.unwrap_or_else(|_| elements.to_vec());
    }
    if codec.varies() {
        let entries = largest(elements);
        // Otherwise the codec refuses them.
        return if entries.len() < elements.len() { entries } else { elements.to_vec() };
    }
    let Some(wire) = wire_type(codec) else { return elements.to_vec() };
    let dtype = plan.tensors[tensor].spec.dtype;
    let mut body = Vec::with_capacity(elements.len() / dtype.bytes() as usize * wire.bytes() as usize);
    for element in elements.chunks_exact(dtype.bytes() as usize) {
        encode(wire, decode(dtype, element) / divisor, &mut body);
    }
    body
}

/// All f32 that are not zero: their number, how many zeros lie before each, and what they are. Numbers have seven bits a byte.
fn largest(elements: &[u8]) -> Vec<u8> {
    fn number(mut number: usize, to: &mut Vec<u8>) {
        while number > 127 {
            to.push(128 | (number % 128) as u8);
            number /= 128;
        }
        to.push(number as u8);
    }
    let (mut body, mut values, mut zeros) = (Vec::new(), Vec::<u8>::new(), 0);
    let (floats, _) = elements.as_chunks::<4>();
    number(floats.iter().filter(|float| f32::from_le_bytes(**float) != 0.0).count(), &mut body);
    for float in floats {
        if f32::from_le_bytes(*float) == 0.0 {
            zeros += 1;
        } else {
            number(std::mem::take(&mut zeros), &mut body);
            values.extend(float);
        }
    }
    body.extend(values);
    body
}

/// The type of the elements that travel; `None` for the tensor's own.
pub(super) fn wire_type(codec: CodecSpec) -> Option<DType> {
    match codec.encoding() {
        Encoding::Plain | Encoding::TopK | Encoding::Lossless => None,
        Encoding::F16 => Some(DType::F16),
        Encoding::BF16 => Some(DType::BF16),
        other => unreachable!("the simulation declares no codec that rounds what it is given, such as {other}"),
    }
}

/// What the sum of these ranks is divided by.
pub(super) fn divisor_of(plan: &Plan, tensor: usize, round: u64, ranks: &[u32]) -> f64 {
    match plan.op(tensor, round) {
        Op::Mean => ranks.len() as f64,
        Op::WeightedMean => ranks.iter().map(|rank| plan.weight(tensor, round, *rank) as f64).sum(),
        Op::Sum | Op::Min | Op::Max | Op::Broadcast { .. } => 1.0,
    }
}

/// A mean is made of contributions that are larger by what it may be divided by, so that it is exact: 12 is divided by up to 4 survivors.
fn factor(plan: &Plan, tensor: usize, round: u64) -> f64 {
    match plan.op(tensor, round) {
        Op::Mean if plan.classes.survivors => 12.0,
        Op::Mean => plan.members(tensor).count() as f64,
        Op::WeightedMean => plan.members(tensor).map(|rank| plan.weight(tensor, round, rank) as f64).sum(),
        Op::Sum | Op::Min | Op::Max | Op::Broadcast { .. } => 1.0,
    }
}

/// What is wrong with `got`, for people: the first element that differs and, of a sum, how often each rank was counted in it.
pub(super) fn explain(plan: &Plan, tensor: usize, round: u64, due: &[u8], got: &[u8]) -> String {
    let dtype = plan.tensors[tensor].spec.dtype;
    let size = dtype.bytes() as usize;
    let Some(at) = (0..due.len() / size).find(|at| due[at * size..][..size] != got[at * size..][..size]) else {
        return "nothing differs".to_owned();
    };
    let (due, got) = (decode(dtype, &due[at * size..][..size]), decode(dtype, &got[at * size..][..size]));
    let element = at as u64;
    let mut text = format!("element {at} is {got} instead of {due}");
    let counts = matches!(plan.op(tensor, round), Op::Sum | Op::Mean | Op::WeightedMean) && !plan.tensors[tensor].rough;
    if counts && got >= 0.0 {
        let counts = (got / value(plan, tensor, round, element)) as u64;
        let of = |rank: u32| match digit(plan, tensor, round, rank, element) as u64 {
            0 => "-".to_owned(),
            unit => (counts / unit % 4).to_string(),
        };
        let counts: Vec<String> = (0..plan.workers).map(of).collect();
        text += &format!("; counted per rank: {}", counts.join(" "));
    }
    text
}

/// What `rank` contributes to an element of a rough tensor: any mantissa, either sign, a size from 2^-6 to 2^6.
fn rough(plan: &Plan, tensor: usize, round: u64, rank: u32, element: u64) -> f64 {
    let draw = mix(plan.seed ^ ((tensor as u64) << 48) ^ (round << 32) ^ (u64::from(rank) << 24) ^ element);
    let mantissa = 1.0 + (draw >> 12) as f64 / (1u64 << 52) as f64;
    let size = (draw % 13) as i32 - 6;
    let sign = if draw & (1 << 8) == 0 { 1.0 } else { -1.0 };
    let dtype = plan.tensors[tensor].spec.dtype;
    let mut encoded = Vec::new();
    encode(dtype, sign * mantissa * 2f64.powi(size), &mut encoded);
    decode(dtype, &encoded)
}

/// The sum of an element of a rough tensor, rank by rank.
fn rough_sum(plan: &Plan, tensor: usize, round: u64, ranks: &[u32], element: u64) -> f64 {
    let contributions = ranks.iter().map(|rank| rough(plan, tensor, round, *rank, element));
    match plan.tensors[tensor].spec.dtype.accumulator() {
        DType::F64 => contributions.reduce(|sum, next| sum + next).unwrap_or_default(),
        _ => f64::from(contributions.map(|value| value as f32).reduce(|sum, next| sum + next).unwrap_or_default()),
    }
}

/// `4^d`, where d is the digit that `rank` has in this element; 0 if it has none.
fn digit(plan: &Plan, tensor: usize, round: u64, rank: u32, element: u64) -> f64 {
    let place = (u64::from(rank) + element + round) % u64::from(plan.workers);
    let spec = &plan.tensors[tensor].spec;
    // As many elements of any part are not zero as its codec sends.
    if spec.kind.codec().varies() && element % 4 != round % 4 {
        return 0.0;
    }
    let wire = wire_type(spec.kind.codec());
    let digits = match wire.unwrap_or(spec.dtype) {
        // What a machine makes of its ranks is rounded to the type, which has 8 bits, or 11.
        DType::BF16 | DType::F16 if plan.topology.has_teams() && (wire.is_some() || spec.dtype == DType::BF16) => {
            if plan.op(tensor, round) == Op::WeightedMean {
                1
            } else {
                2
            }
        }
        dtype => digits(dtype),
    };
    if place < digits { (1u64 << (2 * place)) as f64 } else { 0.0 }
}

/// Base-4 digits that are exact in every intermediate value. With 8 workers and weights up to 3 a contribution of a mean needs 5 bits
/// more than its digits.
fn digits(dtype: DType) -> u64 {
    match dtype {
        DType::F32 | DType::I32 => 8,
        DType::F64 | DType::I64 => 12,
        DType::F16 => 5,
        DType::BF16 => 4,
        DType::I8 | DType::U8 => 3,
    }
}

fn value(plan: &Plan, tensor: usize, round: u64, element: u64) -> f64 {
    let draw = mix(plan.seed ^ ((tensor as u64) << 48) ^ (round << 24) ^ element);
    [1.0, 2.0, 4.0][(draw % 3) as usize]
}

fn elements(plan: &Plan, tensor: usize, at: impl Fn(u64) -> f64) -> Vec<u8> {
    let spec = &plan.tensors[tensor].spec;
    let bytes = spec.bytes().expect("small");
    let mut encoded = Vec::with_capacity(bytes as usize);
    for element in 0..bytes / spec.dtype.bytes() {
        encode(spec.dtype, at(element), &mut encoded);
    }
    encoded
}

fn encode(dtype: DType, value: f64, to: &mut Vec<u8>) {
    match dtype {
        DType::F32 => to.extend((value as f32).to_le_bytes()),
        DType::F64 => to.extend(value.to_le_bytes()),
        // From f32, because `half` drops the low bits of an f64 before it rounds. All values here are exact in f32.
        DType::F16 => to.extend(f16::from_f32(value as f32).to_le_bytes()),
        DType::BF16 => to.extend(bf16::from_f32(value as f32).to_le_bytes()),
        DType::I32 => to.extend((value as i32).to_le_bytes()),
        DType::I64 => to.extend((value as i64).to_le_bytes()),
        DType::I8 => to.extend((value as i8).to_le_bytes()),
        DType::U8 => to.extend((value as u8).to_le_bytes()),
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    const WIDTH: &str = "the caller cut one element";
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().expect(WIDTH))),
        DType::F64 => f64::from_le_bytes(bytes.try_into().expect(WIDTH)),
        DType::F16 => f16::from_le_bytes(bytes.try_into().expect(WIDTH)).to_f64(),
        DType::BF16 => bf16::from_le_bytes(bytes.try_into().expect(WIDTH)).to_f64(),
        DType::I32 => f64::from(i32::from_le_bytes(bytes.try_into().expect(WIDTH))),
        DType::I64 => i64::from_le_bytes(bytes.try_into().expect(WIDTH)) as f64,
        DType::I8 => f64::from(i8::from_le_bytes(bytes.try_into().expect(WIDTH))),
        DType::U8 => f64::from(bytes[0]),
    }
}
