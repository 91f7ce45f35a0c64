//! Host memory with one writer at a time, visible in its type: [`Lease`] (mutable, owned) → [`Frozen`] (shared) → back to the [`Pool`].

pub mod borrow;
pub mod pool;

pub use borrow::{Loan, Region};
pub use pool::{Frozen, Lease, Pool};
