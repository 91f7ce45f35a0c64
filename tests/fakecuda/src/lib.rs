//! The CUDA driver's C interface over host memory: what the real `cudarc` code runs on where there is no GPU.
//!
//! A stream is a thread with a queue, an event a point in such a queue, device memory a mapping with a register of what is allocated.
//! Order, blocking, bounds, pinned ranges, capture and failures follow the driver's documentation (reference manual, CUDA 13.0); where
//! the documentation leaves a choice, the strict one is taken, so that what runs here runs there. Kernels run as their
//! PTX says ([`ptx`]).
//!
//! # How tests reach it
//! It is built as `libfakecuda.so` whenever a crate that depends on it is built for its tests; [`library`] says where it lies. Product
//! code gets that path as the setting `cuda_lib`; the test itself steers and looks through [`Control`], which asks the same mapping.
//! Never call the functions of this crate directly from Rust: they would act on a second copy of the state.
//!
//! # Settings
//! Read from the environment at the first call, changed later with [`Control::set`] (without the prefix `FAKECUDA_`):
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `FAKECUDA_DEVICES` | how many devices there are; fixed by `cuInit` | 1 |
//! | `FAKECUDA_MEMORY` | bytes of memory of each | 4 GiB |
//! | `FAKECUDA_FAIL` | calls and executed operations that fail, see [`faults`] | |
//! | `FAKECUDA_LAG_US` | how long a stream waits before each copy, kernel or host function | 0 |
//! | `FAKECUDA_LAG_STREAM` | which one: `all`, `default`, `user`, or the k-th that was created, from 0 | `all` |
//! | `FAKECUDA_GB_PER_S` | rate of each direction of copies, 1e9 bytes a second; 0 is as fast as it goes | 0 |
//! | `FAKECUDA_HIDDEN` | 1: device addresses are not those of the host, and whoever reads them there crashes as he should | 0 |
//! | `FAKECUDA_PCI` | PCI addresses of the devices, with commas | `0000:01:00.0` and on |
//! | `FAKECUDA_PEERS` | devices reach each other in groups of so many; 0 is all | 0 |
//! | `FAKECUDA_STRICT` | 0: what was freed is never at the address of something new, and neither loading a module nor pinning memory waits for running work | 1 |
//! | `FAKECUDA_CALL_US` | how long each call takes that puts a copy, a kernel or a host function into a stream | 0 |
//! | `FAKECUDA_SLOTS` | how many kernels and host functions a device runs at a time | 8 |
//! | `FAKECUDA_CAPABILITY` | compute capability of the devices; PTX for newer ones is refused (218) | 9.0 |
//! | `FAKECUDA_VERSION` | of CUDA, that the driver speaks; PTX of a newer one is refused (222) | 13.0 |
//! | `FAKECUDA_REGISTER_SHARED` | 0: memory that processes share is not registered (801) | 1 |
//!
//! A stream or event that is used after its end ends the process, because the real driver may crash then. With `FAKECUDA_STRICT=0` it is
//! refused (400), as a handle is that never was one.
//!
//! In a fork of the process every call answers 3, as there are no threads and whoever held a lock is gone.
//!
//! State of the process is what a C library has: there is one driver in a process, here as in reality, and this crate is no part of the
//! product, whose rule against statics therefore does not bind it.

mod api;
mod built;
mod capture;
mod client;
mod codes;
mod copies;
mod counters;
mod driver;
mod event;
pub mod faults;
mod graph;
mod kernel;
mod memory;
pub mod ptx;
mod settings;
mod steering;
mod stream;
mod time;

pub use client::{Control, Exec, library};
