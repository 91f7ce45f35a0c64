//! How servers keep the values of rows of tables.

use std::fmt;

use half::{bf16, f16};

/// The type in which servers keep the values of rows. They compute steps in f32, and what a rule keeps beside the values is f32.
///
/// Values of half precision are rounded to the nearest when a row begins or is put back, and by chance after each step: see
/// [`StoredRows`](crate::codec::StoredRows). A finite value stays finite: magnitudes above [`largest`](Self::largest) become it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RowDType {
    /// 4 bytes, as they are computed.
    F32,
    /// bfloat16: 2 bytes, of which 8 bits say the number within its power of two.
    BF16,
    /// IEEE 754 half precision: 2 bytes, up to 65,504.
    F16,
}

impl RowDType {
    pub(super) const ALL: [Self; 3] = [Self::F32, Self::BF16, Self::F16];
    pub(super) const NAMES: [&str; 3] = ["f32", "bf16", "fp16"];

    /// Words of 4 bytes that so many values take.
    pub const fn words(self, dim: u64) -> u64 {
        match self {
            Self::F32 => dim,
            Self::BF16 | Self::F16 => dim.div_ceil(2),
        }
    }

    /// The largest finite value.
    pub const fn largest(self) -> f32 {
        match self {
            Self::F32 => f32::MAX,
            Self::BF16 => f32::from_bits(0x7f7f_0000),
            Self::F16 => 65_504.0,
        }
    }

    /// Rounds values to the nearest that are kept, of two equally near ones to the even one. A NaN stays one.
    pub fn round(self, values: &mut [f32]) {
        let round = |to_nearest: fn(f32) -> f32, values: &mut [f32]| {
            values.iter_mut().for_each(|value| *value = to_nearest(value.clamp(-self.largest(), self.largest())));
        };
        match self {
            Self::F32 => {}
            Self::BF16 => round(|value| bf16::from_f32(value).to_f32(), values),
            Self::F16 => round(|value| f16::from_f32(value).to_f32(), values),
        }
    }

    /// The largest value that is kept and is not above this one, which is 0 or above.
    pub(super) fn at_most(self, number: f32) -> f32 {
        let mut nearest = [number];
        self.round(&mut nearest);
        match self {
            _ if nearest[0] <= number => nearest[0],
            Self::F32 => number,
            Self::BF16 => bf16::from_bits(bf16::from_f32(nearest[0]).to_bits() - 1).to_f32(),
            Self::F16 => f16::from_bits(f16::from_f32(nearest[0]).to_bits() - 1).to_f32(),
        }
    }
}

impl fmt::Display for RowDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES[*self as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_the_nearest_and_stay_finite() {
        let rounded = |dtype: RowDType, value: f32| {
            let mut values = [value];
            dtype.round(&mut values);
            values[0]
        };
        assert_eq!(rounded(RowDType::F32, 1.000_000_1), 1.000_000_1);
        assert_eq!(rounded(RowDType::BF16, 1.003), 1.0);
        assert_eq!(rounded(RowDType::BF16, 1.005), 1.007_812_5);
        assert_eq!(rounded(RowDType::F16, 2f32.powi(-25)), 0.0, "half of the smallest step goes to the even one");
        assert_eq!(rounded(RowDType::F16, 1.6 * 2f32.powi(-24)), 2f32.powi(-23));
        for (dtype, largest) in [(RowDType::BF16, bf16::MAX.to_f32()), (RowDType::F16, f16::MAX.to_f32())] {
            assert_eq!(dtype.largest(), largest);
            for value in [largest, f32::MAX, f32::INFINITY] {
                assert_eq!((rounded(dtype, value), rounded(dtype, -value)), (largest, -largest));
            }
            assert!(rounded(dtype, f32::NAN).is_nan());
        }
    }

    #[test]
    fn a_bound_is_rounded_down() {
        for (dtype, number, due) in [
            (RowDType::F32, 0.3, 0.3),
            (RowDType::BF16, 0.3, 0.298_828_13),
            (RowDType::BF16, 1.005, 1.0),
            (RowDType::F16, 1.0, 1.0),
            (RowDType::F16, 1e6, 65_504.0),
            (RowDType::F16, 1e-8, 0.0),
            (RowDType::F16, 5e-8, 0.0),
        ] {
            assert_eq!(dtype.at_most(number), due, "{dtype:?} of {number}");
        }
    }
}
