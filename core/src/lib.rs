//! Gradlane's engine: it sums gradients over the workers of a training job.
//!
//! The modules are declared floor by floor, lowest first; a module uses only floors below its own. `ARCHITECTURE.md` has the map.

// Floor 0: words that everybody uses.
pub mod id;

pub mod error;
pub mod types;

pub mod config;
pub mod metrics;

// Floor 1: pure machines. No thread, socket, clock or environment; time and randomness are arguments.
pub mod cluster;
pub mod codec;
pub mod mem;
pub mod pipeline;
pub mod reduce;
pub mod sched;
pub mod wire;

pub mod worker;

// Floor 2: drivers. `local`, `cuda` and `identity` stand below the others.
pub mod cuda;
pub mod local;

pub mod identity;

pub mod collective;
pub mod device;
pub mod transport;

// Floor 3: threads; the only place that joins the floors below.
pub mod runtime;

pub mod engine;

pub use error::{Code, Error, Result};

#[cfg(test)]
#[path = "../../tests/harness/skip.rs"]
pub mod skip;

#[cfg(test)]
#[path = "../../tests/harness/random.rs"]
pub mod random;

#[cfg(test)]
#[path = "../../tests/harness/allocation.rs"]
pub mod allocation;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;
