//! The kernel of `GradlaneSubmit`: hands a tensor to the engine and returns a handle at once.
#![expect(unsafe_code, reason = "TensorFlow calls the functions, and the engine uses a tensor's memory")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;

use gradlane_abi::{Attributes, Failure, GradlaneStatus, GradlaneSubmission, Reduction};

use crate::api::{TfConstruction, TfContext};
use crate::pending::{Begun, PENDING};
use crate::process::{DOOR, api, guard};
use crate::status::Status;
use crate::tensor::{TYPES, Tensor, type_name};

/// The attributes of a node.
struct Submit {
    name: CString,
    reduction: Reduction,
}

/// Makes the kernel of a node.
pub(crate) unsafe extern "C" fn create(construction: *mut TfConstruction) -> *mut c_void {
    // SAFETY: TensorFlow gives the construction of the node.
    match guard(|| unsafe { Submit::of(construction) }) {
        Ok(kernel) => Box::into_raw(Box::new(kernel)).cast(),
        Err(failure) => {
            let status = Status::of(api(), &failure);
            // SAFETY: as above, and the status is ours.
            unsafe { (api().construction_failed)(construction, status.as_ptr()) };
            null_mut()
        }
    }
}

/// Runs the kernel of a node.
pub(crate) unsafe extern "C" fn compute(kernel: *mut c_void, context: *mut TfContext) {
    // SAFETY: TensorFlow gives what `create` has returned, and the context of this run.
    let outcome = guard(|| unsafe { (*kernel.cast::<Submit>()).run(context) });
    if let Err(failure) = outcome {
        let status = Status::of(api(), &failure);
        // SAFETY: as above, and the status is ours.
        unsafe { (api().computation_failed)(context, status.as_ptr()) };
    }
}

/// Frees the kernel of a node.
pub(crate) unsafe extern "C" fn delete(kernel: *mut c_void) {
    if !kernel.is_null() {
        // SAFETY: TensorFlow gives what `create` has returned, once.
        drop(unsafe { Box::from_raw(kernel.cast::<Submit>()) });
    }
}

impl Submit {
    /// # Safety
    /// `construction` is that of the node.
    unsafe fn of(construction: *mut TfConstruction) -> Result<Self, Failure> {
        // SAFETY: promised by the caller of this function.
        let text = |name| unsafe { text(construction, name) };
        // SAFETY: promised by the caller of this function.
        let number = |name| unsafe { number(construction, name) };
        let (name, op, codec) = (text(c"tensor_name")?, text(c"reduction")?, text(c"codec")?);
        let reduction = Reduction::read(Attributes {
            op: &op.to_string_lossy(),
            root: number(c"root")?,
            priority: number(c"priority")?,
            codec: &codec.to_string_lossy(),
            timeout_ms: number(c"timeout_ms")?,
        })?;
        Ok(Self { name, reduction })
    }

    /// # Safety
    /// `context` is that of the kernel that runs.
    unsafe fn run(&self, context: *mut TfContext) -> Result<(), Failure> {
        // SAFETY: promised by the caller of this function.
        let input = |index| unsafe { Tensor::input(api(), context, index) };
        // The input between them, the step, only keeps TensorFlow from taking the op for a constant.
        let (contribution, weight) = (input(0)?, f64::from_ne_bytes(input(2)?.bits()?));
        let dtype = TYPES.iter().find(|(_, number, _)| *number == contribution.dtype()).map(|(.., dtype)| *dtype);
        let dtype = dtype.ok_or_else(|| invalid(format!("a tensor {}", type_name(contribution.dtype()))))?;
        let extents = contribution.shape().into_iter().map(u64::try_from).collect::<Result<Vec<_>, _>>();
        let shape = extents.map_err(|_| invalid(format!("shape {:?}", contribution.shape())))?;
        let sum = Tensor::like(&contribution)?;
        let submission = GradlaneSubmission {
            name: self.name.as_ptr(),
            shape: shape.as_ptr(),
            dimensions: shape.len(),
            source: contribution.data(),
            destination: sum.data(),
            bytes: contribution.bytes(),
            dtype: dtype as u32,
            ..self.reduction.submission(0, weight)
        };
        // SAFETY: `PENDING` holds both tensors until the operation has ended. TensorFlow writes to no tensor that somebody else
        // references, and nobody else knows the second one.
        let operation = unsafe { DOOR.begin(&[submission]) }?;
        let name = self.name.to_string_lossy();
        let handle = PENDING.insert(&name, Begun { operation, sum, _contribution: contribution });
        // SAFETY: promised by the caller of this function.
        unsafe { Tensor::scalar(api(), handle).output(context, 0) }
    }
}

/// The text of an attribute.
///
/// # Safety
/// `construction` is that of the node.
unsafe fn text(construction: *mut TfConstruction, name: &CStr) -> Result<CString, Failure> {
    let (api, status) = (api(), Status::new(api()));
    let (mut items, mut bytes) = (0, 0);
    // SAFETY: promised by the caller of this function; the variables are ours.
    unsafe { (api.attr_size)(construction, name.as_ptr(), &raw mut items, &raw mut bytes, status.as_ptr()) };
    status.check()?;
    let mut value = vec![0_u8; usize::try_from(bytes).unwrap_or_default()];
    let room = value.as_mut_ptr().cast::<c_char>();
    // SAFETY: as above; so many bytes are there.
    unsafe { (api.attr_text)(construction, name.as_ptr(), room, value.len(), status.as_ptr()) };
    status.check()?;
    CString::new(value).map_err(|_| invalid(format!("{name:?} contains a zero byte")))
}

/// The number of an attribute.
///
/// # Safety
/// `construction` is that of the node.
unsafe fn number(construction: *mut TfConstruction, name: &CStr) -> Result<i64, Failure> {
    let status = Status::new(api());
    let mut value = 0;
    // SAFETY: promised by the caller of this function; the variables are ours.
    unsafe { (api().attr_int)(construction, name.as_ptr(), &raw mut value, status.as_ptr()) };
    status.check()?;
    Ok(value)
}

fn invalid(text: String) -> Failure {
    Failure::new(GradlaneStatus::InvalidArgument, text)
}
