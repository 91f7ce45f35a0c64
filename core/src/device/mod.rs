//! Devices: memory that the network cannot reach, and copies between it and the host.
//!
//! A device copies what it is told in the order in which it is told; what goes first is decided by the queues of COPYD2H and COPYH2D.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod host;

use std::fmt;

use crate::codec::Coding;
use crate::cuda::Mark;
use crate::error::Result;
use crate::mem::{DeviceRegion, Lease, Ordinal, Region};
use crate::types::{DType, Done, Encoding};

#[cfg(feature = "cuda")]
pub use self::cuda::CudaDevice;
pub use self::host::HostDevice;

/// The devices of one kind that this process reaches.
pub trait Device: Send + Sync + fmt::Debug {
    /// What `device` is called in messages, such as `cuda:1`.
    fn name(&self, device: Ordinal) -> String;

    /// Marks where `stream` of `device` stands now. Called on the caller's thread: it takes microseconds and waits for nothing.
    ///
    /// `stream` is the framework's handle of it; 0 is the device's default stream.
    ///
    /// # Errors
    /// [`FailedPrecondition`](crate::Error::FailedPrecondition) while the stream is captured into a graph,
    /// [`InvalidArgument`](crate::Error::InvalidArgument) if there is no such device, [`Device`](crate::Error::Device) if the device
    /// failed.
    fn mark(&self, device: Ordinal, stream: u64) -> Result<Mark>;

    /// Memory of the host that copies from and to `device` reach at their full rate, near it where the machine tells what is. Any device may
    /// use it, and with `shown` other processes of the machine can be let read it, where there is such memory. Does not wait: where no more may be pinned it is ordinary memory, which copies reach more slowly.
    ///
    /// # Errors
    /// [`Exhausted`](crate::Error::Exhausted) if `bytes` alone are more than may ever be pinned.
    fn lease(&self, device: Ordinal, bytes: usize, shown: bool) -> Result<Lease>;

    /// Whether copies of this kind of device can encode elements of this type and decode them.
    fn encodes(&self, dtype: DType, encoding: Encoding) -> bool;

    /// Copies, once every mark of `after` is reached. `done` hears of the end on a thread of the device, when nothing of the memory is
    /// used any more; a fault of the device is [`Device`](crate::Error::Device).
    fn copy(&self, transfer: Transfer, after: &[Mark], done: Done<()>);

    /// Ends what is under way with an error and the threads with it. Idempotent.
    fn shutdown(&self);
}

/// What is copied. Both sides hold as many elements, and the regions of the device are all of one device.
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
    /// From the device, run after run, to the host, which gets the wire form of the elements.
    Encode {
        /// Where the elements lie.
        from: Vec<DeviceRegion>,
        /// Where their wire form goes.
        to: Region,
        /// Which wire form.
        coding: Coding,
    },
    /// From the host, which has the wire form of elements, to the device, run after run.
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
