//! Memory that several processes map: a sealed memfd. It has no name; a process reaches it through its descriptor only.
//!
//! Seals fix its length. Otherwise a peer could shrink it, and a reader would get SIGBUS. Its pages are reserved when it is created, so
//! that a lack of memory is an error at that time and not a signal later. The system frees it with its last descriptor and mapping, also if
//! the processes are killed. The pages are charged to the memory cgroup of the process that creates it, not to `/dev/shm`.
#![expect(unsafe_code, reason = "memory that other processes write is reached by address")]

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::process_id;
use crate::error::{Error, Result};

/// The seals of a segment's length.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The seals of memory that only its maker writes: the same, and one more against new mappings for writing.
const SEALS_TO_SHOW: SealFlags = SEALS.union(SealFlags::FUTURE_WRITE);

/// A mapping of shared memory.
///
/// Peers are processes of the same user. They follow the protocol of the module that uses the segment, but a peer may be compromised. So
/// the reader checks every value before it uses the value as an index or a length.
///
/// A forked child does not inherit a mapping that can be written, because the peers would take what it writes for that of its parent.
/// So every user of a segment checks first that this process is the one that mapped it.
pub struct Segment {
    start: NonNull<u8>,
    bytes: usize,
    fd: OwnedFd,
    /// The process that has the mapping.
    process: u32,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Segment {}
// SAFETY: the safe methods give out atomics and addresses only.
unsafe impl Sync for Segment {}

impl Segment {
    /// New memory of `bytes` bytes, all zero.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there is not enough memory, [`Error::Io`] if the system refuses for another reason.
    pub fn create(bytes: u64) -> Result<Self> {
        Self::sealed(bytes, SEALS)
    }

    /// New memory of `bytes` bytes, all zero, that no other process can map for writing. Peers map it with a [`Shown`].
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    pub fn create_to_show(bytes: u64) -> Result<Self> {
        Self::sealed(bytes, SEALS_TO_SHOW)
    }

    /// Whether this system has shared memory that can be sealed. gVisor has not.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if it has not.
    pub fn check_system() -> Result<()> {
        match Self::sealed(1, SEALS) {
            // A lack of memory says nothing about what the system can do.
            Ok(_) | Err(Error::Exhausted { .. }) => Ok(()),
            Err(error) => Err(Error::FailedPrecondition {
                what: format!("this system has no shared memory whose length is sealed: {error}"),
                hint: "set local_reduce = off and transport = quic on all processes of this machine".to_owned(),
            }),
        }
    }

