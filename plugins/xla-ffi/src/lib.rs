//! XLA's custom call `gradlane_push_pull`: reduces all arrays of a tree in one call.
//!
//! XLA on the CPU runs custom calls one after the other, so a call for each array would add up their latencies. The call reads the
//! arguments where XLA has them, and the results land where XLA wants them: nothing is copied. It returns when all results are there.
//!
//! No XLA is linked. The structures of its C API are written down in [`frame`]. Python hands over the engine's functions ([`Door`]).

mod call;
mod frame;

use std::panic::{AssertUnwindSafe, catch_unwind};

use gradlane_abi::{Door, Failure, GradlaneStatus};

use crate::frame::{CallFrame, ErrorHandle, Stage};

/// The way to the session of this process. A static, because XLA calls a handler without any context of ours.
static DOOR: Door = Door::new();

gradlane_abi::export_door!(DOOR);

/// The handler that Python registers with XLA.
///
/// # Safety
/// XLA gives a call frame as its API describes it.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "XLA calls the function with an address")]
pub unsafe extern "C" fn gradlane_xla_push_pull(frame: *mut CallFrame) -> *mut ErrorHandle {
    // SAFETY: promised by the caller of this function.
    if unsafe { frame::answer_metadata(frame) } {
        return std::ptr::null_mut();
    }
    let call = || {
        // SAFETY: promised by the caller of this function.
        let frame = unsafe { frame::read(frame) }?;
        // SAFETY: as above: the buffers are valid until this function returns.
        if frame.stage == Stage::EXECUTE { unsafe { call::push_pull(&frame, &DOOR) } } else { Ok(()) }
    };
    let panicked = |_| Err(Failure::new(GradlaneStatus::Internal, "a panic in Gradlane's call; see its message above"));
    match catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked) {
        Ok(()) => std::ptr::null_mut(),
        // SAFETY: as above.
        Err(failure) => unsafe { frame::error(frame, &failure) },
    }
}
