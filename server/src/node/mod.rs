//! A server of tensors: a host of services.
//!
//! | part | decides | works on memory |
//! |---|---|---|
//! | the host | [`machine`] admits, books and dispatches to `services` | `data_plane` and `lanes` drive the [`store`] |
//! | the dense sum | [`aggregate`] | [`sum`] and [`accumulator`] |
//! | parameters | [`parameter`] | [`Values`](parameter::Values) |
//!
//! `server` joins a job. `archive` writes and reads the files of checkpoints. `trace` and `recorder` tell what the server does. `services` and `store` are the places that name the services; `command` has what passes between the two columns.

mod aggregate;
mod budget;
mod config;
mod membership;
mod names;
mod refusals;
mod services;
mod withdrawals;

pub mod accumulator;
pub mod command;
pub mod event;
pub mod machine;
pub mod parameter;
pub mod store;
pub mod sum;
pub mod table;

mod archive;
mod data_plane;
mod ending;
mod lanes;
mod life;
mod orders;
mod probe;
mod recorder;
mod server;
mod trace;

pub use config::NodeConfig;
pub use life::ServerState;
pub use machine::Node;
pub use server::{Server, ServerOptions};
