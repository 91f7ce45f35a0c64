//! Bytes of elements in planes, and back.

use crate::reduce::Loops;
use crate::types::DType;

/// Puts bytes of elements in planes. Floats are turned by one bit to the left.
pub(super) struct Split<'a> {
    pub(super) dtype: DType,
    pub(super) elements: &'a [u8],
    pub(super) planes: &'a mut [u8],
}

/// Makes elements of their planes.
pub(super) struct Merge<'a> {
    pub(super) dtype: DType,
    pub(super) planes: &'a [u8],
    pub(super) elements: &'a mut [u8],
}

impl Loops for Split<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { dtype, elements, planes } = self;
        match dtype {
            DType::I8 | DType::U8 => split::<u8>(0, elements, planes),
            DType::F16 | DType::BF16 => split::<u16>(1, elements, planes),
            DType::I32 => split::<u32>(0, elements, planes),
            DType::F32 => split::<u32>(1, elements, planes),
            DType::I64 => split::<u64>(0, elements, planes),
            DType::F64 => split::<u64>(1, elements, planes),
        }
    }
}

impl Loops for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { dtype, planes, elements } = self;
        match dtype {
            DType::I8 | DType::U8 => merge::<u8>(0, planes, elements),
            DType::F16 | DType::BF16 => merge::<u16>(1, planes, elements),
            DType::I32 => merge::<u32>(0, planes, elements),
            DType::F32 => merge::<u32>(1, planes, elements),
            DType::I64 => merge::<u64>(0, planes, elements),
            DType::F64 => merge::<u64>(1, planes, elements),
        }
    }
}

#[inline(always)]
fn split<B: Bits>(turns: u32, elements: &[u8], planes: &mut [u8]) {
    let elements = B::elements(elements);
    for (at, plane) in (0..).zip(planes.chunks_exact_mut(elements.len().max(1))) {
        for (place, element) in plane.iter_mut().zip(elements) {
            *place = B::load(*element).turned(turns).byte(at);
        }
    }
}

#[inline(always)]
fn merge<B: Bits>(turns: u32, planes: &[u8], elements: &mut [u8]) {
    elements.fill(0);
    let elements = B::elements_mut(elements);
    for (at, plane) in (0..).zip(planes.chunks_exact(elements.len().max(1))) {
        for (element, byte) in elements.iter_mut().zip(plane) {
            *element = B::load(*element).with_byte(at, *byte).store();
        }
    }
    for element in elements {
        *element = B::load(*element).turned(B::BITS - turns).store();
    }
}

/// The bits of an element.
trait Bits: Copy {
    const BITS: u32;
    /// Its bytes, in little-endian order.
    type Bytes: Copy;

    fn elements(bytes: &[u8]) -> &[Self::Bytes];
    fn elements_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    fn load(bytes: Self::Bytes) -> Self;
    fn store(self) -> Self::Bytes;
    /// Turned to the left by so many bits, all of them at most.
    fn turned(self, bits: u32) -> Self;
    fn byte(self, at: u32) -> u8;
    /// With this byte, where all bits are 0.
    fn with_byte(self, at: u32, byte: u8) -> Self;
}

macro_rules! bits {
    ($type:ty) => {
        impl Bits for $type {
            const BITS: u32 = <$type>::BITS;
            type Bytes = [u8; size_of::<$type>()];

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
                Self::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn store(self) -> Self::Bytes {
                self.to_le_bytes()
            }
            #[inline(always)]
            fn turned(self, bits: u32) -> Self {
                self.rotate_left(bits)
            }
            #[inline(always)]
            fn byte(self, at: u32) -> u8 {
                (self >> (8 * at)) as u8
            }
            #[inline(always)]
            fn with_byte(self, at: u32, byte: u8) -> Self {
                self | Self::from(byte) << (8 * at)
            }
        }
    };
}

bits!(u8);
bits!(u16);
bits!(u32);
bits!(u64);
