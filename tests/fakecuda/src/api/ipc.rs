//! Device memory of another process.

use std::ffi::c_uint;

use super::{exported, get, put};
use crate::codes::Code;
use crate::memory::Foreign;

/// `CUipcMemHandle`: 64 bytes that mean something to the driver only.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u8; 64]);

exported! {
    fn cuIpcGetMemHandle(handle: *mut Handle, address: u64) |driver| {
        let memory = driver.memory();
        let allocation = memory.around(address).ok_or(Code::INVALID_VALUE)?;
        let foreign = memory.foreign(&allocation).ok_or(Code::INVALID_VALUE)?;
        put(handle, Handle([0; 64]))?;
        put(handle.cast::<Foreign>(), foreign)
    }
    fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: Handle, _flags: c_uint) |driver| {
        let device = driver.current()?;
        let foreign = get((&raw const handle).cast::<Foreign>())?;
        let allocation = driver.memory().open(device.ordinal, foreign)?;
        device.counters.live_allocations.add(1);
        device.counters.device_bytes.add(allocation.bytes as u64);
        put(address, allocation.address)
    }
    fn cuIpcCloseMemHandle(address: u64) |driver| {
        let allocation = driver.memory().starting(address).filter(|found| found.is_foreign());
        let allocation = allocation.ok_or(Code::INVALID_VALUE)?;
        driver.free(&driver.devices()[allocation.device], allocation);
        Ok(())
    }
}
