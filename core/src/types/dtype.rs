//! Element types.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The element types that are summed. The discriminants are wire codes and never change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 single precision.
    F32 = 1,
    /// IEEE 754 double precision.
    F64 = 2,
    /// IEEE 754 half precision; added in f32 and rounded once.
    F16 = 3,
    /// bfloat16; added in f32 and rounded once.
    BF16 = 4,
    /// Signed 32 bits; sums wrap.
    I32 = 5,
    /// Signed 64 bits; sums wrap.
    I64 = 6,
    /// Signed 8 bits; sums wrap.
    I8 = 7,
    /// Unsigned 8 bits; sums wrap.
    U8 = 8,
}

impl DType {
    /// Every element type, in the order of the wire codes.
    pub const ALL: [Self; 8] = [Self::F32, Self::F64, Self::F16, Self::BF16, Self::I32, Self::I64, Self::I8, Self::U8];

    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }

    /// The type in which contributions are added: f32 for the two half-size floats, else the type itself.
    pub const fn accumulator(self) -> Self {
        match self {
            Self::F16 | Self::BF16 => Self::F32,
            Self::F32 | Self::F64 | Self::I32 | Self::I64 | Self::I8 | Self::U8 => self,
        }
    }

    /// Whether elements are floating point.
    pub const fn is_float(self) -> bool {
        match self {
            Self::F32 | Self::F64 | Self::F16 | Self::BF16 => true,
            Self::I32 | Self::I64 | Self::I8 | Self::U8 => false,
        }
    }

    /// The type with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| *dtype as u8 == code)
    }

    /// The name that NumPy and PyTorch use, such as `float32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::I8 => "int8",
            Self::U8 => "uint8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    /// Parses the names of NumPy and PyTorch, and the short ones (`f32`, `bf16`). `bool` is refused with advice, because a sum of truth
    /// values has no agreed meaning.
    fn from_str(text: &str) -> Result<Self, Error> {
        let short = |dtype: Self| match dtype {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::I8 => "i8",
            Self::U8 => "u8",
        };
        if let Some(dtype) = Self::ALL.into_iter().find(|dtype| dtype.name() == text || short(*dtype) == text) {
            return Ok(dtype);
        }
        let hint = match text {
            "bool" => "view it as uint8, or reduce with max for `any` and min for `all`".to_owned(),
            _ => format!("supported: {}", Self::ALL.map(Self::name).join(", ")),
        };
        Err(Error::InvalidArgument { what: format!("dtype {text:?} cannot be reduced"), hint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype as u8), Some(dtype));
            assert_eq!(dtype.name().parse::<DType>(), Ok(dtype));
        }
        assert_eq!(DType::from_code(0), None);
    }

    #[test]
    fn bool_is_refused_with_advice() {
        let error = "bool".parse::<DType>().unwrap_err().to_string();
        assert!(error.contains("uint8"), "{error}");
    }
}
