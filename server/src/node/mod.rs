//! A summation server.
//!
//! [`aggregate`] decides, [`sum`] and [`accumulator`] add; everything else carries out.

pub mod accumulator;
pub mod aggregate;
pub mod sum;
pub mod withdrawals;

mod connection;
mod lanes;
mod life;
mod server;

pub use life::ServerState;
pub use server::{Server, ServerOptions};
