//! NCCL's C interface over host memory: what the real collective code runs on where there is no GPU.
//!
//! Ranks are threads or processes that meet in one file, which the unique id names and which nobody can open any more once all have it.
//! An operation is a host function in the stream that it was called with; it goes chunk by chunk through the file. The driver is the
//! mapped `libcuda.so`, which must be `fakecuda`: its device memory is what the host can reach.
//!
//! # What is the same and what is stricter
//! * A communicator that does not block (`blocking = 0`) answers 7 to whatever ends a group, and puts the work into the stream *later*, from
//!   a thread of its own, as NCCL does: whoever records an event before `ncclCommGetAsyncError` says 0 misses it. Any other call meanwhile
//!   is refused with 4, which is the communicator's failure from then on.
//! * Ranks that call different things, in a different order or of different lengths, are told: 5 on all of them, with both calls in
//!   `ncclGetLastError`. So are ranks that group their collective calls differently. NCCL would hang or mix up bytes. What two ranks send
//!   each other may be in any groups, as in NCCL, which does it after the collective operations of a group.
//! * A rank that ended, left or gave up, or that does not come, is waited for without end, as NCCL's kernels do within a machine: only an
//!   abort ends it. What an operation that is stopped has written is anything. With `FAKENCCL_STRICT=0` a rank that is gone is noticed at
//!   once, and one that does not come after `FAKENCCL_TIMEOUT`: 6. So is an abort by the others.
//! * Whoever calls without a current context gets one on the first device, as from CUDA's runtime; the counter `contexts_made` counts them.
//! * `ncclCommDestroy` waits for the other ranks. One that does not block and is in progress is refused (4), and nothing is freed.
//! * An abort stops what is under way, and then waits for all work of the device, that of others too, because it frees memory.
//!   `ncclCommRevoke`, from 2.28.7 on, only stops.
//! * The collective operations of a group are done in another order than they were called in, the same on all ranks.
//! * Every field of `ncclConfig_t` is checked that the version has. `NCCL_COMM_BLOCKING` goes before what the configuration says.
//! * Two ranks on one device (by PCI address, unless `NCCL_HOSTID` differs) are refused with 5, as before NCCL 2.30.
//! * Buffers are device memory of the communicator's device, and overlap as NCCL's in-place rules say or not at all; else 4.
//! * Sums are made in the order of ranks, those of f16 and bf16 in f32, rounded once. An average of floats is the sum of contributions
//!   times the rounded reciprocal of their number, one of integers is rounded towards zero, as in NCCL.
//!
//! # Settings
//! From the environment at the first call, or with [`Control::set`] without the prefix:
//!
//! | name | meaning | default |
//! |---|---|---|
//! | `FAKENCCL_STRICT` | 0: more is noticed and forgiven than NCCL does, see above | 1 |
//! | `FAKENCCL_TIMEOUT` | seconds until a rank that does not come is an error; six times as much to meet | 5 |
//! | `FAKENCCL_VERSION` | what `ncclGetVersion` says | 22809 |
//! | `FAKENCCL_FAIL` | calls that fail, such as `ncclAllReduce=3@2`, and operations that fail in the stream, such as `AllReduce:1=6` on rank 1; the form is that of `fakecuda` | |
//! | `FAKENCCL_INIT_US` | how long meeting takes at least, so that 7 can be seen | 0 |
//! | `FAKENCCL_LAUNCH_US` | how much later a communicator that does not block puts its work into the stream | 0 |
//! | `FAKENCCL_ABORT_US` | how long an abort lets operations go on before it stops them; a smaller number ends that at once | 0 |
//! | `FAKENCCL_DESTROY_US` | how long destroying takes, as if another rank did not come; a smaller number ends that at once | 0 |
//! | `FAKENCCL_INIT_CODE` | with which code a new communicator fails at once, though there is one | 0 |
//! | `FAKENCCL_HOLD` | after so many operations of the process the next one waits in its stream, until this is larger or empty | |
//! | `FAKENCCL_DUPLICATES` | 1: several ranks may have one device | 0 |
//!
//! State of the process is what a C library has; this crate is no part of the product, whose rule against statics does not bind it.

mod api;
mod arithmetic;
#[path = "../../fakecuda/src/built.rs"]
mod built;
mod client;
mod clock;
mod codes;
mod comm;
mod config;
mod cuda;
#[path = "../../fakecuda/src/faults.rs"]
mod faults;
mod group;
mod library;
mod mail;
mod meeting;
mod operation;
mod settings;
mod shared;
#[path = "../../fakecuda/src/steering.rs"]
mod steering;

pub use client::{Control, library};
