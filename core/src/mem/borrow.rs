//! Memory of the caller, lent to the engine while an operation is under way.

/// A run of the caller's memory, valid and unaliased until the operation it was lent to reports its end.
#[derive(Debug)]
pub struct Region {
    ptr: *mut u8,
    len: usize,
}
/// Placeholder.
#[derive(Debug)]
pub struct Loan;
impl Region {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        let _ = self.ptr;
        self.len
    }
}
