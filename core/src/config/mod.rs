//! The settings of a process: read once, from one table of knobs, each value with its origin.
//!
//! [`knobs`] is the table; the typed [`Config`], its parsing, printing and documentation are made from it. [`load`] joins the sources
//! in their order: arguments of the call, environment, file, `cluster_file`, what a launcher such as `torchrun` says, default; `place`
//! fills in what cluster file and launcher know. [`launch`] knows the launchers, `tf_config` the one that describes the whole job,
//! [`kinds`], `choices` and [`units`] how a value is written, [`report`] how all of them are shown.

mod choices;
mod cluster_file;
pub mod kinds;
pub mod knobs;
pub mod launch;
mod launcher;
pub mod load;
mod origin;
mod place;
pub mod report;
mod tf_config;
pub mod units;

pub use choices::{Checksum, Congestion, LocalReduce, TransportChoice};
pub use kinds::ProcessRole;
pub use knobs::{Config, KNOBS, Knob};
pub use launcher::{Launch, Launcher};
pub use load::Warning;
pub use origin::Origin;
