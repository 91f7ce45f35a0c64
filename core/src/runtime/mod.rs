//! The parts that every process of a job has, in any role: the clock, the timer that calls back at deadlines, the order of inputs and
//! deadlines, the connection to the coordinator, and the exporter of metrics.
//!
//! Workers and servers use it. It knows no tensors: the [engine](crate::engine) and the server's drivers handle those.

mod clock;
mod inputs;
mod timer;

mod job_clock;
mod membership;
mod nics;
mod operator;
mod status;
mod usage;

pub mod exporter;
pub mod process;
pub mod recording;
pub mod setup;
pub mod timeline;

pub use clock::{Clock, WallReading};
pub use inputs::{Heard, Inputs};
pub use job_clock::{JobClock, JobTime, WallOffset};
pub use membership::{Membership, MembershipOptions, Reporter};
pub use operator::Operator;
pub use status::status;
pub use timer::Timer;
pub use usage::Usage;
