//! The pushes of several workers as one.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use gradlane_core::types::{Merge, TableSpec};

use super::rows::Gradients;

/// Ids, each once, and a gradient for each.
#[derive(Debug)]
pub(super) struct Merged {
    dim: usize,
    ids: Vec<u64>,
    /// The places of ids, by their hash.
    places: HashTable<usize>,
    gradients: Vec<f32>,
    scores: Vec<f32>,
}

impl Merged {
    /// Nothing yet, of rows of `dim` elements.
    pub(super) fn new(dim: usize) -> Self {
        Self { dim, ids: Vec::new(), places: HashTable::new(), gradients: Vec::new(), scores: Vec::new() }
    }

    /// Adds the push of a worker.
    pub(super) fn add(&mut self, ids: &[u64], gradients: &impl Gradients) {
        let Self { dim, ids: known, places, gradients: sums, scores } = self;
        let mut gradient = vec![0.0; *dim];
        for (at, id) in ids.iter().enumerate() {
            gradients.read(at, &mut gradient);
            let hash = |place: &usize| TableSpec::hash_of(known[*place]);
            match places.entry(TableSpec::hash_of(*id), |place| known[*place] == *id, hash) {
                Entry::Occupied(place) => {
                    let sum = &mut sums[place.get() * *dim..][..*dim];
                    sum.iter_mut().zip(&gradient).for_each(|(sum, number)| *sum += number);
                    scores[*place.get()] += gradients.score(at);
                }
                Entry::Vacant(place) => {
                    place.insert(known.len());
                    known.push(*id);
                    scores.push(gradients.score(at));
                    sums.extend_from_slice(&gradient);
                }
            }
        }
    }

    /// All of so many workers have come.
    pub(super) fn finish(&mut self, merge: Merge, workers: usize) {
        if merge == Merge::Mean {
            let workers = workers as f32;
            self.gradients.iter_mut().for_each(|number| *number /= workers);
        }
    }

    /// Whether all sums are numbers.
    pub(super) fn is_finite(&self) -> bool {
        self.gradients.iter().all(|number| number.is_finite())
    }

    /// The ids.
    pub(super) fn ids(&self) -> &[u64] {
        &self.ids
    }
}

impl Gradients for Merged {
    fn numbers(&self) -> usize {
        self.gradients.len()
    }

    fn read(&self, at: usize, gradient: &mut [f32]) {
        gradient.copy_from_slice(&self.gradients[at * self.dim..][..self.dim]);
    }

    fn score(&self, at: usize) -> f32 {
        self.scores[at]
    }
}
