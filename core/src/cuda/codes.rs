//! The driver's result codes, with our own texts.
//!
//! The driver has texts too, but only once it is loaded; the most frequent message says why it is not.

use crate::error::{Error, Tensors};
use crate::mem::Ordinal;

/// A result of the driver: a number, because a newer driver knows codes that its bindings do not.
pub(crate) type Code = u32;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
/// The process, or the interpreter in it, is ending.
pub(crate) const DEINITIALIZED: Code = 4;
/// The stream or event does not exist, or not any more.
pub(crate) const INVALID_HANDLE: Code = 400;
/// The event has not been reached yet.
pub(crate) const NOT_READY: Code = 600;

/// Whether `code` means that a graph is being captured.
pub(crate) fn is_capture(code: Code) -> bool {
    (900..=908).contains(&code)
}

/// Whether `code` means that the driver cannot compile PTX: its version or the device is too old, or its compiler is missing.
pub(crate) fn is_compilation(code: Code) -> bool {
    matches!(code, 209 | 218 | 221 | 222 | 223)
}

/// The name of `device`.
pub(crate) fn name(device: Ordinal) -> String {
    format!("cuda:{device}")
}

/// The error of `what` on `device`.
pub(crate) fn fault(device: Ordinal, what: &str, code: Code) -> Error {
    Error::Device { device: name(device), what: what.to_owned(), tensor: Tensors::Unknown, cause: describe(code) }
}

/// Turns a code into a result.
pub(crate) fn checked(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

/// The text for `code`, with its number.
pub(crate) fn describe(code: Code) -> String {
    let words = match code {
        SUCCESS => "no error",
        INVALID_VALUE => "an argument is not valid",
        2 => "out of memory",
        3 => "the driver is not initialised",
        DEINITIALIZED => "the driver is shutting down",
        34 => "this libcuda is the stub for linking, not the driver",
        46 => "the device is not available to this process",
        100 => "no CUDA device",
        101 => "no such device",
        200 => "the program for the device is not valid",
        201 => "the context is not valid",
        209 => "no kernel for this device",
        214 => "uncorrectable memory error (ECC)",
        215 | 217 => "the device does not support it",
        218 | 222 => "the PTX does not suit this driver",
        221 => "the driver's compiler is missing",
        223 => "the driver may not compile",
        304 => "the operating system refused",
        INVALID_HANDLE => "the handle is not valid",
        NOT_READY => "not ready",
        700 => "a kernel accessed an illegal address",
        701 => "too few resources to launch",
        702 => "a kernel ran too long",
        709 => "the context was destroyed",
        710 => "a kernel hit an assertion",
        712 => "this memory is registered already",
        713 => "this memory is not registered",
        714..=718 => "a kernel faulted",
        719 => "a kernel failed to launch or faulted",
        720 => "the launch is too large for a cooperative kernel",
        800 => "not permitted",
        801 => "not supported",
        802 => "the system is not ready (is the fabric manager running?)",
        803 => "driver and kernel module are of different versions",
        804 => "this libcuda is a compatibility package that the device does not support",
        900..=908 => "a graph is being captured",
        _ => return format!("code {code} (cuda.h, CUresult)"),
    };
    format!("{words} (code {code})")
}

/// What to do about `code` if it comes from initialising the driver; empty if there is no special advice.
pub(crate) fn advice(code: Code) -> &'static str {
    match code {
        34 => {
            "remove the toolkit's folder `stubs` from LD_LIBRARY_PATH, or name the driver's own library with cuda_lib"
        }
        46 => "another process has the device in exclusive mode: `nvidia-smi -q -d COMPUTE`",
        100 | 101 => "start the container with its GPUs (`--gpus all`), and look at CUDA_VISIBLE_DEVICES",
        802 => "start nvidia-fabricmanager on the host",
        803 | 804 => "reboot after the driver's update, or remove the package cuda-compat",
        _ => "see whether `nvidia-smi` works in the same place",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_nobody_knows_are_told_as_numbers() {
        assert_eq!(describe(100), "no CUDA device (code 100)");
        assert_eq!(describe(4711), "code 4711 (cuda.h, CUresult)");
    }
}
