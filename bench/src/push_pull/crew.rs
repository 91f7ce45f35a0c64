//! The participants of a run on this host: workers, servers, how bytes travel between them, peers and settings. Makes the teams from them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gradlane_core::types::JoinString;

use super::whole;
use crate::arguments::Ours;
use crate::job::road::Road;
use crate::job::{self, Before, JobOptions};
use crate::team::{Team, gloo, mpi};
use crate::transport;

/// Workers, servers and peers, as arguments.
#[derive(Args, Clone, Debug)]
pub(crate) struct Crew {
    /// Workers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: u32,
    /// Servers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) servers: u32,
    /// How bytes travel, separated by commas; each is a contender: quic; shm, memory shared with a server of this host; local, memory
    /// shared among the workers of this host, without work for the server; mem, one process that holds the whole job; auto, the engine's
    /// choice.
    #[arg(long, value_delimiter = ',', default_value = "quic", value_parser = Road::parse)]
    pub(crate) road: Vec<&'static Road>,
    /// Peers to measure in the same run, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) backend: Vec<Backend>,
    /// The Python that runs Gloo: needs torch. Default: the one of the active virtual environment, or of .venv, or python3.
    #[arg(long, value_name = "FILE")]
    pub(crate) python: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ours: Ours,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Backend {
    /// torch.distributed over Gloo.
    Gloo,
    /// The MPI that mpicc and mpirun belong to.
    Mpi,
    /// Plain TCP between one worker and a server that returns what it receives, without summation.
    Tcp,
    /// The same with TLS 1.3.
    Tls,
}

impl Crew {
    /// Starts a job of ours for each `--road`. If `join` names a running job, starts its workers only.
    ///
    /// # Errors
    /// The first invalid setting, or the error of the first process that did not start.
    pub(crate) fn jobs(&self, join: Option<&JoinString>, patience: Duration) -> Result<Vec<Team>, String> {
        let start = |road: &&'static Road| {
            let mut settings = job::settings(&self.ours.settings)?;
            settings.extend(road.settings()?);
            if road.in_process() {
                return whole::start(road.name, self.workers, self.servers, &settings, patience);
            }
            let team = job::start(&JobOptions {
                name: road.name.to_owned(),
                workers: self.workers,
                servers: self.servers,
                settings,
                join: join.cloned(),
                before: Before::default(),
                interface: "lo".to_owned(),
                wire: road.wire,
                patience,
            })?;
            Ok(Team { traffic: road.traffic(self.workers), ..team })
        };
        self.road.iter().map(start).collect()
    }

    /// Starts the peers, with as many ranks each.
    ///
    /// # Errors
    /// As [`gloo::start`] and [`mpi::start`]; or that TCP and TLS support one worker only.
    pub(crate) fn peers(&self, patience: Duration) -> Result<Vec<Team>, String> {
        let start = |backend: &Backend| match backend {
            Backend::Tcp | Backend::Tls if self.workers != 1 => {
                Err("--backend tcp and tls return what one worker sends, without summation: give --workers 1"
                    .to_owned())
            }
            Backend::Tcp => transport::start_streams(false, patience),
            Backend::Tls => transport::start_streams(true, patience),
            Backend::Mpi => mpi::start(self.workers, patience),
            Backend::Gloo => {
                let python = gloo::interpreter(self.python.as_deref());
                gloo::start(&gloo::Venue::loopback(python, self.workers, patience))
            }
        };
        self.backend.iter().map(start).collect()
    }

    /// Describes the crew in the head of a table.
    pub(crate) fn describe(&self) -> String {
        format!("{} workers, {} servers", self.workers, self.servers)
    }
}
