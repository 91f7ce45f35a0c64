//! What workers give to parameters, so that each value tells which changes are in it.
//!
//! Worker process w adds `64^w` to every element. The base-64 digits of a value say how often each worker was counted; nobody adds so often
//! that a digit is full, and all digits of a job are exact in its type. A gradient is that number with the other sign, and its rule takes it
//! away as it is. What is assigned is another number for each use of each worker.

use gradlane_core::types::{Access, DType, Update};

use super::{JUNK, decode, encode};
use crate::sim::checkers::UseId;
use crate::sim::workload::Plan;
use crate::sim::world::Who;

/// Bits of a digit.
const DIGIT_BITS: u32 = 6;
/// More uses of a parameter than one worker makes.
const USES: i64 = 1000;

/// What a use sends; of a pull, what lies where its value goes.
pub(in crate::sim) fn change(plan: &Plan, id: UseId, access: Access) -> Vec<u8> {
    let (spec, bytes) = (&plan.parameters[id.parameter].spec, plan.parameters[id.parameter].bytes());
    let value = match access {
        Access::Pull | Access::PullAverage(_) => return vec![JUNK; bytes as usize],
        Access::Init => 0,
        Access::Push(Update::Add) | Access::PushPull(Update::Add) => 1 << (DIGIT_BITS * number(id.who)),
        Access::Push(Update::Step) | Access::PushPull(Update::Step) => gradient(id.who),
        Access::Push(Update::Assign) | Access::PushPull(Update::Assign) => assigned(id),
    };
    let mut encoded = Vec::with_capacity(bytes as usize);
    for _ in 0..bytes / spec.dtype.bytes() {
        encode(spec.dtype, value as f64, &mut encoded);
    }
    encoded
}

/// The elements of a worker's gradients.
pub(in crate::sim) fn gradient(who: Who) -> i64 {
    -(1 << (DIGIT_BITS * number(who)))
}

/// The elements of a value.
pub(in crate::sim) fn values(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(dtype.bytes() as usize).map(|element| decode(dtype, element)).collect()
}

/// How often a worker is counted in a value.
pub(in crate::sim) fn counted(value: i64, who: Who) -> u64 {
    (value >> (DIGIT_BITS * number(who))) as u64 & ((1 << DIGIT_BITS) - 1)
}

/// What a use assigns.
pub(in crate::sim) fn assigned(id: UseId) -> i64 {
    USES * i64::from(number(id.who) + 1) + id.index as i64
}

fn number(who: Who) -> u32 {
    let Who::Worker(number) = who else { unreachable!("workers use parameters") };
    number
}
