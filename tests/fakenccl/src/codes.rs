//! What NCCL answers.

use std::ffi::CStr;

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const UNHANDLED_CUDA_ERROR: u32 = 1;
pub(crate) const SYSTEM_ERROR: u32 = 2;
pub(crate) const INTERNAL_ERROR: u32 = 3;
pub(crate) const INVALID_ARGUMENT: u32 = 4;
pub(crate) const INVALID_USAGE: u32 = 5;
pub(crate) const REMOTE_ERROR: u32 = 6;
pub(crate) const IN_PROGRESS: u32 = 7;

/// A result other than success, and why.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Failure {
    pub(crate) code: u32,
    pub(crate) text: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: u32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(INVALID_ARGUMENT, text)
    }
}

/// As `ncclGetErrorString` says it.
pub(crate) fn text(code: u32) -> &'static CStr {
    match code {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        SYSTEM_ERROR => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        INTERNAL_ERROR => c"internal error - please report this issue to the NCCL developers",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        INVALID_USAGE => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    }
}
