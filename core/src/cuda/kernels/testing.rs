//! Elements and codecs for tests of kernels that encode and decode.

use fakecuda::ptx;

use crate::codec::{Coding, testing};
use crate::types::DType;

/// The kernels of a text that is built in, to be run on the host.
pub(super) fn module_of(text: &str) -> ptx::Module {
    ptx::Module::parse(text.trim_end_matches('\0')).unwrap()
}

/// Asserts that a text has these kernels and no other.
pub(super) fn has_kernels<'a>(module: &ptx::Module, names: impl Iterator<Item = &'a str>) {
    let mut listed: Vec<&str> = names.map(|name| name.trim_end_matches('\0')).collect();
    listed.sort_unstable();
    assert_eq!(module.names().collect::<Vec<_>>(), listed);
}

pub(super) fn coding(codec: &str) -> Coding {
    Coding { dtype: DType::F32, codec: codec.parse().unwrap(), divisor: 1.0 }
}

/// Numbers of many sizes, of both signs.
pub(super) fn ordinary(len: usize) -> Vec<f32> {
    (0..len).map(|at| f32::from_bits(bits(at as u64) as u32 & 0x87ff_ffff | 0x3800_0000)).collect()
}

/// Parts at which an encoder could err.
pub(super) fn awkward() -> [Vec<f32>; 8] {
    let of = |element: fn(u64) -> f32| (0..2500).map(|at| element(bits(at))).collect::<Vec<_>>();
    [
        of(|_| 0.0),
        // Zeros of both signs, then the smallest numbers, then the largest.
        of(|bits| f32::from_bits((bits as u32) << 31)),
        of(|bits| f32::from_bits(bits as u32 & 0x8000_00ff)),
        of(|bits| f32::from_bits(bits as u32 & 0x807f_ffff)),
        of(|bits| if bits >> 63 == 0 { f32::MAX } else { f32::MIN }),
        // Few values, and few elements that are not zero.
        of(|bits| (bits >> 61) as f32 - 4.0),
        of(|bits| if bits >> 56 == 0 { 1e-30 } else { -0.0 }),
        // Of every size, finite ones: a sum of them depends on the order of the additions.
        of(|bits| f32::from_bits(bits as u32)).into_iter().filter(|value| value.is_finite()).collect(),
    ]
}

pub(super) fn bytes(elements: &[f32]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

/// Some bits for a number.
pub(super) fn bits(number: u64) -> u64 {
    testing::SEED().draw(number)
}
