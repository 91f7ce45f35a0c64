//! The functions of TensorFlow's C API that the ops need, found in the library that the process has loaded.
//!
//! Signatures: `tensorflow/c/{ops,kernels,tf_tensor,tf_status,tf_datatype}.h` of TensorFlow 2.16 to 2.21; the library's name is the same in
//! all of them.
#![expect(unsafe_code, reason = "symbols of another library")]

use std::ffi::{c_char, c_void};

use libloading::os::unix::{Library, RTLD_NOW};

/// TensorFlow's `TF_Status`.
#[repr(C)]
pub(crate) struct TfStatus([u8; 0]);
/// TensorFlow's `TF_Tensor`.
#[repr(C)]
pub(crate) struct TfTensor([u8; 0]);
/// TensorFlow's `TF_OpDefinitionBuilder`.
#[repr(C)]
pub(crate) struct TfOpBuilder([u8; 0]);
/// TensorFlow's `TF_KernelBuilder`.
#[repr(C)]
pub(crate) struct TfKernelBuilder([u8; 0]);
/// TensorFlow's `TF_OpKernelConstruction`.
#[repr(C)]
pub(crate) struct TfConstruction([u8; 0]);
/// TensorFlow's `TF_OpKernelContext`.
#[repr(C)]
pub(crate) struct TfContext([u8; 0]);
/// TensorFlow's `TF_ShapeInferenceContext`.
#[repr(C)]
pub(crate) struct TfShapeContext([u8; 0]);
/// TensorFlow's `TF_ShapeHandle`.
#[repr(C)]
pub(crate) struct TfShape([u8; 0]);

/// A function that makes a kernel of a node.
pub(crate) type Create = unsafe extern "C" fn(*mut TfConstruction) -> *mut c_void;
/// A function that runs a kernel.
pub(crate) type Compute = unsafe extern "C" fn(*mut c_void, *mut TfContext);
/// A function that frees a kernel.
pub(crate) type Delete = unsafe extern "C" fn(*mut c_void);
/// A function that infers the shapes of an op's outputs.
pub(crate) type InferShapes = unsafe extern "C" fn(*mut TfShapeContext, *mut TfStatus);

const LIBRARY: &str = "libtensorflow_framework.so.2";
/// `dlopen` returns the library only if the process has loaded it already (`dlfcn.h` of Linux).
const RTLD_NOLOAD: i32 = 4;

macro_rules! functions {
    ($($field:ident = $symbol:literal, fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// TensorFlow's functions.
        pub(crate) struct Api {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn load(library: &Library) -> Result<Self, String> {
                $(
                    let missing = |_| format!("{LIBRARY} has no function {}; use TensorFlow 2.16 or newer", $symbol);
                    // SAFETY: the signature is that of TensorFlow's headers, which promise to keep it.
                    let $field = unsafe {
                        *library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>($symbol).map_err(missing)?
                    };
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}

functions! {
    new_status = "TF_NewStatus", fn() -> *mut TfStatus;
    delete_status = "TF_DeleteStatus", fn(*mut TfStatus);
    set_status = "TF_SetStatus", fn(*mut TfStatus, i32, *const c_char);
    get_code = "TF_GetCode", fn(*const TfStatus) -> i32;
    message = "TF_Message", fn(*const TfStatus) -> *const c_char;

    allocate_tensor = "TF_AllocateTensor", fn(i32, *const i64, i32, usize) -> *mut TfTensor;
    delete_tensor = "TF_DeleteTensor", fn(*mut TfTensor);
    tensor_type = "TF_TensorType", fn(*const TfTensor) -> i32;
    num_dims = "TF_NumDims", fn(*const TfTensor) -> i32;
    dim = "TF_Dim", fn(*const TfTensor, i32) -> i64;
    tensor_bytes = "TF_TensorByteSize", fn(*const TfTensor) -> usize;
    tensor_data = "TF_TensorData", fn(*const TfTensor) -> *mut c_void;

    new_op = "TF_NewOpDefinitionBuilder", fn(*const c_char) -> *mut TfOpBuilder;
    add_attr = "TF_OpDefinitionBuilderAddAttr", fn(*mut TfOpBuilder, *const c_char);
    add_input = "TF_OpDefinitionBuilderAddInput", fn(*mut TfOpBuilder, *const c_char);
    add_output = "TF_OpDefinitionBuilderAddOutput", fn(*mut TfOpBuilder, *const c_char);
    set_shapes = "TF_OpDefinitionBuilderSetShapeInferenceFunction", fn(*mut TfOpBuilder, InferShapes);
    register_op = "TF_RegisterOpDefinition", fn(*mut TfOpBuilder, *mut TfStatus);
    scalar_shape = "TF_ShapeInferenceContextScalar", fn(*mut TfShapeContext) -> *mut TfShape;
    set_output_shape = "TF_ShapeInferenceContextSetOutput", fn(*mut TfShapeContext, i32, *mut TfShape, *mut TfStatus);
    delete_shape = "TF_DeleteShapeHandle", fn(*mut TfShape);
    set_unknown_shapes = "TF_ShapeInferenceContextSetUnknownShape", fn(*mut TfShapeContext, *mut TfStatus);

    new_kernel = "TF_NewKernelBuilder",
        fn(*const c_char, *const c_char, Create, Compute, Delete) -> *mut TfKernelBuilder;
    host_memory = "TF_KernelBuilder_HostMemory", fn(*mut TfKernelBuilder, *const c_char);
    register_kernel = "TF_RegisterKernelBuilder", fn(*const c_char, *mut TfKernelBuilder, *mut TfStatus);

    attr_size = "TF_OpKernelConstruction_GetAttrSize",
        fn(*mut TfConstruction, *const c_char, *mut i32, *mut i32, *mut TfStatus);
    attr_text = "TF_OpKernelConstruction_GetAttrString",
        fn(*mut TfConstruction, *const c_char, *mut c_char, usize, *mut TfStatus);
    attr_int = "TF_OpKernelConstruction_GetAttrInt64",
        fn(*mut TfConstruction, *const c_char, *mut i64, *mut TfStatus);
    construction_failed = "TF_OpKernelConstruction_Failure", fn(*mut TfConstruction, *mut TfStatus);

    num_inputs = "TF_NumInputs", fn(*mut TfContext) -> i32;
    num_outputs = "TF_NumOutputs", fn(*mut TfContext) -> i32;
    get_input = "TF_GetInput", fn(*mut TfContext, i32, *mut *mut TfTensor, *mut TfStatus);
    expected_type = "TF_ExpectedOutputDataType", fn(*mut TfContext, i32) -> i32;
    set_output = "TF_SetOutput", fn(*mut TfContext, i32, *const TfTensor, *mut TfStatus);
    computation_failed = "TF_OpKernelContext_Failure", fn(*mut TfContext, *mut TfStatus);
}

impl Api {
    /// The functions of the TensorFlow of this process, or why there are none.
    pub(crate) fn find() -> Result<Self, String> {
        // SAFETY: the library is not loaded by this, so nothing of it runs now.
        let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_NOLOAD) };
        let library = library.map_err(|_| format!("{LIBRARY} is not loaded; import tensorflow first"))?;
        let api = Self::load(&library)?;
        // The functions are used until the process ends.
        std::mem::forget(library);
        Ok(api)
    }
}
