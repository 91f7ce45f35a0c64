//! The base of all CUDA code: the driver, found at run time, and thin owners of its handles.
//!
//! `device` and `collective` use this module and do not see each other. [`Driver::load`] looks for the driver. A [`Context`] is a device,
//! [`Stream`] and [`Event`] order work on it, and [`Kernels`] and its like for codecs are our own work. Only the [`Reaper`] turns the end of work on a device into an outcome. Functions are called through one table (`api`), and one list
//! has the texts of result codes (`codes`). `loader` finds the libraries of NVIDIA, also for `collective`.
//!
//! Without the feature `cuda`, only the names of devices and [`describe()`] remain.

#[cfg(feature = "cuda")]
mod api;
#[cfg(feature = "cuda")]
mod codes;
#[cfg(feature = "cuda")]
mod context;
mod describe;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod event;
#[cfg(all(test, feature = "cuda"))]
pub(crate) mod fake;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(feature = "cuda")]
pub(crate) mod loader;
mod mark;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod pci;
#[cfg(feature = "cuda")]
mod reaper;
#[cfg(feature = "cuda")]
mod stream;
#[cfg(feature = "cuda")]
mod wiring;

#[cfg(feature = "cuda")]
pub(crate) use codes::{INVALID_VALUE, name};
#[cfg(feature = "cuda")]
pub(crate) use context::Context;
pub use describe::{Line, describe};
#[cfg(feature = "cuda")]
pub(crate) use driver::Driver;
#[cfg(feature = "cuda")]
pub use event::Event;
#[cfg(feature = "cuda")]
pub(crate) use kernels::{CodecKernels, DitheringKernels, FiniteKernel, Kernels, PartKernels, TopKKernels};
pub use mark::{Mark, Marks, OnIssue};
#[cfg(feature = "cuda")]
pub(crate) use memory::DeviceMemory;
#[cfg(feature = "cuda")]
pub(crate) use reaper::Reaper;
#[cfg(feature = "cuda")]
pub(crate) use stream::Stream;
#[cfg(feature = "cuda")]
pub(crate) use wiring::{groups, numa_node};
