//! Decides when a part moves: priority, credit, gates, repeats, deadlines. Pure. A driver holds the [`Scheduler`] behind a lock. One loop
//! thread per stage takes tasks; executors do the work and report its outcome.
//!
//! The scheduler knows no addresses and no memory. The driver keeps the memory of a task under its [`TaskId`] until [`Command::Release`].

pub mod task;
mod waits;

pub mod credit;
mod queue;
pub mod scheduler;
pub mod stall;

mod arena;
mod group;
mod ids;
mod rules;
mod side_table;

pub use credit::Credit;
pub use ids::{GroupId, TaskId};
pub use queue::{Entry, StageQueue};
pub use scheduler::{Command, Scheduler, SchedulerConfig};
pub use side_table::SideTable;
pub use stall::{StallDetector, StallReport};
pub use task::{Attempt, Outcome, Task, TaskSpec};
