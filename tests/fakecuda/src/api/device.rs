//! Initialization, versions, errors, devices.

use std::ffi::{c_char, c_int, c_uint};

use super::{exported, put, put_text};
use crate::codes::{Code, words};

exported! {
    fn cuInit(flags: c_uint) |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.initialize();
        Ok(())
    }
    fn cuDriverGetVersion(version: *mut c_int) |driver| {
        let (major, minor) = driver.settings.get().version;
        put(version, c_int::try_from(1000 * major + 10 * minor).map_err(|_| Code::INVALID_VALUE)?)
    }
    fn cuGetErrorName(code: c_uint, name: *mut *const c_char) |_| {
        put(name, words(code).ok_or(Code::INVALID_VALUE)?.0.as_ptr())
    }
    fn cuGetErrorString(code: c_uint, text: *mut *const c_char) |_| {
        put(text, words(code).ok_or(Code::INVALID_VALUE)?.1.as_ptr())
    }
    fn cuDeviceGetCount(count: *mut c_int) |driver| { put(count, int(driver.devices().len())) }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |driver| { put(device, int(driver.device(ordinal)?.ordinal)) }
    fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) |driver| {
        driver.device(device)?;
        put_text(name, room, "Fake device in host memory")
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |driver| {
        driver.device(device)?;
        put(bytes, usize::try_from(driver.settings.get().memory).map_err(|_| Code::INVALID_VALUE)?)
    }
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |driver| {
        let ordinal = driver.device(device)?.ordinal as u128;
        put(uuid, (0x6661_6b65_6375_6461_u128 << 64 | ordinal).to_be_bytes())
    }
    fn cuDeviceGetPCIBusId(address: *mut c_char, room: c_int, device: c_int) |driver| {
        let ordinal = driver.device(device)?.ordinal;
        put_text(address, room, &driver.settings.get().pci_address(ordinal))
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) |driver| {
        let ordinal = driver.device(device)?.ordinal;
        let settings = driver.settings.get();
        let (major, minor) = settings.capability;
        put(value, match attribute {
            75 => c_int::try_from(major).unwrap_or(c_int::MAX),
            76 => c_int::try_from(minor).unwrap_or(c_int::MAX),
            _ => attribute_of(attribute, &settings.pci_address(ordinal)),
        })
    }
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) |driver| {
        let (one, other) = (driver.device(device)?.ordinal, driver.device(peer)?.ordinal);
        put(can, c_int::from(driver.settings.get().are_peers(one, other)))
    }
    fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_uint, device: c_int, peer: c_int) |driver| {
        let (one, other) = (driver.device(device)?.ordinal, driver.device(peer)?.ordinal);
        if one == other {
            return Err(Code::INVALID_DEVICE);
        }
        // 1 is a rank of performance, where the best is 0; the others say whether access, atomics and arrays work.
        let works = driver.settings.get().are_peers(one, other);
        put(value, c_int::from(works && attribute != 1))
    }
}

/// Of `CUdevice_attribute`; what is not named here is 0.
fn attribute_of(attribute: c_uint, pci: &str) -> c_int {
    let field =
        |from: usize, to: usize| pci.get(from..to).and_then(|text| c_int::from_str_radix(text, 16).ok()).unwrap_or(0);
    match attribute {
        1 => 1024,         // threads of a block
        2 | 3 => 1024,     // of those, along x and y
        4 => 64,           // along z
        5 => i32::MAX,     // blocks of a grid, along x
        6 | 7 => 65_535,   // along y and z
        10 => 32,          // threads of a warp
        16 => 1,           // multiprocessors
        19 | 41 | 99 => 1, // host memory can be mapped, has the same addresses, can be registered
        31 => 1,           // several kernels at a time
        33 => field(5, 7), // PCI bus
        34 => field(8, 10),
        40 => 2,           // engines of copies
        50 => field(0, 4), // PCI domain
        _ => 0,
    }
}

fn int(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}
