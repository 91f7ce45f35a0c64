//! Models of what threads share, which the deterministic simulation does not reach.
//!
//! The files of production are compiled here a second time, unchanged (`#[path]`). What they import as `crate::local::sync` leads to
//! `shuttle` here: each lock, condition variable and atomic is then a place at which a scheduler may run another thread. `shuttle` runs a
//! model many times, each time in another order, and reports a deadlock, which a lost wake-up is: no wait of a model ever times out.
//!
//! A model proves something only if it finds a defect. So most have a *planted* form, with a defect that was found or is easily made, which
//! must fail. `shuttle` runs with sequential consistency, so that too weak an ordering of atomics is not found.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    unused_imports,
    clippy::mut_from_ref,
    reason = "the files of production have more than a model uses, and what stands in for others is as small as it can be"
)]

pub mod error {
    //! That of the engine.
    pub use gradlane_core::error::*;
}
pub mod types {
    //! Those of the engine.
    pub use gradlane_core::types::*;
}
pub mod worker {
    //! What the worker machine answers to a waiting thread.
    pub use gradlane_core::worker::Liveness;
}
pub mod cuda {
    //! Marks, of which a model has none.
    pub use gradlane_core::cuda::{Mark, Marks};
}
pub mod mem;

pub mod local;

pub mod collective;
pub mod engine;
pub mod runtime;
pub mod transport;

/// Runs `model` in so many random orders. Half of them are by PCT, which finds defects of few preemptions sooner (Burckhardt et al. 2010).
///
/// # Panics
/// If an order leads to a deadlock or a panic; the message has the schedule with which `shuttle::replay` repeats it.
pub fn explore(orders: usize, model: fn()) {
    shuttle::check_random(model, orders.div_ceil(2));
    shuttle::check_pct(model, orders.div_ceil(2), 3);
}
