//! Memory of the caller, lent to the engine during an operation.
//!
//! An exchange may push from and pull into the same memory. The types keep reader and writer apart: a [`Landing`] needs the [`Returned`]
//! that a [`Loan`] hands out when its last piece is dropped.
#![expect(unsafe_code, reason = "the caller's memory is known by address and length only")]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::copies::Copies;
use super::pool::{Lease, Place};
use crate::types::Span;
use crate::wire;

/// A run of the caller's memory, valid until the operation to which it was lent reports its end.
#[derive(Debug)]
pub struct Region {
    ptr: NonNull<u8>,
    len: usize,
    /// The owner of the memory, if it is staging memory of the engine.
    staged: Option<Arc<Lease>>,
}

/// Bytes that another process reads in place.
#[derive(Debug)]
pub(crate) struct Showable<'a> {
    /// Their place for that process.
    pub(crate) place: Place,
    /// The descriptor that the process maps, and its length.
    pub(crate) mapped: (BorrowedFd<'a>, usize),
    /// Keeps the memory from being leased again while a reference exists. This process does not read the bytes, because a sum may be
    /// written there as soon as the other process has read them.
    pub(crate) bytes: Bytes,
}

// SAFETY: a region is an address and a promise (see `Region::new`) that holds on every thread.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; a shared region gives access through unsafe methods only.
unsafe impl Sync for Region {}

impl Region {
    /// The `len` bytes from `ptr`.
    ///
    /// # Safety
    /// Until the operation that gets this region reports its end, the bytes stay valid and initialised. No code outside of the operation
    /// writes them. If the operation writes bytes there, no code outside reads them either. Regions may overlap only as the push and the
    /// pull of one exchange.
    ///
    /// # Panics
    /// If `ptr` is null and `len` is not 0.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        assert!(len == 0 || !ptr.is_null(), "a region of {len} bytes at null");
        Self { ptr: NonNull::new(ptr).unwrap_or(NonNull::dangling()), len, staged: None }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.ptr.addr().get() as u64
    }

    /// The first `at` bytes and the rest.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        // SAFETY: `at` is within the allocation, or one past its end.
        let middle = unsafe { self.ptr.add(at) };
        let staged = self.staged.clone();
        (Self { ptr: self.ptr, len: at, staged }, Self { ptr: middle, len: self.len - at, staged: self.staged })
    }

    /// The same bytes again, for the next attempt of an operation. An attempt returns its regions before it reports, so two attempts never
    /// hold them at once.
    pub(crate) fn again(&self) -> Self {
        Self { ptr: self.ptr, len: self.len, staged: self.staged.clone() }
    }

    /// The bytes of `span`.
    ///
    /// # Panics
    /// If it reaches beyond the end.
    pub(crate) fn part(&self, span: Span) -> Self {
        let offset = usize::try_from(span.offset).expect("within memory");
        let len = usize::try_from(span.bytes).expect("within memory");
        self.again().split_at(offset).1.split_at(len).0
    }

    /// Its bytes for another process to read. `None` if they do not lie in memory that other processes can map.
    ///
    /// They need no [`Loan`], because the sum is written there only after the peer has read them.
    pub(crate) fn showable(&self) -> Option<Showable<'_>> {
        let lease = self.staged.as_ref()?;
        let (place, fd, bytes) = lease.shown()?;
        let offset = place.offset + (self.ptr.addr().get() - lease.start().addr().get()) as u64;
        let place = Place { offset, ..place };
        Some(Showable { place, mapped: (fd, bytes), bytes: Bytes::from_owner(Kept(self.again())) })
    }

    /// Copies `from` into this region. Both may be the same memory.
    ///
    /// # Panics
    /// If their lengths differ.
    pub(crate) fn copy_from(&mut self, from: &Self) {
        assert_eq!(self.len, from.len, "a copy between regions of different length");
        if self.ptr == from.ptr {
            return;
        }
        // SAFETY: both are valid by the contract of `new`; `copy` allows overlap; `&mut self` is the only access under way.
        unsafe { std::ptr::copy(from.ptr.as_ptr(), self.ptr.as_ptr(), self.len) }
    }

    /// Its bytes.
    ///
    /// # Safety
    /// No code writes them while the slice lives, not through an overlapping region either.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: valid and initialised by the contract of `new`, not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Its bytes, mutable.
    ///
    /// # Safety
    /// No other code reads or writes them while the slice lives, not through an overlapping region either.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: valid and initialised by the contract of `new`, exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

/// Bytes of the engine itself, which are sent in the same way as the caller's memory.
#[derive(Debug)]
pub(crate) struct OwnedBytes(Box<[u8]>);

impl OwnedBytes {
    /// Takes ownership of the bytes.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    /// The region of the bytes. It must not be used after this value is dropped.
    pub(crate) fn region(&self) -> Region {
        Region { ptr: NonNull::from(&*self.0).cast(), len: self.0.len(), staged: None }
    }
}

