//! Shared memory: the transport between processes of one user on one machine.
//!
//! A worker has one [`ShmTransport`]. A server has one listener ([`listener::bind`]), whose address is the path of a private socket. A link
//! begins with a [greeting]: both sides prove their identity by their certificates, and each gives the other one segment. From then on the
//! socket says only whether the peer still lives. Messages go through a ring in each segment, and bytes go through its cells ([layout],
//! [memory]).
//!
//! A contribution is copied once, from the caller's memory into cells, and the server adds out of the cells. It is not copied at all if the
//! engine staged it in memory that the server can map.
//!
//! A thread with nothing to do sleeps until the peer wakes it ([wakeup]). A side wakes its peer only if the peer sleeps. So busy links need
//! no system calls, and idle links need no processor. A worker's thread that waits for a sum does the work of its link itself ([poller],
//! [work_lock]). A thread that did some work looks for more for a moment before it sleeps.
//!
//! A broken or dead peer cannot do any of the following:
//! - It cannot write to this side's memory, because each side writes only its own segment.
//! - It cannot shrink memory under a reader, because segments are sealed.
//! - It cannot leave anything behind: memory has no name, and the next process clears the socket's directory.
//! - It cannot keep others waiting, because the end of its process ends its links at once.

pub mod client;
pub mod listener;

mod cells;
mod client_exchange;
mod client_lock;
mod client_state;
mod client_tables;
mod events;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
mod greeting;
mod inbound;
mod landing;
mod layout;
mod link;
mod memory;
mod outbound;
mod poller;
mod server_state;
mod server_tables;
#[cfg(any(test, feature = "testing"))]
pub mod vandal;
mod wakeup;
mod work_lock;

pub use client::ShmTransport;
pub(super) use greeting::check_memory;

#[cfg(test)]
mod tests;
