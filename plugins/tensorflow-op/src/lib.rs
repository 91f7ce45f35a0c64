//! TensorFlow's ops `GradlaneSubmit` and `GradlaneWait`, in a library of their own that `tf.load_op_library` loads.
//!
//! `GradlaneSubmit` starts the reduction of one tensor and returns its handle at once. One `GradlaneWait` takes the handles of a whole
//! step and returns the results. With one waiting op for each tensor, all of TensorFlow's threads could wait before the other tensors are
//! submitted.
//!
//! No TensorFlow is linked. The library finds the functions of TensorFlow's C API in the process ([`api`]), registers its ops when it is
//! loaded ([`register`]), and reaches the engine through the table that Python hands over ([`Door`]). TensorFlow's
//! asynchronous kernels are not used: their C API gives the address of a callback that lies on a stack which has ended.

mod api;
mod pending;
mod process;
mod register;
mod status;
mod submit;
mod tensor;
mod wait;

use std::ffi::{CString, c_char};

use crate::api::Api;
use crate::process::{API, DOOR};

/// Runs while the library is loaded: `tf.load_op_library` offers the ops that a library registers meanwhile.
#[used]
#[unsafe(link_section = ".init_array")]
#[expect(unsafe_code, reason = "the section of functions that the loader calls")]
static AT_LOADING: extern "C" fn() = at_loading;

extern "C" fn at_loading() {
    let registered = Api::find().and_then(|api| register::all(&api).map(|()| api));
    let told = registered.map_err(|why| CString::new(why).unwrap_or_default());
    // Nobody else sets it: the loader calls this once.
    let _ = API.set(told);
}

/// Why the ops could not be registered; null if they were. The text is valid as long as the library is loaded.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "a function that Python finds by its name")]
pub extern "C" fn gradlane_op_why_not() -> *const c_char {
    match API.get() {
        Some(Ok(_)) => std::ptr::null(),
        Some(Err(why)) => why.as_ptr(),
        None => c"the loader did not run the library's start".as_ptr(),
    }
}

gradlane_abi::export_door!(DOOR);
