//! Orders that an operator gives a running job, and their answers.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::{Checkpointed, ServerId, WorkerId};
use crate::error::Error;

/// An order of an operator.
#[derive(Clone, PartialEq, Debug)]
pub struct Control {
    /// The process that is to obey it.
    pub recipient: Recipient,
    /// How long the operator waits for the answer.
    pub wait: Duration,
    /// What it is to do.
    pub command: ControlCommand,
}

/// The process that obeys an order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Recipient {
    /// The coordinator. Orders about the whole job go to it.
    Coordinator,
    /// A worker.
    Worker(WorkerId),
    /// A server.
    Server(ServerId),
}

impl Recipient {
    /// The recipient with this name, such as `coordinator`, `worker-0` or `server-1`.
    pub fn named(name: &str) -> Option<Self> {
        let (role, index) = match name.split_once('-') {
            Some((role, index)) => (role, index.parse().ok()?),
            None if name == "coordinator" => return Some(Self::Coordinator),
            None => return None,
        };
        match role {
            "worker" => Some(Self::Worker(WorkerId(index))),
            "server" => Some(Self::Server(ServerId(index))),
            _ => None,
        }
    }
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("coordinator"),
            Self::Worker(WorkerId(index)) => write!(f, "worker-{index}"),
            Self::Server(ServerId(index)) => write!(f, "server-{index}"),
        }
    }
}

/// What a process is ordered to do.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlCommand {
    /// Tell the values of its metrics.
    Stats,
    /// Log what this filter lets through, from now on.
    Log {
        /// As the setting `log`.
        filter: String,
    },
    /// Finish what has begun, take nothing new, and end. For servers.
    Drain,
    /// Save the parameters of the job. For the coordinator.
    Save {
        /// As in a worker's request.
        path: String,
        /// How many checkpoints to keep there.
        keep: Option<u32>,
    },
    /// Change the learning rate of a parameter's rule. The operator gives the order to the coordinator, which passes it on to all servers.
    SetRate {
        /// The name of the parameter.
        tensor: String,
        /// The rate, which takes the place of the rule's `lr`.
        rate: f64,
        /// The first global step with this rate, counted from 1. If the parameter has no clock, the next change of each part is the first.
        /// The coordinator fills it in for a parameter with a clock.
        step: Option<u64>,
    },
    /// Write what this worker contributes to a round of a tensor, and the sum that it gets, into files.
    Dump {
        /// The name of the tensor.
        tensor: String,
        /// The round, with the number that errors and logs have: the first one is 0.
        round: u64,
        /// A directory below `dump_dir` of the worker.
        directory: String,
        /// How long the worker waits for the round.
        wait: Duration,
    },
    /// Write what the flight recorder of this member has into a file. The coordinator also writes a report of the job so far.
    DumpRecorder {
        /// A directory below `dump_dir` of the process.
        directory: String,
    },
    /// Record a timeline of this member.
    Timeline {
        /// A directory below `dump_dir` of the member.
        directory: String,
        /// The first step: the highest round of a tensor so far. 0 for the present one.
        from: u64,
        /// How many steps; all until [`StopTimeline`](Self::StopTimeline) if absent.
        steps: Option<u64>,
    },
    /// Complete the timeline of this member. Nothing happens if none is recorded.
    StopTimeline,
    /// A command that this process does not know. It is answered with an error.
    Unknown {
        /// Its code on the wire.
        code: u8,
        /// Its fields.
        fields: Vec<u8>,
    },
}

impl ControlCommand {
    /// Its word on the command line.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Stats => "stats",
            Self::Log { .. } => "log",
            Self::Drain => "drain",
            Self::Save { .. } => "save",
            Self::SetRate { .. } => "set",
            Self::Dump { .. } | Self::DumpRecorder { .. } => "dump",
            Self::Timeline { .. } | Self::StopTimeline => "timeline",
            Self::Unknown { .. } => "an unknown command",
        }
    }

    /// The error of a process that does not obey this command, because of what `whom` is.
    pub fn refusal(&self, whom: &str) -> Error {
        let what = match self {
            Self::Unknown { code, .. } => format!("command {code} is unknown to {whom}"),
            Self::Stats
            | Self::Log { .. }
            | Self::Drain
            | Self::Save { .. }
            | Self::SetRate { .. }
            | Self::Dump { .. }
            | Self::DumpRecorder { .. }
            | Self::Timeline { .. }
            | Self::StopTimeline => {
                format!("{} is no order for {whom}", self.word())
            }
        };
        Error::InvalidArgument { what, hint: "see `gradlane ctl --help` of the version that the job runs".to_owned() }
    }
}

/// The answer to an order that was obeyed.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlAnswer {
    /// It is done, or has begun.
    Done,
    /// The values of the metrics.
    Stats(Stats),
    /// The checkpoint that was saved.
    Saved(Checkpointed),
    /// The learning rate changes at this global step; `None` for a parameter without a clock.
    RateSet {
        /// The first step with the new rate.
        step: Option<u64>,
    },
    /// The files that were written, or that are being written, as paths on the host of the member.
    Dumped {
        /// The contribution, the sum, and the description of both; or the only file.
        files: Vec<String>,
    },
}

impl ControlAnswer {
    /// This one file was written, or is being written.
    pub fn dumped(file: &Path) -> Self {
        Self::Dumped { files: vec![file.display().to_string()] }
    }
}

/// The values of the metrics of one process part, at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    /// The scope of the metrics, such as `worker`.
    pub scope: String,
    /// The value of the scope's label, such as the rank.
    pub label: String,
    /// The metrics by name.
    pub values: Vec<(String, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipient_has_a_name_by_which_it_is_found() {
        for recipient in [Recipient::Coordinator, Recipient::Worker(WorkerId(3)), Recipient::Server(ServerId(12))] {
            assert_eq!(Recipient::named(&recipient.to_string()), Some(recipient));
        }
        for name in ["", "worker", "server-", "server-x", "server--1", "observer-1", "worker-0-0", "coordinator-0"] {
            assert_eq!(Recipient::named(name), None, "{name}");
        }
    }
}
