//! The memory of rows: chunks of rows of one length, which never move. A row that was freed is the next one to be used.

/// Places for rows, by number.
#[derive(Debug)]
pub(super) struct Arena {
    /// Elements of a row.
    len: usize,
    /// Rows of a chunk; a power of two.
    chunk_rows: usize,
    chunks: Vec<Chunk>,
    /// Places that were used so far; those behind them never were.
    used: u32,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Chunk {
    numbers: Box<[f32]>,
    marks: Box<[Mark]>,
}

/// What is known of a row beside its numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) id: u64,
    /// The step of the training at its last push or pull.
    pub(super) touched: u64,
    /// The use of the table that had it last, by the lowest bits of its number.
    pub(super) used_by: u32,
    /// How much it is worth: 1 for each push, and decaying. NaN if the place is free.
    pub(super) score: f32,
}

/// Bytes of a chunk, about: large enough that chunks are few, small enough that a table of a few rows is small.
const CHUNK_BYTES: usize = 64 << 10;
/// The fewest rows of a chunk.
const CHUNK_ROWS_MIN: usize = 16;

impl Arena {
    /// Places for rows of `len` elements.
    pub(super) fn new(len: usize) -> Self {
        let rows = CHUNK_BYTES / Self::place_bytes(len);
        let chunk_rows = rows.next_power_of_two().max(CHUNK_ROWS_MIN);
        Self { len, chunk_rows, chunks: Vec::new(), used: 0, free: Vec::new() }
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

    /// Bytes that it has from the system.
    pub(super) fn bytes(&self) -> u64 {
        let chunk = self.chunk_rows * Self::place_bytes(self.len);
        (self.chunks.len() * chunk + self.free.capacity() * size_of::<u32>()) as u64
    }

    /// A place for a row; its numbers are the caller's to write. `None` if there are nearly 2^32 of them: the highest numbers are of no place.
    pub(super) fn take(&mut self, mark: Mark) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = self.used;
                self.used = place.checked_add(1).filter(|used| *used < u32::MAX - 1)?;
                if place as usize / self.chunk_rows == self.chunks.len() {
                    self.chunks.push(Chunk {
                        numbers: vec![0.0; self.chunk_rows * self.len].into(),
                        marks: vec![Mark { id: 0, touched: 0, used_by: 0, score: f32::NAN }; self.chunk_rows].into(),
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

    /// Frees all of them, and gives the memory back.
    pub(super) fn clear(&mut self) {
        (self.chunks, self.used, self.free) = (Vec::new(), 0, Vec::new());
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
        &mut self.chunks[chunk].marks[row]
    }

    pub(super) fn row(&self, place: u32) -> &[f32] {
        let (chunk, row) = self.find(place);
        &self.chunks[chunk].numbers[row * self.len..][..self.len]
    }

    pub(super) fn row_mut(&mut self, place: u32) -> &mut [f32] {
        let (chunk, row) = self.find(place);
        &mut self.chunks[chunk].numbers[row * self.len..][..self.len]
    }

    fn find(&self, place: u32) -> (usize, usize) {
        let place = place as usize;
        (place / self.chunk_rows, place % self.chunk_rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_freed_is_used_again_and_others_stay() {
        let mut arena = Arena::new(3);
        let mark = |id| Mark { id, touched: 0, used_by: 0, score: 0.0 };
        let places: Vec<u32> = (0..5000).map(|id| arena.take(mark(id)).unwrap()).collect();
        places.iter().for_each(|place| arena.row_mut(*place).fill(*place as f32));
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
}
