//! The job's single decider, as a machine.
//!
//! [`Coordinator`] forms the job from the processes that join, gives out ranks, detects failures, holds the registry of tensors, runs
//! barriers, keeps the key-value store, and ends the job: in order when all workers left, else with one cause that every member is told. It knows no sockets and no
//! clock.
//!
//! | file | decides |
//! |---|---|
//! | `machine` | what each input means, in which stage of the job |
//! | `machine::recovering`, `journal` | what is written down, and how a later coordinator goes on with it |
//! | `machine::leaving` | what it means that a member leaves, or gives up |
//! | `stage` | how far the job is |
//! | `verdict` | what the loss of members means: the place for a new policy |
//! | `connections` | which connection speaks for which member |
//! | `roster` | which processes are admitted, with which rank, and how a member goes |
//! | `health` | which member is suspect or dead by silence |
//! | `registry` | which declarations agree |
//! | `machine::declaring`, `endings` | what it means that a worker declares names or undeclares them; when a name ends |
//! | `machine::ticking`, `barrier`, `clocks` | which barriers are complete, how far workers are, and who closes a round |
//! | `machine::losing` | which members are lost, by silence or because somebody saw their end |
//! | `machine::restoring`, `recovery` | who brings which sums of lost servers to other servers |
//! | `machine::stepping`, `boundaries` | where workers stand between two steps, and which of them leave there |
//! | `machine::reforming`, `newcomers` | which processes wait to be taken in, and how the job forms again with them |
//! | `machine::holding`, `missed` | how many workers the job waits for, and what those hear that hold |
//! | `machine::controlling`, `controls` | which orders of operators are obeyed, and who has not answered |
//! | `machine::passing` | what time changes |
//! | `machine::telling` | how answers and refusals are sent, and connections closed |
//! | `machine::storing`, `store` | what workers put under keys, and which reads wait for a key |
//! | `lately` | what servers that connect again may have missed |
//! | `questions` | what may be asked at which time, and the status |
//! | `stall` | what is told of a sum that waits |
//! | `waits` | which sums wait for whom, for the status |
//! | `census` | the job in numbers |

use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::error::{Error, Result};
use gradlane_core::pipeline::LayoutConfig;
use gradlane_core::types::defect::Defect;
use gradlane_core::types::{ControlCommand, Epoch, LinkId, Recipient};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{Names, Stall};

// Declared in alphabetical order; the table above is the order to read them in.
mod asker;
mod barrier;
mod boundaries;
mod census;
mod checkpoints;
mod clips;
pub(crate) mod clocks;
mod connections;
mod controls;
pub mod driver;
mod endings;
mod health;
mod journal;
mod lately;
mod machine;
mod missed;
mod newcomers;
mod questions;
mod recovery;
mod registry;
mod roster;
mod stage;
mod stall;
mod store;
mod verdict;
mod waits;

#[cfg(test)]
mod joint;
#[cfg(test)]
mod specification;

pub use census::{Census, Life};
pub use checkpoints::{Disk, DiskTask, Found};
pub use journal::Record;
pub use machine::Coordinator;
pub use verdict::Policy;

/// The requested job.
#[derive(Clone, PartialEq, Debug)]
pub struct CoordinatorConfig {
    /// The job's name.
    pub job: String,
    /// How many workers the job has; at least 1.
    pub workers: u32,
    /// How many servers the job has; at least 1.
    pub servers: u32,
    /// The most workers that the job may have, if it takes in others while it runs.
    pub workers_max: Option<u32>,
    /// How long a job that forms again waits for its members; then it goes on with those that came.
    pub reform_timeout: Duration,
    /// The time from the start until every member must have joined.
    pub form_timeout: Duration,
    /// Silence after which a member is suspect; a few heartbeats.
    pub suspect_timeout: Duration,
    /// Silence after which a member counts as dead; more than `suspect_timeout`.
    pub dead_timeout: Duration,
    /// How long workers that stand at a boundary between steps wait for the others.
    pub boundary_timeout: Duration,
    /// How long a worker that wants to leave has until it stands at a boundary; then it is given up.
    pub leave_grace: Duration,
    /// How long a coordinator stays after the end for members that have not confirmed it.
    pub end_grace: Duration,
    /// The interval in which a waiting sum is reported once.
    pub stall_interval: Duration,
    /// What the loss of a member means.
    pub policy: Policy,
    /// How tensors are cut into parts.
    pub layout: LayoutConfig,
    /// Whether it writes down what another coordinator needs to go on with the job: [`Command::Journal`].
    pub journals: bool,
    /// A defect to plant, in tests.
    pub defect: Option<Defect>,
}

