//! Device memory, pinned ranges of host memory, and what lies where.
//!
//! Each device has a range of addresses. What was freed is at the address of the next allocation of its size, as with every allocator, so
//! that whoever uses it afterwards harms somebody. If it is not strict, addresses are given out once, and whoever uses what was freed is
//! always refused. Between two allocations lies a page that nobody may touch.

#![expect(unsafe_code, reason = "memory is mapped and protected by address")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::{Arc, Weak};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::codes::{Code, Outcome};

/// Addresses of one device, far more than it has memory.
const ARENA_BYTES: usize = 256 << 30;
const PAGE: usize = 4096;
/// Between an address of a device and that of the host if devices are hidden: no process has anything there.
const HIDDEN_BY: u64 = 1 << 46;

/// Whether what the calling thread touches for the first time is asked for from one NUMA node.
pub(crate) fn prefers_a_node() -> bool {
    let mut mode: libc::c_int = 0;
    // SAFETY: it writes one number; nothing else is asked for.
    let code =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, null_mut::<u64>(), 0_usize, 0_usize, 0_usize) };
    code == 0 && mode == libc::MPOL_PREFERRED
}

/// Whether the memory at `address` of the host is a mapping that other processes may have too.
pub(crate) fn is_shared(address: usize) -> bool {
    mappings().into_iter().any(|(range, access)| range.contains(&address) && access.ends_with('s'))
}

/// Whether all of these bytes of the host are mapped, and can be read, and written if it `is_written`.
pub(crate) fn is_mapped(address: usize, bytes: usize, is_written: bool) -> bool {
    let Some(end) = address.checked_add(bytes) else { return false };
    let mut reached = address;
    // In the order of their addresses.
    for (range, access) in mappings() {
        let is_open = access.starts_with(if is_written { "rw" } else { "r" });
        if range.contains(&reached) && is_open {
            reached = range.end;
        }
    }
    reached >= end
}

/// The mappings of this process in order, and what may be done with each: `start-end rw-s ...` (`proc_pid_maps(5)`).
fn mappings() -> Vec<(Range<usize>, String)> {
    let mapping = |line: &str| {
        let mut words = line.split(' ');
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?..number(end)?, words.next()?.to_owned()))
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(mapping).collect()
}

/// Memory of a device.
pub(crate) struct Allocation {
    pub(crate) device: usize,
    /// As the device counts.
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// Unlike an address it is never the same for two.
    pub(crate) id: u64,
    host: usize,
    /// Where in the arena; none for memory of another process.
    offset: Option<usize>,
}

/// Memory of the host that the device reaches.
pub(crate) struct Pinned {
    pub(crate) device: usize,
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) flags: u32,
    /// Allocated by the driver, not registered.
    pub(crate) is_ours: bool,
}

/// A place that a stream will read or write, kept for as long.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) host: usize,
    pub(crate) keeper: Keeper,
}

#[derive(Clone)]
pub(crate) enum Keeper {
    Device(Arc<Allocation>),
    Pinned(Arc<Pinned>),
    /// A copy of what a test wants to see written.
    Bytes(#[expect(dead_code, reason = "held, not looked at")] Arc<[u8]>),
    Pageable,
}

/// A place that a graph will read or write. It keeps nothing.
pub(crate) struct Spot {
    host: usize,
    keeper: Weakly,
}

enum Weakly {
    Device(Weak<Allocation>),
    Pinned(Weak<Pinned>),
    /// A copy of what a test wants to see written, or memory of the caller that nobody keeps.
    Always(Keeper),
}

/// Names an allocation to another process. It is what a `CUipcMemHandle` holds.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Foreign {
    process: u32,
    file: i32,
    offset: u64,
    bytes: u64,
    pub(crate) id: u64,
    pub(crate) magic: u64,
}

impl Foreign {
    pub(crate) const MAGIC: u64 = 0x6661_6b65_6375_6461;
}

impl Place {
    pub(crate) fn spot(&self) -> Spot {
        let keeper = match &self.keeper {
            Keeper::Device(allocation) => Weakly::Device(Arc::downgrade(allocation)),
            Keeper::Pinned(pinned) => Weakly::Pinned(Arc::downgrade(pinned)),
            keeper @ (Keeper::Bytes(_) | Keeper::Pageable) => Weakly::Always(keeper.clone()),
        };
        Spot { host: self.host, keeper }
    }
}

impl Spot {
    /// The place, unless its memory was freed.
    pub(crate) fn place(&self) -> Option<Place> {
        let keeper = match &self.keeper {
            Weakly::Device(allocation) => Keeper::Device(allocation.upgrade()?),
            Weakly::Pinned(pinned) => Keeper::Pinned(pinned.upgrade()?),
            Weakly::Always(keeper) => keeper.clone(),
        };
        Some(Place { host: self.host, keeper })
    }
}

impl Allocation {
    /// Whether it was allocated by another process.
    pub(crate) fn is_foreign(&self) -> bool {
        self.offset.is_none()
    }
}

