//! Delay compensation: gradients that were computed from an older value than the present one.

use half::{bf16, f16};

use super::run::Real;
use crate::reduce::element::Element;
use crate::reduce::kernels::{Kernels, Loops};
use crate::types::DType;

impl Kernels {
    /// Adds `kappa`·g⊙g⊙(w - b) to a gradient g that was computed from the value b, `base`, and comes to the value w. All are of the same type and
    /// length. It is computed in f32 (f64 in f64), and rounded once to the type of the gradient. Integers have no gradients and stay.
    ///
    /// # Panics
    /// If the buffers differ in length.
    pub fn compensate(self, dtype: DType, kappa: f64, gradient: &mut [u8], value: &[u8], base: &[u8]) {
        assert!(gradient.len() == value.len() && gradient.len() == base.len(), "they are of one part");
        self.vectorise(Compensate { dtype, kappa, gradient, value, base });
    }
}

struct Compensate<'a> {
    dtype: DType,
    kappa: f64,
    gradient: &'a mut [u8],
    value: &'a [u8],
    base: &'a [u8],
}

impl Loops for Compensate<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.dtype {
            DType::F32 => self.run_for::<f32>(),
            DType::F64 => self.run_for::<f64>(),
            DType::F16 => self.run_for::<f16>(),
            DType::BF16 => self.run_for::<bf16>(),
            DType::I32 | DType::I64 | DType::I8 | DType::U8 => {}
        }
    }
}

impl Compensate<'_> {
    #[inline(always)]
    fn run_for<E: Element<Sum: Real>>(self) {
        let kappa = E::Sum::of(self.kappa);
        let bases = E::elements(self.value).iter().zip(E::elements(self.base));
        for (gradient, (value, base)) in E::elements_mut(self.gradient).iter_mut().zip(bases) {
            let [old, value, base] = [*gradient, *value, *base].map(|bytes| E::load(bytes).widen());
            *gradient = E::narrow(old + kappa * old * old * (value - base)).store();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_is_corrected_by_the_way_that_its_value_went() {
        let bytes = |numbers: [f32; 3]| numbers.map(f32::to_le_bytes).concat();
        for kernels in Kernels::all() {
            let mut gradient = bytes([2.0, -2.0, 3.0]);
            kernels.compensate(DType::F32, 0.5, &mut gradient, &bytes([1.0, 5.0, 7.0]), &bytes([0.0, 4.5, 7.0]));
            assert_eq!(gradient, bytes([4.0, -1.0, 3.0]), "{kernels}");
        }
        let halves = |numbers: [f32; 3]| numbers.map(|number| bf16::from_f32(number).to_le_bytes()).concat();
        let mut gradient = halves([1.0, 2.0, 0.0]);
        let (value, base) = (halves([1.0; 3]), halves([0.0; 3]));
        Kernels::detect().compensate(DType::BF16, 1.0, &mut gradient, &value, &base);
        assert_eq!(gradient, halves([2.0, 6.0, 0.0]));
        let mut gradient = [1.0_f64, 3.0].map(f64::to_le_bytes).concat();
        let (value, base) = (vec![0; 16], [1.0_f64, 1.0].map(f64::to_le_bytes).concat());
        Kernels::detect().compensate(DType::F64, 0.25, &mut gradient, &value, &base);
        assert_eq!(gradient, [0.75_f64, 0.75].map(f64::to_le_bytes).concat());
    }
}
