//! The memory of a submitted tensor.

use crate::cuda::Mark;
use crate::mem::{DeviceRegion, Ordinal, Region};
use crate::types::Span;

/// The memory of a tensor, lent until its operation has ended.
#[derive(Debug)]
pub enum Memory {
    /// Memory of this process.
    Host(Region),
    /// Memory of one of the engine's devices.
    Device {
        /// Which.
        region: DeviceRegion,
        /// The mark after the caller's work on the memory. The engine does not use the memory before it is reached.
        after: Mark,
    },
}

impl From<Region> for Memory {
    fn from(region: Region) -> Self {
        Self::Host(region)
    }
}

impl Memory {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(region) => region.len(),
            Self::Device { region, .. } => region.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the first byte, on its device or in this process.
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Host(region) => region.address(),
            Self::Device { region, .. } => region.address(),
        }
    }

    /// Whether a result in `other`, which does not overlap with it in part, overwrites it.
    pub(super) fn is_place_of(&self, other: &Self) -> bool {
        (self.device(), self.address()) == (other.device(), other.address())
    }

    /// The device of the memory; `None` for the host.
    pub fn device(&self) -> Option<Ordinal> {
        match self {
            Self::Host(_) => None,
            Self::Device { region, .. } => Some(region.device()),
        }
    }

    /// The mark after the caller's work on memory of a device; `None` for memory of the host.
    pub(super) fn after(&self) -> Option<&Mark> {
        match self {
            Self::Host(_) => None,
            Self::Device { after, .. } => Some(after),
        }
    }

    /// The same memory.
    pub(super) fn again(&self) -> Self {
        match self {
            Self::Host(region) => Self::Host(region.again()),
            Self::Device { region, after } => Self::Device { region: region.again(), after: after.clone() },
        }
    }

    /// The bytes of `span`.
    pub(super) fn part(&self, span: Span) -> Self {
        match self {
            Self::Host(region) => Self::Host(region.part(span)),
            Self::Device { region, after } => Self::Device { region: region.part(span), after: after.clone() },
        }
    }
}
