//! The only type with which the data path copies bytes of tensors, so that every copy is counted.
//!
//! It counts staging: copies to memory that is neither the destination nor handed to the system. Two kinds of necessary writes have their
//! own functions and are not counted: a sum that is written to the caller's memory ([`Landing`](super::Landing)), and a contribution that
//! is added to an accumulator or becomes one ([`Kernels`](crate::reduce::Kernels)). The encryption of a transport is not counted either.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies bytes, and counts them. Clones share the count.
///
/// ```
/// use gradlane_core::mem::Copies;
///
/// let copies = Copies::default();
/// let mut staged = [0; 3];
/// copies.copy(b"abc", &mut staged);
/// assert_eq!((&staged, copies.bytes()), (b"abc", 3));
/// ```
#[derive(Clone, Default, Debug)]
pub struct Copies(Arc<AtomicU64>);

impl Copies {
    /// Copies `from` to `to`, which is staging memory before the destination of the bytes.
    ///
    /// # Panics
    /// If their lengths differ.
    pub fn copy(&self, from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
        self.0.fetch_add(from.len() as u64, Ordering::Relaxed);
    }

    /// Copies `from` into new memory.
    pub fn to_vec(&self, from: &[u8]) -> Vec<u8> {
        let copy = from.to_vec();
        self.0.fetch_add(from.len() as u64, Ordering::Relaxed);
        copy
    }

    /// A `Copies` that adds to `counter`.
    pub fn counted_in(counter: &Arc<AtomicU64>) -> Self {
        Self(Arc::clone(counter))
    }

    /// The counter of copied bytes.
    pub fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0)
    }

    /// How many bytes were copied so far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_through_any_clone_is_counted() {
        let copies = Copies::default();
        let clone = copies.clone();
        let mut staged = [0; 5];
        copies.copy(b"ab", &mut staged[..2]);
        clone.copy(b"cde", &mut staged[2..]);
        assert_eq!((&staged, copies.bytes(), clone.bytes()), (b"abcde", 5, 5));
        assert_eq!((copies.to_vec(b"fg"), copies.bytes()), (b"fg".to_vec(), 7));
        assert_eq!(Copies::counted_in(&copies.counter()).bytes(), 7);
    }
}
