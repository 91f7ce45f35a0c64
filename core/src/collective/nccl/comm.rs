//! A communicator of NCCL: one device of each rank of a machine.
//!
//! No call blocks; [`state`](Comm::state) tells when a call is done. Used by one thread at a time.
#![expect(unsafe_code, reason = "functions of NCCL are called")]

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use cudarc::nccl::sys::{cudaStream_t, ncclComm_t, ncclConfig_t, ncclRedOp_t, ncclUniqueId};

use super::library::{Library, Version};
use super::program::{Reduction, Step, data_type};
use super::table::{Code, IN_PROGRESS, REMOTE_ERROR, SUCCESS};
use crate::collective::DeviceMemory;
use crate::cuda::{Stream, name};
use crate::error::{Error, Result, Tensors};
use crate::mem::{DeviceRegion, Ordinal};
use crate::types::DType;

/// This rank's side of a communicator. Dropping it does nothing: end it in order, or abort it.
pub(super) struct Comm {
    library: Arc<Library>,
    device: Ordinal,
    raw: ncclComm_t,
}

/// One operation of NCCL, called once for every run of memory.
pub(super) struct Call {
    pub(super) step: Step,
    pub(super) dtype: DType,
    pub(super) memory: DeviceMemory,
    /// The divisor of the result afterwards.
    pub(super) divisor: Option<u32>,
}

impl Call {
    /// The bytes that it reads.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.source.iter().map(|run| run.len() as u64).sum()
    }
}

// SAFETY: a communicator may be used by any thread of its process, by one at a time (NCCL user guide, "Thread Safety"); it is moved and
// never shared.
unsafe impl Send for Comm {}

/// Bytes of the id under which ranks connect.
pub(super) const ID_BYTES: usize = size_of::<ncclUniqueId>();

/// The NCCL version of the header from which cudarc's types come.
const HEADER_VERSION: u32 = 22800;
/// The magic number of NCCL's configuration (`NCCL_API_MAGIC`).
const MAGIC: u32 = 0xcafe_beef;
/// A setting that is left to NCCL (`NCCL_CONFIG_UNDEF_INT`).
const UNDEFINED: c_int = c_int::MIN;

/// A new id for a communicator, for the first rank.
///
/// # Errors
/// [`Error::Device`] if NCCL finds no network interface through which ranks can connect.
pub(super) fn unique_id(library: &Library, device: Ordinal) -> Result<[u8; ID_BYTES]> {
    let mut id = ncclUniqueId { internal: [0; ID_BYTES] };
    // SAFETY: it writes one id.
    let code = unsafe { (library.table.unique_id)(&raw mut id) };
    checked(library, device, ptr::null_mut(), "ncclGetUniqueId", code)?;
    Ok(id.internal.map(c_char_to_byte))
}

/// Copies within a device, in the order of `stream`.
///
/// # Errors
/// [`Error::Device`] if the driver refuses.
pub(super) fn copy_within(from: &DeviceRegion, to: &DeviceRegion, stream: &Stream) -> Result<()> {
    if from == to || from.is_empty() {
        return Ok(());
    }
    let context = stream.context();
    // SAFETY: the submitter of the memory promised that it is valid memory of this device until the operation reports, and the runs are
    // equally long; the stream lives.
    let code = unsafe { (context.api().copy_within)(to.address(), from.address(), from.len(), stream.raw()) };
    context.checked("a copy within the device", code)
}

impl Comm {
    /// Begins to connect with the other ranks; `id` comes from the first rank. This thread must have bound the device's context.
    ///
    /// There may be a communicator although the call failed. It must be aborted like any other.
    pub(super) fn meet(
        library: &Arc<Library>,
        device: Ordinal,
        id: [u8; ID_BYTES],
        me: usize,
        ranks: usize,
    ) -> (Option<Self>, Result<()>) {
        let id = ncclUniqueId { internal: id.map(byte_to_c_char) };
        let mut config = config();
        let mut raw = ptr::null_mut();
        // SAFETY: it reads the configuration, which is laid out as its size and version say, and writes one handle.
        let code = unsafe { (library.table.init)(&raw mut raw, count(ranks), id, count(me), &raw mut config) };
        let begun = checked(library, device, ptr::null_mut(), "ncclCommInitRankConfig", code);
        if code == SUCCESS {
            tracing::warn!(
                "NCCL waits in its calls, because NCCL_COMM_BLOCKING=1 is in the environment or in nccl.conf: the loss of a worker may be told \
                 late, and its tensors may stay in memory; unset it"
            );
        }
        let comm = (!raw.is_null()).then(|| Self { library: Arc::clone(library), device, raw });
        (comm, begun)
    }

