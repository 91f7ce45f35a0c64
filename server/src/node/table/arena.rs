//! The memory of rows: chunks of rows of one length, which never move. A row that was freed is the next one to be used. A row is a run of words
//! of 4 bytes, of which [`StoredRows`](gradlane_core::codec::StoredRows) knows the numbers: of values of f32, a word is a number.
//!
//! A *freeze* keeps all rows as they are at one moment, for a reader who comes page by page. The first change of a chunk after that copies
//! the chunk to each freeze that has not its own copy yet; a chunk that does not change is read where it lies. One thread has an arena, so
//! nothing of this needs a lock.

use std::collections::BTreeMap;

use gradlane_core::mem::prefetch;

/// Places for rows, by number.
#[derive(Debug)]
pub(super) struct Arena {
    /// Words of a row.
    len: usize,
    /// Rows of a chunk; a power of two.
    chunk_rows: usize,
    chunks: Vec<Chunk>,
    /// Places that were used so far; those behind them never were.
    used: u32,
    free: Vec<u32>,
    freezes: BTreeMap<u64, Freeze>,
    /// The number of the last freeze.
    frozen: u64,
}

#[derive(Clone, Debug)]
struct Chunk {
    numbers: Box<[f32]>,
    marks: Box<[Mark]>,
    /// The highest version at which a row of it was changed.
    changed: u64,
}

/// The rows of one moment.
#[derive(Debug)]
struct Freeze {
    /// The places that were used.
    used: u32,
    /// The chunks that have changed since, as they were.
    copies: Vec<Option<Box<Chunk>>>,
}

/// What is known of a row beside its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) id: u64,
    /// The step of the training at its last push or pull.
    pub(super) touched: u32,
    /// The use of the table that had it last, by the lowest bits of its number.
    pub(super) used_by: u32,
    /// The version of the part at its last change, by the lowest bits.
    pub(super) changed: u32,
    /// How much it is worth: 1 for each push, and decaying. NaN if the place is free.
    pub(super) score: f32,
}

/// Bytes of a chunk, about: large enough that chunks are few, small enough that a table of a few rows is small.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of an expected row that are asked for. The processor sees by itself that the rest is read.
const EXPECTED_BYTES: usize = 512;
/// The fewest rows of a chunk.
const CHUNK_ROWS_MIN: usize = 16;

impl Arena {
    /// Places for rows of `len` words.
    pub(super) fn new(len: usize) -> Self {
        let rows = CHUNK_BYTES / Self::place_bytes(len);
        let chunk_rows = rows.next_power_of_two().max(CHUNK_ROWS_MIN);
        let (chunks, free, freezes) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { len, chunk_rows, chunks, used: 0, free, freezes, frozen: 0 }
    }

    /// Bytes of a place.
    const fn place_bytes(len: usize) -> usize {
        len * size_of::<f32>() + size_of::<Mark>()
    }

    /// The most bytes by which it grows for so many rows.
    pub(super) fn growth_max(len: usize, rows: u64) -> u64 {
        let chunk = CHUNK_BYTES.max(CHUNK_ROWS_MIN * Self::place_bytes(len)) * 2;
        rows * Self::place_bytes(len) as u64 + chunk as u64
    }

    /// Bytes that it has from the system, without those for freezes.
    pub(super) fn bytes(&self) -> u64 {
        (self.chunks.len() * self.chunk_bytes() + self.free.capacity() * size_of::<u32>()) as u64
    }

    /// The most bytes that a freeze takes before it ends.
    pub(super) fn freeze_bytes(&self, freeze: u64) -> u64 {
        self.freezes.get(&freeze).map_or(0, |freeze| (freeze.copies.len() * self.chunk_bytes()) as u64)
    }

    fn chunk_bytes(&self) -> usize {
        self.chunk_rows * Self::place_bytes(self.len)
    }

