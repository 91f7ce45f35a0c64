//! What tests steer and look at. All of it is declared here, and wrapped by [`Control`](crate::Control).

use std::ffi::c_char;
use std::sync::Arc;

use super::{bytes, put, text};
use crate::codes::{Code, Outcome};
use crate::copies::Copy;
use crate::driver::Driver;
use crate::memory::{Keeper, Place};
use crate::stream::{Step, Stream, Work};

/// Like the functions of the driver, but neither counted nor failing, and without a current context.
macro_rules! controls {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) |$driver:pat_param| $body:block)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $kind),*) -> u32 {
                let body = move |$driver: &'static Driver| -> Outcome { $body };
                body(Driver::get()).err().map_or(0, |Code(code)| code)
            }
        )+
    };
}

controls! {
    fn fakecuda_initialize() |driver| {
        driver.initialize();
        Ok(())
    }
    fn fakecuda_set(name: *const c_char, value: *const c_char) |driver| {
        let (name, value) = (text(name)?, text(value)?);
        let understood = if name == "FAIL" { driver.faults.set(&value) } else { driver.settings.set(&name, &value) };
        understood.then_some(()).ok_or(Code::INVALID_VALUE)
    }
    fn fakecuda_counter(device: i32, name: *const c_char, value: *mut u64) |driver| {
        put(value, driver.device(device)?.counters.named(&text(name)?).ok_or(Code::NOT_FOUND)?)
    }
    fn fakecuda_calls(name: *const c_char, value: *mut u64) |driver| { put(value, driver.calls(&text(name)?)) }
    fn fakecuda_fail_device(device: i32, code: u32) |driver| {
        driver.device(device)?.fail(code);
        Ok(())
    }
    fn fakecuda_user_stream(device: i32, stream: *mut usize) |driver| {
        put(stream, driver.create_stream(driver.device(device)?, true, Stream::NON_BLOCKING, 0))
    }
    fn fakecuda_lag(stream: usize, micros: u64) |driver| {
        driver.tables().streams.get(&stream).ok_or(Code::INVALID_HANDLE)?.set_lag(micros);
        Ok(())
    }
    fn fakecuda_allocate(device: i32, bytes: usize, address: *mut u64) |driver| {
        put(address, driver.allocate(driver.device(device)?, bytes)?)
    }
    fn fakecuda_free(address: u64) |driver| {
        let allocation = driver.memory().starting(address).ok_or(Code::INVALID_VALUE)?;
        driver.free(&driver.devices()[allocation.device], allocation);
        Ok(())
    }
    fn fakecuda_produce(device: i32, stream: usize, address: u64, data: *const u8, len: usize) |driver| {
        let data: Arc<[u8]> = bytes(data, len)?.into();
        let from = Place { host: data.as_ptr() as usize, keeper: Keeper::Bytes(data) };
        let to = driver.memory().device_place(address, len)?;
        let found = driver.stream_of(driver.device(device)?, stream)?;
        driver.submit(stream, &found, Step::Work(Work::Copy(Copy { to, from, bytes: len })));
        Ok(())
    }
    fn fakecuda_carry(device: i32, stream: usize, to: u64, from: u64, len: usize) |driver| {
        let [to, from] = [to, from].map(|address| driver.memory().device_place(address, len));
        let found = driver.stream_of(driver.device(device)?, stream)?;
        driver.submit(stream, &found, Step::Work(Work::Copy(Copy { to: to?, from: from?, bytes: len })));
        Ok(())
    }
    fn fakecuda_consume(device: i32, stream: usize, address: u64, data: *mut u8, len: usize) |driver| {
        let from = driver.memory().device_place(address, len)?;
        let to = Place { host: data as usize, keeper: Keeper::Pageable };
        // It waits for the stream, and a graph would write there again.
        driver.captures.refuse(stream)?;
        let found = driver.stream_of(driver.device(device)?, stream)?;
        driver.submit(stream, &found, Step::Work(Work::Copy(Copy { to, from, bytes: len })));
        found.wait(found.submitted());
        driver.devices()[found.device].healthy()
    }
    fn fakecuda_finish(device: i32, stream: usize) |driver| {
        let found = driver.stream_of(driver.device(device)?, stream)?;
        found.wait(found.submitted());
        driver.devices()[found.device].healthy()
    }
    fn fakecuda_host_address(address: u64, bytes: usize, host: *mut usize) |driver| {
        put(host, driver.memory().device_place(address, bytes)?.host)
    }
}
