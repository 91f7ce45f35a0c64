//! Conversion of the two half-size floats to f32 and back, rounding to nearest even. It is integer arithmetic without branches, so that the
//! compiler can turn a loop over it into vectors of any width.
//!
//! The processor's own f16 instructions take one step instead of about ten, but need a hand-written loop for every instruction set. The
//! only such loop is in `f16c`, where it is faster. With wider vectors both variants wait for memory.

/// Bits between the mantissas of f16 (10) and f32 (23).
const F16_SHIFT: u32 = 13;
/// The difference of the exponents' biases, 127 - 15, at the position of the f32 exponent.
const F16_REBIAS: u32 = 112 << 23;
const F32_INFINITY: u32 = 0x7f80_0000;
const F32_MAGNITUDE: u32 = 0x7fff_ffff;

/// The value of an f16, exactly. A NaN keeps its sign and payload.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    let normal = (magnitude << F16_SHIFT) + F16_REBIAS;
    let special = (magnitude << F16_SHIFT) | F32_INFINITY;
    // A subnormal is its mantissa in steps of 2^-24. (Through i32: vector units before AVX-512 convert signed integers only.)
    let subnormal = (magnitude as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
    f32::from_bits(
        sign | if magnitude < 0x0400 {
            subnormal
        } else if magnitude < 0x7c00 {
            normal
        } else {
            special
        },
    )
}

/// The f16 nearest to a value; of two equally near ones the even one. Values that round to 65,536 or more become infinite.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & F32_MAGNITUDE;
    // Adds half a step less one, and one more if the kept mantissa is odd. The carry rounds to nearest even, and also goes into the
    // exponent.
    let nearest = magnitude.wrapping_add(0x0fff + ((magnitude >> F16_SHIFT) & 1));
    let normal = nearest.wrapping_sub(F16_REBIAS) >> F16_SHIFT;
    // Numbers in [0.5, 1) have f16's subnormal step, 2^-24, so this addition leaves the rounded mantissa in the low bits.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let nan = 0x7e00 | ((magnitude >> F16_SHIFT) & 0x03ff);
    let rounded = if magnitude < F16_REBIAS + (1 << 23) {
        subnormal
    } else if magnitude < F16_REBIAS + (31 << 23) {
        normal
    } else if magnitude <= F32_INFINITY {
        0x7c00
    } else {
        nan
    };
    (sign | rounded) as u16
}

/// The value of a bfloat16, exactly: it is the upper half of an f32.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bfloat16 nearest to a value; of two equally near ones the even one.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Rounding could carry the payload of a NaN away and leave an infinity.
    let nan = (bits >> 16) | 0x0040;
    (if bits & F32_MAGNITUDE > F32_INFINITY { nan } else { nearest }) as u16
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_f16_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            assert_eq!(quiet(f16_to_f32(bits)), quiet(f16::from_bits(bits).to_f32()), "{bits:#06x}");
        }
    }

    #[test]
    fn every_bf16_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            assert_eq!(quiet(bf16_to_f32(bits)), quiet(bf16::from_bits(bits).to_f32()), "{bits:#06x}");
        }
    }

    #[test]
    fn every_f16_and_what_lies_around_and_half_way_to_the_next_rounds_to_nearest_even() {
        for bits in 0..=u16::MAX {
            // Half a step of a normal f16 is bit 12 of the f32; of a subnormal one it is 2^-25.
            let exact = f16_to_f32(bits);
            let half_way = if bits & 0x7c00 == 0 {
                exact + 2.0_f32.powi(-25).copysign(exact)
            } else {
                f32::from_bits(exact.to_bits() | 1 << (F16_SHIFT - 1))
            };
            for value in [exact, half_way].into_iter().flat_map(with_neighbours) {
                assert_eq!(f32_to_f16(value), f16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn every_bf16_and_what_lies_around_and_half_way_to_the_next_rounds_to_nearest_even() {
        for bits in 0..=u16::MAX {
            let exact = bf16_to_f32(bits);
            let half_way = f32::from_bits(exact.to_bits() | 0x8000);
            for value in [exact, half_way].into_iter().flat_map(with_neighbours) {
                assert_eq!(f32_to_bf16(value), bf16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn every_exponent_of_f32_rounds_like_the_reference() {
        for high in 0..=u16::MAX {
            for low in [0x0000, 0x0001, 0x1000, 0x7fff, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                assert_eq!(f32_to_f16(value), f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(f32_to_bf16(value), bf16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }

    /// The bits of a value, with a signalling NaN made quiet, because whether a conversion does that depends on the processor.
    fn quiet(value: f32) -> u32 {
        value.to_bits() | if value.is_nan() { 0x0040_0000 } else { 0 }
    }

    /// A value, between the two values next to it in bits.
    fn with_neighbours(value: f32) -> [f32; 3] {
        [value.to_bits().wrapping_sub(1), value.to_bits(), value.to_bits().wrapping_add(1)].map(f32::from_bits)
    }
}
