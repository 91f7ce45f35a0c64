//! Kernels: functions of Rust that stand for what a GPU would compile out of PTX.
//!
//! A module knows the names and parameters of its kernels from the `.entry` lines of the PTX; what they do is looked up by name among
//! [`BUILT_IN`] and what [`Control::register_kernel`](crate::Control::register_kernel) added. A kernel that is in the PTX but has no
//! reference here is not found, as if it were missing from the PTX.
//!
//! A reference is called once for the whole grid:
//! ```text
//! extern "C" fn scale(launch: &Launch) {
//!     let count = launch.u64(1) as usize;
//!     let factor = launch.f32(2);
//!     for value in launch.memory::<f32>(0, count) {
//!         *value *= factor;
//!     }
//! }
//! control.register_kernel("scale_f32", scale);
//! ```

#![expect(unsafe_code, reason = "a kernel's arguments are raw bytes, and what they point to is raw memory")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::codes::{Code, Outcome};

/// What stands for a kernel.
pub type Reference = extern "C" fn(&Launch);

/// Those that every process has, also one that runs no Rust tests: names as in the PTX.
pub const BUILT_IN: &[(&str, Reference)] = &[("fakecuda_add_u32", add_u32)];

/// One launch: the grid, the arguments, and the way to the memory of the device.
#[repr(C)]
#[derive(Debug)]
pub struct Launch {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    arguments: *const *const u8,
    count: usize,
    resolve: extern "C" fn(u64, usize) -> *mut u8,
    fault: Cell<u32>,
}

/// A launch in the queue of a stream.
pub(crate) struct Prepared {
    pub(crate) reference: Reference,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) arguments: Vec<Vec<u8>>,
}

/// A kernel of a module.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) reference: Reference,
    /// Bytes of each parameter.
    pub(crate) parameters: Vec<usize>,
}

/// What tests added.
#[derive(Default)]
pub(crate) struct References(Mutex<BTreeMap<String, Reference>>);

impl Launch {
    /// An argument of 64 bits, such as a count or an address.
    ///
    /// # Panics
    /// If there is none.
    pub fn u64(&self, index: usize) -> u64 {
        u64::from_ne_bytes(self.argument(index))
    }

    /// An argument of 32 bits.
    ///
    /// # Panics
    /// If there is none.
    pub fn u32(&self, index: usize) -> u32 {
        u32::from_ne_bytes(self.argument(index))
    }

    /// An argument of type `float`.
    ///
    /// # Panics
    /// If there is none.
    pub fn f32(&self, index: usize) -> f32 {
        f32::from_ne_bytes(self.argument(index))
    }

    /// `len` elements from the address that is argument `index`. Nothing, and the device fails, if they are not all of one allocation
    /// or not aligned.
    ///
    /// # Panics
    /// If there is no such argument.
    #[expect(clippy::mut_from_ref, reason = "the memory is the device's, not the launch's")]
    pub fn memory<T: Element>(&self, index: usize, len: usize) -> &mut [T] {
        let address = (self.resolve)(self.u64(index), len * size_of::<T>()).cast::<T>();
        if address.is_null() || !address.is_aligned() {
            self.fault.set(if address.is_null() { Code::ILLEGAL_ADDRESS.0 } else { 716 });
            return &mut [];
        }
        // SAFETY: `resolve` found all of it allocated, and the stream's queue lets nothing else of the device's work at it meanwhile;
        // every pattern of bits is an element.
        unsafe { std::slice::from_raw_parts_mut(address, len) }
    }

    fn argument<const N: usize>(&self, index: usize) -> [u8; N] {
        assert!(index < self.count, "the kernel has {} arguments", self.count);
        // SAFETY: there are `count` arguments; each has at least 8 bytes of room, see `Prepared::execute`.
        unsafe { std::ptr::read_unaligned((*self.arguments.add(index)).cast::<[u8; N]>()) }
    }
}

/// What may lie in a device's memory.
pub trait Element: sealed::Plain {}
impl<T: sealed::Plain> Element for T {}

