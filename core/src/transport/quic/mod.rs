//! QUIC with mutual TLS: the transport between machines.
//!
//! A worker has one [`QuicTransport`], a server one listener ([`bind`]). Each runs on one thread, so that one core drives a link and no lock
//! is on the data path ([`data`]). An exchange is one bidirectional stream. Bytes are not copied before QUIC packs them: a push is sent
//! from the caller's memory and a sum from the server's, reference-counted ([`Loan`](crate::mem::Loan), [`Frozen`](crate::mem::Frozen)).
//!
//! Who a peer is comes from its certificate ([`identity`](crate::identity)), which a process gets from the coordinator with the join string
//! ([`enroll`]). The control stream to the coordinator ([`control`]) has threads of its own: a heartbeat does not wait behind data. Control
//! and enrolment run in tasks of quinn's async layer.

pub mod control;
pub mod enroll;
pub mod settings;
#[cfg(feature = "testing")]
pub mod vandal;

mod admission;
mod calls;
pub(super) mod closing;
mod commands;
mod data;
mod delay;
mod dial;
mod endpoint;
mod socket;
pub(super) mod tls;
mod transport;

pub use control::{ControlEvent, ControlIncoming, ControlLink, ControlListener, Waiting};
pub use data::bind;
pub use settings::{Congestion, Settings};
pub use transport::QuicTransport;

#[cfg(test)]
pub(super) mod tests;
