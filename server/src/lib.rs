//! Gradlane's aggregation server and coordinator, as a library that embeds them and as the `gradlane-server` binary.
//!
//! [`aggregate`] and [`coordinator`]'s machine decide, [`sum`] and [`accumulator`] add; everything else carries out.

pub mod accumulator;
pub mod aggregate;
pub mod coordinator;
pub mod letters;
pub mod sum;

mod connection;
mod lanes;
mod life;
mod server;
mod stats;

pub mod cli;
pub mod doctor;
pub mod embedded;
pub mod launch;
pub mod rendezvous;

mod ending;
mod os;
mod signals;

pub use embedded::{Embedded, EmbeddedOptions};
pub use life::ServerState;
pub use server::{Server, ServerOptions};
pub use stats::Stats;
