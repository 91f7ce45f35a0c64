//! The file in which ranks meet: a header, a place for each rank, staging memory of each rank, and a mailbox for each pair.

#![expect(unsafe_code, reason = "ranks share memory, which is reached by address")]

use std::fs::OpenOptions;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

use crate::codes::{Failure, Outcome, SYSTEM_ERROR};

/// Bytes of one step of an operation, for each rank.
pub(crate) const STAGING: usize = 512 << 10;
/// Bytes of one letter.
pub(crate) const LETTER: usize = 64 << 10;
pub(crate) const RANKS_MAX: usize = 64;

const PAGE: usize = 4096;
const RANK_BYTES: usize = 1024;
const LETTER_HEAD: usize = 64;

/// The mapped file.
pub(crate) struct Shared {
    base: *mut u8,
    bytes: usize,
    ranks: usize,
}

// SAFETY: what lies there is atomic, or bytes that one rank writes while the others wait for it, see `publish` and `staged`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Numbers of 32 bits that all ranks share.
#[derive(Clone, Copy)]
pub(crate) enum Word {
    /// How many ranks there are; whoever comes first says it.
    Ranks = 0,
    /// How many have come.
    Joined = 1,
    /// Code of the failure that ended it for all.
    Failed = 2,
    /// Changes when anything does.
    News = 3,
}

/// Numbers of 64 bits of each rank.
#[derive(Clone, Copy)]
pub(crate) enum Own {
    /// Whether it is there; the states are those of `meeting`.
    State = 0,
    Process = 1,
    /// When the process began, so that another one with its number is not taken for it.
    Began = 2,
    /// A hash of machine and device.
    Device = 3,
    /// How often it came to a point where all meet, in operations and in calls.
    Arrived = 4,
    ArrivedCalls = 5,
    Color = 6,
    Key = 7,
    /// Of the operation that it is at: eight numbers.
    Descriptor = 8,
}

/// What an operation is, in numbers that all ranks must have alike.
pub(crate) type Descriptor = [u64; 8];

impl Shared {
    pub(crate) fn open(path: &Path, ranks: usize) -> Outcome<Self> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Failure::new(SYSTEM_ERROR, format!("{what} {}: {error}", path.display()))
        };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| failed("opening", &error))?;
        let bytes = Self::mailbox_offset(ranks, ranks, 0);
        let has = file.metadata().map_err(|error| failed("looking at", &error))?.len();
        if has < bytes as u64 {
            file.set_len(bytes as u64).map_err(|error| failed("growing", &error))?;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the file is at least as long and never shortened.
        let base = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, &file, 0) };
        Ok(Self { base: base.map_err(|error| failed("mapping", &error))?.cast(), bytes, ranks })
    }

    pub(crate) fn word(&self, word: Word) -> &AtomicU32 {
        // SAFETY: within the first page, aligned, and only ever used as this.
        unsafe { &*self.base.add(4 * word as usize).cast::<AtomicU32>() }
    }

    pub(crate) fn own(&self, rank: usize, own: Own) -> &AtomicU64 {
        self.number(rank, own as usize)
    }

    fn number(&self, rank: usize, index: usize) -> &AtomicU64 {
        assert!(rank < self.ranks && index < RANK_BYTES / 8);
        // SAFETY: within the pages of the ranks, aligned, and only ever used as this.
        unsafe { &*self.base.add(PAGE + rank * RANK_BYTES + 8 * index).cast::<AtomicU64>() }
    }

    pub(crate) fn describe(&self, rank: usize, descriptor: Descriptor) {
        for (at, number) in descriptor.into_iter().enumerate() {
            self.number(rank, Own::Descriptor as usize + at).store(number, Ordering::Release);
        }
    }

    pub(crate) fn described(&self, rank: usize) -> Descriptor {
        std::array::from_fn(|at| self.number(rank, Own::Descriptor as usize + at).load(Ordering::Acquire))
    }

    /// Tells all that something changed.
    pub(crate) fn tell(&self) {
        let news = self.word(Word::News);
        news.fetch_add(1, Ordering::AcqRel);
        // It fails for addresses that are none.
        let _ = futex::wake(news, futex::Flags::empty(), u32::MAX >> 1);
    }

    /// Sleeps until something changes after `seen`, or for 10 ms.
    pub(crate) fn listen(&self, seen: u32) {
        let ten_milliseconds = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        // Woken, changed meanwhile, interrupted or too late: whoever asked looks again.
        let _ = futex::wait(self.word(Word::News), futex::Flags::empty(), seen, Some(&ten_milliseconds));
    }

    /// This rank's own staging memory.
    ///
    /// Nobody reads it between the end of one step and its rank's arrival at the next, which is when it may be written.
    #[expect(clippy::mut_from_ref, reason = "the memory is shared; the steps of an operation say who may write")]
    pub(crate) fn staging(&self, rank: usize, len: usize) -> &mut [u8] {
        assert!(rank < self.ranks && len <= STAGING);
        // SAFETY: within the mapping; see above, and `operation` for the steps.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(Self::staging_offset(self.ranks, rank)), len) }
    }

    /// The staging memory of any rank, which does not change until all have arrived at the next step.
    pub(crate) fn staged(&self, rank: usize, from: usize, len: usize) -> &[u8] {
        assert!(rank < self.ranks && from + len <= STAGING);
        // SAFETY: within the mapping; its rank writes it before it arrives, and again when all have read it.
        unsafe { std::slice::from_raw_parts(self.base.add(Self::staging_offset(self.ranks, rank) + from), len) }
    }

    /// Whether a letter lies in the mailbox: it belongs to the receiver then, and else to the sender.
    pub(crate) fn is_full(&self, from: usize, to: usize) -> &AtomicU64 {
        self.letter_head(from, to, 0)
    }

    /// A number of the head of a letter.
    pub(crate) fn letter_head(&self, from: usize, to: usize, index: usize) -> &AtomicU64 {
        assert!(from < self.ranks && to < self.ranks && index < LETTER_HEAD / 8);
        // SAFETY: within the mapping, aligned, and only ever used as this.
        unsafe { &*self.base.add(Self::mailbox_offset(self.ranks, from, to) + 8 * index).cast::<AtomicU64>() }
    }

    /// The bytes of a letter, for the one to whom it belongs.
    #[expect(clippy::mut_from_ref, reason = "the memory is shared; `is_full` says whose it is")]
    pub(crate) fn letter(&self, from: usize, to: usize, len: usize) -> &mut [u8] {
        assert!(from < self.ranks && to < self.ranks && len <= LETTER);
        let offset = Self::mailbox_offset(self.ranks, from, to) + LETTER_HEAD;
        // SAFETY: within the mapping; sender and receiver take turns.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(offset), len) }
    }

    fn staging_offset(ranks: usize, rank: usize) -> usize {
        PAGE + RANKS_MAX * RANK_BYTES + rank.min(ranks) * STAGING
    }

    fn mailbox_offset(ranks: usize, from: usize, to: usize) -> usize {
        Self::staging_offset(ranks, ranks) + (from * ranks + to) * (LETTER + LETTER_HEAD)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`; every reference into it borrows this.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

/// Bytes of a device, as the host sees them.
pub(crate) fn read(from: usize, to: &mut [u8]) {
    // SAFETY: `from` was just found to be as many bytes of an allocation, and the stream that is here keeps it from being freed.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
}

/// The other way.
pub(crate) fn write(to: usize, from: &[u8]) {
    // SAFETY: as for `read`.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
}
