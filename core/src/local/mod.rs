//! Tools for processes of one user on one machine: shared memory, sockets that pass it on, and a futex. Also threads that can be joined
//! with a deadline, memory near a NUMA node, and progress: which thread does the work of a component, and how long it looks for work.
//!
//! The users of this module decide the content of the memory, its writers, and the messages. Only one thing here has a name that can
//! outlive the processes: the directory of a [`PrivateSocket`]. The next [`PrivateSocket`] of the same user removes it. [`private_file`]
//! writes files that are meant to outlive them.

pub mod backing;
pub mod confined;
pub mod failpoint;
pub mod futex;
#[cfg(feature = "cuda")]
pub(crate) mod numa;
mod peer;
pub mod private_file;
mod process_id;
pub mod progress;
pub mod segment;
pub mod socket;
pub(crate) mod sync;
pub(crate) mod thread;

pub use backing::SharedBacking;
pub use peer::PeerProcess;
pub use process_id::process_id;
pub use progress::Progress;
pub use segment::{Segment, Shown};
pub use socket::{Connection, PrivateSocket, Received};
pub(crate) use thread::ThreadEnd;
pub use thread::{Ended, OwnThread};
