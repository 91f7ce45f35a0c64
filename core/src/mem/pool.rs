//! Pooled host memory: memory that is leased repeatedly is allocated and initialised once.
//!
//! Lengths are rounded up to size classes, four for each doubling. So at most a fifth of a slab is unused, except in the smallest class,
//! and slabs of nearly equal parts are interchangeable. The pool never shrinks, because a training step needs the same memory as the one
//! before.
#![expect(unsafe_code, reason = "slabs are raw allocations, for their alignment and their single initialisation")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// A pool of host memory. Clones share it.
#[derive(Clone, Default)]
pub struct Pool(Arc<Shared>);

/// A source of memory for a pool instead of the heap, such as memory that other processes can map.
pub trait Backing: Send + Sync {
    /// Allocates `bytes` bytes, aligned to a cache line. If there is not enough memory it returns `None`, and the pool uses the heap.
    fn allocation(&self, bytes: usize) -> Option<Box<dyn Allocation>>;
}

/// Memory of a [`Backing`], until it is dropped.
///
/// # Safety
/// The requested number of bytes from `start` must be initialised and stay in place. They must be accessed through this value only.
#[expect(unsafe_code, reason = "the promise is about raw memory")]
pub unsafe trait Allocation: Send + Sync {
    /// Its first byte.
    fn start(&self) -> NonNull<u8>;
    /// Its place in memory that other processes can map. `None` if they cannot map it.
    fn place(&self) -> Option<Place> {
        None
    }
    /// The descriptor that other processes map, and its length in bytes.
    fn mapped(&self) -> Option<(BorrowedFd<'_>, usize)> {
        None
    }
}

/// The place of bytes in memory that other processes can map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The number that the backing gave to the segment.
    pub segment: u32,
    /// The first byte.
    pub offset: u64,
}

impl Pool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty pool that takes its memory from `backing`.
    pub fn on(backing: Arc<dyn Backing>) -> Self {
        Self(Arc::new(Shared { backing: Some(backing), slabs: Mutex::default() }))
    }

    /// Leases `len` bytes, aligned to a cache line. Their content is initialised but arbitrary.
    ///
    /// Callers check `len` against a limit first because, like every allocation, an impossible one ends the process.
    pub fn lease(&self, len: usize) -> Lease {
        let class = size_class(len);
        let reused = self.slabs(|slabs| {
            slabs.bytes_in_use += class;
            slabs.free.get_mut(&class).and_then(Vec::pop)
        });
        let slab = reused.unwrap_or_else(|| {
            self.slabs(|slabs| slabs.bytes_held += class);
            let allocation = self.0.backing.as_ref().and_then(|backing| backing.allocation(class));
            allocation.map_or_else(|| Slab::new(class), |allocation| Slab::on(allocation, class))
        });
        Lease { slab: Some(slab), len, pool: self.clone() }
    }

    /// As [`lease`](Self::lease), of memory of the backing that was leased before. `None` if none is free.
    pub fn lease_again(&self, len: usize) -> Option<Lease> {
        let class = size_class(len);
        let slab = self.slabs(|slabs| {
            let free = slabs.free.get_mut(&class)?;
            let at = free.iter().rposition(|slab| slab.allocation.is_some())?;
            slabs.bytes_in_use += class;
            Some(free.remove(at))
        })?;
        Some(Lease { slab: Some(slab), len, pool: self.clone() })
    }

    /// Bytes of all live leases and frozen buffers, in size classes.
    pub fn bytes_in_use(&self) -> usize {
        self.slabs(|slabs| slabs.bytes_in_use)
    }

    /// Bytes that the pool has allocated, in use or not.
    pub fn bytes_held(&self) -> usize {
        self.slabs(|slabs| slabs.bytes_held)
    }

    fn give_back(&self, slab: Slab) {
        self.slabs(|slabs| {
            slabs.bytes_in_use -= slab.len();
            slabs.free.entry(slab.len()).or_default().push(slab);
        });
    }

    /// Calls `with` under the lock. A panic cannot leave the slabs inconsistent, because no code of callers runs under the lock.
    fn slabs<T>(&self, with: impl FnOnce(&mut Slabs) -> T) -> T {
        with(&mut self.0.slabs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} bytes in use)", self.bytes_in_use(), self.bytes_held())
    }
}

#[derive(Default)]
struct Shared {
    backing: Option<Arc<dyn Backing>>,
    slabs: Mutex<Slabs>,
}

#[derive(Default)]
struct Slabs {
    /// Unused slabs by size class. The slab that returned last is on top, because it is most likely still in a cache.
    free: BTreeMap<usize, Vec<Slab>>,
    bytes_in_use: usize,
    bytes_held: usize,
}

/// Memory with one owner, which may write it. Dropping it returns the memory to its pool.
pub struct Lease {
    /// Present until the lease is dropped.
    slab: Option<Slab>,
    len: usize,
    pool: Pool,
}

impl Lease {
    /// Ends writing. From now on the memory can be shared for reading.
    pub fn freeze(self) -> Frozen {
        Frozen(Arc::new(self))
    }

    /// Its place for other processes, the descriptor that they map, and the descriptor's length in bytes. `None` if they cannot map it.
    pub(super) fn shown(&self) -> Option<(Place, BorrowedFd<'_>, usize)> {
        let allocation = self.slab().allocation.as_ref()?;
        let (fd, bytes) = allocation.mapped()?;
        Some((allocation.place()?, fd, bytes))
    }

    /// Its first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.slab().ptr
    }

    fn slab(&self) -> &Slab {
        self.slab.as_ref().expect("taken only by drop")
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.slab().bytes()[..self.len]
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.slab.as_mut().expect("taken only by drop").bytes_mut()[..self.len]
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(slab) = self.slab.take() {
            self.pool.give_back(slab);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes)", self.len)
    }
}

