//! The settings of a process: read once, from one table of knobs, each value with its origin.
//!
//! [`knobs`] is the table. The typed [`Config`], its parsing, printing and documentation are made from it. [`load`] combines the sources in
//! their order: arguments of the call, environment, file, `cluster_file`, a launcher such as `torchrun`, default. `place` fills in the
//! values that the cluster file and the launcher know. [`launch`] knows the launchers, and `tf_config` knows the one that describes the
//! whole job. `bounds` derives how long each wait lasts. `job_name` names a job after its launcher's number for it. [`kinds`], `choices` and [`units`] say how a value is written, and [`report`] says how all values are shown.

mod bounds;
mod choices;
mod cluster_file;
mod elastic;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
mod job_name;
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
mod unread;

pub use bounds::{ANSWER_MARGIN, Bounds, DIAL_TIMEOUT, LEADER_PATIENCE, NCCL_ABORT_PATIENCE, NCCL_GRACE, verdict_time};
pub use choices::{
    Checksum, CompressionFallback, Congestion, FrameworkCall, LocalReduce, NanCheck, OnServerLoss, OnWorkerLoss,
    TransportChoice,
};
pub use elastic::Elastic;
pub use kinds::ProcessRole;
pub use knobs::{Config, KNOBS, Knob};
pub use launcher::{Launch, Launcher};
pub use load::Warning;
pub use origin::Origin;
