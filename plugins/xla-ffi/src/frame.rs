//! The structures of XLA's FFI C API (`xla/ffi/api/c_api.h`, version 0.3), as far as a handler on the host needs them.
//!
//! Each structure begins with the size that its writer knows. A field is read only if it lies within that size, because older releases of
//! XLA have shorter structures.
#![expect(unsafe_code, reason = "XLA gives addresses")]

use std::ffi::{CString, c_char, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;

use gradlane_abi::{Failure, GradlaneStatus};

/// `XLA_FFI_Error`.
#[repr(C)]
pub struct ErrorHandle([u8; 0]);

/// `XLA_FFI_Extension_Base`.
#[repr(C)]
struct Extension {
    struct_size: usize,
    kind: i32,
    next: *mut Extension,
}

const METADATA: i32 = 1;

/// `XLA_FFI_Metadata_Extension`.
#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

/// `XLA_FFI_Metadata`, without the fields that only handlers with a state fill.
#[repr(C)]
struct Metadata {
    struct_size: usize,
    api_version: ApiVersion,
    traits: u32,
}

/// `XLA_FFI_Api_Version`.
#[repr(C)]
struct ApiVersion {
    struct_size: usize,
    extensions: *mut Extension,
    major: i32,
    minor: i32,
}

/// The major version of the API that these structures are of; minor versions only add fields.
const MAJOR: i32 = 0;
/// The minor version of these structures, told to an XLA that does not say its own.
const MINOR: i32 = 3;

/// The beginning of `XLA_FFI_Api`.
#[repr(C)]
struct Api {
    struct_size: usize,
    extensions: *mut Extension,
    version: ApiVersion,
    internal: *const c_void,
    create_error: Option<unsafe extern "C" fn(*mut ErrorArguments) -> *mut ErrorHandle>,
}

/// `XLA_FFI_Error_Create_Args`.
#[repr(C)]
struct ErrorArguments {
    struct_size: usize,
    extensions: *mut Extension,
    message: *const c_char,
    code: i32,
}

/// `XLA_FFI_ExecutionStage`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Stage(i32);

impl Stage {
    /// The arguments and results are there.
    pub(crate) const EXECUTE: Self = Self(3);
}

/// `XLA_FFI_CallFrame`, up to its attributes.
#[repr(C)]
pub struct CallFrame {
    struct_size: usize,
    extensions: *mut Extension,
    api: *const Api,
    context: *mut c_void,
    stage: Stage,
    arguments: Values,
    results: Values,
    attributes: NamedValues,
}

/// `XLA_FFI_Args` and `XLA_FFI_Rets`, which look the same.
#[repr(C)]
struct Values {
    struct_size: usize,
    extensions: *mut Extension,
    size: i64,
    kinds: *const i32,
    values: *const *const c_void,
}

/// `XLA_FFI_Attrs`.
#[repr(C)]
struct NamedValues {
    struct_size: usize,
    extensions: *mut Extension,
    size: i64,
    kinds: *const i32,
    names: *const *const Bytes,
    values: *const *const c_void,
}

/// `XLA_FFI_ByteSpan`.
#[repr(C)]
struct Bytes {
    address: *const u8,
    len: usize,
}

/// `XLA_FFI_Buffer`.
#[repr(C)]
pub(crate) struct Buffer {
    struct_size: usize,
    extensions: *mut Extension,
    /// An `XLA_FFI_DataType`.
    pub(crate) dtype: i32,
    pub(crate) data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

/// `XLA_FFI_Scalar`.
#[repr(C)]
struct Scalar {
    dtype: i32,
    value: *const c_void,
}

/// The number of a buffer among the types of arguments and results.
const BUFFER: i32 = 1;
/// The numbers of a scalar and of a text among the types of attributes.
const SCALAR: i32 = 3;
const TEXT: i32 = 4;
/// The number of 64-bit integers among the element types.
const S64: i32 = 5;

/// A call frame whose structures are as long as needed.
pub(crate) struct Frame<'frame> {
    pub(crate) stage: Stage,
    pub(crate) arguments: Vec<&'frame Buffer>,
    pub(crate) results: Vec<&'frame Buffer>,
    attributes: &'frame NamedValues,
}

/// Answers the question for the version of the API, if this call is that question.
///
/// # Safety
/// XLA gives the frame.
pub(crate) unsafe fn answer_metadata(frame: *mut CallFrame) -> bool {
    // SAFETY: every frame has its size and its extensions, each of which leads to the next.
    unsafe {
        let mut extension = (*frame).extensions;
        while let Some(known) = extension.as_ref() {
            if known.kind == METADATA && known.struct_size >= size_of::<Extension>() {
                let metadata = (*extension.cast::<MetadataExtension>()).metadata;
                (*metadata).api_version.major = MAJOR;
                // XLA refuses handlers of a newer minor version, and some releases also of an older one. Every size is looked at here, so
                // all of them are right.
                (*metadata).api_version.minor = (*frame).api.as_ref().map_or(MINOR, |api| api.version.minor);
                (*metadata).traits = 0;
                return true;
            }
            extension = known.next;
        }
    }
    false
}

/// Reads a frame.
///
/// # Errors
/// If a structure is shorter than what is needed of it.
///
/// # Safety
/// XLA gives the frame, which is valid as long as what is returned.
pub(crate) unsafe fn read<'frame>(frame: *const CallFrame) -> Result<Frame<'frame>, Failure> {
    // SAFETY: every structure of XLA's API begins with its size.
    unsafe {
        check_size((*frame).struct_size, size_of::<CallFrame>(), "XLA_FFI_CallFrame")?;
        let frame = &*frame;
        check_size(frame.attributes.struct_size, size_of::<NamedValues>(), "XLA_FFI_Attrs")?;
        Ok(Frame {
            stage: frame.stage,
            arguments: buffers(&frame.arguments)?,
            results: buffers(&frame.results)?,
            attributes: &frame.attributes,
        })
    }
}

/// Makes XLA's error.
///
/// # Safety
/// XLA gives the frame.
pub(crate) unsafe fn error(frame: *const CallFrame, failure: &Failure) -> *mut ErrorHandle {
    let message = CString::new(failure.text.replace('\0', " ")).expect("zeros were replaced");
    let mut arguments = ErrorArguments {
        struct_size: size_of::<ErrorArguments>(),
        extensions: null_mut(),
        message: message.as_ptr(),
        code: failure.canonical_code(),
    };
    // SAFETY: the table of functions is XLA's, which has had this function since its first version. It copies the message.
    unsafe {
        let create = (*(*frame).api).create_error.expect("a function that every version has");
        create(&raw mut arguments)
    }
}

impl Frame<'_> {
    /// The text of an attribute.
    ///
    /// # Errors
    /// If there is none of this name.
    pub(crate) fn text(&self, name: &str) -> Result<&str, Failure> {
        let value = self.attribute(name, TEXT)?.cast::<Bytes>();
        // SAFETY: an attribute of this type is a span of bytes, which is valid as long as the frame.
        unsafe { text(value) }.ok_or_else(|| unexpected(&format!("attribute {name} is not UTF-8")))
    }

    /// The number of an attribute.
    ///
    /// # Errors
    /// If there is none of this name.
    pub(crate) fn number(&self, name: &str) -> Result<i64, Failure> {
        let value = self.attribute(name, SCALAR)?.cast::<Scalar>();
        // SAFETY: an attribute of this type is a scalar, and one with this element type is an integer of 64 bits.
        unsafe {
            match (*value).dtype {
                S64 => Ok((*value).value.cast::<i64>().read_unaligned()),
                other => Err(unexpected(&format!("attribute {name} is of XLA's type {other}"))),
            }
        }
    }

    fn attribute(&self, name: &str, kind: i32) -> Result<*const c_void, Failure> {
        let NamedValues { size, kinds, names, values, .. } = *self.attributes;
        let index = (0..usize::try_from(size).unwrap_or_default()).find(|index| {
            // SAFETY: there are so many names and types.
            unsafe { text(*names.add(*index)) == Some(name) && *kinds.add(*index) == kind }
        });
        // SAFETY: there are as many values.
        index.map(|index| unsafe { *values.add(index) }).ok_or_else(|| unexpected(&format!("no attribute {name}")))
    }
}

