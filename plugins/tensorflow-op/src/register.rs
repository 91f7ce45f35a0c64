//! The definitions of the ops, and their kernels for the CPU and for GPUs.
//!
//! Neither op is stateful: TensorFlow would run stateful ops one after the other.
#![expect(unsafe_code, reason = "calls TensorFlow's functions")]

use std::ffi::{CStr, CString};

use gradlane_abi::{Failure, GradlaneOp};

use crate::api::{Api, Compute, Create, Delete, InferShapes, TfShapeContext, TfStatus};
use crate::process::api;
use crate::status::Status;
use crate::tensor::TYPES;
use crate::{submit, wait};

/// An op: its definition in TensorFlow's language for it, and its kernel.
struct Op {
    name: &'static CStr,
    attributes: Vec<String>,
    inputs: &'static [&'static CStr],
    outputs: &'static [&'static CStr],
    /// The names of inputs and outputs. A kernel for GPUs finds them in host memory, where TensorFlow copies them.
    arguments: &'static [&'static CStr],
    infer_shapes: InferShapes,
    kernel: (Create, Compute, Delete),
}

/// Registers the ops.
///
/// # Errors
/// What TensorFlow says against it.
pub(crate) fn all(api: &Api) -> Result<(), String> {
    let types = TYPES.map(|(name, ..)| name).join(", ");
    let reductions = GradlaneOp::ALL.map(|op| format!("'{}'", op.name())).join(", ");
    let submit = Op {
        name: c"GradlaneSubmit",
        attributes: vec![
            format!("T: {{{types}}}"),
            "tensor_name: string".to_owned(),
            format!("reduction: {{{reductions}}} = '{}'", GradlaneOp::Mean.name()),
            "codec: string = 'none'".to_owned(),
            "root: int >= 0 = 0".to_owned(),
            "priority: int = 0".to_owned(),
            "timeout_ms: int >= 0 = 0".to_owned(),
        ],
        inputs: &[c"tensor: T", c"step: int64", c"weight: double"],
        outputs: &[c"handle: int64"],
        arguments: &[c"tensor", c"step", c"weight", c"handle"],
        infer_shapes: scalar,
        kernel: (submit::create, submit::compute, submit::delete),
    };
    let wait = Op {
        name: c"GradlaneWait",
        attributes: vec!["N: int >= 1".to_owned(), format!("Tout: list({{{types}}}) >= 1")],
        inputs: &[c"handles: N * int64"],
        outputs: &[c"sums: Tout"],
        arguments: &[c"handles", c"sums"],
        infer_shapes: unknown,
        kernel: (wait::create, wait::compute, wait::delete),
    };
    [submit, wait].iter().try_for_each(|op| op.register(api)).map_err(|failure| failure.text)
}

impl Op {
    fn register(&self, api: &Api) -> Result<(), Failure> {
        let status = Status::new(api);
        // SAFETY: texts end with zeros, and TensorFlow copies them. Registration frees the builder.
        unsafe {
            let builder = (api.new_op)(self.name.as_ptr());
            for attribute in &self.attributes {
                let attribute = CString::new(attribute.as_str()).expect("it has no zeros");
                (api.add_attr)(builder, attribute.as_ptr());
            }
            self.inputs.iter().for_each(|input| (api.add_input)(builder, input.as_ptr()));
            self.outputs.iter().for_each(|output| (api.add_output)(builder, output.as_ptr()));
            (api.set_shapes)(builder, self.infer_shapes);
            (api.register_op)(builder, status.as_ptr());
        }
        status.check()?;
        let (create, compute, delete) = self.kernel;
        for device in [c"CPU", c"GPU"] {
            // SAFETY: as above.
            unsafe {
                let builder = (api.new_kernel)(self.name.as_ptr(), device.as_ptr(), create, compute, delete);
                if device == c"GPU" {
                    self.arguments.iter().for_each(|argument| (api.host_memory)(builder, argument.as_ptr()));
                }
                (api.register_kernel)(self.name.as_ptr(), builder, status.as_ptr());
            }
            status.check()?;
        }
        Ok(())
    }
}

/// A handle is a scalar.
unsafe extern "C" fn scalar(context: *mut TfShapeContext, status: *mut TfStatus) {
    // SAFETY: TensorFlow gives the context of this inference and a status; the shape is freed here.
    unsafe {
        let shape = (api().scalar_shape)(context);
        (api().set_output_shape)(context, 0, shape, status);
        (api().delete_shape)(shape);
    }
}

/// The shapes of results are unknown here; Python sets those of the contributions.
unsafe extern "C" fn unknown(context: *mut TfShapeContext, status: *mut TfStatus) {
    // SAFETY: TensorFlow gives the context of this inference and a status.
    unsafe { (api().set_unknown_shapes)(context, status) };
}
