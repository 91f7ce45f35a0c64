//! The properties of one element: its bytes, the type in which it is added, and the arithmetic of that type.
//!
//! Everything here is a few instructions and always inlined, because it becomes the body of a loop that is compiled once for every
//! instruction set (`kernels`). Loading and storing go through byte arrays: a buffer from the network may start at any address.

use half::{bf16, f16};

use super::convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// An element type as it travels: little-endian bytes.
pub(super) trait Element: Copy {
    /// The bytes of one element.
    type Bytes: Copy;
    /// The type in which it is added: its `DType::accumulator`.
    type Sum: Number;

    /// Bytes as whole elements; a remainder shorter than one element is left out.
    fn elements(bytes: &[u8]) -> &[Self::Bytes];
    /// The same as `elements`, for writing.
    fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    fn load(bytes: Self::Bytes) -> Self;
    fn store(self) -> Self::Bytes;

    /// Exactly its value.
    fn widen(self) -> Self::Sum;
    /// The nearest value, ties to even; the only place where a half-size float is rounded.
    fn narrow(sum: Self::Sum) -> Self;

    /// Its bits, packed into an accumulator without being read as a number, so that a broadcast keeps even a signalling NaN.
    fn pack(self) -> Self::Sum;
    /// The bits that [`pack`](Self::pack) was given.
    fn unpack(packed: Self::Sum) -> Self;
}

/// A type in which contributions are added: IEEE arithmetic or two's complement, with one rounding per operation and no fused operations.
pub(super) trait Number: Element<Sum = Self> {
    const ZERO: Self;

    fn plus(self, other: Self) -> Self;
    /// The smaller value. NaN if either is NaN, and -0 before +0, so that the result does not depend on the order of contributions.
    fn smaller(self, other: Self) -> Self;
    /// The larger value. NaN if either is NaN, and +0 before -0.
    fn larger(self, other: Self) -> Self;
    /// Multiplies by a factor that is first rounded to this type. The product of an integer is computed in f64, rounded down, and
    /// saturates.
    fn times(self, factor: f64) -> Self;
    /// Divides by a divisor that is first rounded to this type. The quotient of an integer is rounded down.
    fn over(self, divisor: f64) -> Self;
}

macro_rules! layout {
    ($type:ty, $bytes:literal) => {
        type Bytes = [u8; $bytes];

        #[inline(always)]
        fn elements(bytes: &[u8]) -> &[Self::Bytes] {
            bytes.as_chunks().0
        }
        #[inline(always)]
        fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
            bytes.as_chunks_mut().0
        }
        #[inline(always)]
        fn load(bytes: Self::Bytes) -> Self {
            <$type>::from_le_bytes(bytes)
        }
        #[inline(always)]
        fn store(self) -> Self::Bytes {
            self.to_le_bytes()
        }
    };
}

/// A type that is added as it is.
macro_rules! added_in_itself {
    ($($type:ty, $bytes:literal;)*) => { $(
        impl Element for $type {
            type Sum = Self;
            layout!($type, $bytes);

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(sum: Self) -> Self {
                sum
            }
            #[inline(always)]
            fn pack(self) -> Self {
                self
            }
            #[inline(always)]
            fn unpack(packed: Self) -> Self {
                packed
            }
        }
    )* };
}

/// A half-size float, added in f32.
macro_rules! added_in_f32 {
    ($($type:ty, $widen:path, $narrow:path;)*) => { $(
        impl Element for $type {
            type Sum = f32;
            layout!($type, 2);

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self.to_bits())
            }
            #[inline(always)]
            fn narrow(sum: f32) -> Self {
                Self::from_bits($narrow(sum))
            }
            #[inline(always)]
            fn pack(self) -> f32 {
                f32::from_bits(u32::from(self.to_bits()))
            }
            #[inline(always)]
            fn unpack(packed: f32) -> Self {
                Self::from_bits(packed.to_bits() as u16)
            }
        }
    )* };
}

macro_rules! float {
    ($($type:ty)*) => { $(
        impl Number for $type {
            const ZERO: Self = 0.0;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                // Neither is smaller. Equal numbers have equal bits, except for the sign of zero. The bits of a NaN combined with any other
                // bits are a NaN.
                let both = Self::from_bits(self.to_bits() | other.to_bits());
                if self < other {
                    self
                } else if other < self {
                    other
                } else {
                    both
                }
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                -(-self).smaller(-other)
            }
            #[inline(always)]
            fn times(self, factor: f64) -> Self {
                self * factor as Self
            }
            #[inline(always)]
            fn over(self, divisor: f64) -> Self {
                self / divisor as Self
            }
        }
    )* };
}

macro_rules! integer {
    ($($type:ty)*) => { $(
        impl Number for $type {
            const ZERO: Self = 0;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn times(self, factor: f64) -> Self {
                (self as f64 * factor).floor() as Self
            }
            #[inline(always)]
            fn over(self, divisor: f64) -> Self {
                // In i64, because the divisor may not fit this type, for example 200 workers and i8. For a positive divisor, Euclidean
                // division rounds down.
                i64::from(self).div_euclid(divisor as i64) as Self
            }
        }
    )* };
}

added_in_itself! { f32, 4; f64, 8; i32, 4; i64, 8; i8, 1; u8, 1; }
added_in_f32! {
    f16, f16_to_f32, f32_to_f16;
    bf16, bf16_to_f32, f32_to_bf16;
}
float! { f32 f64 }
integer! { i32 i64 i8 u8 }