    fn sealed(bytes: u64, seals: SealFlags) -> Result<Self> {
        let failed = |error| io(format!("creating {bytes} bytes of shared memory"), error);
        let fd =
            rustix::fs::memfd_create(c"gradlane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
        match rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => {}
            Err(error @ (Errno::NOSPC | Errno::NOMEM | Errno::FBIG)) => {
                let hint = match error {
                    Errno::FBIG => "raise the limit of file sizes (ulimit -f), which counts for shared memory too",
                    _ => "raise the memory limit of the container or cgroup",
                };
                return Err(Error::Exhausted {
                    what: "shared memory".to_owned(),
                    limit: format!("{bytes} bytes wanted"),
                    hint: hint.to_owned(),
                });
            }
            Err(error) => return Err(failed(error)),
        }
        // Mapped first, because the seal against writing does not affect existing mappings.
        let segment = Self::mapped(fd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        rustix::fs::fcntl_add_seals(&segment.fd, seals).map_err(failed)?;
        Ok(segment)
    }

    /// Maps a segment of another process. Checks first that its length is `bytes` bytes and cannot change.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it is not a sealed segment of this length.
    pub fn map(fd: OwnedFd, bytes: u64) -> Result<Self> {
        Self::checked(fd, bytes, SEALS, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn checked(fd: OwnedFd, bytes: u64, due: SealFlags, access: ProtFlags) -> Result<Self> {
        let broken = |problem: String| Error::Protocol {
            peer: "a process of this machine".to_owned(),
            field: "shared memory".to_owned(),
            problem,
        };
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|error| broken(format!("has no seals: {error}")))?;
        if !seals.contains(SEALS) {
            return Err(broken("may change its length".to_owned()));
        }
        if !seals.contains(due) {
            return Err(broken("may be written by others than its maker".to_owned()));
        }
        let found = rustix::fs::fstat(&fd).map_err(|error| broken(format!("has no length: {error}")))?.st_size;
        if u64::try_from(found) != Ok(bytes) {
            return Err(broken(format!("has {found} bytes instead of {bytes}")));
        }
        Self::mapped(fd, bytes, access)
    }

    /// Its descriptor, for sending to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The word of 4 bytes at `offset`.
    ///
    /// # Panics
    /// If it does not lie within the segment at a multiple of 4.
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        let word = self.at(offset, size_of::<AtomicU32>(), align_of::<AtomicU32>()).cast();
        // SAFETY: within the mapping and aligned, checked by `at`; peers write it as an atomic too; any bits are a valid value.
        unsafe { AtomicU32::from_ptr(word.as_ptr()) }
    }

    /// The word of 8 bytes at `offset`.
    ///
    /// # Panics
    /// If it does not lie within the segment at a multiple of 8.
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        let word = self.at(offset, size_of::<AtomicU64>(), align_of::<AtomicU64>()).cast();
        // SAFETY: as for `u32`.
        unsafe { AtomicU64::from_ptr(word.as_ptr()) }
    }

    /// The `bytes` bytes from `offset`.
    ///
    /// # Safety
    /// No process and no thread writes them while the slice lives. The protocol of the module that uses the segment ensures this: a
    /// sequence number loaded with `Acquire` says that the bytes are complete and do not change.
    ///
    /// # Panics
    /// If they do not lie within the segment.
    pub unsafe fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        // SAFETY: within the mapping, which lives as long as `self`; not written, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(offset, bytes, 1).as_ptr(), bytes) }
    }

    /// The `bytes` bytes from `offset`, to be written.
    ///
    /// # Safety
    /// No process and no other thread reads or writes them while the slice lives. The protocol of the module that uses the segment ensures
    /// this.
    ///
    /// # Panics
    /// If they do not lie within the segment.
    #[expect(
        clippy::mut_from_ref,
        reason = "who may write which bytes is a matter between processes, upheld by the caller"
    )]
    pub unsafe fn slice_mut(&self, offset: usize, bytes: usize) -> &mut [u8] {
        // SAFETY: within the mapping, which lives as long as `self`; exclusive, by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at(offset, bytes, 1).as_ptr(), bytes) }
    }

    /// The address of `offset`, after checking that `bytes` bytes from there lie within the segment.
    fn at(&self, offset: usize, bytes: usize, align: usize) -> NonNull<u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside && offset.is_multiple_of(align), "{bytes} bytes at {offset} of a segment of {}", self.bytes);
        // SAFETY: within the mapping, or one past its end for no bytes.
        unsafe { self.start.add(offset) }
    }

    fn mapped(fd: OwnedFd, bytes: u64, access: ProtFlags) -> Result<Self> {
        let failed = |error| io(format!("mapping {bytes} bytes of shared memory"), error);
        let length = usize::try_from(bytes).map_err(|_| failed(Errno::OVERFLOW))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, &fd, 0) };
        let start = NonNull::new(start.map_err(failed)?.cast::<u8>()).expect("nothing is mapped at null");
        let segment = Self { start, bytes: length, fd, process: process_id() };
        if access.contains(ProtFlags::WRITE) {
            // SAFETY: changes only what a fork does with the new mapping.
            unsafe { rustix::mm::madvise(start.as_ptr().cast::<c_void>(), length, Advice::LinuxDontFork) }
                .map_err(failed)?;
        }
        Ok(segment)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.process != process_id() {
            return; // a forked child may have other memory at this address
        }
        // SAFETY: only this value owns the mapping, and no borrow of it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping is unmapped once");
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A mapping of memory that another process created with [`Segment::create_to_show`]. This process can read it and cannot write it.
#[derive(Debug)]
pub struct Shown(Segment);

