//! Pinned host memory, which devices copy at the rate of their bus.
#![expect(unsafe_code, reason = "memory of the driver is known by address")]

use std::ffi::c_uint;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::units::print_bytes;
use crate::cuda::{Context, Driver};
use crate::error::{Error, Result};
use crate::local::{Segment, numa};
use crate::mem::pool::ALIGN;
use crate::mem::{Allocation, Backing, Ordinal, Place};

/// The backing of pools of pinned memory, one for each kind of it: see [`OfKind`].
///
/// Pinning takes milliseconds and serialises the driver. So memory is pinned in slabs, and allocations are cut from a slab one after the
/// other. Each slab is twice as large as the last: a job with small tensors pins little, and a job with large tensors pins seldom. The
/// pools keep their allocations, so memory is only freed when the last pool is dropped.
pub(super) struct PinnedBacking {
    driver: Arc<Driver>,
    bytes_max: usize,
    stock: Mutex<Stock>,
    /// Set if a device may use slabs for ever; then they are never freed.
    keeps: Arc<AtomicBool>,
}

struct Stock {
    /// Slabs with room at their end, and the offset of that room.
    open: Vec<(Arc<Slab>, usize)>,
    /// Size of the next slab.
    next_bytes: usize,
    /// The number of slabs that other processes can map; also the number of the next one.
    shown: u32,
    /// Pinned bytes of all slabs.
    pinned_bytes: usize,
    /// Whether the log said that not all memory could be pinned. Logged once, because a job beyond its limit is so in each step.
    warned: bool,
}

/// The kind of the memory of a slab.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Kind {
    /// The preferred NUMA node, if any.
    pub(super) node: Option<u32>,
    /// Whether other processes of the machine can map it. If not, the driver allocates it.
    pub(super) shown: bool,
}

/// A backing for memory of one kind.
pub(super) struct OfKind {
    pub(super) backing: Arc<PinnedBacking>,
    pub(super) kind: Kind,
}

impl Backing for OfKind {
    fn allocation(&self, bytes: usize) -> Option<Box<dyn Allocation>> {
        self.backing.allocation(self.kind, bytes)
    }
}

/// Why a slab was not pinned.
enum Refusal {
    Limit,
    Fault(Error),
}

impl PinnedBacking {
    /// Pins up to `bytes_max` bytes, in the context of the first device that the process uses.
    pub(super) fn new(driver: Arc<Driver>, bytes_max: u64) -> Self {
        let stock = Stock { open: Vec::new(), next_bytes: SLAB_BYTES_MIN, shown: 0, pinned_bytes: 0, warned: false };
        Self {
            driver,
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            stock: Mutex::new(stock),
            keeps: Arc::default(),
        }
    }

    /// Never frees the slabs: a device did not end in time, and may still write to them.
    pub(super) fn keep(&self) {
        self.keeps.store(true, Ordering::Release);
    }

    /// Memory of a slab of `kind`; `None` if no more can be pinned.
    fn allocation(&self, kind: Kind, bytes: usize) -> Option<Box<dyn Allocation>> {
        let bytes = bytes.next_multiple_of(ALIGN);
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = |slab: &Slab, used| slab.kind == kind && slab.bytes - used >= bytes;
        if let Some((slab, used)) = stock.open.iter_mut().find(|(slab, used)| has_room(slab, *used)) {
            let allocation = PinnedPlot { slab: Arc::clone(slab), at: *used };
            *used += bytes;
            return Some(Box::new(allocation));
        }
        match self.pin(&mut stock, kind, bytes) {
            Ok(slab) => {
                stock.open.retain(|(slab, used)| slab.bytes - *used >= ROOM_MIN);
                stock.open.push((Arc::clone(&slab), bytes));
                Some(Box::new(PinnedPlot { slab, at: 0 }))
            }
            Err(refusal) => {
                self.warn(&mut stock, &refusal);
                None
            }
        }
    }

    /// Pins a slab of `kind` for at least `bytes`. Its size is the planned one, or less if that cannot be pinned.
    fn pin(&self, stock: &mut Stock, kind: Kind, bytes: usize) -> std::result::Result<Arc<Slab>, Refusal> {
        let left = self.bytes_max.saturating_sub(stock.pinned_bytes);
        if left < bytes {
            return Err(Refusal::Limit);
        }
        let mut size = stock.next_bytes.max(bytes).min(left);
        loop {
            match self.allocate(kind, stock.shown, size) {
                Ok(slab) => {
                    stock.shown += u32::from(slab.segment.is_some());
                    stock.pinned_bytes += size;
                    stock.next_bytes = (size * 2).clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX);
                    return Ok(Arc::new(slab));
                }
                Err(error) if size == bytes => return Err(Refusal::Fault(error)),
                Err(_) => size = (size / 2).max(bytes),
            }
        }
    }

    fn allocate(&self, kind: Kind, number: u32, bytes: usize) -> Result<Slab> {
        // Portable memory is pinned for all devices, so any context will do. One in use avoids a context on another device.
        let context = self.driver.in_use().map_or_else(|| self.driver.device(Ordinal(0)), Ok)?;
        // This thread touches the pages, which places them on its preferred node.
        let pinned = numa::near(kind.node, || {
            context.within(|| {
                if kind.shown {
                    match registered(&context, bytes) {
                        Ok((start, segment)) => return Ok((start, Some(segment))),
                        Err(error) => tracing::debug!(%error, "cannot pin memory that servers could read"),
                    }
                }
                Ok((allocated(&context, bytes)?, None))
            })
        });
        let (start, segment) = pinned?;
        Ok(Slab { context, kind, start, bytes, segment, number, kept: Arc::clone(&self.keeps) })
    }

    /// Logs once that copies will be slower, and which limit to raise.
    fn warn(&self, stock: &mut Stock, refusal: &Refusal) {
        if std::mem::replace(&mut stock.warned, true) {
            return;
        }
        let (pinned, limit) = (print_bytes(stock.pinned_bytes as u64), print_bytes(self.bytes_max as u64));
        match refusal {
            Refusal::Limit => {
                tracing::warn!(
                    pinned,
                    limit,
                    "no more memory may be pinned, copies become slower: raise pinned_bytes_max"
                );
            }
            Refusal::Fault(cause) => tracing::warn!(
                pinned, limit, %cause,
                "no more memory can be pinned, copies become slower: raise the memory limit of the container, or lower credit_bytes"
            ),
        }
    }
}

