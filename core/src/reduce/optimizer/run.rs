//! The numbers of a rule: a run of elements in the type in which they are changed.

use crate::reduce::element::Element;

/// The most rows of an optimizer.
pub(super) const ROWS_MAX: usize = 3;

/// A run of elements in the type in which they are changed.
pub(super) struct Run<'a, R> {
    pub(super) values: &'a mut [R],
    pub(super) gradients: &'a mut [R],
    /// As many as its optimizer has moments are as long as the values; the others are empty.
    pub(super) rows: [&'a mut [R]; ROWS_MAX],
}

/// f32 or f64.
pub(super) trait Real:
    Element<Sum = Self>
    + Default
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
{
    /// The nearest value.
    fn of(number: f64) -> Self;
    fn sqrt(self) -> Self;
    fn abs(self) -> Self;
    /// The larger one; NaN if one is.
    fn max(self, other: Self) -> Self;
    /// Between the two bounds; NaN stays.
    fn clamp(self, bound: Self) -> Self;
    /// -1, 0 or 1, as the sign is; NaN stays.
    fn sign(self) -> Self;
}

macro_rules! real {
    ($($type:ty)*) => { $(
        impl Real for $type {
            #[inline(always)]
            fn of(number: f64) -> Self {
                number as Self
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn abs(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn clamp(self, bound: Self) -> Self {
                if self > bound {
                    bound
                } else if self < -bound {
                    -bound
                } else {
                    self
                }
            }
            #[inline(always)]
            fn sign(self) -> Self {
                if self > 0.0 {
                    1.0
                } else if self < 0.0 {
                    -1.0
                } else {
                    self
                }
            }
        }
    )* };
}

real! { f32 f64 }

impl<R: Real> Run<'_, R> {
    /// Multiplies the values: weight decay apart from the gradient.
    #[inline(always)]
    pub(super) fn scale(&mut self, factor: R) {
        self.values.iter_mut().for_each(|value| *value = *value * factor);
    }

    /// Adds so much of the values to the gradients: weight decay as a part of the gradient.
    #[inline(always)]
    pub(super) fn decay(&mut self, factor: R) {
        for (gradient, value) in self.gradients.iter_mut().zip(&*self.values) {
            *gradient = *gradient + factor * *value;
        }
    }
}

/// `from` moved towards `to` by a share of the way.
#[inline(always)]
pub(super) fn towards<R: Real>(from: R, to: R, share: R) -> R {
    from + share * (to - from)
}

/// 1 - `decay` to the power of `step`: what an average of so many numbers that begins at 0 is too small by.
#[inline(always)]
pub(super) fn correction(decay: f64, step: u64) -> f64 {
    1.0 - decay.powf(step as f64)
}
