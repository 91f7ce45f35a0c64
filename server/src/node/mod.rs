//! A summation server.
//!
//! [`machine`] decides with [`aggregate`], [`sum`] and [`accumulator`] add. `data_plane` and `lanes` carry out, `server` joins a job.

mod aggregate;
mod budget;
mod config;
mod membership;
mod withdrawals;

pub mod accumulator;
pub mod command;
pub mod machine;
pub mod sum;

mod data_plane;
mod lanes;
mod life;
mod probe;
mod server;

pub use config::NodeConfig;
pub use life::ServerState;
pub use machine::Node;
pub use server::{Server, ServerOptions};
