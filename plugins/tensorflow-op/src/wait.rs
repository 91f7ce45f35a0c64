//! The kernel of `GradlaneWait`: waits for all operations of a step, and returns their results.
#![expect(unsafe_code, reason = "TensorFlow calls the functions")]

use std::ffi::c_void;
use std::ptr::null_mut;

use gradlane_abi::{Failure, GradlaneStatus};

use crate::api::{TfConstruction, TfContext};
use crate::pending::{Begun, PENDING};
use crate::process::{api, guard};
use crate::status::Status;
use crate::tensor::{Tensor, type_name};

/// Makes the kernel of a node, which needs nothing.
pub(crate) unsafe extern "C" fn create(_: *mut TfConstruction) -> *mut c_void {
    null_mut()
}

/// Runs the kernel of a node.
pub(crate) unsafe extern "C" fn compute(_: *mut c_void, context: *mut TfContext) {
    // SAFETY: TensorFlow gives the context of this run.
    if let Err(failure) = guard(|| unsafe { run(context) }) {
        let status = Status::of(api(), &failure);
        // SAFETY: as above, and the status is ours.
        unsafe { (api().computation_failed)(context, status.as_ptr()) };
    }
}

/// Frees the kernel of a node.
pub(crate) unsafe extern "C" fn delete(_: *mut c_void) {}

/// # Safety
/// `context` is that of the kernel that runs.
unsafe fn run(context: *mut TfContext) -> Result<(), Failure> {
    let api = api();
    // SAFETY: promised by the caller of this function.
    let (inputs, outputs) = unsafe { ((api.num_inputs)(context), (api.num_outputs)(context)) };
    let take = |index| {
        // SAFETY: promised by the caller of this function.
        let handle = unsafe { Tensor::input(api, context, index) }?.bits()?;
        PENDING.take(i64::from_ne_bytes(handle))
    };
    let taken: Vec<Result<Begun, Failure>> = (0..inputs).map(take).collect();
    // All operations end before the first error is told, because their memory is freed with that.
    let ended: Vec<Result<Tensor, Failure>> = taken.into_iter().map(|begun| begun.and_then(end)).collect();
    let sums = ended.into_iter().collect::<Result<Vec<Tensor>, Failure>>()?;
    if inputs != outputs {
        let text = format!("{inputs} handles for {outputs} results; give one type for each");
        return Err(Failure::new(GradlaneStatus::InvalidArgument, text));
    }
    for (index, sum) in (0..outputs).zip(&sums) {
        // SAFETY: promised by the caller of this function.
        let expected = unsafe { (api.expected_type)(context, index) };
        if expected != sum.dtype() {
            let (given, wanted) = (type_name(sum.dtype()), type_name(expected));
            let text = format!("result {index} is {given}, not {wanted}; wait with the type that was submitted");
            return Err(Failure::new(GradlaneStatus::InvalidArgument, text));
        }
        // SAFETY: promised by the caller of this function.
        unsafe { sum.output(context, index) }?;
    }
    Ok(())
}

/// The result of an operation.
fn end(mut begun: Begun) -> Result<Tensor, Failure> {
    match begun.operation.wait() {
        Ok(()) => Ok(begun.sum),
        Err(failure) => {
            if failure.status == GradlaneStatus::Unresponsive {
                // The engine is stuck and may still write to the memory, so the memory is never freed.
                std::mem::forget(begun);
            }
            Err(failure)
        }
    }
}
