//! The command lines and environments of a launcher's children: servers, then workers, and those that take the place of others.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gradlane_core::config::{self, Config, Knob, Origin};
use gradlane_core::runtime::exporter::with_port_ahead;
use gradlane_core::runtime::process;
use gradlane_core::types::Role;
use gradlane_core::types::join::JoinString;
use gradlane_core::{Error, Result};

use super::left_behind::{RUN_PREFIX, sweep_join_files};
use super::rendezvous;
use super::writer_process::WriterProcess;
use crate::private_file;

/// What to launch.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Settings of the launcher. The coordinator listens on `bind`, or on the loopback address if it is not set.
    pub config: Config,
    /// The settings that were given on the launcher's command line, by name; the children get them too.
    pub settings: BTreeMap<String, String>,
    /// The number of workers.
    pub workers: u32,
    /// The number of server processes; 0 embeds one in the launcher.
    pub servers: u32,
    /// How often processes that fail are started again in all. An elastic job takes them in, and one that restores servers takes in servers.
    pub restarts: u32,
    /// How long the other processes may take to end by themselves after one has failed.
    pub failure_grace: Duration,
    /// The command line that starts a server, with the word `server` behind it: this command again, or the user's own program.
    pub program: &'a [OsString],
    /// The command line of a worker.
    pub worker: &'a [OsString],
}

/// How often the processes of an elastic job are started again in all, unless the user says how often.
pub const RESTARTS: u32 = 100;

impl Launch<'_> {
    /// Checks what only a job that takes in others may have, and what such a job needs.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub(super) fn check(&self) -> Result<()> {
        let refused = |knob: &str, problem: String, hint: &str| {
            Err(Error::Config { knob: knob.to_owned(), problem, hint: hint.to_owned() })
        };
        if !self.config.lets_in_later() {
            return match self.restarts {
                0 => Ok(()),
                restarts => refused(
                    "elastic",
                    format!("is not set, but {restarts} restarts are"),
                    "only an elastic job takes in what is started again (and one with on_server_loss=restore, servers): give --elastic MIN:MAX",
                ),
            };
        }
        if let Some(elastic) = self.config.elastic
            && !(elastic.min..=elastic.max).contains(&self.workers)
        {
            let problem = format!("is {}, not within the {} to {} of elastic", self.workers, elastic.min, elastic.max);
            return refused("size", problem, "give -n a number of workers that the job may have");
        }
        if self.servers == 0 {
            let hint = "a job that takes in others needs servers that are processes of their own: give -s 1 or more";
            return refused("servers", "is 0".to_owned(), hint);
        }
        Ok(())
    }
}

/// The processes to start, servers first.
pub(super) fn processes(launch: &Launch, join: &Handover) -> Vec<(Role, String, Command)> {
    let servers =
        (0..launch.servers).map(|index| (Role::Server, format!("server {index}"), server(launch, index, join)));
    let workers = (0..launch.workers).map(|rank| (Role::Worker, format!("worker {rank}"), worker(launch, rank, join)));
    servers.chain(workers).collect()
}

fn server(launch: &Launch, index: u32, join: &Handover) -> Command {
    let mut command = command(launch.program, launch, join);
    command.arg("server").envs(server_place(launch, index));
    command
}

fn worker(launch: &Launch, rank: u32, join: &Handover) -> Command {
    let mut command = command(launch.worker, launch, join);
    command.envs(worker_place(launch, rank));
    command
}

/// The command of a server or worker that takes the place of the one that had this index or rank. The coordinator gives it another one when it
/// comes, so it has none, and knows no number of workers. A worker keeps the local rank, because frameworks choose a device by it.
pub(super) fn replacement(launch: &Launch, role: Role, number: u32, join: &Handover) -> Command {
    let mut command = match role {
        Role::Server => server(launch, number, join),
        _ => worker(launch, number, join),
    };
    for unknown in ["rank", "server_index", "size"] {
        command.env_remove(variable(unknown));
    }
    // A launcher around this one may have set such variables for this launcher. They would now be taken for the worker's own.
    for other in config::Launch::OF_OTHERS {
        command.env_remove(other);
    }
    command
}

/// A command for a child, without its place in the job. It inherits the launcher's environment, except variables that name a place.
fn command(line: &[OsString], launch: &Launch, join: &Handover) -> Command {
    let (program, arguments) = line.split_first().expect("the caller gives a program");
    let mut command = Command::new(program);
    command.args(arguments);
    for place in ["rank", "local_rank", "local_size", "node_rank", "num_nodes", "server_index"] {
        command.env_remove(variable(place));
    }
    for (name, value) in &launch.settings {
        command.env(variable(name), value);
    }
    command.env(LAUNCHER, std::process::id().to_string());
    // The launcher's own way into a job is not that of its children.
    command.env_remove(variable("join")).env_remove(variable("join_file"));
    command.env(&join.variable.0, &join.variable.1);
    command
}

