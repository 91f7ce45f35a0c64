//! How rows of tables travel.

/// How rows and gradients travel, whatever servers keep them as.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RowForm {
    /// As they are.
    F32,
    /// Each element rounded to the nearest bf16.
    BF16,
    /// Each element rounded to the nearest f16.
    F16,
    /// A scale of f32, the largest magnitude of the row divided by 127, and for each element a whole number of it in 1 byte.
    Int8,
}

impl RowForm {
    pub(super) const ALL: [Self; 4] = [Self::F32, Self::BF16, Self::F16, Self::Int8];
    pub(super) const NAMES: [&str; 4] = ["none", "bf16", "fp16", "int8"];

    /// The bytes of a row of `dim` elements.
    pub const fn row_bytes(self, dim: u64) -> u64 {
        match self {
            Self::F32 => 4 * dim,
            Self::BF16 | Self::F16 => 2 * dim,
            Self::Int8 => 4 + dim,
        }
    }
}