mod sealed {
    pub trait Plain: Copy {}
    macro_rules! plain { ($($name:ty),+) => { $(impl Plain for $name {})+ } }
    plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
}

impl Prepared {
    /// The code with which it failed.
    pub(crate) fn execute(&self, resolve: extern "C" fn(u64, usize) -> *mut u8) -> Result<(), u32> {
        let arguments: Vec<[u8; 8]> =
            self.arguments.iter().filter(|bytes| bytes.len() <= 8).map(|bytes| widen(bytes)).collect();
        let pointers: Vec<*const u8> = arguments.iter().map(|bytes| bytes.as_ptr()).collect();
        let launch = Launch {
            grid: self.grid,
            block: self.block,
            arguments: pointers.as_ptr(),
            count: pointers.len(),
            resolve,
            fault: Cell::new(0),
        };
        (self.reference)(&launch);
        match launch.fault.get() {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

fn widen(bytes: &[u8]) -> [u8; 8] {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    wide
}

impl References {
    pub(crate) fn add(&self, name: &str, reference: Reference) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), reference);
    }

    fn find(&self, name: &str) -> Option<Reference> {
        let added = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied();
        added.or_else(|| BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, reference)| *reference))
    }

    /// The kernel `name` of a module with this PTX.
    pub(crate) fn function(&self, ptx: &str, name: &str) -> Outcome<Function> {
        let parameters = parameters(ptx, name).ok_or(Code::NOT_FOUND)?;
        Ok(Function { reference: self.find(name).ok_or(Code::NOT_FOUND)?, parameters })
    }
}

/// Bytes of each parameter of an entry, or none if it has no such entry.
///
/// A parameter is `.param .u64 name` or `.param .u64 .ptr .global .align 4 name` (PTX ISA, "Kernel function parameters"); structures are
/// not passed here.
fn parameters(ptx: &str, name: &str) -> Option<Vec<usize>> {
    for (at, _) in ptx.match_indices(".entry") {
        let rest = ptx[at + ".entry".len()..].trim_start();
        let Some(rest) = rest.strip_prefix(name).map(str::trim_start) else { continue };
        match rest.chars().next() {
            Some('(') => {
                let list = &rest[1..rest.find(')')?];
                let sizes = list.split(',').filter(|one| !one.trim().is_empty()).map(size);
                return sizes.collect();
            }
            Some('{' | '.') => return Some(Vec::new()),
            Some(_) | None => {}
        }
    }
    None
}

fn size(parameter: &str) -> Option<usize> {
    let kind = parameter
        .split_whitespace()
        .find(|word| word.starts_with('.') && word.ends_with(|last: char| last.is_ascii_digit()))?;
    let bits: usize = kind.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().ok()?;
    [8, 16, 32, 64].contains(&bits).then_some(bits / 8)
}

/// Adds its third argument to as many words as the second says.
extern "C" fn add_u32(launch: &Launch) {
    let len = usize::try_from(launch.u64(1)).unwrap_or(0);
    let more = launch.u32(2);
    for value in launch.memory::<u32>(0, len) {
        *value = value.wrapping_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 9.0\n.visible .entry scale(\n  .param .u64 .ptr .global .align 4 scale_param_0,\n  .param .f32 scale_param_1,\n\
        .param .u8 flag\n)\n.maxntid 256\n{ ret; }\n.visible .entry scale_all()\n{ ret; }\n";

    #[test]
    fn parameters_are_read_off_the_entry() {
        assert_eq!(parameters(PTX, "scale"), Some(vec![8, 4, 1]));
        assert_eq!(parameters(PTX, "scale_all"), Some(vec![]));
        assert_eq!(parameters(PTX, "sca"), None);
    }

    #[test]
    fn a_kernel_without_a_reference_is_not_found() {
        let references = References::default();
        assert!(references.function(PTX, "scale").is_err());
        references.add("scale", add_u32);
        assert_eq!(references.function(PTX, "scale").map(|found| found.parameters), Ok(vec![8, 4, 1]));
    }
}
