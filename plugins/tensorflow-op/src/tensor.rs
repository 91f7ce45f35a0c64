//! TensorFlow's `TF_Tensor`, owned: a reference to memory that TensorFlow counts. And the element types.
#![expect(unsafe_code, reason = "calls TensorFlow's functions")]

use std::ffi::c_void;
use std::ptr::null_mut;

use gradlane_abi::{Failure, GradlaneDtype, GradlaneStatus};

use crate::api::{Api, TfContext, TfTensor};
use crate::status::Status;

/// The types that can be reduced, with their names in the definition of an op and TensorFlow's numbers (`tf_datatype.h`).
pub(crate) const TYPES: [(&str, i32, GradlaneDtype); 8] = [
    ("half", 19, GradlaneDtype::Float16),
    ("bfloat16", 14, GradlaneDtype::Bfloat16),
    ("float", 1, GradlaneDtype::Float32),
    ("double", 2, GradlaneDtype::Float64),
    ("int32", 3, GradlaneDtype::Int32),
    ("int64", 9, GradlaneDtype::Int64),
    ("int8", 6, GradlaneDtype::Int8),
    ("uint8", 4, GradlaneDtype::Uint8),
];

/// The name of an element type for messages.
pub(crate) fn type_name(number: i32) -> String {
    let known = TYPES.iter().find(|(_, known, _)| *known == number);
    known.map_or_else(|| format!("of TensorFlow's type {number}"), |(name, ..)| (*name).to_owned())
}

/// A reference to a tensor in host memory.
pub(crate) struct Tensor {
    api: &'static Api,
    tensor: *mut TfTensor,
}

// SAFETY: the reference count of TensorFlow's memory is atomic, and this is the only user of its `TF_Tensor`.
unsafe impl Send for Tensor {}

impl Tensor {
    /// A reference to an input of a kernel.
    ///
    /// # Safety
    /// `context` is that of the kernel that runs.
    pub(crate) unsafe fn input(api: &'static Api, context: *mut TfContext, index: i32) -> Result<Self, Failure> {
        let status = Status::new(api);
        let mut tensor = null_mut();
        // SAFETY: the context is promised, and the variables are ours.
        unsafe { (api.get_input)(context, index, &raw mut tensor, status.as_ptr()) };
        status.check()?;
        Ok(Self { api, tensor })
    }

    /// New memory with the type and shape of another tensor.
    pub(crate) fn like(other: &Self) -> Result<Self, Failure> {
        let (api, shape) = (other.api, other.shape());
        let dims = i32::try_from(shape.len()).expect("made from one");
        // SAFETY: so many dimensions are there.
        let tensor = unsafe { (api.allocate_tensor)(other.dtype(), shape.as_ptr(), dims, other.bytes()) };
        if tensor.is_null() {
            let text = format!("no memory for a result of {} bytes", other.bytes());
            return Err(Failure::new(GradlaneStatus::ResourceExhausted, text));
        }
        Ok(Self { api, tensor })
    }

    /// A new scalar.
    pub(crate) fn scalar(api: &'static Api, value: i64) -> Self {
        let number = TYPES.iter().find(|(name, ..)| *name == "int64").expect("it is there").1;
        // SAFETY: a scalar has no dimensions; the new memory holds one number of eight bytes.
        unsafe {
            let tensor = (api.allocate_tensor)(number, null_mut(), 0, size_of::<i64>());
            let this = Self { api, tensor };
            this.data().cast::<i64>().write_unaligned(value);
            this
        }
    }

    /// The number of a scalar of 64 bits.
    ///
    /// # Errors
    /// If it is no scalar of that size.
    pub(crate) fn bits(&self) -> Result<[u8; 8], Failure> {
        if self.bytes() != size_of::<[u8; 8]>() {
            let text = format!("a scalar is expected, but the tensor has shape {:?}", self.shape());
            return Err(Failure::new(GradlaneStatus::InvalidArgument, text));
        }
        // SAFETY: the tensor has eight bytes, which nothing writes.
        Ok(unsafe { self.data().cast::<[u8; 8]>().read() })
    }

    /// TensorFlow's number of the element type.
    pub(crate) fn dtype(&self) -> i32 {
        // SAFETY: the tensor is ours.
        unsafe { (self.api.tensor_type)(self.tensor) }
    }

    pub(crate) fn shape(&self) -> Vec<i64> {
        // SAFETY: the tensor is ours, and the indices are below the number of its dimensions.
        unsafe { (0..(self.api.num_dims)(self.tensor)).map(|index| (self.api.dim)(self.tensor, index)).collect() }
    }

    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: the tensor is ours.
        unsafe { (self.api.tensor_bytes)(self.tensor) }
    }

    /// The address of the elements.
    pub(crate) fn data(&self) -> *mut c_void {
        // SAFETY: the tensor is ours.
        unsafe { (self.api.tensor_data)(self.tensor) }
    }

    /// Makes this tensor an output of a kernel, which shares the memory.
    ///
    /// # Safety
    /// `context` is that of the kernel that runs.
    pub(crate) unsafe fn output(&self, context: *mut TfContext, index: i32) -> Result<(), Failure> {
        let status = Status::new(self.api);
        // SAFETY: the context is promised, and the tensor is ours.
        unsafe { (self.api.set_output)(context, index, self.tensor, status.as_ptr()) };
        status.check()
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and nothing uses it any more.
        unsafe { (self.api.delete_tensor)(self.tensor) };
    }
}
