//! Primary contexts, and which one is current in a thread.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

use super::{exported, put};
use crate::codes::Code;
use crate::driver::{current_context, pop_context, push_context, set_context};

exported! {
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) |driver| {
        let device = driver.device(device)?;
        let _turn = device.retaining();
        device.retained.fetch_add(1, Ordering::AcqRel);
        put(context, device.context())
    }
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |driver| {
        let device = driver.device(device)?;
        let _turn = device.retaining();
        let before = device.retained.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| held.checked_sub(1));
        match before {
            Ok(1) => driver.destroy(device),
            Ok(_) => {}
            Err(_) => return Err(Code::INVALID_CONTEXT),
        }
        Ok(())
    }
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) |driver| {
        let held = driver.device(device)?.retained.load(Ordering::Acquire);
        put(flags, 0)?;
        put(active, c_int::from(held > 0))
    }
    fn cuCtxSetCurrent(context: usize) |driver| {
        if context != 0 {
            driver.of_context(context)?;
        }
        set_context(context);
        Ok(())
    }
    fn cuCtxGetCurrent(context: *mut usize) |_| { put(context, current_context()) }
    fn cuCtxPushCurrent_v2(context: usize) |driver| {
        driver.of_context(context)?;
        push_context(context);
        Ok(())
    }
    fn cuCtxPopCurrent_v2(context: *mut usize) |_| {
        let popped = pop_context()?;
        if context.is_null() { Ok(()) } else { put(context, popped) }
    }
    fn cuCtxGetDevice(device: *mut c_int) |driver| {
        let ordinal = driver.of_context(current_context())?.ordinal;
        put(device, c_int::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?)
    }
    fn cuCtxSynchronize() |driver| {
        let device = driver.current()?;
        driver.captures.forbid()?;
        device.counters.waits.add(1);
        driver.drain(device);
        device.healthy()
    }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |driver| {
        driver.current()?;
        put(least, 0)?;
        put(greatest, -5)
    }
    fn cuCtxEnablePeerAccess(peer: usize, flags: c_uint) |driver| {
        let (here, there) = (driver.current()?.ordinal, driver.of_context(peer)?.ordinal);
        if flags != 0 || here == there {
            return Err(Code::INVALID_VALUE);
        }
        if driver.settings.get().are_peers(here, there) { Ok(()) } else { Err(Code(217)) }
    }
}
