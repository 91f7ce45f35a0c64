//! The memory of one sum: an [`Accumulator`] while bodies are added, a [`Published`] from then on. The types keep a sum from changing
//! once somebody may be reading it.

use gradlane_core::mem::{Frozen, Lease, Pool};
use gradlane_core::reduce::{Kernels, accumulator_bytes};
use gradlane_core::types::{DType, Op};

/// A sum in the making.
#[derive(Debug)]
pub(crate) struct Accumulator {
    op: Op,
    dtype: DType,
    memory: Lease,
}

impl Accumulator {
    /// Begins with the first body.
    ///
    /// A body whose bytes already are what an accumulator would hold becomes the accumulator: the common f32 sum saves a pass over
    /// memory, and a broadcast arrives bit for bit.
    pub(crate) fn start(kernels: Kernels, pool: &Pool, op: Op, dtype: DType, weight: f64, body: Lease) -> Self {
        if keeps_bytes(op) || (dtype.accumulator() == dtype && op != Op::WeightedMean) {
            return Self { op, dtype, memory: body };
        }
        let bytes = accumulator_bytes(dtype, body.len() as u64);
        let mut memory = pool.lease(usize::try_from(bytes).expect("at most twice a body that is in memory"));
        kernels.start(op, dtype, weight, &body, &mut memory);
        Self { op, dtype, memory }
    }

    /// Adds a further body.
    ///
    /// # Panics
    /// If it has not the length of the first.
    pub(crate) fn add(&mut self, kernels: Kernels, weight: f64, body: &[u8]) {
        kernels.add(self.op, self.dtype, weight, body, &mut self.memory);
    }

    /// Divides, rounds once, and ends all writing.
    pub(crate) fn publish(mut self, kernels: Kernels, pool: &Pool, divisor: f64) -> Published {
        let sum = if keeps_bytes(self.op) {
            self.memory
        } else if self.dtype.accumulator() == self.dtype {
            kernels.finish_in_place(self.op, self.dtype, divisor, &mut self.memory);
            self.memory
        } else {
            let elements = self.memory.len() / bytes_of(self.dtype.accumulator());
            let mut sum = pool.lease(elements * bytes_of(self.dtype));
            kernels.finish(self.op, self.dtype, divisor, &self.memory, &mut sum);
            sum
        };
        Published { checksum: crc32c::crc32c(&sum), sum: sum.freeze() }
    }
}

/// A finished sum; clones share its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    /// What every worker gets.
    pub(crate) sum: Frozen,
    /// Its CRC-32C, computed once for all of them.
    pub(crate) checksum: u32,
}

fn keeps_bytes(op: Op) -> bool {
    match op {
        Op::Broadcast { .. } => true,
        Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => false,
    }
}

fn bytes_of(dtype: DType) -> usize {
    usize::try_from(dtype.bytes()).expect("at most eight")
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::WorkerId;

    use super::*;

    #[test]
    fn bodies_are_added_and_divided() {
        let published = reduce(Op::Mean, DType::F32, &[(1.0, f32s(&[1.0, 2.0])), (1.0, f32s(&[5.0, 8.0]))], 2.0);
        assert_eq!(*published.sum, f32s(&[3.0, 5.0])[..]);
        assert_eq!(published.checksum, crc32c::crc32c(&f32s(&[3.0, 5.0])));
    }

    #[test]
    fn bodies_are_weighted() {
        let bodies = [(3.0, f32s(&[1.0])), (1.0, f32s(&[9.0]))];
        assert_eq!(*reduce(Op::WeightedMean, DType::F32, &bodies, 4.0).sum, f32s(&[3.0])[..]);
    }

    #[test]
    fn half_size_floats_are_rounded_once() {
        // 256 has no neighbour closer than 2 in bfloat16: added in it, three times 1 would be lost each time.
        let (one, large) = (bf16s(1.0), bf16s(256.0));
        let bodies: Vec<(f64, Vec<u8>)> = [&large, &one, &one, &one, &one].map(|body| (1.0, body.clone())).into();
        assert_eq!(*reduce(Op::Sum, DType::BF16, &bodies, 1.0).sum, bf16s(260.0)[..]);
    }

    #[test]
    fn a_broadcast_keeps_every_bit() {
        // A signalling NaN of f16, which a conversion to f32 and back would quieten.
        let op = Op::Broadcast { root: WorkerId(0) };
        assert_eq!(*reduce(op, DType::F16, &[(1.0, vec![0x01, 0x7c])], 1.0).sum, [0x01, 0x7c]);
    }

    #[test]
    fn a_sum_of_nothing_is_nothing() {
        for dtype in DType::ALL {
            assert!(reduce(Op::Sum, dtype, &[(1.0, vec![]), (1.0, vec![])], 1.0).sum.is_empty());
        }
    }

    fn reduce(op: Op, dtype: DType, bodies: &[(f64, Vec<u8>)], divisor: f64) -> Published {
        let (kernels, pool) = (Kernels::detect(), Pool::new());
        let ((weight, first), rest) = bodies.split_first().unwrap();
        let mut body = pool.lease(first.len());
        body.copy_from_slice(first);
        let mut accumulator = Accumulator::start(kernels, &pool, op, dtype, *weight, body);
        rest.iter().for_each(|(weight, body)| accumulator.add(kernels, *weight, body));
        accumulator.publish(kernels, &pool, divisor)
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// The upper half of the f32, exact for the small integers used here.
    fn bf16s(value: f32) -> Vec<u8> {
        value.to_le_bytes()[2..].to_vec()
    }
}
