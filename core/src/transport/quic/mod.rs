//! QUIC with mutual TLS: the transport between machines.
//!
//! A worker has one [`QuicTransport`], a server one listener ([`bind`]). Each runs on one thread. So one core drives a link, and there is no
//! lock on the data path ([`data`]). An exchange is one bidirectional stream. Bytes are not copied before QUIC packs them: a push is sent from
//! the caller's memory and a sum from the server's, both reference-counted ([`Loan`](crate::mem::Loan), [`Frozen`](crate::mem::Frozen)).
//!
//! The certificate of a peer names its identity ([`identity`](crate::identity)). A process gets its certificate from the coordinator with the
//! join string ([`enroll`]). The control stream to the coordinator ([`control`]) has threads of its own, so that a heartbeat does not wait
//! behind data. Control and enrolment run in tasks of quinn's async layer.

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
