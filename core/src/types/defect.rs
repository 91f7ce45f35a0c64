//! Planted defects: what the simulation must be able to catch. Compiled only with the `testing` feature.

/// A known mistake that a machine makes on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// A repeated push is added again.
    DuplicateCounted,
}

impl Defect {
    /// Every defect.
    pub const ALL: &'static [Self] = &[Self::DuplicateCounted];
}
