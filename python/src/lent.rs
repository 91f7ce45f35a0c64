//! Memory that Python lends: how long it is, and as what the engine sees it.

use gradlane_core::cuda::Mark;
use gradlane_core::device::Device;
use gradlane_core::engine::Memory;
use gradlane_core::mem::{DeviceRegion, Ordinal, Region};
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

/// Makes memory of addresses that all lie in one place: in host memory, or on one device.
pub(crate) struct Lender<'session> {
    place: Option<(&'session dyn Device, Ordinal)>,
    /// Where each stream stood when it was first asked for: tensors of one call come from one stream, as a rule.
    marks: Vec<(u64, Mark)>,
}

impl<'session> Lender<'session> {
    /// For host memory, or for that of the device with this number.
    pub(crate) fn new(devices: &'session dyn Device, device: Option<u16>) -> Self {
        Self { place: device.map(|number| (devices, Ordinal(number))), marks: Vec::new() }
    }

    /// The `bytes` from `address`, touched only when what `stream` has to do by now is done.
    ///
    /// # Errors
    /// Those of [`Device::mark`].
    pub(crate) fn lend(&mut self, address: usize, bytes: usize, stream: Option<u64>) -> Result<Memory> {
        let Some((devices, device)) = self.place else { return Ok(Memory::Host(region(address, bytes))) };
        let region = DeviceRegion::new(device, address as u64, bytes);
        let Some(stream) = stream else { return Ok(Memory::Device { region, after: Mark::Reached }) };
        if let Some((_, mark)) = self.marks.iter().find(|(marked, _)| *marked == stream) {
            return Ok(Memory::Device { region, after: mark.clone() });
        }
        let after = devices.mark(device, stream)?;
        self.marks.push((stream, after.clone()));
        Ok(Memory::Device { region, after })
    }
}

/// The `bytes` bytes of host memory from `address`.
#[expect(unsafe_code, reason = "the address comes from a tensor of the caller, or from a lease")]
pub(crate) fn region(address: usize, bytes: usize) -> Region {
    // SAFETY: the package's Python half takes the address and the length from one tensor, whose owner is held in `Owners` until the
    // operation has ended; nobody else writes to it meanwhile, which the public documentation asks of the caller. A lease is held and
    // left alone until its copy has ended.
    unsafe { Region::new(address as *mut u8, bytes) }
}
