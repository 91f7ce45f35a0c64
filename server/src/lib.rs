//! Gradlane's aggregation server and coordinator, as a library that embeds them and as the `gradlane-server` binary.
//!
//! A server of one's own gives a [`handle`] to [`run_server_with`].
//!
//! [`node`] is a summation server, [`coordinator`] decides who is in the job. Both write [`checkpoint`]s. [`launch`], [`doctor`] and [`cli`] are what people start.

pub mod handle;

pub mod checkpoint;
pub mod coordinator;
pub mod node;

pub mod embedded;

pub mod cli;
pub mod doctor;
pub mod launch;
pub mod log;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;

#[cfg(test)]
#[path = "../../tests/harness/allocation.rs"]
pub mod allocation;
#[cfg(test)]
mod clock_tests;
#[cfg(test)]
mod hostile;
#[cfg(test)]
#[path = "../../tests/harness/random.rs"]
pub mod random;
#[cfg(test)]
mod scrape;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

mod ending;
mod exit;
mod look;
mod memory_limit;
mod os;
mod report;
mod signals;
mod site;
mod trusted_file;

pub(crate) use gradlane_core::local::private_file;

pub use cli::run_server_with;
pub use embedded::{Embedded, EmbeddedOptions};
pub use handle::Handle;
pub use node::{Server, ServerOptions, ServerState};
