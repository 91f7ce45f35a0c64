//! Ids of rows, each once.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::types::TableSpec;

/// Ids of rows, each once, in the order in which they come first.
///
/// What is added up for each of them stands elsewhere, at the id's place:
///
/// ```
/// use gradlane_core::reduce::Distinct;
///
/// let mut distinct = Distinct::with_capacity(3);
/// assert_eq!([7, 5, 7].map(|id| distinct.place_of(id)), [0, 1, 0]);
/// assert_eq!(distinct.ids(), [7, 5]);
/// ```
#[derive(Debug, Default)]
pub struct Distinct {
    ids: Vec<u64>,
    /// The places of ids, by their hash.
    places: HashTable<u32>,
}

impl Distinct {
    /// No ids, with room for so many.
    pub fn with_capacity(ids: usize) -> Self {
        Self { ids: Vec::with_capacity(ids), places: HashTable::with_capacity(ids) }
    }

    /// The place of an id, which is the next one if it is new.
    ///
    /// # Panics
    /// At more than 2^32 ids: as many as all workers may push at once.
    pub fn place_of(&mut self, id: u64) -> u32 {
        let Self { ids, places } = self;
        let hash = |place: &u32| TableSpec::hash_of(ids[*place as usize]);
        match places.entry(TableSpec::hash_of(id), |place| ids[*place as usize] == id, hash) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(free) => {
                let place = u32::try_from(ids.len()).expect("IDS_MAX of each of WORKERS_MAX");
                free.insert(place);
                ids.push(id);
                place
            }
        }
    }

    /// The ids.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }
}
