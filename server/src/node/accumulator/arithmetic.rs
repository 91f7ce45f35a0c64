//! Adds bytes of contributions to a sum, and encodes the sum for its answer: by element, by bit, or with a codec.

use gradlane_core::codec::{self, Codec, Malformed};
use gradlane_core::mem::{Lease, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{DType, Op};

use crate::node::command::SumSpec;

/// The arithmetic of one sum.
///
/// A body is a row of *units*, each of which is added on its own: elements, or what the codec calls a unit. The last unit may be shorter.
#[derive(Debug)]
pub(super) struct Arithmetic {
    kernels: Kernels,
    op: Op,
    dtype: DType,
    codec: Option<Box<dyn Codec>>,
    /// Bytes of a body.
    bytes: u64,
    /// Bytes of a unit in a body, and in the sum.
    unit: (u64, u64),
    /// Bytes of the sum.
    grown: u64,
}

impl Arithmetic {
    /// The arithmetic of a sum of plain or cast elements.
    ///
    /// # Panics
    /// If the encoding is none of the element type.
    pub(super) fn of(kernels: Kernels, spec: &SumSpec) -> Self {
        Self::with(kernels, spec, codec::of(spec.codec, spec.dtype))
    }

    /// The arithmetic of a sum with bodies of this codec.
    pub(super) fn with(kernels: Kernels, spec: &SumSpec, codec: Option<Box<dyn Codec>>) -> Self {
        let len = spec.bytes / spec.dtype.bytes();
        let grown = spec.grown_bytes();
        let (bytes, unit) = match &codec {
            None => (spec.bytes, (spec.dtype.bytes(), grown.checked_div(len).unwrap_or(spec.dtype.bytes()))),
            Some(codec) => {
                let unit = codec.unit(len);
                (codec.body_bytes(len).max(), (unit.bytes, unit.len * DType::F32.bytes()))
            }
        };
        Self { kernels, op: spec.op, dtype: spec.dtype, codec, bytes, unit, grown }
    }

    /// Bytes of a body.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a unit of a body.
    pub(super) fn unit_bytes(&self) -> u64 {
        self.unit.0
    }

    /// Bytes of the sum that the first `bytes` of a body make; these end with a unit.
    pub(super) fn grown(&self, bytes: u64) -> u64 {
        (bytes.div_ceil(self.unit.0) * self.unit.1).min(self.grown)
    }

    /// Starts the sum with units of the first contribution.
    pub(super) fn start(&self, weight: f64, units: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        let Self { kernels, op, .. } = *self;
        match (op, &self.codec) {
            // Copies bytes, because a number that is read and written need not keep its bits.
            (Op::Broadcast { .. }, _) => kernels.start(op, DType::U8, weight, units, sum),
            (_, Some(codec)) => return codec.start(kernels, op, weight, units, sum),
            (_, None) => kernels.start(op, self.dtype, weight, units, sum),
        }
        Ok(())
    }

    /// Adds units of a further contribution.
    pub(super) fn add(&self, weight: f64, units: &[u8], sum: &mut [u8]) -> Result<(), Malformed> {
        match &self.codec {
            Some(codec) => codec.add(self.kernels, self.op, weight, units, sum),
            None => {
                self.kernels.add(self.op, self.dtype, weight, units, sum);
                Ok(())
            }
        }
    }

    /// Divides and rounds a block of the sum, once, to the `bytes` of its answer; in place if possible.
    pub(super) fn finish(&self, pool: &Pool, divisor: f64, mut sum: Lease, bytes: usize) -> Lease {
        let Self { kernels, op, dtype, .. } = *self;
        if let Op::Broadcast { .. } = op {
            return sum;
        }
        if self.codec.is_none() && dtype.accumulator() == dtype {
            kernels.finish_in_place(op, dtype, divisor, &mut sum);
            return sum;
        }
        let mut answer = pool.lease(bytes);
        match &self.codec {
            Some(codec) => {
                let used = codec.finish(kernels, op, divisor, &sum, &mut answer);
                assert_eq!(used, bytes, "a block of {} is as long as those of its contributions", codec.spec());
            }
            None => kernels.finish(op, dtype, divisor, &sum, &mut answer),
        }
        answer
    }
}
