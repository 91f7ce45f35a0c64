//! The decisions of a worker: this module decides everything that a worker does, and does none of it.
//!
//! | file | decides |
//! |---|---|
//! | `machine` | what an input means for all modules here; its doc explains how to drive the worker |
//! | `formation` | what follows from a view: the stages of this rank, its team, the servers to reach |
//! | `submissions` | which submission is accepted, which waits for a declaration, which fails |
//! | `notices` | what the coordinator said of sums that wait |
//! | `parking` | which submissions wait for a declaration, and until when |
//! | `patience` | what fails because it has waited too long for others |
//! | `outstanding` | the numbers of submissions, requests and exchanges; what has not ended |
//! | `endings` | when a name that is used no more has ended here |
//! | `links` | which server is dialled, and when |
//! | `silence` | since when a server has not answered, and what is said of it |
//! | `withdrawals` | which round this worker withdraws from, and what it tells the others |
//! | `recovery` | which sums it keeps in case that their server is lost, and how far a recovery is |
//! | `restoring` | what it tells of kept sums when a server is lost, and which it restores |
//! | `residuals` | which parts have a residual of error feedback, and when it begins at zero |
//! | `steps` | what a stage does with a task, and what its end means |
//! | `reads` | which version of a parameter this worker has read last |
//! | `uses` | what the headers of a parameter's uses say, and what these have come to |
//! | `liveness` | whether the engine's threads still work at a submission |
//! | `records` | what the worker keeps of a submission and of a task |
//! | `command` | the messages of the worker: commands out, steps out, outcomes in |

mod command;
mod endings;
mod feedback;
mod following;
mod formation;
mod links;
mod liveness;
mod notices;
mod outstanding;
mod parking;
mod patience;
mod reads;
mod records;
mod recovery;
mod residuals;
mod restoring;
mod silence;

pub mod machine;

mod stalls;
mod steps;
mod submissions;
mod team;
mod uses;
mod withdrawals;

#[cfg(test)]
mod tests;

pub use command::{Action, Command, Dial, Exchanged, Held, Landing, Load, Meeting, Piece, Step, Stuck, Use};
pub use feedback::FeedbackPlace;
pub use formation::Formation;
pub use liveness::Liveness;
pub use machine::{Worker, WorkerSettings};
pub use records::{Accepted, Members, Tally, Tensor, Terms};
