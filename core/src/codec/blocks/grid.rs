//! The numbers of a block, and the bytes that stand for them.

use std::marker::PhantomData;

use crate::codec::interface::Malformed;
use crate::codec::tools::{offset, whole};

/// The numbers of a block.
///
/// Its methods are inlined into loops that are compiled for several kinds of vectors, and have no branch.
pub(super) trait Grid {
    /// The largest number.
    const LARGEST: f32;
    /// Bytes of the scale of a block.
    const SCALE_BYTES: usize = 4;
    /// Codes in a byte.
    const PER_BYTE: usize = 1;

    /// The code of the number nearest to `scaled`, of two equally near ones the even. `scaled` is at most [`LARGEST`](Self::LARGEST).
    fn nearest(scaled: f32) -> u8;

    /// The code of one of the two numbers beside `scaled`, the nearer of which is the likelier. All bits of `draw` are equally good.
    fn by_chance(scaled: f32, draw: u32) -> u8;

    /// The number of a code.
    fn number(code: u8) -> f32;

    /// Whether [`nearest`](Self::nearest) gives this code for some number.
    fn is_code(code: u8) -> bool;

    /// The scale of a block with this largest magnitude, as it travels.
    #[inline(always)]
    fn scale(largest: f32) -> f32 {
        largest / Self::LARGEST
    }

    /// Bytes of a block of `len` elements.
    fn bytes(len: usize) -> usize {
        Self::SCALE_BYTES + len.div_ceil(Self::PER_BYTE)
    }

    /// Writes the code of each element, which `code` gives for its index and the element.
    #[inline(always)]
    fn write(codes: &mut [u8], floats: &[[u8; 4]], code: impl Fn(usize, &[u8; 4]) -> u8) {
        for (at, (place, float)) in codes.iter_mut().zip(floats).enumerate() {
            *place = code(at, float);
        }
    }

    /// Writes what `value` makes of each code.
    #[inline(always)]
    fn read(codes: &[u8], floats: &mut [[u8; 4]], value: impl Fn(u8) -> [u8; 4]) {
        for (float, code) in floats.iter_mut().zip(codes) {
            *float = value(*code);
        }
    }

    /// Whether all codes of `len` elements are such as an encoder makes. Looks at all of them, because vectors do not stop in between.
    #[inline(always)]
    fn are_codes(codes: &[u8], _len: usize) -> bool {
        codes.iter().fold(true, |all, code| all & Self::is_code(*code))
    }
}

/// The scale and the codes of a block.
pub(super) struct Block<'a, G> {
    pub(super) scale: f32,
    pub(super) codes: &'a [u8],
    grid: PhantomData<G>,
}

impl<'a, G: Grid> Block<'a, G> {
    /// Writes the scale of a block of `len` elements. Returns the place of their codes.
    pub(super) fn begin(block: &mut [u8], len: usize, scale: f32) -> &mut [u8] {
        assert_eq!(block.len(), G::bytes(len), "a block of {len} elements");
        let (place, codes) = block.split_at_mut(G::SCALE_BYTES);
        // The first of an f32's bytes are those of a bf16.
        place.copy_from_slice(&scale.to_le_bytes()[4 - G::SCALE_BYTES..]);
        codes
    }

    /// Reads a block of `len` elements.
    ///
    /// # Errors
    /// [`Malformed`] if it has another number of elements, or a scale that no block has. Its codes are not looked at.
    pub(super) fn read(block: &'a [u8], len: usize) -> Result<Self, Malformed> {
        if block.len() != G::bytes(len) {
            return Err(Malformed { problem: format!("has a block of {} bytes", block.len()) });
        }
        let (place, codes) = block.split_at(G::SCALE_BYTES);
        let mut bytes = [0; 4];
        bytes[4 - G::SCALE_BYTES..].copy_from_slice(place);
        let scale = f32::from_le_bytes(bytes);
        if scale < 0.0 || scale.is_infinite() {
            return Err(Malformed { problem: format!("has a block with the scale {scale}") });
        }
        Ok(Self { scale, codes, grid: PhantomData })
    }
}

/// Whole numbers from -127 to 127.
pub(super) struct Int8;

impl Grid for Int8 {
    const LARGEST: f32 = 127.0;

    #[inline(always)]
    fn nearest(scaled: f32) -> u8 {
        whole(scaled) as u8
    }

    #[inline(always)]
    fn by_chance(scaled: f32, draw: u32) -> u8 {
        whole(scaled + offset(draw)) as u8
    }

    #[inline(always)]
    fn number(code: u8) -> f32 {
        f32::from(code.cast_signed())
    }

    #[inline(always)]
    fn is_code(code: u8) -> bool {
        code != 0x80
    }
}

/// Whole numbers from -7 to 7, two in a byte.
pub(super) struct Int4;

impl Grid for Int4 {
    const LARGEST: f32 = 7.0;
    const SCALE_BYTES: usize = 2;
    const PER_BYTE: usize = 2;

    #[inline(always)]
    fn nearest(scaled: f32) -> u8 {
        whole(scaled) as u8 & 0xf
    }