impl Shown {
    /// Maps the memory of another process. Checks first that its length is `bytes` bytes and cannot change, and that only its maker writes
    /// it.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it is anything else.
    pub fn map(fd: OwnedFd, bytes: u64) -> Result<Self> {
        Segment::checked(fd, bytes, SEALS_TO_SHOW, ProtFlags::READ).map(Self)
    }

    /// The word of 4 bytes at `offset`. Everything that was written before this word is visible.
    ///
    /// # Panics
    /// If it does not lie within the segment at a multiple of 4.
    pub fn u32(&self, offset: usize) -> u32 {
        self.0.u32(offset).load(Ordering::Acquire)
    }

    /// The word of 8 bytes at `offset`. Everything that was written before this word is visible.
    ///
    /// # Panics
    /// If it does not lie within the segment at a multiple of 8.
    pub fn u64(&self, offset: usize) -> u64 {
        self.0.u64(offset).load(Ordering::Acquire)
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// The `bytes` bytes from `offset`.
    ///
    /// # Safety
    /// As for [`Segment::slice`].
    ///
    /// # Panics
    /// If they do not lie within the segment.
    pub unsafe fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.slice(offset, bytes) }
    }
}

fn io(what: String, error: Errno) -> Error {
    Error::Io { what, cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let ours = Segment::create(8192).unwrap();
        let theirs = Segment::map(ours.fd().try_clone_to_owned().unwrap(), 8192).unwrap();
        // SAFETY: no other code reads these bytes yet.
        unsafe { ours.slice_mut(5000, 3) }.copy_from_slice(b"sum");
        ours.u64(8).store(u64::MAX, Ordering::Release);
        // SAFETY: no code writes them any more.
        assert_eq!(unsafe { theirs.slice(5000, 3) }, b"sum");
        assert_eq!((theirs.u64(8).load(Ordering::Acquire), theirs.u32(16).load(Ordering::Acquire)), (u64::MAX, 0));
    }

    #[test]
    fn what_is_not_sealed_or_of_another_length_is_refused() {
        let open = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        let refusal = Segment::map(open, 4096).unwrap_err().to_string();
        assert!(refusal.contains("may change its length"), "{refusal}");
        let sealed = Segment::create(4096).unwrap();
        let refusal = Segment::map(sealed.fd().try_clone_to_owned().unwrap(), 8192).unwrap_err().to_string();
        assert!(refusal.contains("has 4096 bytes instead of 8192"), "{refusal}");
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(Segment::map(file, 4096).is_err(), "no memory at all");
    }

    #[test]
    fn what_is_shown_can_be_written_by_its_maker_only() {
        let ours = Segment::create_to_show(4096).unwrap();
        let fd = || ours.fd().try_clone_to_owned().unwrap();
        let theirs = Shown::map(fd(), 4096).unwrap();
        ours.u64(8).store(7, Ordering::Release);
        assert_eq!((theirs.u64(8), theirs.u32(8)), (7, 7));
        assert!(Segment::map(fd(), 4096).is_err(), "not to be mapped for writing");
        let refusal = Shown::map(Segment::create(4096).unwrap().fd().try_clone_to_owned().unwrap(), 4096).unwrap_err();
        assert!(refusal.to_string().contains("by others than its maker"), "{refusal}");
    }

    #[test]
    fn a_peer_cannot_shrink_it() {
        let segment = Segment::create(4096).unwrap();
        assert_eq!(rustix::fs::ftruncate(segment.fd(), 0), Err(Errno::PERM));
    }

    #[test]
    #[should_panic(expected = "8 bytes at 4096 of a segment of 4096")]
    fn nothing_beyond_the_end_is_reached() {
        Segment::create(4096).unwrap().u64(4096);
    }
}