/// Staging memory of the engine for bytes of the caller, used in the same way as the caller's memory.
#[derive(Debug)]
pub(crate) struct Staging(Region);

impl Staging {
    /// Stages in `lease`. The memory lives as long as this value and every [`Showable`](Region::showable) of it.
    pub(crate) fn new(mut lease: Lease) -> Self {
        let bytes: &mut [u8] = &mut lease;
        let (ptr, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        Self(Region { ptr, len, staged: Some(Arc::new(lease)) })
    }

    /// The region of the bytes. It must not be used after this value is dropped.
    pub(crate) fn region(&self) -> Region {
        self.0.again()
    }
}

/// The CRC-32C of the bytes of `regions`, one after the other.
///
/// An operation calls it on its own contribution before it lends the contribution. So no other thread writes the bytes meanwhile.
pub(crate) fn checksum(regions: &[Region]) -> u32 {
    // SAFETY: the regions are written by a `Landing` only, which this operation makes after its contribution was sent.
    regions.iter().fold(0, |crc, region| wire::checksum(crc, unsafe { region.as_slice() }))
}

/// Calls `read` with the bytes of `regions` in one piece: in place if they are one run, else in a copy, which `copies` counts.
///
/// The current step of an operation calls it, with memory of that operation. So no other code writes the memory meanwhile.
pub(crate) fn read<T>(regions: &[Region], copies: &Copies, read: impl FnOnce(&[u8]) -> T) -> T {
    if let [region] = regions {
        // SAFETY: an operation is in one step at a time, and this step does not write.
        return read(unsafe { region.as_slice() });
    }
    let mut gathered = vec![0; regions.iter().map(Region::len).sum()];
    let mut rest = gathered.as_mut_slice();
    for region in regions {
        let (place, later) = rest.split_at_mut(region.len());
        // SAFETY: as above.
        copies.copy(unsafe { region.as_slice() }, place);
        rest = later;
    }
    read(&gathered)
}

/// Whether `test` holds for the bytes of each of these regions. Called in the same way as [`read`].
pub(crate) fn all(regions: &[Region], mut test: impl FnMut(&[u8]) -> bool) -> bool {
    // SAFETY: an operation is in one step at a time, and this step does not write.
    regions.iter().all(|region| test(unsafe { region.as_slice() }))
}

/// Calls `write` with memory for the bytes of `regions` in one piece: the memory itself if they are one run, else a buffer. The buffer is
/// copied to the regions afterwards, and `copies` counts that.
///
/// Called in the same way as [`read`], with memory that the step does not read elsewhere.
pub(crate) fn fill<T>(mut regions: Vec<Region>, copies: &Copies, write: impl FnOnce(&mut [u8]) -> T) -> T {
    if let [region] = regions.as_mut_slice() {
        // SAFETY: an operation is in one step at a time, and this step uses these bytes here only.
        return write(unsafe { region.as_mut_slice() });
    }
    let mut scattered = vec![0; regions.iter().map(Region::len).sum()];
    let written = write(&mut scattered);
    let mut rest = scattered.as_slice();
    for region in &mut regions {
        let (bytes, later) = rest.split_at(region.len());
        // SAFETY: as above.
        copies.copy(bytes, unsafe { region.as_mut_slice() });
        rest = later;
    }
    written
}

/// Regions lent for reading, as reference-counted pieces.
///
/// The sender may clone, split and keep a piece. The regions return when the last piece is dropped, on any thread.
#[derive(Debug)]
pub struct Loan {
    pieces: Vec<Bytes>,
}

impl Loan {
    /// Lends `regions`. The thread that drops the last piece calls `returned` once. `returned` must not block.
    pub fn new(regions: Vec<Region>, returned: impl FnOnce(Returned) + Send + 'static) -> Self {
        let ticket = Arc::new(Ticket(Mutex::new(Some(Box::new(returned)))));
        let pieces = regions
            .into_iter()
            .filter(|region| !region.is_empty())
            .map(|region| Bytes::from_owner(Piece { region, _ticket: Arc::clone(&ticket) }))
            .collect();
        Self { pieces }
    }

    /// The lent bytes, one piece for each region that is not empty. A loan without bytes has already returned.
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }
}

/// Proof that nothing reads the regions of a loan any more.
pub struct Returned(());

#[cfg(feature = "testing")]
impl Returned {
    /// Proves nothing: for a planted defect.
    pub(crate) fn untrue() -> Self {
        Self(())
    }
}

impl fmt::Debug for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Returned")
    }
}

/// The bytes for another process, kept alive.
struct Kept(Region);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: called once, when the `Bytes` are created. Their writer has ended then. Later this process does not read them
        // (`Showable`).
        unsafe { self.0.as_slice() }
    }
}

struct Piece {
    region: Region,
    _ticket: Arc<Ticket>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: regions are written by a `Landing` only, which cannot be made before this piece has been dropped.
        unsafe { self.region.as_slice() }
    }
}

/// Shared by the pieces of a loan, and dropped with the last one.
struct Ticket(Mutex<Option<OnReturn>>);

