//! Elements and what is done with them.

use half::{bf16, f16};

use crate::codes::{Failure, Outcome};

/// How contributions become one (`ncclRedOp_t`); averages are sums of what was multiplied before, or are divided after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Combine {
    Sum,
    Prod,
    Max,
    Min,
}

/// An element type (`ncclDataType_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
}

impl Type {
    const ALL: [Self; 10] =
        [Self::I8, Self::U8, Self::I32, Self::U32, Self::I64, Self::U64, Self::F16, Self::F32, Self::F64, Self::Bf16];

    pub(crate) fn of(code: u32) -> Outcome<Self> {
        let found = usize::try_from(code).ok().and_then(|code| Self::ALL.get(code));
        found.copied().ok_or_else(|| Failure::argument(format!("element type {code} is not supported")))
    }

    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    pub(crate) const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64 | Self::Bf16)
    }
}

/// Does the same with each type.
macro_rules! with {
    ($kind:expr, $number:ident => $body:expr) => {
        match $kind {
            Type::I8 => {
                type $number = i8;
                $body
            }
            Type::U8 => {
                type $number = u8;
                $body
            }
            Type::I32 => {
                type $number = i32;
                $body
            }
            Type::U32 => {
                type $number = u32;
                $body
            }
            Type::I64 => {
                type $number = i64;
                $body
            }
            Type::U64 => {
                type $number = u64;
                $body
            }
            Type::F16 => {
                type $number = f16;
                $body
            }
            Type::F32 => {
                type $number = f32;
                $body
            }
            Type::F64 => {
                type $number = f64;
                $body
            }
            Type::Bf16 => {
                type $number = bf16;
                $body
            }
        }
    };
}

/// `out[i] = parts[0][i] + parts[1][i] + ...`, in this order.
pub(crate) fn combine(kind: Type, how: Combine, parts: &[&[u8]], out: &mut [u8]) {
    with!(kind, Number => match how {
        Combine::Sum => fold::<Number>(parts, out, Arithmetic::add),
        Combine::Prod => fold::<Number>(parts, out, Arithmetic::multiply),
        Combine::Max => fold::<Number>(parts, out, |one, other| if other > one { other } else { one }),
        Combine::Min => fold::<Number>(parts, out, |one, other| if other < one { other } else { one }),
    });
}

/// Multiplies every element by the one in `factor`.
pub(crate) fn multiply(kind: Type, data: &mut [u8], factor: &[u8]) {
    with!(kind, Number => {
        let factor = <Number as Element>::read(factor).widen();
        for element in data.chunks_exact_mut(kind.bytes()) {
            Number::narrow(Number::read(element).widen().multiply(factor)).write(element);
        }
    });
}

/// Divides every integer, towards zero.
pub(crate) fn divide(kind: Type, data: &mut [u8], by: usize) {
    with!(kind, Number => {
        for element in data.chunks_exact_mut(kind.bytes()) {
            Number::divide(Number::read(element), by).write(element);
        }
    });
}

/// `1 / ranks` as an element.
pub(crate) fn reciprocal(kind: Type, ranks: usize) -> Vec<u8> {
    let value = 1.0 / ranks as f64;
    match kind {
        Type::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
        Type::Bf16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
        Type::F64 => value.to_ne_bytes().to_vec(),
        _ => (value as f32).to_ne_bytes().to_vec(),
    }
}

fn fold<E: Element>(parts: &[&[u8]], out: &mut [u8], combine: impl Fn(E::Wide, E::Wide) -> E::Wide) {
    let bytes = size_of::<E>();
    let (first, rest) = parts.split_first().expect("there is at least one rank");
    for (at, to) in out.chunks_exact_mut(bytes).enumerate() {
        let place = at * bytes..(at + 1) * bytes;
        let start = E::read(&first[place.clone()]).widen();
        let all = rest.iter().fold(start, |sum, part| combine(sum, E::read(&part[place.clone()]).widen()));
        E::narrow(all).write(to);
    }
}

/// A number that is added up as `Wide` and rounded once.
trait Element: Copy {
    type Wide: Arithmetic;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, to: &mut [u8]);
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn divide(self, by: usize) -> Self;
}

trait Arithmetic: Copy + PartialOrd {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
}

macro_rules! element {
    ($($number:ty: $wide:ty, $widen:expr, $narrow:expr, $divide:expr;)+) => {
        $(impl Element for $number {
            type Wide = $wide;
            fn read(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes[..size_of::<Self>()].try_into().expect("so many"))
            }
            fn write(self, to: &mut [u8]) {
                to.copy_from_slice(&self.to_ne_bytes());
            }
            fn widen(self) -> $wide {
                $widen(self)
            }
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }
            fn divide(self, by: usize) -> Self {
                $divide(self, by)
            }
        })+
    };
}

macro_rules! integers {
    ($($number:ty),+) => {
        element! { $($number: $number, |x| x, |x| x, |x: $number, by: usize| x / <$number>::try_from(by).expect("few ranks");)+ }
        $(impl Arithmetic for $number {
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        })+
    };
}

macro_rules! floats {
    ($($number:ty),+) => {
        $(impl Arithmetic for $number {
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn multiply(self, other: Self) -> Self {
                self * other
            }
        })+
    };
}

integers!(i8, u8, i32, u32, i64, u64);
floats!(f32, f64);
element! {
    f32: f32, |x| x, |x| x, |x: f32, by: usize| x / by as f32;
    f64: f64, |x| x, |x| x, |x: f64, by: usize| x / by as f64;
    f16: f32, f16::to_f32, f16::from_f32, |x: f16, by: usize| f16::from_f32(x.to_f32() / by as f32);
    bf16: f32, bf16::to_f32, bf16::from_f32, |x: bf16, by: usize| bf16::from_f32(x.to_f32() / by as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once() {
        let parts = [2048.0, 1.0, 1.0].map(|value| f16::from_f32(value).to_ne_bytes());
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_slice()).collect();
        let mut out = [0; 2];
        combine(Type::F16, Combine::Sum, &parts, &mut out);
        assert_eq!(f16::from_ne_bytes(out).to_f32(), 2050.0, "2048 + 1 alone would be 2048");
    }

    #[test]
    fn integers_wrap_and_are_divided_towards_zero() {
        let mut out = [0];
        combine(Type::I8, Combine::Sum, &[&[127], &[2]], &mut out);
        assert_eq!(out[0].cast_signed(), -127);
        divide(Type::I8, &mut out, 2);
        assert_eq!(out[0].cast_signed(), -63);
    }

    #[test]
    fn every_way_to_combine() {
        let results = [Combine::Sum, Combine::Prod, Combine::Max, Combine::Min].map(|how| {
            let mut out = [0; 4];
            let parts = [3.0_f32, -2.0].map(f32::to_ne_bytes);
            combine(Type::F32, how, &[&parts[0], &parts[1]], &mut out);
            f32::from_ne_bytes(out)
        });
        assert_eq!(results, [1.0, -6.0, 3.0, -2.0]);
    }

    #[test]
    fn a_factor_multiplies_in_the_type_of_the_elements() {
        let mut data = [bf16::from_f32(3.0), bf16::from_f32(-5.0)].map(bf16::to_ne_bytes).concat();
        multiply(Type::Bf16, &mut data, &reciprocal(Type::Bf16, 2));
        assert_eq!(data, [bf16::from_f32(1.5), bf16::from_f32(-2.5)].map(bf16::to_ne_bytes).concat());
    }
}
