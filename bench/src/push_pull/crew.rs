//! The participants of a run on this host: workers, servers, how bytes travel between them, peers and settings. Makes the teams from them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gradlane_core::types::JoinString;

use super::whole;
use crate::arguments::Ours;
use crate::job::road::Road;
use crate::job::{self, Before, JobOptions};
use crate::progress::Progress;
use crate::report::OneMachine;
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
    /// How bytes travel, separated by commas; each is a contender: local, memory shared among the workers of this host, without work for
    /// the server; shm, memory shared with a server of this host; quic, encrypted packets to a server, as between machines; mem, one process
    /// that holds the whole job; auto, the engine's choice. Default: local, shm and quic, as many of them as apply; a training job of these
    /// workers uses the first.
    #[arg(long, value_delimiter = ',', value_parser = Road::parse)]
    road: Vec<&'static Road>,
    /// Peers to measure in the same run, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) backend: Vec<Backend>,
    /// The Python that runs Gloo: needs torch. Default: the one of the active virtual environment, or of .venv, or python3.
    #[arg(long, value_name = "FILE")]
    pub(crate) python: Option<PathBuf>,
    /// The folder with bin/mpicc and bin/mpirun of the MPI for --backend mpi. Default: what is on PATH.
    #[arg(long, value_name = "FOLDER")]
    mpi: Option<PathBuf>,
    /// The folder that `make bench-peers` fills with MPICH, Intel MPI and oneCCL. Default: .venv-peers in this directory or one above.
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ours: Ours,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Backend {
    /// torch.distributed over Gloo.
    Gloo,
    /// The MPI that mpicc and mpirun belong to, or that of --mpi.
    Mpi,
    /// MPICH; see --peers.
    Mpich,
    /// Intel MPI; see --peers.
    Impi,
    /// oneCCL over Intel MPI; see --peers.
    Oneccl,
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
    pub(crate) fn jobs(
        &self,
        join: Option<&JoinString>,
        patience: Duration,
        progress: &Progress,
    ) -> Result<Vec<Team>, String> {
        let start = |road: &'static Road| {
            progress.say(format!("starting {}", road.name));
            let mut settings = job::settings(&self.ours.settings)?;
            settings.extend(road.settings()?);
            if road.in_process() {
                let team = whole::start(road.name, self.workers, self.servers, &settings, patience)?;
                return Ok(Team { about: road.about.to_owned(), ..team });
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
            Ok(Team { traffic: road.traffic(self.workers), about: road.about.to_owned(), ..team })
        };
        let all = if join.is_some() { self.asked() } else { self.roads() };
        all.into_iter().map(start).collect()
    }

    /// Starts the peers, with as many ranks each.
    ///
    /// # Errors
    /// As [`gloo::start`] and [`mpi::start`]; or that TCP and TLS support one worker only.
    pub(crate) fn peers(&self, patience: Duration, progress: &Progress) -> Result<Vec<Team>, String> {
        let places = mpi::Places { mpi: self.mpi.clone(), peers: self.peers.clone() };
        let ranks = |library| mpi::start(library, &places, self.workers, patience);
        let start = |backend: &Backend| match backend {
            Backend::Tcp | Backend::Tls if self.workers != 1 => {
                Err("--backend tcp and tls return what one worker sends, without summation: give --workers 1"
                    .to_owned())
            }
            Backend::Tcp => transport::start_streams(false, patience),
            Backend::Tls => transport::start_streams(true, patience),
            Backend::Mpi => ranks(mpi::Library::Mpi),
            Backend::Mpich => ranks(mpi::Library::Mpich),
            Backend::Impi => ranks(mpi::Library::IntelMpi),
            Backend::Oneccl => ranks(mpi::Library::OneCcl),
            Backend::Gloo => {
                let python = gloo::interpreter(self.python.as_deref());
                gloo::start(&gloo::Venue::loopback(python, self.workers, patience))
            }
        };
        let told = |backend: &Backend| {
            let name = backend.to_possible_value().expect("no value is hidden");
            progress.say(format!("starting {}", name.get_name()));
            start(backend)
        };
        self.backend.iter().map(told).collect()
    }

    /// The roads to measure: those asked for, or all that apply.
    pub(crate) fn roads(&self) -> Vec<&'static Road> {
        if self.road.is_empty() { Road::all_here(self.workers) } else { self.road.clone() }
    }

    /// Whether no road was asked for.
    pub(crate) fn is_free(&self) -> bool {
        self.road.is_empty()
    }

    /// The roads asked for; for a running job that is one, by default the one that the job chooses.
    pub(crate) fn asked(&self) -> Vec<&'static Road> {
        if self.road.is_empty() { vec![Road::named("auto")] } else { self.road.clone() }
    }

    /// Which of the roads a training job would use and why, for the head of a table.
    pub(crate) fn choice(&self) -> String {
        let training = Road::of_training(self.workers);
        let why = match self.workers {
            1 => "1 worker with a server on its machine".to_owned(),
            workers => format!("{workers} workers on one machine"),
        };
        let uses = format!("{why}: a training job uses {} here, and quic only to other machines", training.name);
        let names = |roads: &[&Road]| roads.iter().map(|road| road.name).collect::<Vec<_>>().join(", ");
        match self.road.as_slice() {
            [] => format!("all transports that apply here: {}. {uses}", names(&self.roads())),
            asked if asked.contains(&training) => format!("asked for (--road): {}. {uses}", names(asked)),
            asked => format!("asked for (--road): {}. {uses}; leave out --road to see it, too", names(asked)),
        }
    }

    /// What a user must know to read the ratios to peers on this machine.
    pub(crate) fn reading(&self) -> OneMachine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        OneMachine { training: Road::of_training(self.workers).name, workers: self.workers, cores }
    }

    /// Describes the crew in the head of a table.
    pub(crate) fn describe(&self) -> String {
        format!("{} workers, {} servers", self.workers, self.servers)
    }
}
