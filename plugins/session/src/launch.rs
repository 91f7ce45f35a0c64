//! How a process finds its job: its place in the job, and how it enters.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gradlane_core::config::{Config, Launcher, Origin, ProcessRole};
use gradlane_core::runtime::process;
use gradlane_core::types::JoinString;
use gradlane_core::{Error, Result};
use gradlane_server::launch::entering::{Found, Place};
use gradlane_server::launch::waiting::Waiting;
use gradlane_server::launch::{rendezvous, sealed};

use crate::embedded::EmbeddedPlan;
use crate::settings::{Settings, config_with_warnings};

/// The place of this process in its job, before it has joined.
#[derive(Clone, Debug)]
pub struct Launch {
    /// All settings, the arguments included.
    pub config: Config,
    /// The launcher that was detected: `gradlane`, `dmlc`, `torchrun`, `tf_config`, `mpi`, `slurm` or `single`.
    pub source: &'static str,
    /// The rank; `None` if the coordinator assigns one.
    pub rank: Option<u32>,
    /// Number of workers; 0 if only the coordinator knows it.
    pub size: u32,
    /// The name of the job, under which its join string is published.
    pub job: String,
}

/// How a process enters its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entrance {
    /// It is a job of one, which needs no server.
    Alone,
    /// Joins by this join string.
    Join(JoinString),
    /// Waits for the file in which the join string will be.
    Read(PathBuf),
    /// Waits for the join string that another process publishes with the coordinator.
    Find {
        /// The job's name in the directory of join strings.
        job: String,
    },
    /// Starts the coordinator, and the servers if the launcher starts none, and publishes the join string under the job's name.
    Embed(EmbeddedPlan),
}

impl Launch {
    /// Detects the place of this process from `arguments` and the environment. The argument `coordinator` is a `host:port` or a join
    /// string; the others are settings.
    ///
    /// # Errors
    /// [`Error::Config`] if they contradict each other, or one is unknown.
    pub fn detect(mut arguments: Settings) -> Result<Self> {
        if let Some(address) = arguments.remove("coordinator") {
            if address.starts_with("gradlane") {
                arguments.insert("join".to_owned(), address);
            } else {
                let (host, port) = address.rsplit_once(':').unwrap_or((&address, ""));
                arguments.insert("coordinator_host".to_owned(), host.to_owned());
                arguments.insert("coordinator_port".to_owned(), port.to_owned());
            }
        }
        // A caller of this function is a worker, whatever task its environment describes.
        arguments.entry("role".to_owned()).or_insert_with(|| ProcessRole::Worker.name().to_owned());
        Ok(Self::of(config_with_warnings(&arguments)?))
    }

    fn of(config: Config) -> Self {
        // Without a launcher a process is taken for a single one. If it is told a job, the coordinator knows its rank and the size.
        let is_unplaced = is_invited(&config) && *config.origin("size") == Origin::Launcher(Launcher::Single);
        Self {
            source: source(&config),
            rank: config.rank.filter(|_| !is_unplaced),
            size: if is_unplaced { 0 } else { config.size.unwrap_or(1) },
            job: rendezvous::job(&config),
            config,
        }
    }

    /// How this process enters its job. `generation` is the number of jobs that it has entered before; it prevents that the join string of
    /// a past job is used again.
    ///
    /// # Errors
    /// [`Error::Config`] if the job has other workers, and the coordinator is unknown. As [`read_join`] for a later job of a launcher.
    pub fn entrance(&self, generation: u64) -> Result<Entrance> {
        // A job ends for good when all of its workers have left, and its servers end with it. The first worker brings those of the next job,
        // as it does under launchers that start no servers.
        let is_next = generation > 0 && self.is_whole_host();
        let next = |join: &JoinString| self.embed_or_find(true, format!("{}.{generation}", next_jobs(join)));
        if let Some(join) = &self.config.join {
            return Ok(if is_next { next(join) } else { Entrance::Join(join.clone()) });
        }
        if let Some(path) = &self.config.join_file {
            return if is_next {
                read_join(path, Duration::ZERO).map(|found| next(&found.join))
            } else {
                Ok(Entrance::Read(path.clone()))
            };
        }
        match self.source {
            // The launcher runs the coordinator, and has published its join string.
            "gradlane" | "dmlc" => return Ok(Entrance::Find { job: self.job.clone() }),
            _ if self.size == 1 && !self.has_server_tasks() => return Ok(Entrance::Alone),
            "single" => {
                return Err(Error::Config {
                    knob: "size".to_owned(),
                    problem: format!("is {}, but no coordinator is known", self.size),
                    hint: format!(
                        "start the program with `gradlane run -n {}` or torchrun, or set GRADLANE_JOIN",
                        self.size
                    ),
                });
            }
            _ => {}
        }
        let job = match generation {
            0 => self.job.clone(),
            _ => format!("{}.{generation}", self.job),
        };
        // The coordinator needs to be reachable from other hosts only if the job has several, including those of server tasks.
        let is_local = self.config.num_nodes.unwrap_or(1) == 1 && !self.has_server_tasks();
        Ok(self.embed_or_find(is_local, job))
    }

