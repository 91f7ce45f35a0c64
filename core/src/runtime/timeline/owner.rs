//! Whose timeline it is, and by which clocks.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::runtime::{Clock, JobClock};
use crate::types::{ServerId, WorkerId};

/// The clocks of a file.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// That of its times.
    pub own: Clock,
    /// That of the job, which is the coordinator's. Absent if there is none.
    pub job: Option<JobClock>,
}

/// The process whose timeline it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A worker, by its rank.
    Worker(WorkerId),
    /// A server, by its index.
    Server(ServerId),
}

impl Owner {
    /// Where its timeline is written. `place` is a file name that ends in `.json`, before which the rank or `server-INDEX` is put, or else a
    /// folder, in which it is `RANK/comm.json` or `server-INDEX/comm.json`.
    pub fn path(self, place: &Path) -> PathBuf {
        let name = match self {
            Self::Worker(WorkerId(rank)) => rank.to_string(),
            Self::Server(ServerId(index)) => format!("server-{index}"),
        };
        match place.extension() {
            Some(extension) if extension == "json" => place.with_extension(format!("{name}.json")),
            Some(_) | None => place.join(name).join("comm.json"),
        }
    }

    /// Chrome's number for the rows of its parts; distinct for all members, so that files can be merged.
    pub(super) fn parts(self) -> u32 {
        match self {
            Self::Worker(_) => self.process() + 1,
            Self::Server(_) => self.process(),
        }
    }

    /// The same for everything else of the process.
    pub(super) fn process(self) -> u32 {
        match self {
            Self::Worker(WorkerId(rank)) => 2 * rank,
            Self::Server(ServerId(index)) => FIRST_SERVER + index,
        }
    }

    /// The numbers of its groups of rows, with their names.
    pub(super) fn groups(self) -> Vec<(u32, String)> {
        let all = (self.process(), self.to_string());
        match self {
            Self::Worker(_) => vec![all, (self.parts(), format!("{self}: gradients"))],
            Self::Server(_) => vec![all],
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(rank) => rank.fmt(f),
            Self::Server(index) => index.fmt(f),
        }
    }
}

/// Above the numbers of workers and of processes.
const FIRST_SERVER: u32 = 1 << 23;
