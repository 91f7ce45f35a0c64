//! The ids of a use of a table, each once, and what is added up for each of them.

use hashbrown::HashTable;

use crate::codec::RowCodec;
use crate::types::TableSpec;

/// The ids of a list, each once, in the order in which they come first, and for each of the list its place among them.
pub(super) struct Distinct {
    pub(super) ids: Vec<u64>,
    pub(super) places: Vec<u32>,
}

impl Distinct {
    pub(super) fn of(asked: &[u64]) -> Self {
        let mut known: HashTable<u32> = HashTable::with_capacity(asked.len());
        let mut ids: Vec<u64> = Vec::with_capacity(asked.len());
        let places = asked.iter().map(|id| {
            let entry = known.entry(
                TableSpec::hash_of(*id),
                |place| ids[*place as usize] == *id,
                |place| TableSpec::hash_of(ids[*place as usize]),
            );
            let place = u32::try_from(ids.len()).expect("at most IDS_MAX");
            match entry {
                hashbrown::hash_table::Entry::Occupied(found) => *found.get(),
                hashbrown::hash_table::Entry::Vacant(free) => {
                    free.insert(place);
                    ids.push(*id);
                    place
                }
            }
        });
        let places = places.collect();
        Self { ids, places }
    }
}

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
        let is_finite = |row: &[f32]| row.iter().all(|number| number.is_finite());
        if matches!(self, Self::Added(sums) if !is_finite(sums)) {
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
