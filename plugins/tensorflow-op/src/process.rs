//! What TensorFlow calls kernels without: the way to the session, and TensorFlow's own functions.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use gradlane_abi::{Door, Failure, GradlaneStatus};

use crate::api::Api;

/// The way to the session of this process. A static, because TensorFlow calls a kernel without any context of ours.
pub(crate) static DOOR: Door = Door::new();

/// TensorFlow's functions once the ops are registered, or why they are not.
pub(crate) static API: OnceLock<Result<Api, CString>> = OnceLock::new();

/// TensorFlow's functions. Kernels run only after the ops were registered with them.
pub(crate) fn api() -> &'static Api {
    API.get().and_then(|api| api.as_ref().ok()).expect("TensorFlow calls only kernels that were registered")
}

/// Calls `work`, and makes a panic an error, which must not reach TensorFlow.
pub(crate) fn guard<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let panicked = |_| Err(Failure::new(GradlaneStatus::Internal, "a panic in Gradlane's op; see its message above"));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}