impl CoordinatorConfig {
    /// A job of this size with the settings of the process. Its `form_timeout` ends before its members stop waiting.
    pub fn from_config(config: &Config, workers: u32, servers: u32) -> Self {
        Self {
            job: config.job.clone(),
            workers,
            servers,
            workers_max: config.takes_newcomers().then(|| config.elastic.map_or(workers, |elastic| elastic.max)),
            reform_timeout: config.reform_timeout,
            // A process that waits for the job to form stops after `join_timeout`. Shortly before, the coordinator can still tell it
            // which members are missing. The quotient keeps the defaults as they are.
            form_timeout: config.form_timeout.min(config.join_timeout * 29 / 30),
            suspect_timeout: config.suspect_timeout,
            dead_timeout: config.dead_timeout,
            boundary_timeout: config.bounds().step,
            leave_grace: config.leave_grace,
            end_grace: config.shutdown_timeout,
            stall_interval: config.stall_warn,
            policy: Policy::from_settings(config, workers),
            layout: LayoutConfig {
                partition_bytes: config.partition_bytes,
                fuse_bytes: config.fuse_bytes,
                pipeline_bytes_min: config.pipeline_bytes_min,
                ..LayoutConfig::default()
            },
            journals: false,
            defect: None,
        }
    }

    /// Checks the number of workers with which the job begins.
    ///
    /// # Errors
    /// [`Error::Config`] if that is more than it may have.
    fn check_workers(&self) -> Result<()> {
        match self.workers_max {
            Some(most) if most < self.workers => Err(Error::Config {
                knob: "elastic".to_owned(),
                problem: format!("allows at most {most} workers, and the job begins with {}", self.workers),
                hint: "begin with fewer, or give a higher maximum".to_owned(),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

/// A command of a [`Coordinator`] to its driver.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Send on a connection.
    Send {
        /// The connection.
        link: LinkId,
        /// What to send.
        frame: Frame,
    },
    /// Close a connection once what was sent before is out. Its end need not be reported.
    Close {
        /// The connection.
        link: LinkId,
        /// Why; the peer is told.
        error: Error,
    },
    /// Make the next certificate of the node at the other end, for the key, role and job of the one that it showed, and send it as
    /// [`Frame::Renewed`].
    Certify {
        /// The connection.
        link: LinkId,
    },
    /// Send the worker at the other end the key of the workers of this job, as [`Frame::WorkersKey`].
    ShareKey {
        /// The connection.
        link: LinkId,
    },
    /// Write down this record. It must be kept before any later command is carried out that tells somebody something.
    Journal(Record),
    /// Work with the files of a checkpoint. Its outcome goes to [`Coordinator::handle_disk`].
    Disk(Disk),
    /// Obey this command of an operator. Its outcome goes to [`Coordinator::handle_obeyed_here`].
    Obey {
        /// The number of the order.
        number: u64,
        /// What to do.
        command: ControlCommand,
    },
    /// An event for the log and the exit code.
    Event(Event),
}

/// An event in the life of the job.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The sums of servers that were lost are where they are wanted.
    Recovered {
        /// The epoch of the view that says so.
        epoch: Epoch,
    },
    /// Every member is there.
    Formed {
        /// The epoch of the first view.
        epoch: Epoch,
    },
    /// An operator has given an order.
    Ordered {
        /// To whom.
        to: Recipient,
        /// Its word.
        order: &'static str,
    },
    /// A process was refused. For a duplicate rank the error names the holder, which is not affected.
    Refused {
        /// Its role, host and process.
        who: String,
        /// The error that it got.
        error: Error,
    },
    /// A member is silent.
    Suspect {
        /// `worker 2`.
        member: String,
        /// Its host and process.
        place: String,
        /// For how long.
        silent: Duration,
    },
    /// A member was given up.
    Dead {
        /// `worker 2`.
        member: String,
        /// Its host and process.
        place: String,
        /// The evidence.
        cause: String,
    },
    /// The job ends because members were lost.
    Ends {
        /// Why it does not go on.
        reason: &'static str,
    },
    /// The job ends, and forms again without what a lost server kept.
    Restores {
        /// Why it does not end for good.
        reason: &'static str,
    },
    /// All workers stand behind the same step and leave, to form the job again with others.
    FormsAgain {
        /// How many of them there are.
        workers: usize,
        /// How many others wait.
        newcomers: usize,
    },
    /// The workers that are left are too few, and hold behind their step until others have come.
    Holds {
        /// How many workers are there, with those that wait to be taken in.
        there: u32,
        /// How many are needed.
        needed: u32,
        /// Those that were lost, and why.
        lost: Names,
        /// How long they hold at most.
        patience: Duration,
    },
    /// The job goes on without the members that were lost.
    GoesOn {
        /// These members, such as `worker 1, worker 2`.
        without: String,
        /// Why it can.
        reason: &'static str,
    },
    /// One server has a much larger load than its share.
    HotServer {
        /// The server, its load, and what to do.
        warning: String,
    },
    /// A sum waits for some workers.
    Stall {
        /// The tensors of the part, shortened.
        tensor: String,
        /// What the server reported.
        stall: Stall,
        /// What the missing workers did last.
        detail: String,
        /// How many other sums were reported since the last such event.
        others: usize,
    },
    /// The job is over, and every member knows or had time to hear of it. The last event.
    Finished(Result<()>),
}
