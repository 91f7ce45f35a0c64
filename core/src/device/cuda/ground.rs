//! Pinned host memory, from which devices copy at the rate of their bus.
#![expect(unsafe_code, reason = "memory of the driver is known by address")]

use std::ffi::c_uint;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::units::print_bytes;
use crate::cuda::{Context, Driver};
use crate::error::{Error, Result};
use crate::local::numa;
use crate::mem::pool::ALIGN;
use crate::mem::{Ground, Ordinal, Plot};

/// The ground of pools of pinned memory, one for each NUMA node that has devices: see [`Near`].
///
/// Pinning takes milliseconds and serialises the driver, so that it is done in slabs, from which plots are cut one after the other. Slabs
/// double: a job of small tensors pins little, and one of large tensors pins seldom. Plots come back only with the whole pool, which
/// keeps what it has had.
pub(super) struct PinnedGround {
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
    /// In all slabs.
    pinned_bytes: usize,
    /// Whether somebody was told that not all could be pinned. Once: a job that goes beyond its limit does so in each step.
    warned: bool,
}

/// The part of a ground that lies on one NUMA node, or anywhere where none is told.
pub(super) struct Near {
    pub(super) ground: Arc<PinnedGround>,
    pub(super) node: Option<u32>,
}

impl Ground for Near {
    fn plot(&self, bytes: usize) -> Option<Box<dyn Plot>> {
        self.ground.plot(self.node, bytes)
    }
}

/// Why a slab was not pinned.
enum Refusal {
    Limit,
    Fault(Error),
}

impl PinnedGround {
    /// Pins up to `bytes_max` bytes, in the context of the first device that the process uses.
    pub(super) fn new(driver: Arc<Driver>, bytes_max: u64) -> Self {
        let stock = Stock { open: Vec::new(), next_bytes: SLAB_BYTES_MIN, pinned_bytes: 0, warned: false };
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

    /// Memory of a slab of `node`; none if no more can be pinned.
    fn plot(&self, node: Option<u32>, bytes: usize) -> Option<Box<dyn Plot>> {
        let bytes = bytes.next_multiple_of(ALIGN);
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = |slab: &Slab, used| slab.node == node && slab.bytes - used >= bytes;
        if let Some((slab, used)) = stock.open.iter_mut().find(|(slab, used)| has_room(slab, *used)) {
            let plot = PinnedPlot { slab: Arc::clone(slab), at: *used };
            *used += bytes;
            return Some(Box::new(plot));
        }
        match self.pin(&mut stock, node, bytes) {
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

    /// Pins a slab of `node` that holds `bytes`: as large as the next should be, or else as large as can be had.
    fn pin(&self, stock: &mut Stock, node: Option<u32>, bytes: usize) -> std::result::Result<Arc<Slab>, Refusal> {
        let left = self.bytes_max.saturating_sub(stock.pinned_bytes);
        if left < bytes {
            return Err(Refusal::Limit);
        }
        let mut size = stock.next_bytes.max(bytes).min(left);
        loop {
            match self.allocate(node, size) {
                Ok(slab) => {
                    stock.pinned_bytes += size;
                    stock.next_bytes = (size * 2).clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX);
                    return Ok(Arc::new(slab));
                }
                Err(error) if size == bytes => return Err(Refusal::Fault(error)),
                Err(_) => size = (size / 2).max(bytes),
            }
        }
    }

    fn allocate(&self, node: Option<u32>, bytes: usize) -> Result<Slab> {
        // Portable memory is pinned for all devices; which context makes it does not matter, but that no other device gets one.
        let context = self.driver.in_use().map_or_else(|| self.driver.device(Ordinal(0)), Ok)?;
        let start = context.within(|| {
            let mut start = ptr::null_mut();
            // Not write-combined: the processor adds and encrypts what is here, and would read it at a crawl.
            const FLAGS: c_uint = cudarc::driver::sys::CU_MEMHOSTALLOC_PORTABLE;
            // The driver touches its pages in the thread that asks.
            let code = numa::near(node, || {
                // SAFETY: it writes one address, which is freed in `Slab::drop`.
                unsafe { (context.api().host_alloc)(&raw mut start, bytes, FLAGS) }
            });
            context.checked("pinning memory of the host", code)?;
            NonNull::new(start.cast()).ok_or_else(|| Error::Internal { what: "pinned memory at null".to_owned() })
        })?;
        Ok(Slab { context, node, start, bytes, kept: Arc::clone(&self.keeps) })
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

/// The first slab: enough for a job of small tensors.
const SLAB_BYTES_MIN: usize = 1 << 20;
/// The largest: sixteen parts of the usual size. Pinning it takes some ten milliseconds, which a step of such a job does not notice.
const SLAB_BYTES_MAX: usize = 64 << 20;
/// A slab with less room is forgotten: the smallest that the pool asks for.
const ROOM_MIN: usize = 1 << 10;

/// Memory that the driver has pinned.
struct Slab {
    context: Arc<Context>,
    /// Where it was asked for; it lies there if there was memory.
    node: Option<u32>,
    start: NonNull<u8>,
    bytes: usize,
    kept: Arc<AtomicBool>,
}

// SAFETY: plain memory that is reached through plots only, each of which has a range of its own.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Drop for Slab {
    fn drop(&mut self) {
        let api = self.context.api();
        if !api.is_ours() || self.kept.load(Ordering::Acquire) {
            return;
        }
        let freed = self.context.within(|| {
            // SAFETY: allocated in `allocate`, freed only here, and every plot of it is gone.
            self.context.checked("freeing pinned memory", unsafe { (api.host_free)(self.start.as_ptr().cast()) })
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

// SAFETY: the range lies within the slab, where `plot` gives each range away once; the driver hands out pages of the kernel, which are
// initialised, and they stay where they are until the slab is dropped.
unsafe impl Plot for PinnedPlot {
    fn start(&self) -> NonNull<u8> {
        // SAFETY: `at` is within the slab.
        unsafe { self.slab.start.add(self.at) }
    }
}
