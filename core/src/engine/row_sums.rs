//! What is added up for each id of a push.

use crate::codec::RowCodec;

/// The gradients of distinct ids.
pub(super) enum Sums<'a> {
    /// As they were given, because no id comes twice.
    Given(&'a [f32]),
    Added(Vec<f32>),
}

impl<'a> Sums<'a> {
    /// Adds up the gradients of each of `count` ids, where `places` says which one each gradient is of.
    pub(super) fn of(given: &'a [f32], places: &[u32], count: usize, dim: usize) -> Self {
        if places.len() == count {
            return Self::Given(given);
        }
        let mut sums = vec![0.0; count * dim];
        for (place, gradient) in places.iter().zip(given.chunks_exact(dim)) {
            let sum = &mut sums[*place as usize * dim..][..dim];
            sum.iter_mut().zip(gradient).for_each(|(sum, number)| *sum += number);
        }
        Self::Added(sums)
    }

    /// What becomes infinite although each gradient is finite, if anything does.
    pub(super) fn overflow(&self, dim: usize, codec: RowCodec) -> Option<String> {
        if matches!(self, Self::Added(sums) if !codec.kernels().all_finite_numbers(sums)) {
            return Some("the sum of the gradients of one id".to_owned());
        }
        (!self.rows(dim).all(|row| codec.holds(row)))
            .then(|| "a gradient that is too large for its compression".to_owned())
    }

    pub(super) fn rows(&self, dim: usize) -> std::slice::ChunksExact<'_, f32> {
        match self {
            Self::Given(given) => given.chunks_exact(dim),
            Self::Added(sums) => sums.chunks_exact(dim),
        }
    }
}
