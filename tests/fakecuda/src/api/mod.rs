//! The functions that the library exports, by chapters of the driver's reference manual.
//!
//! Each one counts its call, fails if a test wants it to, and writes its results only when it succeeds.

#![expect(
    unsafe_code,
    reason = "a C interface: names are exported, and results are written to where the caller's pointers point"
)]

mod context;
mod control;
mod copy;
mod device;
mod event;
mod graph;
mod ipc;
mod launch;
mod memory;
mod stream;

use std::ffi::{CStr, c_char};

use crate::codes::{Code, Outcome};
use crate::driver::Driver;

/// Exported functions: `fn name(arguments) |driver| { body }`, where the body gives an [`Outcome`].
macro_rules! exported {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) |$driver:pat_param| $body:block)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $kind),*) -> u32 {
                crate::api::answer(stringify!($name), move |$driver: &'static crate::driver::Driver| $body)
            }
        )+
    };
}
use exported;

/// What may be called before `cuInit`, and by a host function.
const ALWAYS: [&str; 4] = ["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"];

fn answer(name: &'static str, body: impl FnOnce(&'static Driver) -> Outcome) -> u32 {
    let driver = Driver::get();
    if driver.is_forked() {
        return Code::NOT_INITIALIZED.0;
    }
    if let Some(code) = driver.begin(name) {
        return code;
    }
    if !ALWAYS.contains(&name) && !driver.is_initialized() {
        return Code::NOT_INITIALIZED.0;
    }
    if !ALWAYS.contains(&name) && Driver::is_called_back() {
        return Code::NOT_PERMITTED.0;
    }
    match body(driver) {
        Ok(()) => 0,
        Err(Code(code)) => code,
    }
}

/// Writes a result to where the caller wants it.
fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller of the C interface passes a place for the result.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Reads what the caller points to.
fn get<T: Copy>(from: *const T) -> Outcome<T> {
    if from.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller of the C interface passes a readable value.
    Ok(unsafe { from.read_unaligned() })
}

/// `len` bytes of the caller.
fn bytes(from: *const u8, len: usize) -> Outcome<Vec<u8>> {
    if from.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller of the C interface passes as many readable bytes.
    Ok(unsafe { std::slice::from_raw_parts(from, len) }.to_vec())
}

fn text(from: *const c_char) -> Outcome<String> {
    if from.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller of the C interface passes a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_VALUE)
}

/// Writes a text with its final zero into a place of `room` bytes; what does not fit is left out.
fn put_text(to: *mut c_char, room: i32, text: &str) -> Outcome {
    let room = usize::try_from(room).map_err(|_| Code::INVALID_VALUE)?;
    if to.is_null() || room == 0 {
        return Err(Code::INVALID_VALUE);
    }
    for (at, byte) in text.bytes().take(room - 1).chain([0]).enumerate() {
        // SAFETY: the caller passes `room` writable bytes.
        unsafe { to.cast::<u8>().add(at).write(byte) };
    }
    Ok(())
}
