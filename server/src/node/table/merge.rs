//! The pushes of several workers as one.

use gradlane_core::reduce::{Distinct, Kernels};
use gradlane_core::types::Merge;

use super::rows::Gradients;

/// Ids, each once, and a gradient for each.
#[derive(Debug)]
pub(super) struct Merged {
    dim: usize,
    kernels: Kernels,
    ids: Distinct,
    gradients: Vec<f32>,
    scores: Vec<f32>,
}

impl Merged {
    /// Nothing yet, of rows of `dim` elements.
    pub(super) fn new(dim: usize, kernels: Kernels) -> Self {
        Self { dim, kernels, ids: Distinct::default(), gradients: Vec::new(), scores: Vec::new() }
    }

    /// Adds the push of a worker.
    pub(super) fn add(&mut self, ids: &[u64], gradients: &impl Gradients) {
        let mut gradient = vec![0.0; self.dim];
        for (at, id) in ids.iter().enumerate() {
            gradients.read(at, &mut gradient);
            let place = self.ids.place_of(*id) as usize;
            if place == self.scores.len() {
                self.scores.push(gradients.score(at));
                self.gradients.extend_from_slice(&gradient);
                continue;
            }
            self.scores[place] += gradients.score(at);
            let sum = &mut self.gradients[place * self.dim..][..self.dim];
            sum.iter_mut().zip(&gradient).for_each(|(sum, number)| *sum += number);
        }
    }

    /// All of so many workers have come.
    pub(super) fn finish(&mut self, merge: Merge, workers: usize) {
        if merge == Merge::Mean {
            let workers = workers as f32;
            self.gradients.iter_mut().for_each(|number| *number /= workers);
        }
    }

    /// The ids.
    pub(super) fn ids(&self) -> &[u64] {
        self.ids.ids()
    }
}

impl Gradients for Merged {
    fn numbers(&self) -> usize {
        self.gradients.len()
    }

    fn all_finite(&self) -> bool {
        self.kernels.all_finite_numbers(&self.gradients)
    }

    fn read(&self, at: usize, gradient: &mut [f32]) {
        gradient.copy_from_slice(&self.gradients[at * self.dim..][..self.dim]);
    }

    fn score(&self, at: usize) -> f32 {
        self.scores[at]
    }
}
