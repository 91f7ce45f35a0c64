//! What files of production name of the engine's memory.

pub use gradlane_core::mem::Ordinal;

/// Counts nothing here.
#[derive(Debug)]
pub struct Copies;

impl Copies {
    /// Copies bytes.
    pub fn copy(&self, from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
    }
}