    /// Whether all calls are done or on their stream. Until then, only [`abort`](Self::abort) may be called.
    ///
    /// # Errors
    /// [`Error::Device`] if a call failed since, here or on another rank.
    pub(super) fn state(&self) -> Result<bool> {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives, and it writes one number.
        let code = unsafe { (self.library.table.async_error)(self.raw, &raw mut state) };
        self.checked("ncclCommGetAsyncError", code)?;
        self.checked("a collective operation", state)?;
        Ok(state != IN_PROGRESS)
    }

    /// Whether another rank caused the failure.
    pub(super) fn blames_another(&self) -> bool {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives, and it writes one number.
        let code = unsafe { (self.library.table.async_error)(self.raw, &raw mut state) };
        code == SUCCESS && state == REMOTE_ERROR
    }

    /// Makes these calls on `stream`, each for every run of its memory, as one group, which NCCL carries out side by side.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(super) fn call(&self, calls: &[Call], stream: &Stream) -> Result<()> {
        let table = &self.library.table;
        // SAFETY: it has no arguments.
        self.checked("ncclGroupStart", unsafe { (table.group_start)() })?;
        let called = calls.iter().try_for_each(|call| self.call_runs(call, stream));
        // Also after a failure: a group that is open would swallow what comes next.
        // SAFETY: it has no arguments.
        let ended = self.checked("ncclGroupEnd", unsafe { (table.group_end)() });
        called.and(ended)
    }

    fn call_runs(&self, Call { step, dtype, memory, .. }: &Call, stream: &Stream) -> Result<()> {
        let mut runs = memory.source.iter().zip(&memory.destination).filter(|(run, _)| !run.is_empty());
        runs.try_for_each(|(source, destination)| self.call_run(*step, *dtype, source, destination, stream))
    }

    fn call_run(
        &self,
        step: Step,
        dtype: DType,
        source: &DeviceRegion,
        destination: &DeviceRegion,
        stream: &Stream,
    ) -> Result<()> {
        let table = &self.library.table;
        let (from, to): (*const c_void, *mut c_void) = (address(source).cast_const(), address(destination));
        let (len, comm, stream) = (elements(source, dtype), self.raw, stream.raw().cast::<_>() as cudaStream_t);
        let kind = data_type(dtype);
        match step {
            Step::AllReduce(reduction) => {
                let op = operator(reduction);
                // SAFETY: the submitter of the memory promised that it is valid memory of this device until the operation reports, which it
                // does once the stream has come so far; the communicator and the stream live.
                let code = unsafe { (table.all_reduce)(from, to, len, kind, op, comm, stream) };
                self.checked("ncclAllReduce", code)
            }
            Step::Reduce { reduction, root } => {
                let op = operator(reduction);
                // SAFETY: as above. What comes of it is written at the root only.
                let code = unsafe { (table.reduce)(from, to, len, kind, op, count(root), comm, stream) };
                self.checked("ncclReduce", code)
            }
            Step::ReduceScatter(reduction) => {
                let (op, each) = (operator(reduction), elements(destination, dtype));
                // SAFETY: as above. The source has a share for each rank, as it was made.
                let code = unsafe { (table.reduce_scatter)(from, to, each, kind, op, comm, stream) };
                self.checked("ncclReduceScatter", code)
            }
            Step::AllGather => {
                // SAFETY: as above. The destination has a share for each rank, as it was made.
                let code = unsafe { (table.all_gather)(from, to, len, kind, comm, stream) };
                self.checked("ncclAllGather", code)
            }
            Step::Broadcast { root } => {
                // SAFETY: as above. The source is read at the root only.
                let code = unsafe { (table.broadcast)(from, to, len, kind, count(root), comm, stream) };
                self.checked("ncclBroadcast", code)
            }
            Step::Send { to } => {
                // SAFETY: as above.
                let code = unsafe { (table.send)(from, len, kind, count(to), comm, stream) };
                self.checked("ncclSend", code)
            }
            Step::Receive { from } => {
                // SAFETY: as above.
                let code = unsafe { (table.receive)(to, len, kind, count(from), comm, stream) };
                self.checked("ncclRecv", code)
            }
            Step::Keep | Step::Nothing => Ok(()),
        }
    }

    /// Begins to end it. No operation may be under way.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(super) fn finalize(&self) -> Result<()> {
        // SAFETY: the communicator lives.
        self.checked("ncclCommFinalize", unsafe { (self.library.table.finalize)(self.raw) })
    }

    /// Frees it after [`finalize`](Self::finalize) is done: NCCL refuses to free a communicator in progress, and then frees nothing. Waits for the other ranks, so it may take for ever. The thread must have bound
    /// the device's context.
    pub(super) fn destroy(self) {
        // SAFETY: the communicator lives, and is not used after this.
        let code = unsafe { (self.library.table.destroy)(self.raw) };
        if code != SUCCESS {
            tracing::debug!(code, "NCCL did not end a communicator");
        }
    }

    /// Begins to stop the operations under way, and frees nothing; [`state`](Self::state) tells when they have stopped. After this, only
    /// [`abort`](Self::abort) may be called. Whether it was begun: a library before 2.28.7 cannot.
    pub(super) fn revoke(&self) -> bool {
        /// No flags exist (`NCCL_REVOKE_DEFAULT`).
        const DEFAULT: c_int = 0;
        let Some(revoke) = self.library.table.revoke.filter(|_| self.library.version >= Version::REVOKES) else {
            return false;
        };
        // SAFETY: the communicator lives. It may be called at any time between two other calls.
        let code = unsafe { revoke(self.raw, DEFAULT) };
        matches!(code, SUCCESS | IN_PROGRESS)
    }

    /// Ends the operations under way and frees the communicator, without waiting for other ranks. May take long, or for ever: the driver
    /// frees memory when all work of the device has ended, that of the framework too. The thread
    /// must have bound the device's context: in a thread without one, NCCL makes a context on the first device.
    pub(super) fn abort(self) {
        // SAFETY: the communicator lives, and is not used after this. It may be called at any time between two other calls.
        let code = unsafe { (self.library.table.abort)(self.raw) };
        if code != SUCCESS {
            tracing::debug!(code, "NCCL did not abort a communicator");
        }
    }

    fn checked(&self, what: &str, code: Code) -> Result<()> {
        checked(&self.library, self.device, self.raw, what, code)
    }
}

