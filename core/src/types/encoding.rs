//! The wire forms of a part's elements: a closed set of names, sent in declarations and in headers. [`codec`](crate::codec) makes the
//! forms.

use std::fmt;

use super::{DType, Op};

/// How a body encodes the elements of a part.
///
/// A declaration names the encoding of a tensor's parts, which is the tensor's codec. All workers declare the same one. A header says how
/// its body is encoded: with the tensor's codec, or [`Plain`](Self::Plain). The discriminants are wire codes and never change; 0 is not a
/// code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Encoding {
    /// The elements unchanged.
    #[default]
    Plain = 1,
    /// f32 and f64 travel as f16: half the bytes of f32, 11 bits of precision, infinite from 65,520 on.
    F16 = 2,
    /// f32 and f64 travel as bfloat16: half the bytes of f32 with its range, 8 bits of precision.
    BF16 = 3,
}

/// The facts about an encoding that are needed without running its codec.
struct Row {
    encoding: Encoding,
    /// The name that users write.
    name: &'static str,
    /// The element types that it encodes.
    dtypes: &'static [DType],
}

/// To add an encoding, add a variant above, a row here, and a codec that [`codec::of`](crate::codec::of) returns.
const TABLE: [Row; 3] = [
    Row { encoding: Encoding::Plain, name: "none", dtypes: &DType::ALL },
    Row { encoding: Encoding::F16, name: "fp16", dtypes: &[DType::F32, DType::F64] },
    Row { encoding: Encoding::BF16, name: "bf16", dtypes: &[DType::F32, DType::F64] },
];

impl Encoding {
    /// Every encoding, in the order of the wire codes.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.encoding)
    }

    /// The encoding with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::all().find(|encoding| *encoding as u8 == code)
    }

    /// The name that users write, such as `fp16`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether it encodes elements of type `dtype`.
    pub fn encodes(self, dtype: DType) -> bool {
        self.row().dtypes.contains(&dtype)
    }

    /// This encoding if it encodes `dtype`, else [`Plain`](Self::Plain): integers, and elements that are already as narrow, travel
    /// unchanged.
    #[must_use]
    pub fn for_dtype(self, dtype: DType) -> Self {
        if self.encodes(dtype) { self } else { Self::Plain }
    }

    /// This encoding, or [`Plain`](Self::Plain) for a broadcast: every worker gets the bits of its root.
    #[must_use]
    pub const fn for_op(self, op: Op) -> Self {
        match op {
            Op::Broadcast { .. } => Self::Plain,
            Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => self,
        }
    }

    const fn row(self) -> &'static Row {
        &TABLE[self as usize - 1]
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WorkerId;

    #[test]
    fn each_encoding_has_its_row_and_codes_round_trip() {
        for (index, encoding) in Encoding::all().enumerate() {
            assert_eq!(encoding as usize, index + 1);
            assert_eq!(Encoding::from_code(encoding as u8), Some(encoding));
        }
        assert_eq!([0, TABLE.len() as u8 + 1].map(Encoding::from_code), [None; 2]);
    }

    #[test]
    fn elements_that_an_encoding_does_not_narrow_travel_as_they_are() {
        for encoding in [Encoding::F16, Encoding::BF16] {
            for dtype in DType::ALL {
                let is_wide = matches!(dtype, DType::F32 | DType::F64);
                let expected = if is_wide { encoding } else { Encoding::Plain };
                assert_eq!(encoding.for_dtype(dtype), expected, "{encoding} of {dtype}");
            }
        }
    }

    #[test]
    fn a_broadcast_is_not_encoded() {
        assert_eq!(Encoding::BF16.for_op(Op::Broadcast { root: WorkerId(0) }), Encoding::Plain);
        assert_eq!(Encoding::BF16.for_op(Op::Mean), Encoding::BF16);
    }
}
