//! Memory for a pool that other processes of the machine can read in place.
//!
//! It is allocated in segments of growing size. So a large model needs few descriptors, and a small model needs little memory. A pool keeps
//! its memory. A segment is freed with the last piece of it.
#![expect(unsafe_code, reason = "a pool reaches its memory by address")]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::Segment;
use crate::mem::pool::{ALIGN, Allocation, Backing, Place};

/// A backing whose memory other processes can map.
#[derive(Debug, Default)]
pub struct SharedBacking {
    /// The number of the first segment of this backing.
    first: u32,
    fields: Mutex<Vec<Field>>,
}

/// A segment, and the bytes of it that are in use.
#[derive(Debug)]
struct Field {
    segment: Arc<Segment>,
    taken: usize,
}

impl SharedBacking {
    /// A backing without memory; it allocates segments on demand.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`new`](Self::new), with segment numbers from `first` on, so that a process can have several backings.
    pub fn numbered_from(first: u32) -> Self {
        Self { first, ..Self::default() }
    }

    /// The segment that a [`Place`] names.
    pub fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        let fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        fields.get(usize::try_from(number.checked_sub(self.first)?).ok()?).map(|field| Arc::clone(&field.segment))
    }
}

impl Backing for SharedBacking {
    fn allocation(&self, bytes: usize) -> Option<Box<dyn Allocation>> {
        let bytes = bytes.next_multiple_of(ALIGN);
        let mut fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        let open = fields.iter().rposition(|field| field.segment.bytes() - field.taken >= bytes);
        let number = match open {
            Some(number) => number,
            None => {
                let last = fields.last().map_or(0, |field| field.segment.bytes());
                let size = (2 * last).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX).max(bytes);
                // Without a segment the pool uses the heap, which handles a lack of memory.
                let segment = Segment::create_to_show(size as u64).ok()?;
                fields.push(Field { segment: Arc::new(segment), taken: 0 });
                fields.len() - 1
            }
        };
        let field = &mut fields[number];
        let offset = field.taken;
        field.taken += bytes;
        let segment = Arc::clone(&field.segment);
        // SAFETY: earlier allocations end at `offset`, so no other allocation has these bytes, now or later.
        let start = unsafe { segment.slice_mut(offset, bytes) }.as_mut_ptr();
        let start = NonNull::new(start).expect("a slice is somewhere");
        let segment_number = self.first.checked_add(u32::try_from(number).ok()?)?;
        let place = Place { segment: segment_number, offset: offset as u64 };
        Some(Box::new(Shared { segment, start, place }))
    }
}

struct Shared {
    /// Keeps the memory mapped.
    segment: Arc<Segment>,
    start: NonNull<u8>,
    place: Place,
}

// SAFETY: memory belongs to the process, not to a thread.
unsafe impl Send for Shared {}
// SAFETY: only a pool's slab reaches it, by the usual rules of shared and exclusive references.
unsafe impl Sync for Shared {}

// SAFETY: zeroed by the system, mapped as long as `segment` lives, and never given out twice.
unsafe impl Allocation for Shared {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn place(&self) -> Option<Place> {
        Some(self.place)
    }

    fn mapped(&self) -> Option<(BorrowedFd<'_>, usize)> {
        Some((self.segment.fd(), self.segment.bytes()))
    }
}

const SEGMENT_BYTES_MIN: usize = 1 << 20;
const SEGMENT_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::super::Shown;
    use super::*;
    use crate::mem::Pool;

    #[test]
    fn what_is_frozen_can_be_read_where_it_lies() {
        let backing = Arc::new(SharedBacking::new());
        let pool = Pool::on(Arc::clone(&backing) as Arc<dyn Backing>);
        let frozen: Vec<_> = (1..=5u8)
            .map(|value| {
                let mut lease = pool.lease(400_000);
                lease.fill(value);
                lease.freeze()
            })
            .collect();
        for (value, frozen) in (1..=5u8).zip(&frozen) {
            let Place { segment, offset } = frozen.place().unwrap();
            let segment = backing.segment(segment).unwrap();
            let shown = Shown::map(segment.fd().try_clone_to_owned().unwrap(), segment.bytes() as u64).unwrap();
            // SAFETY: it is frozen, so no code writes it.
            let seen = unsafe { shown.slice(usize::try_from(offset).unwrap(), 400_000) };
            assert!(seen.iter().all(|byte| *byte == value));
        }
    }

    #[test]
    fn memory_is_taken_in_few_segments_and_used_again() {
        let backing = Arc::new(SharedBacking::new());
        let pool = Pool::on(Arc::clone(&backing) as Arc<dyn Backing>);
        let leases: Vec<_> = (0..40).map(|_| pool.lease(1 << 20)).collect();
        assert!(backing.segment(5).is_some() && backing.segment(8).is_none(), "1, 2, 4, 8, 16, 32 MiB");
        let held = pool.bytes_held();
        drop(leases);
        let _again: Vec<_> = (0..40).map(|_| pool.lease(1 << 20)).collect();
        assert_eq!(pool.bytes_held(), held);
        assert!(Pool::new().lease(10).freeze().place().is_none(), "the heap is nobody else's");
    }

    #[test]
    fn a_plot_outlives_its_ground() {
        let pool = Pool::on(Arc::new(SharedBacking::new()));
        let mut lease = pool.lease(100);
        drop(pool);
        lease.fill(7);
        assert!(lease.iter().all(|byte| *byte == 7));
    }
}