/// Memory that is not written while it is shared. Clones share it. Dropping the last one returns the memory to its pool.
#[derive(Clone)]
pub struct Frozen(Arc<Lease>);

impl Frozen {
    /// Its place for other processes, if they can map it.
    pub fn place(&self) -> Option<Place> {
        self.0.slab().place()
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frozen({} bytes)", self.len())
    }
}

/// One allocation. Its length is a whole size class, and all its bytes are initialised.
struct Slab {
    ptr: NonNull<u8>,
    layout: Layout,
    /// Its source; `None` for the heap.
    allocation: Option<Box<dyn Allocation>>,
}

impl Slab {
    fn new(class: usize) -> Self {
        let layout = Layout::from_size_align(class, ALIGN).expect("a size class is far below isize::MAX");
        // SAFETY: a size class is never zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Self { ptr, layout, allocation: None }
    }

    fn on(allocation: Box<dyn Allocation>, class: usize) -> Self {
        let layout = Layout::from_size_align(class, ALIGN).expect("a size class is far below isize::MAX");
        Self { ptr: allocation.start(), layout, allocation: Some(allocation) }
    }

    fn place(&self) -> Option<Place> {
        self.allocation.as_ref().and_then(|allocation| allocation.place())
    }

    fn len(&self) -> usize {
        self.layout.size()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes, by `new` or by the promise of an allocation. They live as long as `self`, and
        // are written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len()) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if self.allocation.is_none() {
            // SAFETY: allocated in `new` with this layout, freed only here.
            unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
        }
    }
}

// SAFETY: a slab is plain bytes with one owner, which may be on any thread.
unsafe impl Send for Slab {}
// SAFETY: a shared slab is only read; see `bytes`.
unsafe impl Sync for Slab {}

/// The alignment of every slab: a cache line, which suits every vector instruction.
pub const ALIGN: usize = 64;
/// The smallest slab. Smaller slabs would save too little memory to need their own size classes.
const CLASS_MIN: usize = 1 << 10;

/// The smallest class that holds `len` bytes: `CLASS_MIN`, or 4, 5, 6 or 7 times a power of two.
fn size_class(len: usize) -> usize {
    if len <= CLASS_MIN {
        return CLASS_MIN;
    }
    let step = 1 << ((len - 1).ilog2() - 2);
    len.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_returned_is_leased_again() {
        let pool = Pool::new();
        let first = pool.lease(4 << 20);
        let address = first.as_ptr();
        drop(first);
        assert_eq!((pool.bytes_in_use(), pool.bytes_held()), (0, 4 << 20));
        let second = pool.lease((4 << 20) - 100);
        assert_eq!((second.as_ptr(), second.len()), (address, (4 << 20) - 100));
        assert_eq!((pool.bytes_in_use(), pool.bytes_held()), (4 << 20, 4 << 20));
    }

    #[test]
    fn only_memory_of_the_backing_is_leased_again_without_asking_for_more() {
        let pool = Pool::on(Arc::new(One(Mutex::new(Some(Box::new([0; 2048]))))));
        assert!(pool.lease_again(2048).is_none());
        let leases = [pool.lease(2048), pool.lease(2048)];
        let backed = leases[0].as_ptr();
        drop(leases);
        let again = pool.lease_again(2000).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (backed, 2000));
        assert!(pool.lease_again(2048).is_none(), "the other one is of the heap");
        assert_eq!(pool.bytes_in_use(), 2048);
        drop(again);
        assert_eq!((pool.bytes_in_use(), pool.bytes_held()), (0, 4096));
    }

    /// Has memory for one allocation.
    struct One(Mutex<Option<Box<[u8; 2048]>>>);

    struct Held(NonNull<u8>);

    impl Backing for One {
        fn allocation(&self, _bytes: usize) -> Option<Box<dyn Allocation>> {
            let memory = Box::leak(self.0.lock().unwrap().take()?);
            Some(Box::new(Held(NonNull::from(memory).cast())))
        }
    }

    // SAFETY: the memory was leaked for the allocation.
    unsafe impl Send for Held {}
    // SAFETY: as above; it is reached through the allocation only.
    unsafe impl Sync for Held {}
    // SAFETY: as above.
    unsafe impl Allocation for Held {
        fn start(&self) -> NonNull<u8> {
            self.0
        }
    }

    #[test]
    fn leases_are_aligned_to_a_cache_line() {
        let pool = Pool::new();
        for len in [0, 1, 63, 1025, 100_000] {
            let lease = pool.lease(len);
            assert_eq!((lease.as_ptr() as usize % 64, lease.len()), (0, len));
        }
    }

    #[test]
    fn frozen_memory_returns_with_its_last_holder() {
        let pool = Pool::new();
        let mut lease = pool.lease(3);
        lease.copy_from_slice(&[1, 2, 3]);
        let frozen = lease.freeze();
        let shared = frozen.clone();
        drop(frozen);
        assert_eq!(&shared[..], [1, 2, 3]);
        assert_eq!(pool.bytes_in_use(), 1 << 10);
        std::thread::spawn(move || drop(shared)).join().unwrap();
        assert_eq!(pool.bytes_in_use(), 0);
    }

    #[test]
    fn a_class_wastes_at_most_a_fifth() {
        assert_eq!([1, 1024, 1025, 1280, 1281, 2048, 2049].map(size_class), [1024, 1024, 1280, 1280, 1536, 2048, 2560]);
        for len in 1025..100_000 {
            let class = size_class(len);
            assert!(class >= len && (class - len) * 5 < class, "{len} in {class}");
        }
    }
}
