//! Host memory with one writer at a time. The types enforce this.
//!
//! Memory of the engine: [`Lease`] (mutable, owned) → [`Frozen`] (shared) → back to the [`Pool`]. Memory of the caller: a [`Loan`] lends a
//! [`Region`] for reading. When its last reader drops it, the loan returns a proof, [`Returned`]; a [`Landing`] needs this proof to write
//! to memory that the loan may have read. Memory of a device is a [`DeviceRegion`], which the host cannot read. A [`Doubt`] says whether a
//! device may still write it after a failure. [`Copies`] makes and counts copies to staging memory. [`prefetch`] says that memory is used soon.

pub mod borrow;
pub mod copies;
pub mod device;
pub mod doubt;
pub mod pool;
pub mod prefetch;

pub use borrow::{Landing, Loan, Region, Returned};
pub use copies::Copies;
pub use device::{DeviceRegion, Ordinal};
pub use doubt::Doubt;
pub use pool::{Allocation, Backing, Frozen, Lease, Place, Pool};
pub use prefetch::prefetch;