    /// The first worker starts the coordinator, and the other workers wait for its join string.
    fn embed_or_find(&self, is_local: bool, job: String) -> Entrance {
        if self.rank != Some(0) {
            return Entrance::Find { job };
        }
        Entrance::Embed(EmbeddedPlan {
            bind: if is_local { format!("{}:0", process::loopback()) } else { "0.0.0.0:0".to_owned() },
            workers: self.size,
            servers: self.config.servers.max(1),
            job,
            coordinator_only: self.has_server_tasks(),
        })
    }

    /// Whether `TF_CONFIG` has server tasks, which are separate processes without a coordinator.
    fn has_server_tasks(&self) -> bool {
        self.source == "tf_config" && self.config.servers > 0
    }

    /// Whether a launcher says that all workers of the job are on this host, and which of them this one is.
    fn is_whole_host(&self) -> bool {
        let Config { num_nodes, local_size, .. } = &self.config;
        self.rank.is_some() && *num_nodes == Some(1) && *local_size == Some(self.size)
    }
}

/// The name of the jobs that follow the job of a join string. It is unique on this host.
fn next_jobs(join: &JoinString) -> String {
    let digits: String = join.ca_hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("after_{digits}")
}

/// Waits up to `patience` until the coordinator of `job` has published its join string in this user's state directory.
///
/// # Errors
/// As [`rendezvous::find`] and [`rendezvous::state_dir`].
pub fn find_join(config: &Config, job: &str, patience: Duration) -> Result<Found> {
    let place = published(config, job)?;
    let _waiting = Waiting::start(config.stall_warn, place.lacks());
    Found::at(place, patience)
}

/// Where the coordinator of `job` publishes its join string.
///
/// # Errors
/// As [`rendezvous::state_dir`].
pub fn published(config: &Config, job: &str) -> Result<Place> {
    Ok(Place::Published { state_dir: rendezvous::state_dir(config)?.to_owned(), job: job.to_owned() })
}

/// Waits up to `patience` for the join string in this file.
///
/// # Errors
/// As [`rendezvous::read_join_file`].
pub fn read_join(path: &Path, patience: Duration) -> Result<Found> {
    Found::at(Place::File(path.to_owned()), patience)
}

/// What rank 0 of `job` gives to the other processes through the store of torchrun's agents: the join string, sealed if the settings have a
/// secret.
///
/// # Errors
/// As [`sealed::wrap`].
pub fn wrap_join(config: &Config, job: &str, join: &JoinString) -> Result<String> {
    sealed::wrap(config, job, join, config.num_nodes.unwrap_or(1))
}

/// The join string that rank 0 of `job` has wrapped.
///
/// # Errors
/// As [`sealed::unwrap`].
pub fn unwrap_join(config: &Config, job: &str, text: &str) -> Result<JoinString> {
    sealed::unwrap(config, job, text)
}

/// Whether this process is told which job it joins: by a join string, the file with it, or an argument. An address in the environment alone
/// does not say so, because a shell may still have BytePS's variables when it starts a process that trains alone.
fn is_invited(config: &Config) -> bool {
    let is_called = config.coordinator_host.is_some() && *config.origin("coordinator_host") == Origin::Argument;
    config.join.is_some() || config.join_file.is_some() || is_called
}

