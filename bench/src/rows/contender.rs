//! Who takes part, and in what.

/// Who reads and changes rows.
pub(super) trait Contender {
    fn name(&self) -> String;

    /// Reads the rows of `ids`, in their order.
    fn pull(&mut self, ids: &[u64], rows: &mut [f32]) -> Result<(), String>;

    /// Changes the rows of `ids` by a gradient each.
    fn push(&mut self, ids: &[u64], gradients: &[f32]) -> Result<(), String>;
}

/// The ids of the case that is measured, and their gradients.
pub(super) struct Case {
    pub(super) ids: Vec<u64>,
    pub(super) gradients: Vec<f32>,
}
