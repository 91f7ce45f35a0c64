//! Reads the arguments of C callers: checks pointers as far as possible, and turns them into values.
#![expect(unsafe_code, reason = "callers give pointers")]

use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, offset_of};
use std::time::Duration;

use gradlane_core::types::{CodecChoice, Priority, TensorSpec};
use gradlane_core::wire::limits::{DIMENSIONS_MAX, NAME_BYTES_MAX};
use gradlane_core::{Error, Result};

use gradlane_abi::{
    GRADLANE_FOREVER, GradlaneDtype, GradlaneMemory, GradlaneOp, GradlaneParameterUse, GradlaneStep,
    GradlaneSubmission, GradlaneTableUse, GradlaneTensor,
};

use crate::reduction::{Reduction, codec_named, dtype_of, op_of};

/// A structure that begins with its size, so that later versions can have more fields.
///
/// # Safety
/// Its first field is its size. Zero bytes are a value of it.
pub(super) unsafe trait Growing: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Its size in the first version of the interface.
    const LEAST: usize;
}

// SAFETY: it consists of numbers and pointers.
unsafe impl Growing for GradlaneTensor {
    const NAME: &'static str = "GradlaneTensor";
    const LEAST: usize = size_of::<Self>();
}

// SAFETY: it consists of numbers.
unsafe impl Growing for GradlaneStep {
    const NAME: &'static str = "GradlaneStep";
    const LEAST: usize = size_of::<Self>();
}

// SAFETY: it consists of numbers and pointers, and of a function that may be null.
unsafe impl Growing for GradlaneSubmission {
    const NAME: &'static str = "GradlaneSubmission";
    const LEAST: usize = offset_of!(Self, members);
}

// SAFETY: it consists of numbers and pointers, and of a function that may be null.
unsafe impl Growing for GradlaneParameterUse {
    const NAME: &'static str = "GradlaneParameterUse";
    const LEAST: usize = size_of::<Self>();
}

// SAFETY: it consists of numbers and pointers, and of a function that may be null.
unsafe impl Growing for GradlaneTableUse {
    const NAME: &'static str = "GradlaneTableUse";
    const LEAST: usize = size_of::<Self>();
}

/// The structures of an array. A caller that was compiled for another version may have shorter ones, whose missing fields are zero, or
/// longer ones, if it leaves the additional fields zero.
///
/// # Errors
/// [`Error::InvalidArgument`] for null, a wrong size, or fields that this version lacks.
///
/// # Safety
/// `first` is null, or leads to `count` structures of the `struct_size` that the first one tells.
pub(super) unsafe fn structures<T: Growing>(first: *const T, count: usize) -> Result<Vec<T>> {
    let invalid = |what: String, hint: String| Error::InvalidArgument { what, hint };
    if count == 0 {
        return Ok(Vec::new());
    }
    if first.is_null() || !first.is_aligned() {
        let what = format!("{count} of {} at {first:p}", T::NAME);
        return Err(invalid(what, "give the address of the first one".to_owned()));
    }
    // SAFETY: the first field of every `Growing` structure is its size, and the caller of this function promises one structure.
    let size = unsafe { first.cast::<usize>().read() };
    let known = size_of::<T>().min(size);
    if size < T::LEAST || size % align_of::<T>() != 0 {
        return Err(wrong_size::<T>(size));
    }
    let read = |index: usize| {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: the caller of this function promises `count` structures of this size, one after the other. What is not copied are zero
        // bytes, of which every `Growing` structure may consist.
        let (value, tail) = unsafe {
            let start = first.cast::<u8>().add(index * size);
            start.copy_to_nonoverlapping(value.as_mut_ptr().cast(), known);
            (value.assume_init(), std::slice::from_raw_parts(start.add(known), size - known))
        };
        if tail.iter().any(|byte| *byte != 0) {
            let what = format!("a {} with fields that this version of the library does not have", T::NAME);
            return Err(invalid(what, "leave them zero, or use a newer library".to_owned()));
        }
        Ok(value)
    };
    (0..count).map(read).collect()
}

/// The text at `text`.
///
/// # Errors
/// [`Error::InvalidArgument`] for null, or if it is not UTF-8.
///
/// # Safety
/// `text` is null, or leads to bytes that a zero ends.
pub(super) unsafe fn text(text: *const c_char, noun: &str) -> Result<String> {
    let invalid = |problem: &str| Error::InvalidArgument {
        what: format!("{noun} {problem}"),
        hint: "give a zero-terminated text in UTF-8".to_owned(),
    };
    if text.is_null() {
        return Err(invalid("is NULL"));
    }
    // SAFETY: the caller of this function promises the zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(str::to_owned).map_err(|_| invalid("is not UTF-8"))
}