impl Buffer {
    /// The dimensions in elements.
    pub(crate) fn shape(&self) -> &[u64] {
        match usize::try_from(self.rank) {
            // SAFETY: so many dimensions are there, and none is negative.
            Ok(rank @ 1..) => unsafe { std::slice::from_raw_parts(self.dims.cast(), rank) },
            Ok(0) | Err(_) => &[],
        }
    }
}

/// # Safety
/// XLA gives the values, which are valid as long as what is returned.
unsafe fn buffers<'frame>(of: &Values) -> Result<Vec<&'frame Buffer>, Failure> {
    check_size(of.struct_size, size_of::<Values>(), "XLA_FFI_Args")?;
    let buffer = |index| {
        // SAFETY: there are so many values, and those of this type are buffers.
        unsafe {
            if *of.kinds.add(index) != BUFFER {
                return Err(unexpected(&format!("argument {index} is no array")));
            }
            let buffer = (*of.values.add(index)).cast::<Buffer>();
            check_size((*buffer).struct_size, size_of::<Buffer>(), "XLA_FFI_Buffer")?;
            Ok(&*buffer)
        }
    };
    (0..usize::try_from(of.size).unwrap_or_default()).map(buffer).collect()
}

/// # Safety
/// `of` leads to a span of bytes that is valid as long as what is returned.
unsafe fn text<'frame>(of: *const Bytes) -> Option<&'frame str> {
    // SAFETY: promised by the caller of this function; an empty span may have no address.
    let bytes = unsafe {
        let Bytes { address, len } = *of;
        if len == 0 { &[] } else { std::slice::from_raw_parts(address, len) }
    };
    std::str::from_utf8(bytes).ok()
}

fn check_size(given: usize, needed: usize, name: &str) -> Result<(), Failure> {
    if given >= needed {
        return Ok(());
    }
    Err(unexpected(&format!("{name} has {given} bytes, and {needed} are needed; use a newer jax")))
}

fn unexpected(what: &str) -> Failure {
    Failure::new(GradlaneStatus::Internal, format!("XLA's call of Gradlane is not as expected: {what}"))
}

// The offsets of `c_api.h` on 64-bit machines.
const _: () = {
    assert!(offset_of!(CallFrame, stage) == 32 && offset_of!(CallFrame, arguments) == 40);
    assert!(offset_of!(CallFrame, results) == 80 && offset_of!(CallFrame, attributes) == 120);
    assert!(size_of::<CallFrame>() == 168 && size_of::<Buffer>() == 48 && size_of::<Scalar>() == 16);
    assert!(offset_of!(Api, create_error) == 48 && size_of::<ErrorArguments>() == 32);
    assert!(offset_of!(Metadata, traits) == 32);
};
