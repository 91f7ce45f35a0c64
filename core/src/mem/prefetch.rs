//! Memory that is used soon.

#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "an instruction of the processor is used"))]

/// Bytes that come at once.
const LINE_BYTES: usize = 64;

/// Asks the processor to bring the first `bytes` of some memory near, which the caller is about to read or to write. It waits for nothing and
/// changes nothing; where the processor has no such instruction, nothing happens.
///
/// Whoever uses places here and there in large memory waits for each of them, unless it asks for the next ones meanwhile:
///
/// ```
/// use gradlane_core::mem::prefetch;
///
/// let numbers = vec![1.0; 1 << 20];
/// let places = [5, 1_000_000, 70_000, 400_000];
/// places.iter().for_each(|place| prefetch(&numbers[*place..], 4));
/// assert_eq!(places.iter().map(|place| numbers[*place]).sum::<f64>(), 4.0);
/// ```
#[inline(always)]
pub fn prefetch<T>(memory: &[T], bytes: usize) {
    let end = bytes.min(size_of_val(memory));
    for offset in (0..end).step_by(LINE_BYTES) {
        prefetch_line(memory.as_ptr().cast::<i8>().wrapping_add(offset));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_line(at: *const i8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: The instruction is there on every x86-64, reads nothing that the program sees, and may name any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn prefetch_line(_at: *const i8) {}
