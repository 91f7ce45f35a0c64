//! What the instructions compute. Numbers come out as the PTX manual (8.0) says, bit for bit: each operation rounded once to nearest even,
//! subnormals kept, and every NaN that arithmetic makes the canonical one.

/// On the bits of its operands; those of narrow types lie at the low end.
pub(super) type Operation = fn([u64; OPERANDS_MAX]) -> u64;

/// The most operands of an instruction beside its result.
pub(super) const OPERANDS_MAX: usize = 4;

/// What is computed: the instruction, how many operands it has beside its result, and what it does.
pub(super) const OPERATIONS: &[(&str, usize, Operation)] = &[
    ("mov.u16", 1, |[a, ..]| a & 0xffff),
    ("mov.u32", 1, |[a, ..]| low(a)),
    ("mov.u64", 1, |[a, ..]| a),
    ("mov.f32", 1, |[a, ..]| low(a)),
    ("mov.f64", 1, |[a, ..]| a),
    ("mov.b32", 1, |[a, ..]| low(a)),
    ("mov.b64", 1, |[a, ..]| a),
    ("cvta.to.global.u64", 1, |[a, ..]| a),
    ("cvt.u64.u32", 1, |[a, ..]| low(a)),
    ("cvt.u16.u32", 1, |[a, ..]| a & 0xffff),
    ("cvt.u32.u64", 1, |[a, ..]| low(a)),
    ("cvt.rn.f32.f64", 1, |[a, ..]| from_f32(f64::from_bits(a) as f32)),
    ("cvt.f64.f32", 1, |[a, ..]| from_f64(f64::from(f32_of(a)))),
    ("cvt.rn.f64.u32", 1, |[a, ..]| from_f64(f64::from(low(a) as u32))),
    ("cvt.rn.f32.u32", 1, |[a, ..]| from_f32(low(a) as u32 as f32)),
    ("cvt.rn.f32.s32", 1, |[a, ..]| from_f32((a as u32).cast_signed() as f32)),
    ("cvt.f32.f16", 1, |[a, ..]| from_f32(f16_to_f32(a))),
    ("cvt.rn.f16.f32", 1, |[a, ..]| f32_to_f16(f32_of(a))),
    ("add.s32", 2, |[a, b, ..]| low(a.wrapping_add(b))),
    ("add.s64", 2, |[a, b, ..]| a.wrapping_add(b)),
    ("sub.s32", 2, |[a, b, ..]| low(a.wrapping_sub(b))),
    ("sub.s64", 2, |[a, b, ..]| a.wrapping_sub(b)),
    ("neg.s32", 1, |[a, ..]| low(a.wrapping_neg())),
    ("neg.s64", 1, |[a, ..]| a.wrapping_neg()),
    ("mul.lo.s32", 2, |[a, b, ..]| low(a.wrapping_mul(b))),
    ("mul.lo.s64", 2, |[a, b, ..]| a.wrapping_mul(b)),
    ("mad.lo.s32", 3, |[a, b, c, _]| low(a.wrapping_mul(b).wrapping_add(c))),
    ("mul.wide.u32", 2, |[a, b, ..]| low(a) * low(b)),
    // What a division by zero gives is left open; this is what devices give.
    ("div.u32", 2, |[a, b, ..]| low(low(a).checked_div(low(b)).unwrap_or(u64::MAX))),
    ("div.u64", 2, |[a, b, ..]| a.checked_div(b).unwrap_or(u64::MAX)),
    ("rem.u32", 2, |[a, b, ..]| low(a).checked_rem(low(b)).unwrap_or(low(a))),
    ("min.u32", 2, |[a, b, ..]| low(a).min(low(b))),
    ("max.u32", 2, |[a, b, ..]| low(a).max(low(b))),
    ("min.u64", 2, |[a, b, ..]| a.min(b)),
    ("max.u64", 2, |[a, b, ..]| a.max(b)),
    ("min.f32", 2, |[a, b, ..]| from_f32(smaller(f32_of(a), f32_of(b)))),
    ("max.f32", 2, |[a, b, ..]| from_f32(-smaller(-f32_of(a), -f32_of(b)))),
    ("add.rn.f32", 2, |[a, b, ..]| from_f32(f32_of(a) + f32_of(b))),
    ("add.rn.f64", 2, |[a, b, ..]| from_f64(f64::from_bits(a) + f64::from_bits(b))),
    ("div.rn.f32", 2, |[a, b, ..]| from_f32(f32_of(a) / f32_of(b))),
    ("sqrt.rn.f64", 1, |[a, ..]| from_f64(f64::from_bits(a).sqrt())),
    ("div.rn.f64", 2, |[a, b, ..]| from_f64(f64::from_bits(a) / f64::from_bits(b))),
    ("mul.rn.f32", 2, |[a, b, ..]| from_f32(f32_of(a) * f32_of(b))),
    ("mul.rn.f64", 2, |[a, b, ..]| from_f64(f64::from_bits(a) * f64::from_bits(b))),
    ("not.b32", 1, |[a, ..]| low(!a)),
    ("clz.b32", 1, |[a, ..]| u64::from((a as u32).leading_zeros())),
    // Two words beside each other, shifted to the left by less than a word; the high one.
    ("shf.l.wrap.b32", 3, |[a, b, by, _]| (low(b) << 32 | low(a)) << (by & 31) >> 32),
    ("popc.b32", 1, |[a, ..]| u64::from(low(a).count_ones())),
    ("brev.b32", 1, |[a, ..]| u64::from((a as u32).reverse_bits())),
    ("and.b32", 2, |[a, b, ..]| low(a & b)),
    ("and.b64", 2, |[a, b, ..]| a & b),
    ("or.b16", 2, |[a, b, ..]| (a | b) & 0xffff),
    ("or.b32", 2, |[a, b, ..]| low(a | b)),
    ("or.b64", 2, |[a, b, ..]| a | b),
    ("xor.b32", 2, |[a, b, ..]| low(a ^ b)),
    ("xor.b64", 2, |[a, b, ..]| a ^ b),
    // A shift by the width or more leaves nothing, or the sign alone.
    ("shl.b32", 2, |[a, b, ..]| low(a.checked_shl(low(b) as u32).unwrap_or(0))),
    ("shl.b64", 2, |[a, b, ..]| a.checked_shl(low(b) as u32).unwrap_or(0)),
    ("shr.u32", 2, |[a, b, ..]| low(a).checked_shr(low(b) as u32).unwrap_or(0)),
    ("shr.u64", 2, |[a, b, ..]| a.checked_shr(low(b) as u32).unwrap_or(0)),
    ("shr.s32", 2, |[a, b, ..]| low(shift_right(a << 32, low(b) + 32))),
    ("shr.s64", 2, |[a, b, ..]| shift_right(a, low(b))),
    // So many bits from one on. Both numbers are bytes, and there are none above the highest bit.
    ("bfe.u32", 3, |[a, from, len, _]| {
        let ones = 1_u64.checked_shl(u32::from(len as u8)).map_or(u64::MAX, |above| above - 1);
        low(a).checked_shr(u32::from(from as u8)).unwrap_or(0) & ones
    }),
    ("bfe.s32", 3, |[a, from, len, _]| {
        let (from, len) = (from & 0xff, len & 0xff);
        // Above the highest bit there are copies of it.
        let field = shift_right(a << 32, 32 + from.min(31));
        low(if len == 0 { 0 } else { shift_right(field << (64 - len.min(64)), 64 - len.min(64)) })
    }),
    // The low bits of the first number in so many bits of the second, from one on.
    ("bfi.b32", 4, |operands| low(inserted(operands))),
    ("bfi.b64", 4, inserted),
    // Bytes of both numbers, which the four low digits of the third one name; a digit from 8 on means copies of the byte's sign.
    ("prmt.b32", 3, |[a, b, digits, _]| {
        let bytes = (low(a) | b << 32).to_le_bytes();
        let byte = |place: usize| {
            let digit = (digits >> (4 * place)) as usize & 0xf;
            let byte = bytes[digit & 7];
            if digit < 8 { byte } else { (byte.cast_signed() >> 7).cast_unsigned() }
        };
        u64::from(u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]))
    }),
    ("not.pred", 1, |[a, ..]| u64::from(a == 0)),
    ("and.pred", 2, |[a, b, ..]| u64::from(a != 0 && b != 0)),
    ("or.pred", 2, |[a, b, ..]| u64::from(a != 0 || b != 0)),
    ("setp.eq.f32", 2, |[a, b, ..]| u64::from(f32_of(a) == f32_of(b))),
    ("setp.lt.f32", 2, |[a, b, ..]| u64::from(f32_of(a) < f32_of(b))),
    ("setp.eq.b32", 2, |[a, b, ..]| u64::from(low(a) == low(b))),
    ("setp.eq.s32", 2, |[a, b, ..]| u64::from(low(a) == low(b))),
    ("setp.ne.s32", 2, |[a, b, ..]| u64::from(low(a) != low(b))),
    ("setp.lt.u32", 2, |[a, b, ..]| u64::from(low(a) < low(b))),
    ("setp.eq.f64", 2, |[a, b, ..]| u64::from(f64::from_bits(a) == f64::from_bits(b))),
    ("setp.eq.s64", 2, |[a, b, ..]| u64::from(a == b)),
    ("setp.ne.s64", 2, |[a, b, ..]| u64::from(a != b)),
    ("setp.lt.u64", 2, |[a, b, ..]| u64::from(a < b)),
    ("setp.ge.u64", 2, |[a, b, ..]| u64::from(a >= b)),
    ("setp.ge.u32", 2, |[a, b, ..]| u64::from(low(a) >= low(b))),
    ("setp.gt.u32", 2, |[a, b, ..]| u64::from(low(a) > low(b))),
    ("setp.gt.u64", 2, |[a, b, ..]| u64::from(a > b)),
    ("setp.le.u32", 2, |[a, b, ..]| u64::from(low(a) <= low(b))),
    ("selp.f32", 3, |[a, b, is_first, _]| low(if is_first != 0 { a } else { b })),
    ("selp.b32", 3, |[a, b, is_first, _]| low(if is_first != 0 { a } else { b })),
    ("selp.s32", 3, |[a, b, is_first, _]| low(if is_first != 0 { a } else { b })),
    ("selp.u32", 3, |[a, b, is_first, _]| low(if is_first != 0 { a } else { b })),
    ("selp.b64", 3, |[a, b, is_first, _]| if is_first != 0 { a } else { b }),
];