fn worker_place(launch: &Launch, rank: u32) -> Vec<(String, String)> {
    let place = [
        ("role", "worker".to_owned()),
        ("rank", rank.to_string()),
        ("size", launch.workers.to_string()),
        ("local_rank", rank.to_string()),
        ("local_size", launch.workers.to_string()),
        ("node_rank", 0.to_string()),
        ("num_nodes", 1.to_string()),
        ("servers", launch.servers.max(1).to_string()),
    ];
    // The worker itself adds its local rank.
    let metrics = metrics_bind(launch, 1).expect(PORT).map(|bind| ("metrics_bind", bind));
    place.into_iter().chain(metrics).map(|(name, value)| (variable(name), value)).collect()
}

fn server_place(launch: &Launch, index: u32) -> Vec<(String, String)> {
    // On the coordinator's host, with a free port.
    let host = match launch.config.origin("bind") {
        Origin::Default => process::loopback(),
        Origin::Argument | Origin::Environment(_) | Origin::File(_) | Origin::Cluster(_) | Origin::Launcher(_) => {
            launch.config.bind.rsplit_once(':').map_or(process::loopback(), |(host, _)| host)
        }
    };
    let place = [
        ("role", "server".to_owned()),
        ("server_index", index.to_string()),
        ("size", launch.workers.to_string()),
        ("servers", launch.servers.to_string()),
        ("bind", format!("{host}:0")),
    ];
    let metrics = metrics_bind(launch, 1 + launch.workers + index).expect(PORT).map(|bind| ("metrics_bind", bind));
    place.into_iter().chain(metrics).map(|(name, value)| (variable(name), value)).collect()
}

/// Where a process of the job shows its metrics: so many ports above that of the launcher, which has the first.
pub(super) fn metrics_bind(launch: &Launch, ahead: u32) -> Result<Option<String>> {
    launch.config.metrics_bind.as_deref().map(|bind| with_port_ahead(bind, ahead)).transpose()
}

const PORT: &str = "the last port of the job was checked before it began";

/// How the children get the join string: the environment variable and its value.
///
/// Usually that names a private file. A process shows its environment to all its descendants, and often to crash reports and logs; the path
/// of a file is no secret. Where no such file can be made, as with a file system that cannot be written, the variable holds the string.
pub(super) struct Handover {
    variable: (String, String),
    file: Option<PathBuf>,
}

