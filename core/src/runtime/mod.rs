//! What every process of a job is made of, whatever its role: the clock, deadlines that are called back, inputs in their order, and the
//! connection to the coordinator.
//!
//! Workers and servers stand on it. It knows no tensors: the [engine](crate::engine) and the server's drivers bring those.

mod clock;
mod inputs;
mod timer;

mod membership;

pub mod process;

pub use clock::Clock;
pub use inputs::{Heard, Inputs};
pub use membership::{Membership, MembershipOptions, status};
pub use timer::Timer;