pub(super) fn low(bits: u64) -> u64 {
    bits & 0xffff_ffff
}

/// Copies of the sign come in from above.
pub(super) fn shift_right(bits: u64, by: u64) -> u64 {
    (bits.cast_signed() >> by.min(63)).cast_unsigned()
}

/// The second number with low bits of the first one: so many, from one on, which are bytes.
fn inserted([a, b, from, len]: [u64; OPERANDS_MAX]) -> u64 {
    let ones = 1_u64.checked_shl(u32::from(len as u8)).map_or(u64::MAX, |above| above - 1);
    let mask = ones.checked_shl(u32::from(from as u8)).unwrap_or(0);
    b & !mask | a.checked_shl(u32::from(from as u8)).unwrap_or(0) & mask
}

fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// The bits of a result; of a NaN those that devices make.
fn from_f32(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7fff_ffff } else { value.to_bits() })
}

/// The number that is no NaN, if one is; -0 is smaller than +0.
fn smaller(a: f32, b: f32) -> f32 {
    let is_first = b.is_nan() || !a.is_nan() && a.total_cmp(&b).is_le();
    if is_first { a } else { b }
}

fn from_f64(value: f64) -> u64 {
    if value.is_nan() { 0x7fff_ffff_ffff_ffff } else { value.to_bits() }
}

pub(super) fn f16_to_f32(bits: u64) -> f32 {
    let (exponent, mantissa) = (bits >> 10 & 0x1f, (bits & 0x3ff) as f32);
    let magnitude = match exponent {
        0 => mantissa * 2.0_f32.powi(-24),
        31 if mantissa == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        exponent => (1024.0 + mantissa) * 2.0_f32.powi(exponent as i32 - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

pub(super) fn f32_to_f16(value: f32) -> u64 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = u64::from(value.is_sign_negative()) << 15;
    let magnitude = f64::from(value.abs());
    // The exponent of the step between neighbours is ten less than that of the number; the smallest normal number has -14.
    let exponent = if magnitude < 2.0_f64.powi(-14) { -14 } else { f64_exponent(magnitude).min(16) };
    let steps = (magnitude / 2.0_f64.powi(exponent - 10)).round_ties_even().min(2048.0);
    // A carry out of the mantissa is one to the exponent.
    let rounded = ((exponent + 14) as u64) << 10;
    sign | (rounded + steps as u64).min(0x7c00)
}

fn f64_exponent(value: f64) -> i32 {
    (value.to_bits() >> 52 & 0x7ff) as i32 - 1023
}
