//! Host memory with one writer at a time, visible in its type.
//!
//! Memory of the engine: [`Lease`] (mutable, owned) → [`Frozen`] (shared) → back to the [`Pool`]. Memory of the caller: a [`Region`] is
//! lent out by a [`Loan`] for reading; when its last reader is gone it comes back as a proof, [`Returned`], and only with that proof may
//! a [`Landing`] write where the loan may have read. Memory of a device is a [`DeviceRegion`], which nobody reads here. Copies on the way are made and counted by [`Copies`].

pub mod borrow;
pub mod copies;
pub mod device;
pub mod pool;

pub use borrow::{Landing, Loan, Region, Returned};
pub use copies::Copies;
pub use device::{DeviceRegion, Ordinal};
pub use pool::{Allocation, Backing, Frozen, Lease, Place, Pool};
