//! Submits single copies to a stream, with the functions of the driver.
#![expect(unsafe_code, reason = "the driver copies between addresses")]

use crate::cuda::{INVALID_VALUE, Stream, name};
use crate::error::{Error, Result};
use crate::mem::{DeviceRegion, Ordinal, Region};
use crate::types::Span;

/// The largest single copy. At 55 GB/s it takes 76 µs, a dozen times the time to submit it, so the copy engine never waits for the next
/// one, and a stream that is closed ends within that time.
const CHUNK_BYTES: u64 = 4 << 20;

/// Runs of at most [`CHUNK_BYTES`] that cover `run`.
pub(super) fn chunks(run: &DeviceRegion) -> impl Iterator<Item = DeviceRegion> {
    let len = run.len() as u64;
    (0..len.div_ceil(CHUNK_BYTES)).map(move |index| {
        let offset = index * CHUNK_BYTES;
        run.part(Span { offset, bytes: CHUNK_BYTES.min(len - offset) })
    })
}

/// Submits a copy to the host; both sides are equally long.
pub(super) fn copy_out(stream: &Stream, from: &DeviceRegion, mut to: Region) -> Result<()> {
    // SAFETY: nobody else uses the region until this transfer has ended; only its address is taken from the slice.
    let host = unsafe { to.as_mut_slice() };
    // SAFETY: the host's memory is valid and nobody else's until the transfer has ended, by the contract of `Region::new`; whether the
    // device's is, the driver checks.
    let code = unsafe {
        (stream.context().api().copy_out)(host.as_mut_ptr().cast(), from.address(), host.len(), stream.raw())
    };
    submitted(stream, "a copy to the host", from, code)
}

/// Submits a copy from the host; both sides are equally long.
pub(super) fn copy_in(stream: &Stream, from: &Region, to: &DeviceRegion) -> Result<()> {
    // SAFETY: nobody writes the region until this transfer has ended; only its address is taken from the slice.
    let host = unsafe { from.as_slice() };
    // SAFETY: as in `copy_out`.
    let code =
        unsafe { (stream.context().api().copy_in)(to.address(), host.as_ptr().cast(), host.len(), stream.raw()) };
    submitted(stream, "a copy from the host", to, code)
}

/// Submits a copy on the device; both sides are equally long.
pub(super) fn copy_within(stream: &Stream, from: &DeviceRegion, to: &DeviceRegion) -> Result<()> {
    // SAFETY: no memory of the host is touched; whether the device's is valid, the driver checks.
    let code = unsafe { (stream.context().api().copy_within)(to.address(), from.address(), from.len(), stream.raw()) };
    submitted(stream, "a copy on the device", from, code)
}

/// Checks the result of a submission. The driver looks up addresses first; an unknown address is a mistake of the caller and no fault of
/// the device.
fn submitted(stream: &Stream, what: &str, run: &DeviceRegion, code: u32) -> Result<()> {
    if code == INVALID_VALUE {
        let device: Ordinal = stream.context().device();
        return Err(Error::InvalidArgument {
            what: format!(
                "{}: the {} bytes at {:#x} are not memory of this device",
                name(device),
                run.len(),
                run.address()
            ),
            hint: "give a tensor of that device, and keep it until its handle has resolved".to_owned(),
        });
    }
    stream.context().checked(what, code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_into_chunks_that_cover_them() {
        let cut = |len| {
            let run = DeviceRegion::new(Ordinal(0), 0x1000, len);
            chunks(&run).map(|chunk| (chunk.address() - 0x1000, chunk.len())).collect::<Vec<_>>()
        };
        assert_eq!(cut(0), []);
        assert_eq!(cut(4 << 20), [(0, 4 << 20)]);
        assert_eq!(cut((8 << 20) + 1), [(0, 4 << 20), (4 << 20, 4 << 20), (8 << 20, 1)]);
    }
}