/// Memory that the driver allocates and frees.
fn allocated(context: &Context, bytes: usize) -> Result<NonNull<u8>> {
    // Not write-combined, because the processor adds and encrypts these bytes, and reads write-combined memory very slowly.
    const FLAGS: c_uint = cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;
    let mut start = ptr::null_mut();
    // SAFETY: it writes one address, which is freed in `Slab::drop`.
    let code = unsafe { (context.api().host_alloc)(&raw mut start, bytes, FLAGS) };
    context.checked("pinning memory of the host", code)?;
    NonNull::new(start.cast()).ok_or_else(|| Error::Internal { what: "pinned memory at null".to_owned() })
}

/// Memory that other processes can map, registered with the driver as pinned.
fn registered(context: &Context, bytes: usize) -> Result<(NonNull<u8>, Segment)> {
    const FLAGS: c_uint = cudarc::driver::sys::CU_MEMHOSTREGISTER_PORTABLE;
    let segment = Segment::create_to_show(bytes as u64)?;
    // SAFETY: new memory, of which only the address is taken.
    let start = NonNull::from(unsafe { segment.slice_mut(0, bytes) }).cast::<u8>();
    // SAFETY: mapped for as long as the segment lives; unregistered before it goes, in `Slab::drop`.
    let code = unsafe { (context.api().host_register)(start.as_ptr().cast(), bytes, FLAGS) };
    context.checked("registering shared memory", code)?;
    Ok((start, segment))
}

/// The first slab: enough for a job of small tensors.
const SLAB_BYTES_MIN: usize = 1 << 20;
/// The largest: sixteen parts of the usual size. Pinning it takes some ten milliseconds, which a step of such a job does not notice.
const SLAB_BYTES_MAX: usize = 64 << 20;
/// The smallest allocation of a pool. A slab with less room is not used further.
const ROOM_MIN: usize = 1 << 10;

/// Memory that the driver has pinned.
struct Slab {
    context: Arc<Context>,
    /// The kind that was requested.
    kind: Kind,
    start: NonNull<u8>,
    bytes: usize,
    /// The segment that other processes can map; `None` if the driver allocated the memory.
    segment: Option<Segment>,
    /// The number by which other processes know it.
    number: u32,
    kept: Arc<AtomicBool>,
}

// SAFETY: plain memory that is reached through allocations only, each of which has a range of its own.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Drop for Slab {
    fn drop(&mut self) {
        let api = self.context.api();
        if !api.is_ours() {
            return;
        }
        if self.kept.load(Ordering::Acquire) {
            return std::mem::forget(self.segment.take());
        }
        let start = self.start.as_ptr().cast();
        let freed = self.context.within(|| match &self.segment {
            // SAFETY: registered in `registered`, here once, and every allocation of it is gone; it is unmapped afterwards.
            Some(_) => self.context.checked("unregistering memory", unsafe { (api.host_unregister)(start) }),
            // SAFETY: allocated in `allocated`, freed only here, and every allocation of it is gone.
            None => self.context.checked("freeing pinned memory", unsafe { (api.host_free)(start) }),
        });
        if let Err(error) = freed {
            // When the process ends, the driver is gone already, and the kernel frees the memory.
            tracing::debug!(%error, "pinned memory was not freed");
        }
    }
}

/// A range of a slab.
struct PinnedPlot {
    slab: Arc<Slab>,
    at: usize,
}

// SAFETY: the range lies within the slab, where `allocation` gives each range away once; the driver hands out pages of the kernel, which are
// initialised, and they stay where they are until the slab is dropped.
unsafe impl Allocation for PinnedPlot {
    fn start(&self) -> NonNull<u8> {
        // SAFETY: `at` is within the slab.
        unsafe { self.slab.start.add(self.at) }
    }

    fn place(&self) -> Option<Place> {
        self.slab.segment.as_ref().map(|_| Place { segment: self.slab.number, offset: self.at as u64 })
    }

    fn mapped(&self) -> Option<(BorrowedFd<'_>, usize)> {
        self.slab.segment.as_ref().map(|segment| (segment.fd(), segment.bytes()))
    }
}