/// The texts in the caller's array of addresses.
///
/// # Errors
/// [`Error::InvalidArgument`] for null, and for what is not UTF-8.
///
/// # Safety
/// `first` is null, or leads to `count` addresses, each of which is null or leads to a zero-terminated text.
pub(super) unsafe fn texts(first: *const *const c_char, count: usize, noun: &str) -> Result<Vec<String>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if first.is_null() || !first.is_aligned() {
        return Err(Error::InvalidArgument {
            what: format!("{count} texts at {first:p}"),
            hint: "give the address of an array of texts".to_owned(),
        });
    }
    // SAFETY: the caller of this function promises `count` addresses, and each of them.
    (0..count).map(|index| unsafe { text(first.add(index).read(), noun) }).collect()
}

/// The numbers of the caller's array.
///
/// # Errors
/// [`Error::InvalidArgument`] for null with a count.
///
/// # Safety
/// `first` is null, or leads to `count` numbers.
pub(super) unsafe fn numbers<T: Copy + Into<u64>>(first: *const T, count: usize, noun: &str) -> Result<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if first.is_null() || !first.is_aligned() {
        return Err(Error::InvalidArgument {
            what: format!("{count} {noun} at {first:p}"),
            hint: "give the address of an array of numbers, or a count of 0".to_owned(),
        });
    }
    // SAFETY: the caller of this function promises `count` numbers there.
    Ok(unsafe { std::slice::from_raw_parts(first, count) }.to_vec())
}

/// Writes a result of a call to the caller's variable.
///
/// # Errors
/// [`Error::InvalidArgument`] for null.
///
/// # Safety
/// `to` is null, or leads to a variable that nothing else uses meanwhile.
pub(super) unsafe fn write<T>(to: *mut T, noun: &str, value: T) -> Result<()> {
    present(to, noun)?;
    // SAFETY: the caller of this function promises a variable there.
    unsafe { to.write(value) };
    Ok(())
}

/// Refuses null as the place for a result.
pub(super) fn present<T>(to: *mut T, noun: &str) -> Result<()> {
    if !to.is_null() && to.is_aligned() {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        what: format!("{noun} is {to:p}"),
        hint: "give the address of a variable for it".to_owned(),
    })
}

/// The error of a structure that tells a size which it cannot have.
fn wrong_size<T: Growing>(size: usize) -> Error {
    Error::InvalidArgument {
        what: format!("a {} whose struct_size is {size}", T::NAME),
        hint: format!("set it to sizeof({}), here {}", T::NAME, size_of::<T>()),
    }
}

/// A structure of the caller for a result, of which its version has the first fields.
pub(super) struct PartOf<T> {
    to: *mut T,
    bytes: usize,
}

/// The place of a result that is a structure whose first field is its size.
///
/// # Errors
/// [`Error::InvalidArgument`] for null and a wrong size.
///
/// # Safety
/// `to` is null, or leads to a structure of the `struct_size` that it tells, which nothing else uses as long as the place does.
pub(super) unsafe fn part_of<T: Growing>(to: *mut T, noun: &str) -> Result<PartOf<T>> {
    present(to, noun)?;
    // SAFETY: the first field of every `Growing` structure is its size, and the caller of this function promises one structure.
    let size = unsafe { to.cast::<usize>().read() };
    if size < T::LEAST {
        return Err(wrong_size::<T>(size));
    }
    Ok(PartOf { to, bytes: size.min(size_of::<T>()) })
}

impl<T: Growing> PartOf<T> {
    /// Writes the fields that the caller's version has, but for the size.
    pub(super) fn write(&mut self, value: &T) {
        let after = size_of::<usize>();
        // SAFETY: `part_of` was promised so many bytes there, and a value of the structure has as many at least.
        unsafe {
            let from = std::ptr::from_ref(value).cast::<u8>().add(after);
            self.to.cast::<u8>().add(after).copy_from_nonoverlapping(from, self.bytes - after);
        }
    }
}

/// The name of a tensor, a parameter or a table.
///
/// # Errors
/// [`Error::InvalidArgument`] for null, what is not UTF-8, and a wrong length.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn name(given: *const c_char) -> Result<String> {
    // SAFETY: promised by the caller of this function.
    let name = unsafe { text(given, "the tensor's name") }?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::InvalidArgument {
            what: format!("a tensor's name of {} bytes", name.len()),
            hint: format!("give 1 to {NAME_BYTES_MAX}"),
        });
    }
    Ok(name)
}

