//! The parts that all transports share: both sides of one exchange as machines, and the checks of an answer.
//!
//! A worker's side is a [`WorkerExchange`] with the [`Arrival`] of its answer, a server's side is a [`ServerExchange`]. The transports own
//! and drive them. There are neither sockets nor threads nor locks here.

mod arrival;
mod checks;
mod server;
mod worker;

pub(super) use arrival::Arrival;
pub(super) use checks::{bad, broken_off, costs_the_link, link_gone, reject_of, unknown_exchange};
pub(super) use server::ServerExchange;
pub(super) use worker::{Pull, WorkerExchange};