    #[inline(always)]
    fn by_chance(scaled: f32, draw: u32) -> u8 {
        whole(scaled + offset(draw)) as u8 & 0xf
    }

    #[inline(always)]
    fn number(code: u8) -> f32 {
        // The sign bit of the half byte becomes that of a byte.
        f32::from((code << 4).cast_signed() >> 4)
    }

    #[inline(always)]
    fn is_code(code: u8) -> bool {
        code != 8
    }

    #[inline(always)]
    fn scale(largest: f32) -> f32 {
        // Up to the next bf16, so that no element is beyond the largest number.
        let bits = (largest / Self::LARGEST).to_bits();
        f32::from_bits((bits + 0xffff) & !0xffff)
    }

    #[inline(always)]
    fn write(codes: &mut [u8], floats: &[[u8; 4]], code: impl Fn(usize, &[u8; 4]) -> u8) {
        let (pairs, last) = floats.as_chunks::<2>();
        for (at, (place, [low, high])) in codes.iter_mut().zip(pairs).enumerate() {
            *place = code(2 * at, low) | code(2 * at + 1, high) << 4;
        }
        if let ([low], Some(place)) = (last, codes.last_mut()) {
            *place = code(2 * pairs.len(), low);
        }
    }

    #[inline(always)]
    fn read(codes: &[u8], floats: &mut [[u8; 4]], value: impl Fn(u8) -> [u8; 4]) {
        let (pairs, last) = floats.as_chunks_mut::<2>();
        for ([low, high], code) in pairs.iter_mut().zip(codes) {
            (*low, *high) = (value(code & 0xf), value(code >> 4));
        }
        if let ([low], Some(code)) = (last, codes.last()) {
            *low = value(code & 0xf);
        }
    }

    #[inline(always)]
    fn are_codes(codes: &[u8], len: usize) -> bool {
        let is_padded = len.is_multiple_of(2) || codes.last().is_some_and(|code| code >> 4 == 0);
        codes.iter().fold(is_padded, |all, code| all & Self::is_code(code & 0xf) & Self::is_code(code >> 4))
    }
}

/// Floats of 8 bits: a sign, an exponent, and `FRACTION` bits behind the point. The exponent of 1 is `BIAS`. The code of the largest number
/// is `LAST`.
pub(super) struct Float8<const FRACTION: u32, const BIAS: u32, const LAST: u8>;

/// 8-bit floats with 4 bits of exponent and 3 of fraction, without infinities, up to 448.
pub(super) type E4m3 = Float8<3, 7, 0x7e>;
/// 8-bit floats with 5 bits of exponent and 2 of fraction, up to 57,344.
pub(super) type E5m2 = Float8<2, 15, 0x7b>;

impl<const FRACTION: u32, const BIAS: u32, const LAST: u8> Float8<FRACTION, BIAS, LAST> {
    /// Bits of an f32 behind those of the fraction.
    const REST: u32 = 23 - FRACTION;
    /// The smallest normal number.
    const NORMAL: f32 = f32::from_bits((128 - BIAS) << 23);
    /// The inverse of the step between numbers that are smaller.
    const STEPS: f32 = f32::from_bits((126 + BIAS + FRACTION) << 23);

    /// The code of a number, of whose f32 bits the last ones are cut off after `rest` was added, or which is rounded in steps after
    /// `offset` was added.
    #[inline(always)]
    fn code(scaled: f32, rest: u32, offset: f32) -> u8 {
        let magnitude = scaled.abs();
        let normal = ((magnitude.to_bits() + rest) >> Self::REST).wrapping_sub((127 - BIAS) << FRACTION);
        let small = whole(magnitude * Self::STEPS + offset).cast_unsigned();
        let code = if magnitude < Self::NORMAL { small } else { normal };
        (code | scaled.to_bits() >> 31 << 7) as u8
    }
}

impl<const FRACTION: u32, const BIAS: u32, const LAST: u8> Grid for Float8<FRACTION, BIAS, LAST> {
    const LARGEST: f32 = f32::from_bits(((LAST as u32) << Self::REST) + ((127 - BIAS) << 23));

    #[inline(always)]
    fn nearest(scaled: f32) -> u8 {
        let is_odd = scaled.to_bits() >> Self::REST & 1;
        Self::code(scaled, (1 << (Self::REST - 1)) - 1 + is_odd, 0.0)
    }

    #[inline(always)]
    fn by_chance(scaled: f32, draw: u32) -> u8 {
        Self::code(scaled, draw & ((1 << Self::REST) - 1), offset(draw))
    }

    #[inline(always)]
    fn number(code: u8) -> f32 {
        let [code, sign] = [code & 0x7f, code >> 7].map(u32::from);
        // An f32 with this exponent, which may be a subnormal one, and what its bias lacks.
        let magnitude = f32::from_bits(code << Self::REST) * f32::from_bits((254 - BIAS) << 23);
        f32::from_bits(magnitude.to_bits() | sign << 31)
    }

    #[inline(always)]
    fn is_code(code: u8) -> bool {
        code & 0x7f <= LAST
    }
}