fn source(config: &Config) -> &'static str {
    match config.origin("size") {
        Origin::Launcher(Launcher::Dmlc) => "dmlc",
        Origin::Launcher(Launcher::Torchrun) => "torchrun",
        Origin::Launcher(Launcher::TfConfig) => "tf_config",
        Origin::Launcher(Launcher::Mpi) => "mpi",
        Origin::Launcher(Launcher::Slurm) => "slurm",
        Origin::Launcher(Launcher::Gradlane) | Origin::Environment(_) | Origin::File(_) | Origin::Cluster(_) => {
            "gradlane"
        }
        Origin::Launcher(Launcher::Single) | Origin::Argument | Origin::Default if is_invited(config) => "gradlane",
        Origin::Launcher(Launcher::Single) | Origin::Argument | Origin::Default => "single",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOIN: [u8; 16] = [2; 16];

    #[test]
    fn the_launcher_decides_how_a_process_enters() {
        let mpi = |rank: &str, size: &str| {
            entrance(&[("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size)], 0).unwrap()
        };
        let find = |job: &str| Entrance::Find { job: job.to_owned() };
        assert_eq!(entrance(&[], 0), Ok(Entrance::Alone));
        assert_eq!(mpi("0", "1"), Entrance::Alone);
        assert_eq!(mpi("1", "2"), find("default"));
        let plan = |bind: &str, job: &str, coordinator_only| EmbeddedPlan {
            bind: bind.to_owned(),
            workers: 2,
            servers: 1,
            job: job.to_owned(),
            coordinator_only,
        };
        let local = [("OMPI_COMM_WORLD_LOCAL_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
        let first = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(entrance(&[first, local].concat(), 0), Ok(Entrance::Embed(plan("127.0.0.1:0", "default", false))));
        assert_eq!(entrance(&[("GRADLANE_RANK", "0"), ("GRADLANE_SIZE", "2")], 0), Ok(find("default")));
        let tensorflow =
            r#"{"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}, "task": {"type": "worker", "index": 0}}"#;
        let variables = [("TF_CONFIG", tensorflow)];
        assert_eq!(entrance(&variables, 0), Ok(Entrance::Embed(plan("0.0.0.0:0", "tf_1045e94060d316da", true))));
    }

    #[test]
    fn a_second_job_of_a_process_has_a_name_of_its_own() {
        let second = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(entrance(&second, 1), Ok(Entrance::Find { job: "default.1".to_owned() }));
    }

    #[test]
    fn a_join_string_goes_before_everything() {
        let join = JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: JOIN };
        let text = join.to_string();
        let variables = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("GRADLANE_JOIN", &text)];
        assert_eq!(entrance(&variables, 3), Ok(Entrance::Join(join)));
        let file = [&variables[..2], &[("GRADLANE_JOIN_FILE", "/run/join")]].concat();
        assert_eq!(entrance(&file, 3), Ok(Entrance::Read("/run/join".into())));
    }

    #[test]
    fn workers_that_a_launcher_started_on_one_host_can_enter_a_second_job() {
        let join = JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: JOIN };
        let text = join.to_string();
        let place = |rank| {
            [
                ("RANK", rank),
                ("SIZE", "2"),
                ("LOCAL_RANK", rank),
                ("LOCAL_SIZE", "2"),
                ("NUM_NODES", "1"),
                ("SERVERS", "3"),
            ]
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("join");
        std::fs::write(&path, &text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let entered = |rank, generation, way: (&'static str, &str)| {
            let own = place(rank).map(|(name, value)| (format!("GRADLANE_{name}"), value));
            let mut variables: Vec<(&str, &str)> = own.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            variables.push(way);
            entrance(&variables, generation).unwrap()
        };
        let ways = [
            (("GRADLANE_JOIN", text.as_str()), Entrance::Join(join)),
            (("GRADLANE_JOIN_FILE", path.to_str().unwrap()), Entrance::Read(path.clone())),
        ];
        for (way, first) in ways {
            assert_eq!([entered("0", 0, way), entered("1", 0, way)], [first.clone(), first]);
            let job = "after_0101010101010101.1".to_owned();
            assert_eq!(entered("1", 1, way), Entrance::Find { job: job.clone() });
            let Entrance::Embed(plan) = entered("0", 1, way) else { panic!("rank 0 brings the servers") };
            assert_eq!((plan.job, plan.servers, plan.workers), (job, 3, 2));
        }
    }

    #[test]
    fn several_workers_without_a_coordinator_are_told_how_to_start() {
        let arguments = Settings::from([("rank", "0"), ("size", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())));
        let config = Config::load(&arguments, [], None).unwrap().0;
        let error = Launch::of(config).entrance(0).unwrap_err();
        assert!(
            matches!(&error, Error::Config { knob, hint, .. } if knob == "size" && hint.contains("run -n 2")),
            "{error}"
        );
    }

    #[test]
    fn workers_that_are_told_the_address_of_a_coordinator_find_its_job() {
        let address = [("coordinator", "node7:9000")];
        let ranked = [("coordinator", "node7:9000"), ("rank", "0"), ("size", "2")];
        for (arguments, rank, size) in [(&address[..], None, 0), (&ranked, Some(0), 2)] {
            let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let launch = Launch::detect(arguments).unwrap();
            assert_eq!(launch.entrance(0), Ok(Entrance::Find { job: "node7_9000".to_owned() }));
            assert_eq!((launch.rank, launch.size), (rank, size), "the coordinator knows the rest");
        }
    }

    fn entrance(variables: &[(&str, &str)], generation: u64) -> Result<Entrance> {
        let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let arguments = Settings::from([("role".to_owned(), "worker".to_owned())]);
        Launch::of(Config::load(&arguments, environment, None).unwrap().0).entrance(generation)
    }
}
