//! Between processes of one user on one machine: memory that both see, sockets that carry it across, and a wait that costs nothing;
//! a thread with an end; memory near a device; and which thread does the work of a component, for how long it looks for work.
//!
//! What lies in the memory, who may write it when, and what the messages say is decided by whoever uses it. Nothing here has a name
//! that outlives the processes, except the directory of a [`PrivateSocket`], which the next one of the same user clears away.

pub mod backing;
pub mod futex;
#[cfg(feature = "cuda")]
pub(crate) mod numa;
pub mod progress;
pub mod segment;
pub mod socket;
pub(crate) mod thread;

pub use backing::SharedBacking;
pub use progress::Progress;
pub use segment::{Segment, Shown};
pub use socket::{Connection, PrivateSocket, Received};
pub(crate) use thread::OwnThread;
