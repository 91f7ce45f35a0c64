//! Devices: memory that the network cannot reach, copies between it and the host, and looks at what lies there.
//!
//! A device makes copies in the order in which they are submitted. The queues of COPYD2H and COPYH2D decide that order.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod host;
mod varying;

use std::fmt;

use crate::codec::{Coding, Seed};
use crate::cuda::{Mark, OnIssue};
use crate::error::Result;
use crate::mem::{DeviceRegion, Doubt, Lease, Ordinal, Region};
use crate::types::{CodecSpec, DType, Done, InCopies};

#[cfg(feature = "cuda")]
pub use self::cuda::CudaDevice;
pub use self::host::HostDevice;
pub use self::varying::Varying;

/// The devices of one kind that this process reaches.
pub trait Device: Send + Sync + fmt::Debug {
    /// The name of `device` in messages, such as `cuda:1`.
    fn name(&self, device: Ordinal) -> String;

    /// Marks the current end of `stream` of `device`. Called on the caller's thread, so it takes only microseconds and does not wait.
    ///
    /// `stream` is the framework's handle of it; 0 is the device's default stream.
    ///
    /// # Errors
    /// [`FailedPrecondition`](crate::Error::FailedPrecondition) while the stream is captured into a graph,
    /// [`InvalidArgument`](crate::Error::InvalidArgument) if there is no such device, [`Device`](crate::Error::Device) if the device
    /// failed.
    fn mark(&self, device: Ordinal, stream: u64) -> Result<Mark>;

    /// Leases host memory for copies from and to `device` at full rate, on the device's NUMA node if that is known. Any device may use it.
    /// With `shown`, it lies in memory that other processes of the machine can read, if the device has such memory. Does not wait: when no
    /// more memory may be pinned, it is ordinary memory, and its copies are slower.
    ///
    /// # Errors
    /// [`Exhausted`](crate::Error::Exhausted) if `bytes` exceed the limit of pinned memory.
    fn lease(&self, device: Ordinal, bytes: usize, shown: bool) -> Result<Lease>;

    /// As [`lease`](Self::lease), of memory that was leased for full rate before. `None` if none is free. Pins nothing, so a thread of the
    /// caller may call it.
    fn lease_again(&self, device: Ordinal, bytes: usize, shown: bool) -> Option<Lease>;

    /// What copies of this device do with elements of this type and their codec.
    fn in_copies(&self, dtype: DType, codec: CodecSpec) -> InCopies;

    /// Copies once every mark of `after` is reached. `issued` is told when the copy is on a stream. A thread of the device calls `done` when
    /// the copy no longer uses the memory. If the device fails, the error is [`Device`](crate::Error::Device).
    fn copy(&self, transfer: Transfer, after: &[Mark], issued: OnIssue, done: Done<()>);

    /// As [`copy`](Self::copy), for a short copy from the device to memory of [`lease_again`](Self::lease_again). Submits it on the calling
    /// thread, which may be one of the caller, unless other copies wait to be submitted.
    fn copy_here(&self, transfer: Transfer, after: &[Mark], issued: OnIssue, done: Done<()>);

    /// Looks for NaN and infinities in `runs` once every mark of `after` is reached: whole elements of type `dtype`, all in memory of one
    /// device. `done` is told whether all elements are finite, when the device no longer reads the memory. It may be called on this thread.
    /// If the device fails, the error is [`Device`](crate::Error::Device). Looks at one device end in the order in which they were asked for.
    fn all_finite(&self, runs: Vec<DeviceRegion>, dtype: DType, after: &[Mark], done: Done<bool>);

    /// Ends all copies and looks with an error, and ends the threads. If a device does not stop in time, raises `doubt` for ever: the device may still
    /// use memory of these copies. As long as `doubt` exists, the device's own memory is not freed. Idempotent.
    fn shutdown(&self, doubt: &Doubt);
}

/// A copy. Both sides hold the same number of elements, and all its device regions belong to one device.
#[derive(Debug)]
pub enum Transfer {
    /// From the device, run after run, to the host.
    Out {
        /// Where it lies.
        from: Vec<DeviceRegion>,
        /// Where it goes.
        to: Region,
    },
    /// From the host to the device, run after run.
    In {
        /// Where it lies.
        from: Region,
        /// Where it goes.
        to: Vec<DeviceRegion>,
    },
    /// From the device, run after run, to the host, in the wire form of the elements. If its length varies, there is one run, and the host
    /// learns the length as [`Varying`] says.
    Encode {
        /// Where the elements lie.
        from: Vec<DeviceRegion>,
        /// Where their wire form goes: of an exact length, or [`Varying::room`].
        to: Region,
        /// Which wire form.
        coding: Coding,
        /// What the codec draws from, from the first element of the first run on.
        seed: Seed,
    },
    /// From the host, in the wire form of the elements, to the device, run after run.
    Decode {
        /// Where the wire form lies.
        from: Region,
        /// Where the elements go.
        to: Vec<DeviceRegion>,
        /// Which wire form.
        coding: Coding,
    },
    /// From the device to itself.
    Within {
        /// Where it lies.
        from: DeviceRegion,
        /// Where it goes; may be the same memory.
        to: DeviceRegion,
    },
}
