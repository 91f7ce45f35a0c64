//! Memory that Python lends: how long it is, and as what the engine sees it.

use gradlane_core::mem::Region;
use gradlane_core::types::TensorSpec;
use gradlane_core::{Error, Result};

/// Bytes of a tensor.
pub(crate) fn length(tensor: &TensorSpec) -> Result<usize> {
    let TensorSpec { name, dtype, shape } = tensor;
    tensor.bytes().and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| Error::InvalidArgument {
        what: format!("tensor {name}: shape {shape:?} of {dtype}"),
        hint: "it is larger than the address space".to_owned(),
    })
}

#[expect(unsafe_code, reason = "the address comes from a tensor of the caller")]
pub(crate) fn region(address: usize, bytes: usize) -> Region {
    // SAFETY: the package's Python half takes the address and the length from one tensor, whose owner is held in `Owners` until the
    // operation has ended; nobody else writes to it meanwhile, which the public documentation asks of the caller.
    unsafe { Region::new(address as *mut u8, bytes) }
}
