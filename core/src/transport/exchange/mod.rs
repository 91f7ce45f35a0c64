//! The parts that all transports share: both sides of one exchange as machines, and the checks of an answer.
//!
//! A worker's side is a [`WorkerExchange`] with the [`Arrival`] of its answer, a server's side is a [`ServerExchange`]. The transports own
//! and drive them. So does the simulation, to which the feature `testing` shows them. There are neither sockets nor threads nor locks here.
#![cfg_attr(not(any(test, feature = "testing")), expect(unreachable_pub, reason = "public for the simulation alone"))]

mod arrival;
mod checks;
mod server;
mod worker;

pub use arrival::Arrival;
pub(super) use checks::{bad, link_gone, unknown_exchange};
pub use checks::{broken_off, costs_the_link, of_the_link, reject_of};
pub use server::ServerExchange;
pub use worker::WorkerExchange;
