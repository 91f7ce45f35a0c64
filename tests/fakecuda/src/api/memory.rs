//! Device memory, pinned memory of the host, and what an address is.

use std::ffi::{c_int, c_uint, c_void};

use super::{exported, get, put};
use crate::codes::{Code, Outcome};
use crate::driver::Driver;
use crate::memory::{Pinned, is_mapped, is_shared, prefers_a_node};

/// Of `cuMemHostAlloc`.
const WRITE_COMBINED: c_uint = 4;

exported! {
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |driver| {
        driver.captures.forbid()?;
        put(address, driver.allocate(driver.current()?, bytes)?)
    }
    fn cuMemFree_v2(address: u64) |driver| {
        driver.captures.forbid()?;
        driver.current()?;
        let allocation = driver.memory().starting(address).ok_or(Code::INVALID_VALUE)?;
        let device = &driver.devices()[allocation.device];
        driver.free(device, allocation);
        Ok(())
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        let used = driver.current()?.counters.device_bytes.get();
        let all = driver.settings.get().memory;
        put(free, usize::try_from(all.saturating_sub(used)).unwrap_or(usize::MAX))?;
        put(total, usize::try_from(all).unwrap_or(usize::MAX))
    }
    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) |driver| {
        let allocation = driver.memory().around(address).ok_or(Code::NOT_FOUND)?;
        if !base.is_null() {
            put(base, allocation.address)?;
        }
        if bytes.is_null() { Ok(()) } else { put(bytes, allocation.bytes) }
    }
    fn cuMemHostAlloc(address: *mut usize, bytes: usize, flags: c_uint) |driver| { put(address, pin(driver, bytes, flags)?) }
    fn cuMemAllocHost_v2(address: *mut usize, bytes: usize) |driver| { put(address, pin(driver, bytes, 0)?) }
    fn cuMemFreeHost(address: usize) |driver| {
        driver.captures.forbid()?;
        let pinned = driver.memory().pinned_starting(address).filter(|pinned| pinned.is_ours);
        driver.unpin(pinned.ok_or(Code::INVALID_VALUE)?);
        Ok(())
    }
    fn cuMemHostRegister_v2(address: usize, bytes: usize, flags: c_uint) |driver| {
        driver.captures.forbid()?;
        let device = driver.current()?;
        if flags & !0xf != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if !driver.settings.get().registers_shared && is_shared(address) {
            return Err(Code::NOT_SUPPORTED);
        }
        const READ_ONLY: c_uint = 8;
        if !is_mapped(address, bytes, flags & READ_ONLY == 0) {
            return Err(Code::INVALID_VALUE);
        }
        driver.synchronize_implicitly(device);
        driver.memory().register(device.ordinal, address, bytes, flags)?;
        device.counters.pinned_ranges.add(1);
        device.counters.pinned_bytes.add(bytes as u64);
        Ok(())
    }
    fn cuMemHostUnregister(address: usize) |driver| {
        driver.captures.forbid()?;
        let pinned = driver.memory().pinned_starting(address).filter(|pinned| !pinned.is_ours);
        driver.unpin(pinned.ok_or(Code::NOT_REGISTERED)?);
        Ok(())
    }
    fn cuMemHostGetDevicePointer_v2(device_address: *mut u64, address: usize, flags: c_uint) |driver| {
        driver.memory().pinned_around(address, 0).filter(|_| flags == 0).ok_or(Code::INVALID_VALUE)?;
        put(device_address, address as u64)
    }
    fn cuMemHostGetFlags(flags: *mut c_uint, address: usize) |driver| {
        let pinned = driver.memory().pinned_around(address, 0).ok_or(Code::INVALID_VALUE)?;
        put(flags, pinned.flags)
    }
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_uint, address: u64) |driver| {
        attribute_of(driver, value, attribute, address)?.then_some(()).ok_or(Code::INVALID_VALUE)
    }
    fn cuPointerGetAttributes(count: c_uint, attributes: *const c_uint, values: *const *mut c_void, address: u64) |driver| {
        for at in 0..count as usize {
            let attribute = get(attributes.wrapping_add(at))?;
            let value = get(values.wrapping_add(at))?;
            // Unlike the single one it succeeds for memory that the driver does not know, and says so.
            if !attribute_of(driver, value, attribute, address)? {
                match attribute {
                    2 | 8 | 13 => put(value.cast::<c_uint>(), 0)?,
                    9 => put(value.cast::<c_int>(), -2)?,
                    _ => put(value.cast::<u64>(), 0)?,
                }
            }
        }
        Ok(())
    }
}

/// Writes an attribute of an address; whether the driver knows the address.
fn attribute_of(driver: &Driver, value: *mut c_void, attribute: c_uint, address: u64) -> Outcome<bool> {
    const HOST: c_uint = 1;
    const DEVICE: c_uint = 2;
    let memory = driver.memory();
    let host = usize::try_from(address).map_err(|_| Code::INVALID_VALUE)?;
    let (kind, device, start, bytes, id, seen_by_host) = if let Some(found) = memory.around(address) {
        (DEVICE, found.device, found.address, found.bytes, found.id, None)
    } else if let Some(found) = memory.pinned_around(host, 0) {
        (HOST, found.device, found.address as u64, found.bytes, found.address as u64, Some(address))
    } else {
        return Ok(false);
    };
    drop(memory);
    let device = &driver.devices()[device];
    match attribute {
        1 => put(value.cast(), device.context()),
        2 => put(value.cast(), kind),
        3 => put(value.cast(), address),
        4 => put(value.cast(), seen_by_host.ok_or(Code::INVALID_VALUE)?),
        6 | 8 => put(value.cast::<c_uint>(), 0),
        7 => put(value.cast(), id),
        9 => put(value.cast(), c_int::try_from(device.ordinal).map_err(|_| Code::INVALID_DEVICE)?),
        10 | 13 => put(value.cast::<c_uint>(), 1),
        11 => put(value.cast(), start),
        12 => put(value.cast(), bytes),
        _ => Err(Code::NOT_SUPPORTED),
    }?;
    Ok(true)
}

fn pin(driver: &Driver, bytes: usize, flags: c_uint) -> Outcome<usize> {
    driver.captures.forbid()?;
    let device = driver.current()?;
    if flags & !7 != 0 {
        return Err(Code::INVALID_VALUE);
    }
    driver.synchronize_implicitly(device);
    let pinned = driver.memory().allocate_pinned(device.ordinal, bytes, flags)?;
    device.counters.write_combined.add(u64::from(flags & WRITE_COMBINED != 0));
    device.counters.pinned_near.add(u64::from(prefers_a_node()));
    device.counters.pinned_ranges.add(1);
    device.counters.pinned_bytes.add(bytes as u64);
    let Pinned { address, .. } = *pinned;
    Ok(address)
}