#[derive(Default)]
pub(crate) struct Memory {
    arenas: BTreeMap<usize, Arena>,
    allocations: BTreeMap<u64, Arc<Allocation>>,
    pinned: BTreeMap<usize, Arc<Pinned>>,
    allocated: u64,
}

struct Arena {
    base: usize,
    file: OwnedFd,
    hidden_by: u64,
    next: usize,
    /// What was freed: offset and length, the last one last.
    freed: Vec<(usize, usize)>,
}

impl Memory {
    /// Memory of `device`, at an address that was freed if `again` says so and there is one.
    pub(crate) fn allocate(
        &mut self,
        device: usize,
        bytes: usize,
        (hidden, again): (bool, bool),
    ) -> Outcome<Arc<Allocation>> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let arena = match self.arenas.entry(device) {
            std::collections::btree_map::Entry::Occupied(arena) => arena.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => place.insert(Arena::new(hidden)?),
        };
        let span = bytes.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
        let freed = arena.freed.iter().rposition(|(_, freed)| again && *freed == span);
        let offset = freed.map_or(arena.next, |at| arena.freed.remove(at).0);
        if span > ARENA_BYTES - offset - PAGE {
            return Err(Code::OUT_OF_MEMORY);
        }
        let host = arena.base + offset;
        // SAFETY: within the arena, whose mapping nobody else uses; these addresses were never given out, or were given back.
        unsafe { mprotect(host as *mut _, span, MprotectFlags::READ | MprotectFlags::WRITE) }
            .map_err(|_| Code::OUT_OF_MEMORY)?;
        if freed.is_none() {
            arena.next += span + PAGE;
        }
        let address = host as u64 - arena.hidden_by;
        let allocation = self.known(Allocation { device, address, bytes, id: 0, host, offset: Some(offset) });
        Ok(allocation)
    }

    fn known(&mut self, mut allocation: Allocation) -> Arc<Allocation> {
        self.allocated += 1;
        allocation.id = self.allocated;
        let allocation = Arc::new(allocation);
        self.allocations.insert(allocation.address, allocation.clone());
        allocation
    }

    /// What begins at `address`.
    pub(crate) fn starting(&self, address: u64) -> Option<Arc<Allocation>> {
        self.allocations.get(&address).cloned()
    }

    /// What `address` lies in.
    pub(crate) fn around(&self, address: u64) -> Option<Arc<Allocation>> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        (address - allocation.address < allocation.bytes as u64).then(|| allocation.clone())
    }

    /// Frees it. Nobody uses it any more.
    pub(crate) fn release(&mut self, allocation: &Allocation) {
        self.allocations.remove(&allocation.address);
        match allocation.offset {
            Some(offset) => {
                let Some(arena) = self.arenas.get_mut(&allocation.device) else { return };
                let span = allocation.bytes.next_multiple_of(PAGE);
                // SAFETY: it is within the arena; what still reads there is what should be found out.
                let closed = unsafe { mprotect(allocation.host as *mut _, span, MprotectFlags::empty()) };
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let given_back = fallocate(&arena.file, flags, offset as u64, span as u64);
                // Both fail only for ranges that are none.
                assert!(closed.is_ok() && given_back.is_ok(), "device memory is within its arena");
                arena.freed.push((offset, span));
            }
            // SAFETY: it was mapped by `open`, and leaves the table with this.
            None => unsafe {
                let _ = munmap(allocation.host as *mut _, allocation.bytes.next_multiple_of(PAGE));
            },
        }
    }

    /// All that `device` has.
    pub(crate) fn of(&self, device: usize) -> Vec<Arc<Allocation>> {
        self.allocations.values().filter(|allocation| allocation.device == device).cloned().collect()
    }

    /// The bytes from `address`, all of one allocation.
    pub(crate) fn device_place(&self, address: u64, bytes: usize) -> Outcome<Place> {
        let allocation = self.around(address).ok_or(Code::INVALID_VALUE)?;
        let offset = usize::try_from(address - allocation.address).map_err(|_| Code::INVALID_VALUE)?;
        if bytes > allocation.bytes - offset {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Place { host: allocation.host + offset, keeper: Keeper::Device(allocation) })
    }

    /// The bytes from `address` of the host, pinned or not.
    pub(crate) fn host_place(&self, address: usize, bytes: usize) -> Outcome<Place> {
        let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        let in_arena = |arena: &Arena| {
            let device = arena.base as u64 - arena.hidden_by;
            let overlaps = |base: u64| (address as u64) < base + ARENA_BYTES as u64 && end as u64 > base;
            overlaps(device) || overlaps(arena.base as u64)
        };
        if address == 0 || self.arenas.values().any(in_arena) {
            return Err(Code::INVALID_VALUE);
        }
        let keeper = self.pinned_around(address, bytes).map_or(Keeper::Pageable, Keeper::Pinned);
        Ok(Place { host: address, keeper })
    }

    /// The bytes from `address` of the host, which are pinned.
    pub(crate) fn pinned_place(&self, address: usize, bytes: usize) -> Outcome<Place> {
        let pinned = self.pinned_around(address, bytes).ok_or(Code::INVALID_VALUE)?;
        Ok(Place { host: address, keeper: Keeper::Pinned(pinned) })
    }

    /// The pinned range that holds all of these bytes.
    pub(crate) fn pinned_around(&self, address: usize, bytes: usize) -> Option<Arc<Pinned>> {
        let (_, pinned) = self.pinned.range(..=address).next_back()?;
        let offset = address - pinned.address;
        (offset < pinned.bytes.max(1) && bytes <= pinned.bytes - offset).then(|| pinned.clone())
    }

    pub(crate) fn pinned_starting(&self, address: usize) -> Option<Arc<Pinned>> {
        self.pinned.get(&address).cloned()
    }

    /// Allocates pinned memory.
    pub(crate) fn allocate_pinned(&mut self, device: usize, bytes: usize, flags: u32) -> Outcome<Arc<Pinned>> {
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, at an address of the kernel's choice.
        let address = unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE) };
        let address = address.map_err(|_| Code::OUT_OF_MEMORY)? as usize;
        Ok(self.pin(Pinned { device, address, bytes, flags, is_ours: true }))
    }

    /// Registers memory of the caller.
    pub(crate) fn register(&mut self, device: usize, address: usize, bytes: usize, flags: u32) -> Outcome<Arc<Pinned>> {
        let end = address.checked_add(bytes).filter(|_| address != 0 && bytes != 0).ok_or(Code::INVALID_VALUE)?;
        if self.pinned.range(..end).next_back().is_some_and(|(_, before)| before.address + before.bytes > address) {
            return Err(Code::ALREADY_REGISTERED);
        }
        Ok(self.pin(Pinned { device, address, bytes, flags, is_ours: false }))
    }

    fn pin(&mut self, pinned: Pinned) -> Arc<Pinned> {
        let pinned = Arc::new(pinned);
        self.pinned.insert(pinned.address, pinned.clone());
        pinned
    }

    /// Ends that it is pinned, and frees it if the driver allocated it. Nobody uses it any more.
    pub(crate) fn unpin(&mut self, pinned: &Pinned) {
        self.pinned.remove(&pinned.address);
        if pinned.is_ours {
            // SAFETY: it was mapped by `allocate_pinned`, and leaves the table with this.
            let _ = unsafe { munmap(pinned.address as *mut _, pinned.bytes) };
        }
    }

    /// What another process needs to open it; none if it came from another process itself.
    pub(crate) fn foreign(&self, allocation: &Allocation) -> Option<Foreign> {
        let file = self.arenas.get(&allocation.device)?.file.as_raw_fd();
        Some(Foreign {
            process: std::process::id(),
            file,
            offset: allocation.offset? as u64,
            bytes: allocation.bytes as u64,
            id: allocation.id,
            magic: Foreign::MAGIC,
        })
    }

    /// Maps memory of another process.
    pub(crate) fn open(&mut self, device: usize, foreign: Foreign) -> Outcome<Arc<Allocation>> {
        // The driver refuses to open memory in the process that it comes from.
        if foreign.magic != Foreign::MAGIC || foreign.process == std::process::id() {
            return Err(Code::INVALID_VALUE);
        }
        let path = format!("/proc/{}/fd/{}", foreign.process, foreign.file);
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).map_err(|_| Code::INVALID_VALUE)?;
        let bytes = usize::try_from(foreign.bytes).map_err(|_| Code::INVALID_VALUE)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the other process keeps the file for as long as it lives.
        let host = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, &file, foreign.offset) };
        let host = host.map_err(|_| Code::INVALID_VALUE)? as usize;
        let hidden_by = self.arenas.get(&device).map_or(0, |arena| arena.hidden_by);
        Ok(self.known(Allocation { device, address: host as u64 - hidden_by, bytes, id: 0, host, offset: None }))
    }
}

impl Arena {
    fn new(hidden: bool) -> Outcome<Self> {
        let map = || -> rustix::io::Result<(usize, OwnedFd)> {
            let file = memfd_create("fakecuda", MemfdFlags::CLOEXEC)?;
            ftruncate(&file, ARENA_BYTES as u64)?;
            let flags = MapFlags::SHARED | MapFlags::NORESERVE;
            // SAFETY: new addresses of the kernel's choice, which nobody may touch yet.
            let base = unsafe { mmap(null_mut(), ARENA_BYTES, ProtFlags::empty(), flags, &file, 0) }?;
            Ok((base as usize, file))
        };
        let (base, file) = map().map_err(|_| Code::OUT_OF_MEMORY)?;
        Ok(Self { base, file, hidden_by: if hidden { HIDDEN_BY } else { 0 }, next: 0, freed: Vec::new() })
    }
}
