//! Pinned host memory, from which devices copy at the rate of their bus.
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
/// Pinning takes milliseconds and serialises the driver, so that it is done in slabs, from which allocations are cut one after the other. Slabs
/// double: a job of small tensors pins little, and one of large tensors pins seldom. Allocations come back only with the whole pool, which
/// keeps what it has had.
pub(super) struct PinnedBacking {
    driver: Arc<Driver>,
    bytes_max: usize,
    stock: Mutex<Stock>,
    /// Set when a device may use slabs for ever.
    keeps: Arc<AtomicBool>,
}

struct Stock {
    /// Slabs with room at their end, and where it begins.
    open: Vec<(Arc<Slab>, usize)>,
    /// Size of the next slab.
    next_bytes: usize,
    /// How many slabs were made that others can be shown, which is what the next one is called.
    shown: u32,
    /// In all slabs.
    pinned_bytes: usize,
    /// Whether somebody was told that not all could be pinned. Once: a job that goes beyond its limit does so in each step.
    warned: bool,
}

/// What is the same for all memory of a slab.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Kind {
    /// The NUMA node on which it is asked for; anywhere, if none is told.
    pub(super) node: Option<u32>,
    /// Whether other processes of the machine can be let read it. Else it is the driver's own.
    pub(super) shown: bool,
}

/// The part of a backing that is of one kind.
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

    /// Frees nothing any more: a device did not end in time, and what it still writes must not be anybody else's memory.
    pub(super) fn keep(&self) {
        self.keeps.store(true, Ordering::Release);
    }

    /// Memory of a slab of `kind`; none if no more can be pinned.
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

    /// Pins a slab of `kind` that holds `bytes`: as large as the next should be, or else as large as can be had.
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
        // Portable memory is pinned for all devices; which context makes it does not matter, but that no other device gets one.
        let context = self.driver.in_use().map_or_else(|| self.driver.device(Ordinal(0)), Ok)?;
        // Pages are touched in the thread that asks.
        let pinned = numa::near(kind.node, || {
            context.within(|| {
                if kind.shown {
                    match registered(&context, bytes) {
                        Ok((start, segment)) => return Ok((start, Some(segment))),
                        Err(error) => tracing::debug!(%error, "memory that servers could read is not pinned"),
                    }
                }
                Ok((allocated(&context, bytes)?, None))
            })
        });
        let (start, segment) = pinned?;
        Ok(Slab { context, kind, start, bytes, segment, number, kept: Arc::clone(&self.keeps) })
    }

    /// Says once that copies will be slower, and what to raise.
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

/// Memory of the driver's own, to be freed by it.
fn allocated(context: &Context, bytes: usize) -> Result<NonNull<u8>> {
    // Not write-combined: the processor adds and encrypts what is here, and would read it at a crawl.
    const FLAGS: c_uint = cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;
    let mut start = ptr::null_mut();
    // SAFETY: it writes one address, which is freed in `Slab::drop`.
    let code = unsafe { (context.api().host_alloc)(&raw mut start, bytes, FLAGS) };
    context.checked("pinning memory of the host", code)?;
    NonNull::new(start.cast()).ok_or_else(|| Error::Internal { what: "pinned memory at null".to_owned() })
}

/// Memory that other processes can map, which the driver knows as pinned.
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
/// A slab with less room is forgotten: the smallest that the pool asks for.
const ROOM_MIN: usize = 1 << 10;

/// Memory that the driver has pinned.
struct Slab {
    context: Arc<Context>,
    /// What was asked for, as far as there was such memory.
    kind: Kind,
    start: NonNull<u8>,
    bytes: usize,
    /// What others can be shown; absent where the driver allocated the memory.
    segment: Option<Segment>,
    /// What it is called by them.
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
            // As the process ends there is no driver any more, and the memory goes with it.
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