    /// A place for a row; its numbers are the caller's to write. `None` if there are nearly 2^32 of them: the highest numbers are of no place.
    pub(super) fn take(&mut self, mark: Mark) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = self.used;
                self.used = place.checked_add(1).filter(|used| *used < u32::MAX - 1)?;
                if place as usize / self.chunk_rows == self.chunks.len() {
                    let nobody = Mark { id: 0, touched: 0, used_by: 0, changed: 0, score: f32::NAN };
                    self.chunks.push(Chunk {
                        numbers: vec![0.0; self.chunk_rows * self.len].into(),
                        marks: vec![nobody; self.chunk_rows].into(),
                        changed: 0,
                    });
                }
                place
            }
        };
        *self.mark_mut(place) = mark;
        Some(place)
    }

    /// Frees a place.
    pub(super) fn free(&mut self, place: u32) {
        self.mark_mut(place).score = f32::NAN;
        self.free.push(place);
    }

    /// Frees all of them, and gives the memory back, unless a freeze has it.
    pub(super) fn clear(&mut self) {
        (0..self.chunks.len()).for_each(|chunk| self.keep(chunk));
        (self.chunks, self.used, self.free) = (Vec::new(), 0, Vec::new());
    }

    /// Freezes all rows as they are. The number of the freeze is returned.
    pub(super) fn freeze(&mut self) -> u64 {
        self.frozen += 1;
        let copies = vec![None; self.chunks.len()];
        self.freezes.insert(self.frozen, Freeze { used: self.used, copies });
        self.frozen
    }

    /// Ends a freeze.
    pub(super) fn thaw(&mut self, freeze: u64) {
        self.freezes.remove(&freeze);
    }

    /// The rows of a freeze from a place on, each with its place, and without the rows of chunks where nothing was changed after this version.
    ///
    /// # Panics
    /// If the freeze has ended.
    pub(super) fn frozen_since(
        &self,
        freeze: u64,
        from: u32,
        since: u64,
    ) -> impl Iterator<Item = (u32, &Mark, &[f32])> {
        let Freeze { used, copies } = &self.freezes[&freeze];
        let first = from as usize / self.chunk_rows;
        let chunks = copies.iter().enumerate().skip(first).map(|(index, copy)| {
            let chunk = copy.as_deref().unwrap_or_else(|| &self.chunks[index]);
            (index * self.chunk_rows, chunk)
        });
        let changed = chunks.filter(move |(_, chunk)| chunk.changed > since);
        let rows = changed.flat_map(|(place, chunk)| {
            let rows = chunk.marks.iter().zip(chunk.numbers.chunks_exact(self.len)).enumerate();
            rows.map(move |(row, (mark, numbers))| (u32::try_from(place + row), mark, numbers))
        });
        let rows = rows.map_while(|(place, mark, numbers)| place.ok().map(|place| (place, mark, numbers)));
        rows.filter(move |(place, mark, _)| (from..*used).contains(place) && !mark.score.is_nan())
    }

    /// Copies a chunk that is about to change to the freezes that have not their own copy yet.
    fn keep(&mut self, chunk: usize) {
        for freeze in self.freezes.values_mut() {
            if let Some(copy @ None) = freeze.copies.get_mut(chunk) {
                *copy = Some(Box::new(self.chunks[chunk].clone()));
            }
        }
    }

    /// How many places are in use or free; each has a lower number.
    pub(super) fn places(&self) -> u32 {
        self.used
    }

    /// Whether a row is there.
    pub(super) fn is_taken(&self, place: u32) -> bool {
        !self.mark(place).score.is_nan()
    }

    pub(super) fn mark(&self, place: u32) -> &Mark {
        let (chunk, row) = self.find(place);
        &self.chunks[chunk].marks[row]
    }

    pub(super) fn mark_mut(&mut self, place: u32) -> &mut Mark {
        let (chunk, row) = self.find(place);
        self.keep(chunk);
        &mut self.chunks[chunk].marks[row]
    }

    /// Notes which use has a row. No freeze says that, so none copies the chunk for it. Returns the use before.
    pub(super) fn note_use(&mut self, place: u32, used_by: u32) -> u32 {
        let (chunk, row) = self.find(place);
        std::mem::replace(&mut self.chunks[chunk].marks[row].used_by, used_by)
    }

    /// The numbers of a row and its mark, which says now that the row is changed at this version.
    pub(super) fn change(&mut self, place: u32, version: u64) -> (&mut [f32], &mut Mark) {
        let (chunk, row) = self.find(place);
        self.keep(chunk);
        let chunk = &mut self.chunks[chunk];
        chunk.changed = version;
        let mark = &mut chunk.marks[row];
        mark.changed = version as u32;
        (&mut chunk.numbers[row * self.len..][..self.len], mark)
    }

    /// Says that a row and its mark are used soon. A place that was never used is none.
    pub(super) fn expect(&self, place: u32) {
        if place < self.used {
            let (chunk, row) = self.find(place);
            let chunk = &self.chunks[chunk];
            prefetch(&chunk.marks[row..], size_of::<Mark>());
            prefetch(&chunk.numbers[row * self.len..], EXPECTED_BYTES.min(self.len * size_of::<f32>()));
        }
    }

    pub(super) fn row(&self, place: u32) -> &[f32] {
        let (chunk, row) = self.find(place);
        &self.chunks[chunk].numbers[row * self.len..][..self.len]
    }

    fn find(&self, place: u32) -> (usize, usize) {
        // Without a division, which takes longer than all else here.
        let place = place as usize;
        (place >> self.chunk_rows.trailing_zeros(), place & (self.chunk_rows - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_freed_is_used_again_and_others_stay() {
        let mut arena = Arena::new(3);
        let places: Vec<u32> = (0..5000).map(|id| arena.take(mark(id)).unwrap()).collect();
        places.iter().for_each(|place| arena.change(*place, 1).0.fill(*place as f32));
        arena.free(17);
        assert!(!arena.is_taken(17) && arena.is_taken(18));
        assert_eq!(arena.take(mark(9)), Some(17));
        assert!(places.iter().filter(|place| **place != 17).all(|place| arena.row(*place) == [*place as f32; 3]));
        assert_eq!((arena.mark(17).id, arena.places()), (9, 5000));
        let bytes = arena.bytes();
        assert!(bytes >= 5000 * 36 && bytes <= Arena::growth_max(3, 5000), "{bytes}");
        arena.clear();
        assert_eq!((arena.bytes(), arena.places()), (0, 0));
    }

    #[test]
    fn a_freeze_reads_one_moment_and_copies_what_changes_alone() {
        let mut arena = Arena::new(3);
        let places: Vec<u32> = (0..5000).map(|id| arena.take(mark(id)).unwrap()).collect();
        places.iter().for_each(|place| arena.change(*place, 1).0.fill(*place as f32));
        let [first, second] = [arena.freeze(), arena.freeze()];
        let copies = |arena: &Arena, freeze| arena.freezes[&freeze].copies.iter().flatten().count();
        arena.change(17, 2).0.fill(-1.0);
        arena.note_use(4000, 9);
        assert_eq!((copies(&arena, first), copies(&arena, second)), (1, 1));
        arena.take(mark(5000)).unwrap();
        arena.thaw(second);
        arena.clear();
        let rows: Vec<(u32, u64, f32)> =
            arena.frozen_since(first, 0, 0).map(|(place, mark, row)| (place, mark.id, row[2])).collect();
        assert!(rows.into_iter().eq((0..5000).map(|place| (place, place.into(), place as f32))));
        assert_eq!(arena.frozen_since(first, 0, 1).count(), 0, "it has nothing that is newer");
        assert!(arena.freeze_bytes(first) >= 5000 * 36 && arena.freeze_bytes(second) == 0);
    }

    fn mark(id: u64) -> Mark {
        Mark { id, touched: 0, used_by: 0, changed: 0, score: 0.0 }
    }
}
