//! The functions of NCCL that Gradlane calls, as one table. They are called through this table only.
//!
//! Types and constants are cudarc's. The functions are bound here for two reasons: cudarc's loader never tries `libnccl.so.2`, the only
//! name that PyTorch ships, and its functions return a Rust enum, for which an unlisted code is undefined behaviour.
#![expect(unsafe_code, reason = "symbols of a library have the types that its header says")]

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclUniqueId};
use libloading::os::unix::Library;

/// A result of NCCL.
pub(super) type Code = u32;

/// Success.
pub(super) const SUCCESS: Code = 0;
/// Another rank is gone or failed.
pub(super) const REMOTE_ERROR: Code = 6;
/// The call was begun; the communicator tells when it has ended.
pub(super) const IN_PROGRESS: Code = 7;

macro_rules! calls {
    (
        required { $($field:ident = $name:literal: fn($($argument:ty),*) -> $result:ty;)+ }
        optional { $($newer:ident = $newer_name:literal: fn($($newer_argument:ty),*) -> $newer_result:ty;)+ }
    ) => {
        /// NCCL's functions.
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)+
            $(pub(super) $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> $newer_result>,)+
        }

        impl Table {
            /// Finds every function in `library`, which must never be closed. Older libraries lack those that are optional.
            ///
            /// # Errors
            /// The name of the first function that it lacks.
            pub(super) fn bind(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is that of the function of this name in nccl.h since 2.14; `ncclResult_t`, `ncclDataType_t` and
                        // `ncclRedOp_t` are unsigned numbers there.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> $result>(concat!($name, "\0").as_bytes())
                        };
                        *symbol.map_err(|_| $name)?
                    },)+
                    $($newer: {
                        // SAFETY: as above, in the first nccl.h that has it and in all later ones.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($newer_argument),*) -> $newer_result>(
                                concat!($newer_name, "\0").as_bytes(),
                            )
                        };
                        symbol.ok().map(|symbol| *symbol)
                    },)+
                })
            }
        }
    };
}

calls! {
    required {
        version = "ncclGetVersion": fn(*mut c_int) -> Code;
        error_string = "ncclGetErrorString": fn(Code) -> *const c_char;
        last_error = "ncclGetLastError": fn(ncclComm_t) -> *const c_char;
        unique_id = "ncclGetUniqueId": fn(*mut ncclUniqueId) -> Code;
        init = "ncclCommInitRankConfig": fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> Code;
        async_error = "ncclCommGetAsyncError": fn(ncclComm_t, *mut Code) -> Code;
        finalize = "ncclCommFinalize": fn(ncclComm_t) -> Code;
        destroy = "ncclCommDestroy": fn(ncclComm_t) -> Code;
        abort = "ncclCommAbort": fn(ncclComm_t) -> Code;
        group_start = "ncclGroupStart": fn() -> Code;
        group_end = "ncclGroupEnd": fn() -> Code;
        all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, u32, u32, ncclComm_t, cudaStream_t) -> Code;
        reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, u32, u32, c_int, ncclComm_t, cudaStream_t) -> Code;
        reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, u32, u32, ncclComm_t, cudaStream_t) -> Code;
        all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, u32, ncclComm_t, cudaStream_t) -> Code;
        broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, u32, c_int, ncclComm_t, cudaStream_t) -> Code;
        send = "ncclSend": fn(*const c_void, usize, u32, c_int, ncclComm_t, cudaStream_t) -> Code;
        receive = "ncclRecv": fn(*mut c_void, usize, u32, c_int, ncclComm_t, cudaStream_t) -> Code;
    }
    optional {
        revoke = "ncclCommRevoke": fn(ncclComm_t, c_int) -> Code;
    }
}

impl Table {
    /// The library's version, such as 22809 for 2.28.9; 0 if it is unknown.
    pub(super) fn version_code(&self) -> u32 {
        let mut version = 0;
        // SAFETY: it writes one number.
        let code = unsafe { (self.version)(&raw mut version) };
        if code == SUCCESS { version.unsigned_abs() } else { 0 }
    }

    /// The library's text for a code.
    pub(super) fn describe(&self, code: Code, comm: ncclComm_t) -> String {
        // SAFETY: it returns a string of its own for any code.
        let meaning = unsafe { text((self.error_string)(code)) };
        // SAFETY: for no communicator or one that lives it returns a string of its own, empty or null if there is nothing to say.
        let detail = unsafe { text((self.last_error)(comm)) };
        match detail.trim() {
            "" => format!("{meaning} (code {code})"),
            detail => format!("{meaning} (code {code}): {detail}"),
        }
    }
}

/// # Safety
/// `string` is null or ends with a zero, and nobody changes it meanwhile.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
