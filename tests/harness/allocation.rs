//! An allocator that counts, so that a test can say how much memory a decoder may take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

/// The system's allocator. It counts the bytes and the allocations of each thread, and the bytes of the process. A program that wants this makes
/// it its `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static HELD: Cell<Held> = const { Cell::new(Held { now: 0, most: 0, allocations: 0 }) };
}

/// Bytes that this process holds.
static ALL: AtomicI64 = AtomicI64::new(0);

/// What one thread allocated.
#[derive(Clone, Copy)]
struct Held {
    /// Bytes that it did not free. Signed, because a thread may free what another one allocated.
    now: i64,
    most: i64,
    /// How often it has allocated.
    allocations: u64,
}

/// The most bytes that `work` held at once on this thread, beyond those that were held before. It is 0 in a program without [`Counting`].
pub fn most_bytes_held(work: impl FnOnce()) -> u64 {
    let before = HELD.get();
    HELD.set(Held { most: before.now, ..before });
    work();
    u64::try_from(HELD.get().most - before.now).expect("the most is not below the beginning")
}

/// How often `work` allocates on this thread. It is 0 in a program without [`Counting`].
pub fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = HELD.get().allocations;
    work();
    HELD.get().allocations - before
}

/// The bytes that this process holds. It is 0 in a program without [`Counting`].
pub fn bytes_held() -> i64 {
    ALL.load(Ordering::Relaxed)
}

fn count(bytes: i64) {
    ALL.fetch_add(bytes, Ordering::Relaxed);
    // The cell is gone while a thread ends.
    let _ = HELD.try_with(|held| {
        let Held { now, most, allocations } = held.get();
        let (now, allocations) = (now + bytes, allocations + u64::from(bytes > 0));
        held.set(Held { now, most: most.max(now), allocations });
    });
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).expect("no layout is longer")
}

// SAFETY: every call is passed on to the system's allocator unchanged. Counting touches a cell that needs no allocation.
#[expect(unsafe_code, reason = "an allocator is unsafe to implement")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(signed(bytes) - signed(layout.size()));
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(place, layout, bytes) }
    }
}
