//! The status codes and error descriptions of the C interface.

use std::ffi::c_char;

/// The result of a call. Values never change; new ones may be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum GradlaneStatus {
    /// The call or the operation succeeded.
    Ok = 0,
    /// The operation has not ended yet. This is not an error.
    Pending = 1,
    /// An argument is invalid, or workers disagree about a tensor.
    InvalidArgument = 2,
    /// Another process has the rank.
    AlreadyExists = 3,
    /// The state does not allow the call: the handle was released, the session was shut down, or the process was forked.
    FailedPrecondition = 4,
    /// The job, a peer or a device ended.
    Aborted = 5,
    /// A deadline passed.
    DeadlineExceeded = 6,
    /// The same call may succeed later.
    Unavailable = 7,
    /// A limit was reached; nothing was changed.
    ResourceExhausted = 8,
    /// The caller cancelled the operation.
    Cancelled = 9,
    /// This process belongs to a past membership of the job.
    Fenced = 10,
    /// A peer could not prove its identity.
    Unauthenticated = 11,
    /// Bytes were damaged on the way.
    DataLoss = 12,
    /// A defect of Gradlane.
    Internal = 13,
    /// The engine of this process does not end the operation, because its threads are stuck. The memory of the operation stays in use.
    Unresponsive = 14,
    /// What was asked for by its name is not there.
    NotFound = 15,
}

/// The description of an error. The structure and the text belong to the caller. The library writes to them only during the call that gets
/// them, and only if that call returns an error.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct GradlaneError {
    /// In: `sizeof(GradlaneError)`.
    pub struct_size: usize,
    /// In: memory for the description, or NULL.
    pub text: *mut c_char,
    /// In: bytes of that memory.
    pub text_capacity: usize,
    /// Out: bytes of the whole description without its final zero. The text was cut if this is not below `text_capacity`.
    pub text_bytes: usize,
    /// Out: the result of the call, a `GradlaneStatus`.
    pub status: i32,
    /// Out: 1 if the same call may succeed later without other changes, else 0.
    pub retryable: i32,
}
