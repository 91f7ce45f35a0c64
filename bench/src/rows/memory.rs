//! The rows in an array: the bytes that any table must touch, as fast as one thread touches them.

use std::hint::black_box;

use gradlane_core::types::TableSpec;

use super::contender::Contender;

/// Values, and as many sums of squares, by id.
pub(super) struct Memory {
    dim: usize,
    /// Of each id its values and then its sums.
    rows: Vec<f32>,
}

impl Memory {
    pub(super) fn new(spec: TableSpec, universe: u64) -> Self {
        let dim = usize::try_from(spec.dim).expect("DIM_MAX");
        Self { dim, rows: vec![0.5; 2 * dim * usize::try_from(universe).expect("in memory")] }
    }
}

impl Contender for Memory {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn pull(&mut self, ids: &[u64], rows: &mut [f32]) -> Result<(), String> {
        for (id, row) in ids.iter().zip(rows.chunks_exact_mut(self.dim)) {
            row.copy_from_slice(&self.rows[2 * self.dim * *id as usize..][..self.dim]);
        }
        black_box(rows);
        Ok(())
    }

    fn push(&mut self, ids: &[u64], gradients: &[f32]) -> Result<(), String> {
        for (id, gradient) in ids.iter().zip(gradients.chunks_exact(self.dim)) {
            let (values, sums) = self.rows[2 * self.dim * *id as usize..][..2 * self.dim].split_at_mut(self.dim);
            for ((value, sum), number) in values.iter_mut().zip(sums).zip(gradient) {
                *sum += number * number;
                *value += number;
            }
        }
        black_box(&mut self.rows);
        Ok(())
    }
}