type OnReturn = Box<dyn FnOnce(Returned) + Send>;

impl Drop for Ticket {
    fn drop(&mut self) {
        let returned = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        returned.expect("a ticket is dropped once")(Returned(()));
    }
}

/// Writes received bytes to regions, run after run, in the order of their arrival.
#[derive(Debug)]
pub struct Landing {
    /// The regions to fill, in reverse: the next one is the last.
    rest: Vec<Region>,
    bytes_left: usize,
}

impl Landing {
    /// Will fill the first `bytes` bytes of `regions`. The proof comes from the loan of this exchange.
    ///
    /// # Panics
    /// If the regions have fewer.
    pub fn new(mut regions: Vec<Region>, bytes: u64, _nobody_reads: Returned) -> Self {
        let room: usize = regions.iter().map(Region::len).sum();
        let bytes_left = usize::try_from(bytes).ok().filter(|bytes| *bytes <= room);
        regions.reverse();
        Self { bytes_left: bytes_left.expect("the callers check the length that a peer announces"), rest: regions }
    }

    /// The bytes that are still missing.
    pub fn bytes_left(&self) -> usize {
        self.bytes_left
    }

    /// Writes the next bytes.
    ///
    /// # Panics
    /// If the bytes do not fit. Callers check the length that a peer announces first.
    pub fn write(&mut self, mut bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes_left, "{} bytes where {} are left", bytes.len(), self.bytes_left);
        self.bytes_left -= bytes.len();
        while !bytes.is_empty() {
            let region = self.rest.pop().expect("regions hold at least bytes_left bytes");
            let at = bytes.len().min(region.len());
            let (mut now, later) = region.split_at(at);
            // SAFETY: no code reads the regions of this exchange any more (`Returned`), and a `Landing` is their only writer.
            unsafe { now.as_mut_slice() }.copy_from_slice(&bytes[..at]);
            bytes = &bytes[at..];
            if !later.is_empty() {
                self.rest.push(later);
            }
        }
    }
}

/// `memory` as a region, for tests. They keep `memory` alive and do not use it before the operation has reported its end.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn region_of(memory: &mut [u8]) -> Region {
    // SAFETY: upheld by the tests, see above.
    unsafe { Region::new(memory.as_mut_ptr(), memory.len()) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_loan_returns_with_its_last_piece() {
        let mut memory = *b"abcdef";
        let (sender, returned) = mpsc::channel();
        let loan = Loan::new(regions(&mut memory, &[4, 2]), move |proof| sender.send(proof).unwrap());
        let mut pieces = loan.into_pieces();
        let slice_of_a_clone = pieces[0].clone().slice(1..3);
        assert_eq!(pieces.iter().map(|piece| &piece[..]).collect::<Vec<_>>(), [b"abcd" as &[u8], b"ef"]);
        assert_eq!(slice_of_a_clone.as_ptr(), memory[1..].as_ptr(), "lent where it lies, not copied");
        pieces.clear();
        assert!(returned.try_recv().is_err(), "a slice of a clone is still held");
        assert_eq!(&slice_of_a_clone[..], b"bc");
        drop(slice_of_a_clone);
        assert!(returned.try_recv().is_ok());
    }

    #[test]
    fn a_loan_of_nothing_returns_at_once() {
        let (sender, returned) = mpsc::channel();
        let loan = Loan::new(regions(&mut [], &[0, 0]), move |proof| sender.send(proof).unwrap());
        assert!(returned.try_recv().is_ok());
        assert!(loan.into_pieces().is_empty());
    }

    #[test]
    fn bytes_land_across_regions_in_place_of_what_was_lent() {
        let mut memory = *b"abcdef";
        let (sender, returned) = mpsc::channel();
        let loan = Loan::new(regions(&mut memory, &[6]), move |proof| sender.send(proof).unwrap());
        drop(loan.into_pieces());
        let mut landing = Landing::new(regions(&mut memory, &[1, 0, 2, 3]), 6, returned.recv().unwrap());
        for chunk in [b"uv" as &[u8], b"", b"wxy", b"z"] {
            landing.write(chunk);
        }
        assert_eq!((landing.bytes_left(), &memory), (0, b"uvwxyz"));
    }

    #[test]
    #[should_panic(expected = "2 bytes where 1 are left")]
    fn more_than_fits_is_never_written() {
        let mut memory = [0; 2];
        let (sender, returned) = mpsc::channel();
        drop(Loan::new(Vec::new(), move |proof| sender.send(proof).unwrap()));
        Landing::new(regions(&mut memory, &[2]), 1, returned.recv().unwrap()).write(&[1, 2]);
    }

    /// `memory` cut into runs of these lengths.
    fn regions(memory: &mut [u8], lens: &[usize]) -> Vec<Region> {
        let mut rest = region_of(memory);
        let mut regions = Vec::new();
        for len in lens {
            let (run, later) = rest.split_at(*len);
            regions.push(run);
            rest = later;
        }
        regions
    }
}