impl Handover {
    /// Hands over `join`. `suffix` tells the files of one launcher apart.
    pub(super) fn make(config: &Config, join: &JoinString, suffix: &str) -> Self {
        let temporary = Path::new(TEMPORARY);
        let folders = config.runtime_dir.as_deref().into_iter().chain([temporary]);
        let name = format!("{RUN_PREFIX}{}{suffix}.join", std::process::id());
        // With its writer, so that a later launcher can tell whether it was left behind.
        let content = rendezvous::content(join, &WriterProcess::this());
        let made = folders.inspect(|folder| sweep_join_files(folder)).map(|folder| folder.join(&name)).find(|path| {
            match private_file::write(path, &content) {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(%error, "no place for the join string");
                    false
                }
            }
        });
        let variable = match &made {
            Some(path) => (variable("join_file"), path.display().to_string()),
            None => (variable("join"), join.to_string()),
        };
        Self { variable, file: made }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Where the file is if there is no `runtime_dir`.
const TEMPORARY: &str = "/tmp";

/// Whether a launcher started this process, lives, and tells the user how the job failed.
#[expect(clippy::disallowed_methods, reason = "this variable is no setting: launcher and child agree on it")]
pub(crate) fn is_launched() -> bool {
    std::env::var(LAUNCHER).is_ok_and(|pid| pid.parse() == Ok(std::os::unix::process::parent_id()))
}

/// The variable in which children find the number of the launcher's process. It is no setting.
const LAUNCHER: &str = "_GRADLANE_LAUNCHER";

/// The environment variable of a setting. The configuration file is none, but is named in the same way.
fn variable(name: &str) -> String {
    Knob::find(name).map_or_else(|| format!("GRADLANE_{}", name.to_ascii_uppercase()), Knob::env)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gradlane_core::config::OnWorkerLoss;

    use super::*;

    #[test]
    fn every_worker_learns_its_place() {
        let all = started(2, 0);
        assert_eq!(names(&all), ["worker 0", "worker 1"]);
        for (name, value) in [
            ("GRADLANE_JOIN_FILE", "/run/join"),
            ("GRADLANE_RANK", "1"),
            ("GRADLANE_SIZE", "2"),
            ("GRADLANE_LOCAL_RANK", "1"),
            ("GRADLANE_LOCAL_SIZE", "2"),
            ("GRADLANE_NODE_RANK", "0"),
            ("GRADLANE_NUM_NODES", "1"),
            ("GRADLANE_SERVERS", "1"),
        ] {
            assert_eq!(environment(&all[1].2).get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(line(&all[1].2), ["python", "train.py"]);
    }

    #[test]
    fn every_server_is_this_command_again() {
        let all = started(1, 2);
        assert_eq!(names(&all), ["server 0", "server 1", "worker 0"]);
        let server = &all[1].2;
        assert_eq!(line(server), ["python", "-m", "gradlane.cli", "server"]);
        for (name, value) in
            [("GRADLANE_SERVER_INDEX", "1"), ("GRADLANE_SERVERS", "2"), ("GRADLANE_BIND", "127.0.0.1:0")]
        {
            assert_eq!(environment(server).get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn every_process_shows_its_metrics_at_a_port_of_its_own() {
        let config = Config { metrics_bind: Some("127.0.0.1:9400".to_owned()), ..Config::default() };
        let (program, worker) = (words("gradlane"), words("python train.py"));
        let launch = |config| Launch {
            config,
            settings: BTreeMap::new(),
            workers: 2,
            servers: 2,
            restarts: 0,
            failure_grace: Duration::ZERO,
            program: &program,
            worker: &worker,
        };
        let shown = |launch: &Launch| -> Vec<Option<String>> {
            let all = processes(launch, &handover());
            all.iter().map(|(_, _, command)| environment(command).get("GRADLANE_METRICS_BIND").cloned()).collect()
        };
        let expected = ["9403", "9404", "9401", "9401"].map(|port| Some(format!("127.0.0.1:{port}")));
        assert_eq!(shown(&launch(config.clone())), expected, "the workers add their local ranks");
        assert_eq!(shown(&launch(Config::default())), [None, None, None, None]);
        let any = Config { metrics_bind: Some("[::1]:0".to_owned()), ..Config::default() };
        assert!(shown(&launch(any)).iter().all(|bind| bind.as_deref() == Some("[::1]:0")));

        let high = Config { metrics_bind: Some("127.0.0.1:65533".to_owned()), ..config };
        let refused = crate::launch::run(&launch(high)).unwrap_err();
        assert!(matches!(&refused, Error::Config { knob, .. } if knob == "metrics_bind"), "{refused}");
    }

    #[test]
    fn the_children_get_a_private_file_with_the_join_string_until_the_job_ends() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { runtime_dir: Some(dir.path().to_owned()), ..Config::default() };
        let handover = Handover::make(&config, &join(), "");
        let (variable, path) = handover.variable.clone();
        assert_eq!(variable, "GRADLANE_JOIN_FILE");
        assert_eq!(rendezvous::read_join_file(Path::new(&path), Duration::ZERO), Ok(join()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(handover);
        assert!(!Path::new(&path).exists());
    }

    #[test]
    fn settings_of_the_command_line_reach_every_child() {
        for (_, name, command) in started(1, 1) {
            let environment = environment(&command);
            assert_eq!(environment.get("GRADLANE_STEP_TIMEOUT").map(String::as_str), Some("70 s"), "{name}");
            assert_eq!(environment.get("GRADLANE_CONFIG").map(String::as_str), Some("job.toml"), "{name}");
        }
    }

    #[test]
    fn the_environment_of_a_child_makes_valid_settings() {
        for (role, name, command) in started(2, 2) {
            let (config, warnings) = Config::load(&BTreeMap::new(), environment(&command), None).unwrap();
            assert_eq!(warnings, [], "{name}");
            assert_eq!(config.size, Some(2), "{name}");
            assert_eq!(config.join_file.as_deref(), Some(Path::new("/run/join")), "{name}");
            assert_eq!(config.server_index.is_some(), role == Role::Server, "{name}");
            assert_eq!(config.rank.is_some(), role == Role::Worker, "{name}");
        }
    }

    #[test]
    fn a_worker_that_is_started_again_has_the_local_rank_of_the_one_before_and_no_rank() {
        let (program, worker) = (words("gradlane"), words("python train.py"));
        let mut launch = elastic(&program, &worker);
        launch.config.metrics_bind = Some("127.0.0.1:9400".to_owned());
        let command = replacement(&launch, Role::Worker, 2, &handover());
        assert_eq!(line(&command), ["python", "train.py"]);
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        for name in ["GRADLANE_RANK", "GRADLANE_SIZE", "RANK", "WORLD_SIZE", "SLURM_PROCID"] {
            assert!(removed.contains(&std::ffi::OsStr::new(name)), "{name}");
        }
        let environment = environment(&command);
        for (name, value) in [
            ("GRADLANE_LOCAL_RANK", "2"),
            ("GRADLANE_LOCAL_SIZE", "3"),
            ("GRADLANE_ELASTIC", "2:4"),
            ("GRADLANE_JOIN_FILE", "/run/join"),
            ("GRADLANE_METRICS_BIND", "127.0.0.1:9401"),
        ] {
            assert_eq!(environment.get(name).map(String::as_str), Some(value), "{name}");
        }
        let (config, warnings) = Config::load(&BTreeMap::new(), environment, None).unwrap();
        assert_eq!(warnings, []);
        let single = Origin::Launcher(gradlane_core::config::Launcher::Single);
        assert_eq!((config.origin("rank"), config.origin("size")), (&single, &single), "nobody says which");
        assert_eq!((config.local_rank, config.local_size), (Some(2), Some(3)));
    }

    #[test]
    fn a_server_that_is_started_again_has_no_index() {
        let (program, worker) = (words("gradlane"), words("python train.py"));
        let launch = elastic(&program, &worker);
        let command = replacement(&launch, Role::Server, 0, &handover());
        assert_eq!(line(&command), ["gradlane", "server"]);
        let (config, _) = Config::load(&BTreeMap::new(), environment(&command), None).unwrap();
        assert_eq!((config.server_index, config.size, config.servers), (None, None, 1));
        assert_eq!(config.join_file.as_deref(), Some(Path::new("/run/join")));
    }

    #[test]
    fn an_elastic_job_has_servers_and_begins_with_as_many_workers_as_it_may_have() {
        let (program, worker) = (words("gradlane"), words("python train.py"));
        let launch = || elastic(&program, &worker);
        let rigid = Launch { config: Config::default(), ..launch() };
        let waits =
            || Launch { config: Config { on_worker_loss: OnWorkerLoss::Wait, ..Config::default() }, ..launch() };
        for (launch, due) in [
            (launch(), None),
            (Launch { workers: 1, ..launch() }, Some("size")),
            (Launch { workers: 5, ..launch() }, Some("size")),
            (Launch { servers: 0, ..launch() }, Some("servers")),
            (Launch { restarts: 0, ..rigid }, None),
            (waits(), None),
            (Launch { servers: 0, ..waits() }, Some("servers")),
            (Launch { config: Config::default(), ..launch() }, Some("elastic")),
        ] {
            let refused = match launch.check() {
                Ok(()) => None,
                Err(Error::Config { knob, .. }) => Some(knob),
                Err(other) => panic!("{other}"),
            };
            assert_eq!(refused.as_deref(), due, "{launch:?}");
        }
    }

    /// Three workers of at most four.
    fn elastic<'a>(program: &'a [OsString], worker: &'a [OsString]) -> Launch<'a> {
        let settings: BTreeMap<String, String> =
            [("elastic", "2:4"), ("size", "3")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let (config, _) = Config::load(&settings, [("GRADLANE_ROLE".to_owned(), "both".to_owned())], None).unwrap();
        Launch { config, settings, workers: 3, servers: 1, restarts: 9, failure_grace: Duration::ZERO, program, worker }
    }

    fn started(workers: u32, servers: u32) -> Vec<(Role, String, Command)> {
        let settings = [("step_timeout", "70 s"), ("config", "job.toml")];
        let launch = Launch {
            config: Config::default(),
            settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            workers,
            servers,
            restarts: 0,
            failure_grace: Duration::ZERO,
            program: &words("python -m gradlane.cli"),
            worker: &words("python train.py"),
        };
        processes(&launch, &handover())
    }

    fn handover() -> Handover {
        Handover { variable: ("GRADLANE_JOIN_FILE".to_owned(), "/run/join".to_owned()), file: None }
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn names(all: &[(Role, String, Command)]) -> Vec<&str> {
        all.iter().map(|(_, name, _)| name.as_str()).collect()
    }

    fn line(command: &Command) -> Vec<String> {
        [command.get_program()]
            .into_iter()
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect()
    }

    fn environment(command: &Command) -> BTreeMap<String, String> {
        let text = |word: &std::ffi::OsStr| word.to_string_lossy().into_owned();
        command.get_envs().filter_map(|(name, value)| Some((text(name), text(value?)))).collect()
    }

    fn join() -> JoinString {
        JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: [2; 16] }
    }
}
