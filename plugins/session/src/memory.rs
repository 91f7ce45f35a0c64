//! Memory that a framework lends: the length of a tensor, and its regions for the engine.

use gradlane_core::cuda::Mark;
use gradlane_core::device::Device;
use gradlane_core::engine::Memory;
use gradlane_core::mem::{DeviceRegion, Ordinal, Region};
use gradlane_core::types::TensorSpec;
use gradlane_core::{Error, Result};

/// Bytes of a tensor.
///
/// # Errors
/// [`Error::InvalidArgument`] if it is larger than the address space.
pub fn tensor_bytes(tensor: &TensorSpec) -> Result<usize> {
    let TensorSpec { name, dtype, shape, .. } = tensor;
    tensor.bytes().and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| Error::InvalidArgument {
        what: format!("tensor {name}: shape {shape:?} of {dtype}"),
        hint: "it is larger than the address space".to_owned(),
    })
}

/// Makes memory for the engine from addresses that all lie in one place: in host memory, or on one device.
pub struct Lender<'session> {
    place: Option<(&'session dyn Device, Ordinal)>,
    /// The mark of each stream at its first use. The tensors of one call usually come from one stream.
    marks: Vec<(u64, Mark)>,
}

impl<'session> Lender<'session> {
    /// A lender of host memory, or of memory of the device with this number.
    pub(crate) fn new(devices: &'session dyn Device, device: Option<u16>) -> Self {
        Self { place: device.map(|number| (devices, Ordinal(number))), marks: Vec::new() }
    }

    /// The `bytes` bytes from `address`. The engine uses them only after the work so far of `stream`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for null; those of [`Device::mark`].
    ///
    /// # Safety
    /// Until the operation that gets the memory has ended, the bytes stay valid and initialised. Nothing outside of the operation writes
    /// them; if a result lands there, nothing outside reads them either. Regions of one operation overlap only as its source and
    /// destination.
    #[expect(unsafe_code, reason = "a framework gives an address and a promise")]
    pub unsafe fn lend(&mut self, address: usize, bytes: usize, stream: Option<u64>) -> Result<Memory> {
        if address == 0 && bytes > 0 {
            return Err(Error::InvalidArgument {
                what: format!("a null pointer to {bytes} bytes"),
                hint: "give the address of the tensor".to_owned(),
            });
        }
        let Some((devices, device)) = self.place else {
            // SAFETY: the caller of this function promises what `Region::new` asks for.
            return Ok(Memory::Host(unsafe { Region::new(address as *mut u8, bytes) }));
        };
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

/// The bytes of a region, which the caller uses up before it begins another slice of the same memory.
#[expect(unsafe_code, reason = "a framework gives an address and a promise")]
pub(crate) fn bytes_of(region: &Region) -> &[u8] {
    // SAFETY: `Lender::lend` asks that nothing outside of the operation writes them. Inside, the result is written after they were read.
    unsafe { region.as_slice() }
}

/// The same, for a result.
#[expect(unsafe_code, reason = "a framework gives an address and a promise")]
pub(crate) fn bytes_of_mut(region: &mut Region) -> &mut [u8] {
    // SAFETY: `Lender::lend` asks that nothing outside of the operation reads or writes them. Inside, all else was read before.
    unsafe { region.as_mut_slice() }
}

/// The bytes of a lease, for one copy of a device.
#[expect(unsafe_code, reason = "a copy of a device takes a region")]
pub(crate) fn leased(lease: &mut gradlane_core::mem::Lease, bytes: usize) -> Region {
    assert!(bytes <= lease.len(), "{bytes} bytes of a lease of {}", lease.len());
    // SAFETY: the lease is at least that long. `copy_speed` holds it and does not use it until the copy has ended.
    unsafe { Region::new(lease.as_mut_ptr(), bytes) }
}
