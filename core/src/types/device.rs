//! The kinds of memory that hold tensors.

use std::fmt;

/// A kind of memory that holds tensors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceKind {
    /// Host memory: a part is pushed from where it lies, and its sum overwrites it.
    Host,
    /// A CUDA device, or its replacement in tests: memory that the network cannot reach.
    Cuda,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Cuda => "cuda",
        })
    }
}

/// What a device does in its copies with elements of a type and their codec. What it does not do, the host does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum InCopies {
    /// It copies elements.
    Nothing,
    /// It encodes contributions. Sums are decoded before they are copied back.
    Encode,
    /// It encodes contributions and decodes sums.
    EncodeAndDecode,
}
