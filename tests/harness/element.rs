//! The element types as tests see them: made from and compared as f64.

use gradlane_core::types::DType;
use half::{bf16, f16};

/// A type that tensors are made of.
pub trait Element: Copy + PartialEq + Send + Sync + std::fmt::Debug + 'static {
    /// Its name in the engine.
    const DTYPE: DType;
    /// Distance from 1 to the next larger number; 0 for integers.
    const EPSILON: f64;
    /// The smallest number above 0.
    const TINY: f64;

    /// The nearest element.
    fn of(value: f64) -> Self;

    /// The exact value.
    fn value(self) -> f64;
}

macro_rules! elements {
    ($($type:ty, $dtype:ident, $epsilon:expr, $tiny:expr, $of:expr, $value:expr;)*) => { $(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            const EPSILON: f64 = $epsilon;
            const TINY: f64 = $tiny;

            fn of(value: f64) -> Self {
                $of(value)
            }

            fn value(self) -> f64 {
                $value(self)
            }
        }
    )* };
}

elements! {
    f32, F32, f32::EPSILON as f64, 1e-45, |x| x as f32, f64::from;
    f64, F64, f64::EPSILON, 5e-324, |x| x, |x| x;
    f16, F16, 0.000_976_562_5, 6e-8, f16::from_f64, f16::to_f64;
    bf16, BF16, 0.007_812_5, 1e-40, bf16::from_f64, bf16::to_f64;
    i32, I32, 0.0, 1.0, |x| x as i32, f64::from;
    i64, I64, 0.0, 1.0, |x| x as i64, |x| x as f64;
    i8, I8, 0.0, 1.0, |x| x as i8, f64::from;
    u8, U8, 0.0, 1.0, |x| x as u8, f64::from;
}
