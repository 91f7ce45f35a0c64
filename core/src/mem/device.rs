//! Memory of a device. The host knows its address but cannot access it.

use std::fmt;

use crate::types::Span;

/// The index of a device of its kind in this process: the number in `cuda:1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ordinal(pub u16);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A run of a device's memory, lent until the operation that gets it reports its end.
///
/// Unlike a [`Region`](super::Region) it gives no access to its bytes. Only its device reads or writes them.
#[derive(PartialEq, Eq, Debug)]
pub struct DeviceRegion {
    device: Ordinal,
    address: u64,
    len: usize,
}

impl DeviceRegion {
    /// The `len` bytes from `address` of `device`.
    ///
    /// Not unsafe, because an address alone reads nothing. A caller that passes it to a device promises there that it is valid.
    pub const fn new(device: Ordinal, address: u64, len: usize) -> Self {
        Self { device, address, len }
    }

    /// The device.
    pub const fn device(&self) -> Ordinal {
        self.device
    }

    /// Its first address, in the device's address space.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes of `span`.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub fn part(&self, span: Span) -> Self {
        let len = usize::try_from(span.bytes).expect("within memory");
        assert!(span.offset + span.bytes <= self.len as u64, "{span:?} of {} bytes", self.len);
        Self { device: self.device, address: self.address + span.offset, len }
    }

    /// The same bytes again, for the next stage or attempt of an operation. The next one begins only after this one has ended.
    pub(crate) const fn again(&self) -> Self {
        Self { device: self.device, address: self.address, len: self.len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_within_the_whole() {
        let whole = DeviceRegion::new(Ordinal(1), 0x1000, 64);
        let part = whole.part(Span { offset: 16, bytes: 32 });
        assert_eq!((part.device(), part.address(), part.len()), (Ordinal(1), 0x1010, 32));
    }

    #[test]
    #[should_panic(expected = "of 64 bytes")]
    fn a_part_does_not_reach_beyond_the_end() {
        DeviceRegion::new(Ordinal(0), 0, 64).part(Span { offset: 40, bytes: 32 });
    }
}
