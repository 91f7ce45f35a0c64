//! Adds bytes of contributions to a sum, and encodes the sum for its answer: by element, by bit, or with a codec.

use std::ops::Range;

use gradlane_core::codec::feedback::Residual;
use gradlane_core::codec::{self, AnyCodec, Malformed, Seed, Tools, Workspace};
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
    codec: Option<AnyCodec>,
    /// Of the part in this round.
    seed: Seed,
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
    pub(super) fn of(kernels: Kernels, spec: &SumSpec, seed: Seed) -> Self {
        let codec = codec::of(spec.codec, spec.dtype);
        let len = spec.bytes / spec.dtype.bytes();
        let grown = spec.grown_bytes();
        let (bytes, unit) = match &codec {
            None => (spec.bytes, (spec.dtype.bytes(), grown.checked_div(len).unwrap_or(spec.dtype.bytes()))),
            Some(codec) => {
                let unit = codec.unit(len);
                (codec.body_bytes(len).max(), (unit.bytes, unit.len * DType::F32.bytes()))
            }
        };
        Self { kernels, op: spec.op, dtype: spec.dtype, codec, seed, bytes, unit, grown }
    }

    /// Bytes of a body.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a unit of a body.
    pub(super) fn unit_bytes(&self) -> u64 {
        self.unit.0
    }

    /// Elements of the part.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.grown / DType::F32.bytes()).expect("within a few times a part")
    }

    /// The element, of f32, with which the unit at this place of a body begins.
    pub(super) fn element(&self, bytes: u64) -> usize {
        usize::try_from(self.grown(bytes) / DType::F32.bytes()).expect("within a few times a part")
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

    /// Divides and rounds a block of the sum, once, to these bytes of the answer; in place if possible. With error feedback, `residual` is that
    /// of the part.
    pub(super) fn finish(
        &self,
        pool: &Pool,
        workspace: &mut Workspace,
        divisor: f64,
        mut sum: Lease,
        bytes: Range<u64>,
        residual: Option<&mut Residual>,
    ) -> Lease {
        let Self { kernels, op, dtype, .. } = *self;
        if let Op::Broadcast { .. } = op {
            return sum;
        }
        if self.codec.is_none() && dtype.accumulator() == dtype {
            kernels.finish_in_place(op, dtype, divisor, &mut sum);
            return sum;
        }
        let mut answer = pool.lease(usize::try_from(bytes.end - bytes.start).expect("within a part"));
        match &self.codec {
            Some(codec) => {
                let first = self.element(bytes.start);
                let tools = Tools { kernels, seed: self.seed.from_element(first as u64), workspace };
                let used = match residual {
                    None => codec.finish(tools, op, divisor, &sum, &mut answer),
                    // A residual is in units of the answer, so that it can go on where the divisor is another one.
                    Some(residual) => {
                        kernels.finish_in_place(op, DType::F32, divisor, &mut sum);
                        residual.encode(&**codec, tools, 1.0, first, &sum, &mut answer)
                    }
                };
                assert_eq!(
                    used,
                    Ok(answer.len()),
                    "a block of {} is as long as those of its contributions",
                    codec.spec()
                );
            }
            None => kernels.finish(op, dtype, divisor, &sum, &mut answer),
        }
        answer
    }
}
