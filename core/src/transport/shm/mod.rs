//! Shared memory: the transport between processes of one user on one machine.
//!
//! A worker has one [`ShmTransport`], a server one listener ([`listener::bind`]), whose address is the path of a private socket. A link
//! begins with a [greeting]: both sides prove who they are by their certificates, and exchange one segment each. From then on the socket
//! says only whether the peer still lives; messages go through a ring in each segment and bytes through its cells ([layout], [memory]).
//!
//! A contribution is copied once, from the caller's memory into cells, and the server adds straight out of them; or never, where the
//! engine staged it in memory that the server can be shown. Threads sleep until a bell rings, and a bell rings only for who sleeps: busy
//! links need no system calls, idle ones no processor. A worker's thread that waits for a sum does the work of its link itself ([poller],
//! [seats]), and whoever did something looks for a moment for more before it sleeps.
//!
//! What a broken or dead peer cannot do: write here (each side writes its own segment only), shrink memory under a reader (seals), leave
//! anything behind (memory has no name, and the socket's directory is cleared by the next process), or keep others waiting (the end of its
//! process ends its links at once).

pub mod client;
pub mod listener;

mod bell;
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
mod seats;
mod server_state;
mod server_tables;
#[cfg(any(test, feature = "testing"))]
pub mod vandal;

pub use client::ShmTransport;
pub(super) use greeting::check_memory;

#[cfg(test)]
mod tests;
