//! Gradlane's aggregation server and coordinator, as a library that embeds them and as the `gradlane-server` binary.
//!
//! [`aggregate`] and [`coordinator`]'s machine decide; everything else carries out.

pub mod aggregate;
pub mod coordinator;

mod accumulator;
mod connection;
mod life;
mod server;
mod stats;
mod sum;

pub mod cli;
pub mod doctor;
pub mod embedded;
pub mod launch;
pub mod rendezvous;

mod os;
mod signals;

pub use embedded::{Embedded, EmbeddedOptions};
pub use life::ServerState;
pub use server::{Server, ServerOptions};
pub use stats::Stats;