/// A tensor's name, dtype and shape, and its codec.
///
/// # Errors
/// [`Error::InvalidArgument`] for a field without meaning.
///
/// # Safety
/// The pointers of the structure are null, or as its documentation says.
pub(super) unsafe fn tensor(given: &GradlaneTensor) -> Result<TensorSpec> {
    let invalid = |what: String, hint: String| Error::InvalidArgument { what, hint };
    // SAFETY: promised by the caller of this function.
    let name = unsafe { name(given.name) }?;
    if given.reserved != 0 {
        let what = format!("tensor {name}: reserved is {}", given.reserved);
        return Err(invalid(what, "set it to 0".to_owned()));
    }
    // SAFETY: promised by the caller of this function.
    let codec = unsafe { codec(given.codec) }?;
    if given.dimensions > DIMENSIONS_MAX || (given.shape.is_null() && given.dimensions > 0) {
        let what = format!("tensor {name}: {} dimensions at {:p}", given.dimensions, given.shape);
        return Err(invalid(what, format!("give the address of at most {DIMENSIONS_MAX}")));
    }
    let shape = match given.dimensions {
        0 => Vec::new(),
        // SAFETY: it is not null, and the caller of this function promises so many dimensions.
        dimensions => unsafe { std::slice::from_raw_parts(given.shape, dimensions) }.to_vec(),
    };
    let dtype = GradlaneDtype::from_code(given.dtype).ok_or_else(|| {
        invalid(format!("tensor {name}: dtype {}", given.dtype), "use a value of GradlaneDtype".to_owned())
    })?;
    TensorSpec::new(name, dtype_of(dtype), shape).compressed(codec)
}

/// How the tensor `name` of a submission is reduced.
///
/// # Errors
/// [`Error::InvalidArgument`] for a field without meaning.
///
/// # Safety
/// The pointers of the structure are null, or as its documentation says.
pub(super) unsafe fn reduction(given: &GradlaneSubmission, name: &str) -> Result<Reduction> {
    let op = GradlaneOp::from_code(given.op).ok_or_else(|| Error::InvalidArgument {
        what: format!("op {}", given.op),
        hint: "use a value of GradlaneOp".to_owned(),
    })?;
    // SAFETY: promised by the caller of this function.
    let (codec, members) = unsafe { (codec(given.codec)?, numbers(given.members, given.member_count, "members")?) };
    let receiver = match given.has_receiver {
        0 => None,
        1 => Some(given.receiver),
        other => {
            return Err(Error::InvalidArgument {
                what: format!("tensor {name}: has_receiver is {other}"),
                hint: "set it to 0 or 1".to_owned(),
            });
        }
    };
    Ok(Reduction {
        op: op_of(op, given.root),
        weight: if op == GradlaneOp::WeightedMean { given.weight } else { 1.0 },
        priority: Priority(given.priority),
        codec,
        members: if members.is_empty() { None } else { Some(members) },
        receiver,
        timeout: limit(given.timeout_ms),
    })
}

/// The codec with this name; the one that changes nothing for null.
///
/// # Safety
/// `name` is null, or leads to bytes that a zero ends.
unsafe fn codec(name: *const c_char) -> Result<CodecChoice> {
    if name.is_null() {
        return Ok(CodecChoice::default());
    }
    // SAFETY: promised by the caller of this function.
    codec_named(&unsafe { text(name, "the codec") }?)
}

/// The device of the memory; `None` for host memory.
///
/// # Errors
/// [`Error::InvalidArgument`] for an unknown kind of memory, or an ordinal that no device has.
pub(super) fn device(memory: u32, device: u32) -> Result<Option<u16>> {
    let invalid = |what: String, hint: &str| Error::InvalidArgument { what, hint: hint.to_owned() };
    if memory == GradlaneMemory::Host as u32 {
        return Ok(None);
    }
    if memory != GradlaneMemory::Cuda as u32 {
        return Err(invalid(format!("memory {memory}"), "use a value of GradlaneMemory"));
    }
    u16::try_from(device).map(Some).map_err(|_| invalid(format!("device {device}"), "ordinals are below 65536"))
}

/// A timeout of a call; 0 means the setting.
pub(super) fn limit(milliseconds: u64) -> Option<Duration> {
    match milliseconds {
        0 | GRADLANE_FOREVER => None,
        milliseconds => Some(Duration::from_millis(milliseconds)),
    }
}
