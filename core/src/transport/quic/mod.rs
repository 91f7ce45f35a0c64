//! QUIC with mutual TLS: the transport between machines.
//!
//! A worker has one [`QuicTransport`], a server one listener ([`listener::bind`]); each runs on one thread with its own runtime, so that a
//! link is driven by one core and no lock is on the data path. An exchange is one bidirectional stream. Bytes are not copied before
//! QUIC packs them: a push is sent from the caller's memory and a sum from the server's, reference-counted ([`Loan`](crate::mem::Loan),
//! [`Frozen`](crate::mem::Frozen)).
//!
//! Who a peer is comes from its certificate ([`identity`](super::identity)), which a process gets from the coordinator with the join string
//! ([`enroll`]). The control stream to the coordinator ([`control`]) has threads of its own: a heartbeat does not wait behind data.

pub mod control;
pub mod enroll;
pub mod listener;
pub mod settings;
#[cfg(feature = "testing")]
pub mod vandal;

mod admission;
mod calls;
mod client;
pub(super) mod closing;
mod delay;
mod dial;
#[cfg(target_os = "linux")]
mod direct;
mod endpoint;
mod exchange;
mod socket;
pub(super) mod tls;
mod transport;

pub use control::{ControlEvent, ControlIncoming, ControlLink, ControlListener};
pub use settings::{Congestion, Driver, Settings};
pub use transport::QuicTransport;

#[cfg(test)]
pub(super) mod tests;