fn checked(library: &Library, device: Ordinal, comm: ncclComm_t, what: &str, code: Code) -> Result<()> {
    match code {
        SUCCESS | IN_PROGRESS => Ok(()),
        code => Err(Error::Device {
            device: name(device),
            what: what.to_owned(),
            tensor: Tensors::Unknown,
            cause: library.table.describe(code, comm),
        }),
    }
}

/// NCCL's name of a reduction.
const fn operator(reduction: Reduction) -> u32 {
    (match reduction {
        Reduction::Sum => ncclRedOp_t::ncclSum,
        Reduction::Min => ncclRedOp_t::ncclMin,
        Reduction::Max => ncclRedOp_t::ncclMax,
    }) as u32
}

macro_rules! laid_out {
    ($($field:ident at $offset:literal),+) => {
        const _: () = {
            $(assert!(offset_of!(ncclConfig_t, $field) == $offset);)+
        };
    };
}

// As nccl.h lays it out, with which a test compares these numbers.
laid_out! {
    size at 0, magic at 8, version at 12, blocking at 16, cgaClusterSize at 20, minCTAs at 24, maxCTAs at 28, netName at 32,
    splitShare at 40, trafficClass at 44, commName at 48, collnetEnable at 56, CTAPolicy at 60, shrinkShare at 64,
    nvlsCTAs at 68, nChannelsPerNetPeer at 72, nvlinkCentricSched at 76
}

fn config() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: MAGIC,
        version: HEADER_VERSION,
        // An abort would free one that blocks without waiting for the thread that calls it.
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
    }
}

fn address(region: &DeviceRegion) -> *mut c_void {
    // An address of the device, which the host does not access.
    ptr::without_provenance_mut(usize::try_from(region.address()).expect("an address is a pointer"))
}

fn elements(region: &DeviceRegion, dtype: DType) -> usize {
    region.len() / usize::try_from(dtype.bytes()).expect("at most 8")
}

fn count(number: usize) -> c_int {
    c_int::try_from(number).expect("at most RANKS_MAX")
}

const fn c_char_to_byte(char: std::ffi::c_char) -> u8 {
    char as u8
}

const fn byte_to_c_char(byte: u8) -> std::ffi::c_char {
    byte as std::ffi::c_char
}
