//! The end of a call: returns its status, describes its error, and stops panics.
#![expect(unsafe_code, reason = "the description is written to the caller's memory")]

use std::any::Any;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gradlane_core::error::{Code, panic_text};
use gradlane_core::{Error, Result};

use gradlane_abi::{GradlaneError, GradlaneStatus};

/// Runs the body of a function of the C interface.
///
/// # Safety
/// `error` is null, or leads to a `GradlaneError` of the caller whose `struct_size` tells its length and whose `text` is null or has
/// `text_capacity` bytes; nothing else uses them meanwhile.
pub(super) unsafe fn answer(
    error: *mut GradlaneError,
    call: impl FnOnce() -> Result<GradlaneStatus>,
) -> GradlaneStatus {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(status)) => return status,
        Ok(Err(failure)) => failure,
        Err(panic) => Error::Internal { what: format!("a panic: {}", message(&*panic)) },
    };
    let status = status_of(&failure);
    // Ignores a structure that the caller did not set up; the status is returned anyway. SAFETY: the caller of this function promises that
    // it can be read that far.
    let is_usable =
        !error.is_null() && error.is_aligned() && unsafe { (*error).struct_size } >= size_of::<GradlaneError>();
    if is_usable {
        // SAFETY: it is a whole structure of the caller that nothing else uses meanwhile.
        let error = unsafe { &mut *error };
        let text = failure.to_string();
        error.status = status as i32;
        error.retryable = i32::from(failure.retryable());
        // SAFETY: the caller of this function promises `text_capacity` bytes there.
        error.text_bytes = unsafe { write_text(&text, error.text, error.text_capacity) };
    }
    status
}

/// Writes `text` and a zero to the caller's memory. If it does not fit, cuts it at the end of a character. Returns the bytes of the whole
/// text.
///
/// # Safety
/// `to` is null, or has `capacity` bytes that nothing else uses meanwhile.
pub(super) unsafe fn write_text(text: &str, to: *mut c_char, capacity: usize) -> usize {
    if to.is_null() || capacity == 0 {
        return text.len();
    }
    let fits = (0..=text.len().min(capacity - 1)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    // SAFETY: `fits` is below `capacity`, so the bytes and the zero lie in the caller's memory, which is not a Rust string.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), fits);
        to.add(fits).write(0);
    }
    text.len()
}

/// The status for a failure. Each class has one, and so has the failure after which the memory of an operation is still in use.
pub(super) fn status_of(failure: &Error) -> GradlaneStatus {
    if let Error::Unresponsive { .. } = failure {
        return GradlaneStatus::Unresponsive;
    }
    match failure.code() {
        Code::InvalidArgument => GradlaneStatus::InvalidArgument,
        Code::NotFound => GradlaneStatus::NotFound,
        Code::AlreadyExists => GradlaneStatus::AlreadyExists,
        Code::FailedPrecondition => GradlaneStatus::FailedPrecondition,
        Code::Aborted => GradlaneStatus::Aborted,
        Code::DeadlineExceeded => GradlaneStatus::DeadlineExceeded,
        Code::Unavailable => GradlaneStatus::Unavailable,
        Code::ResourceExhausted => GradlaneStatus::ResourceExhausted,
        Code::Cancelled => GradlaneStatus::Cancelled,
        Code::Fenced => GradlaneStatus::Fenced,
        Code::Unauthenticated => GradlaneStatus::Unauthenticated,
        Code::DataLoss => GradlaneStatus::DataLoss,
        Code::Internal => GradlaneStatus::Internal,
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic_text(panic).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use gradlane_core::wire::samples::errors;

    use super::*;

    #[test]
    fn a_panic_is_an_internal_error() {
        let mut text = [1; 64];
        let mut error = error(&mut text);
        // SAFETY: the structure and the text live in this function.
        let status = unsafe { answer(&raw mut error, || panic!("of {}", 7)) };
        assert_eq!((status, error.status), (GradlaneStatus::Internal, GradlaneStatus::Internal as i32));
        assert_eq!(read(&text), "internal error: a panic: of 7; please report it");
    }

    #[test]
    fn each_class_of_failure_has_a_status_and_says_whether_to_try_again() {
        let mut seen = Vec::new();
        for failure in errors() {
            let mut text = [0; 512];
            let mut error = error(&mut text);
            // SAFETY: the structure and the text live in this function.
            let status = unsafe { answer(&raw mut error, || Err(failure.clone())) };
            assert_eq!((status, error.status), (status_of(&failure), status as i32), "{failure}");
            assert_eq!(error.retryable != 0, failure.retryable(), "{failure}");
            assert!(failure.to_string().starts_with(&read(&text)), "{failure}");
            seen.push(error.status);
        }
        seen.sort_unstable();
        seen.dedup();
        // Thirteen classes, and the failure after which memory is still in use.
        assert_eq!(seen.len(), 14, "{seen:?}");
    }

    #[test]
    fn a_description_is_cut_where_a_character_ends() {
        for (capacity, expected) in [(1, ""), (2, "a"), (3, "a"), (4, "aé"), (5, "aéb")] {
            let mut text = [1; 8];
            // SAFETY: the text has more bytes than that.
            assert_eq!(unsafe { write_text("aéb", text.as_mut_ptr(), capacity) }, 4);
            assert_eq!(read(&text), expected, "{capacity}");
            assert_eq!(text[capacity..], [1; 8][capacity..], "{capacity}");
        }
    }

    #[test]
    fn a_structure_that_was_not_set_up_is_left_alone() {
        let mut text = [1; 8];
        let mut shorter = GradlaneError { struct_size: 8, ..error(&mut text) };
        // SAFETY: the structure lives in this function; null is allowed.
        unsafe {
            assert_eq!(answer(&raw mut shorter, || Err(Error::Cancelled)), GradlaneStatus::Cancelled);
            assert_eq!(answer(std::ptr::null_mut(), || Err(Error::Cancelled)), GradlaneStatus::Cancelled);
        }
        assert_eq!((shorter.status, text), (0, [1; 8]));
    }

    fn error(text: &mut [c_char]) -> GradlaneError {
        let (text, text_capacity) = (text.as_mut_ptr(), text.len());
        let struct_size = size_of::<GradlaneError>();
        GradlaneError { struct_size, text, text_capacity, text_bytes: 0, status: 0, retryable: 0 }
    }

    fn read(text: &[c_char]) -> String {
        // SAFETY: `write_text` ends it with a zero.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_owned()
    }
}
