//! The roles of a job that run as separate processes: a server, a coordinator, or both in one. Each lives as long as its job, or until a
//! signal.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{bounded, unbounded};
use gradlane_core::config::{Config, Origin, ProcessRole};
use gradlane_core::runtime::exporter::Exporter;
use gradlane_core::types::Role;
use gradlane_core::types::join::JoinString;
use gradlane_core::{Error, Result};
use signal_hook::consts::SIGTERM;

use super::live::{Live, NEWS_PATIENCE, live};
use super::status_printer::who_is_there;
use crate::coordinator::CoordinatorConfig;
use crate::coordinator::driver::CoordinatorNode;
use crate::embedded::{Embedded, EmbeddedOptions};
use crate::exit;
use crate::handle::Handle;
use crate::launch::entering::Found;
use crate::launch::rendezvous::{self, Published};
use crate::launch::running::Listed;
use crate::node::{Server, ServerOptions, ServerState};
use crate::private_file;
use crate::signals::Interrupts;

/// Runs a role until its job ends or a signal comes, and returns the exit code. Its servers have the `handle`, if there is one.
///
/// # Errors
/// Why it could not start, or why the job failed.
pub(super) fn run(role: ProcessRole, config: Config, handle: Option<Arc<dyn Handle>>) -> Result<i32> {
    let (signals, interrupts) = unbounded();
    // One that was not begun yet is enough.
    let (asks, dumps) = bounded(1);
    let _watch = Interrupts::watch_with_dumps(
        move |signal| {
            let _ = signals.send(signal);
        },
        move || {
            let _ = asks.try_send(());
        },
    )?;
    match role {
        ProcessRole::Server => live(move || start_server(config, handle), &interrupts, &dumps),
        ProcessRole::Coordinator => live(move || start_coordinator(config), &interrupts, &dumps),
        ProcessRole::Both => live(move || start_both(config, handle.as_ref()), &interrupts, &dumps),
        ProcessRole::Worker => Err(Error::Config {
            knob: "role".to_owned(),
            problem: "is worker".to_owned(),
            hint: "start the training program itself: it is the worker".to_owned(),
        }),
    }
}

/// A server, and after each formation of an elastic job the one of the next.
struct Serving {
    server: Mutex<Arc<Server>>,
    exporter: Option<Arc<Exporter>>,
}

fn start_server(config: Config, handle: Option<Arc<dyn Handle>>) -> Result<Serving> {
    let patience = config.join_timeout;
    let exporter = Exporter::by_settings(&config)?;
    let (join, credentials) = Found::by_settings(&config, patience)?.enrol(&config, Role::Server, patience)?;
    let index = config.server_index;
    let options = ServerOptions { config, coordinator: join.address, credentials: Arc::new(credentials), index };
    let server = Server::start_with(options, handle)?;
    let serving = Serving { server: Mutex::new(Arc::new(server)), exporter };
    serving.show();
    Ok(serving)
}

impl Serving {
    fn now(&self) -> Arc<Server> {
        Arc::clone(&self.server.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn show(&self) {
        if let Some(exporter) = &self.exporter {
            self.now().show_at(exporter);
        }
    }
}

impl Live for Serving {
    fn news(&self) -> Result<Option<String>> {
        let server = self.now();
        Ok(match server.state() {
            ServerState::Joining => {
                Some(format!("server listening on {}; waiting for its job to form", server.address()))
            }
            ServerState::Running | ServerState::Draining | ServerState::Stopped | ServerState::Failed(_) => None,
        })
    }

    fn warns_after(&self) -> Option<Duration> {
        None
    }

    fn wait(&self) -> Result<()> {
        loop {
            let server = self.now();
            let outcome = server.join(None);
            let Some(next) = server.start_again()? else { return outcome };
            *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
            self.show();
        }
    }

    fn stop(&self) {
        // Rounds under way may take one of the two seconds, and leaving the job half of the other.
        self.now().drain(Duration::from_secs(1));
    }

    fn dump(&self) {
        self.now().dump_by_signal();
    }
}

/// A coordinator with a published join string.
struct Coordinating {
    node: CoordinatorNode,
    workers: u32,
    servers: u32,
    stall_warn: Duration,
    /// Whether the next coordinator goes on with a job of which this one has not seen the end.
    is_resumed: bool,
    announced: Mutex<Option<Announced>>,
    _listed: Option<Listed>,
}

fn start_coordinator(config: Config) -> Result<Coordinating> {
    let (config, workers) = decider(config)?;
    if config.servers == 0 {
        return Err(Error::Config {
            knob: "servers".to_owned(),
            problem: "is 0, but a coordinator adds no tensors itself".to_owned(),
            hint: "give the number of servers, or start the role `both`".to_owned(),
        });
    }
    let machine = CoordinatorConfig::from_config(&config, workers, config.servers);
    let directory = match config.state_dir.as_deref() {
        Some(state_dir) => {
            rendezvous::check_free(state_dir, &config.job)?;
            Some(rendezvous::job_dir(state_dir, &config.job)?)
        }
        None => None,
    };
    let exporter = Exporter::by_settings(&config)?;
    let node = CoordinatorNode::start(machine, &config, directory.as_deref())?;
    if let Some(exporter) = &exporter {
        node.show_at(exporter);
    }
    let listed = Listed::here(&config, &node);
    let announced = announce(node.join_string(), &config)?;
    let (servers, stall_warn) = (config.servers, config.stall_warn);
    let (announced, is_resumed) = (Mutex::new(Some(announced)), config.resume && directory.is_some());
    Ok(Coordinating { node, workers, servers, stall_warn, is_resumed, announced, _listed: listed })
}

impl Live for Coordinating {
    fn news(&self) -> Result<Option<String>> {
        let status = self.node.status_within(NEWS_PATIENCE)?;
        Ok(who_is_there(&status, self.workers, self.servers))
    }

    fn warns_after(&self) -> Option<Duration> {
        Some(self.stall_warn)
    }

    fn wait(&self) -> Result<()> {
        self.node.wait(None)
    }

    fn stop(&self) {
        self.node.stop(stopped());
    }

    fn dump(&self) {
        self.node.dump_by_signal();
    }

    /// SIGTERM comes when a machine is to be restarted, or a pod to go elsewhere. That must not cost the job.
    fn interrupt(&self, signal: i32) -> i32 {
        if signal == SIGTERM && self.is_resumed && self.node.step_down() {
            // Where others find the job, they will find the next coordinator.
            std::mem::forget(self.announced.lock().unwrap_or_else(PoisonError::into_inner).take());
            let how = "--resume continues its job, which goes on meanwhile; SIGINT ends a job";
            tracing::warn!(how, "the coordinator stops because of SIGTERM");
            return exit::TEMPORARY;
        }
        self.stop();
        exit::of_signal(signal)
    }
}

/// The cause that the members of a running job get.
fn stopped() -> Error {
    Error::Unavailable { what: "the coordinator".to_owned(), cause: "it was stopped by a signal".to_owned() }
}

/// A coordinator with its servers in one process.
struct Joint {
    embedded: Embedded,
    workers: u32,
    servers: u32,
    stall_warn: Duration,
    _announced: Announced,
    _listed: Option<Listed>,
}

fn start_both(config: Config, handle: Option<&Arc<dyn Handle>>) -> Result<Joint> {
    let (config, workers) = decider(config)?;
    let servers = config.servers.max(1);
    if config.resume {
        return Err(Error::Config {
            knob: "resume".to_owned(),
            problem: "is set, but a coordinator with servers in its process keeps no keys over its end".to_owned(),
            hint: "start `gradlane coordinator --resume` and the servers apart".to_owned(),
        });
    }
    if let Some(state_dir) = config.state_dir.as_deref() {
        rendezvous::check_free(state_dir, &config.job)?;
    }
    let embedded = Embedded::start_with(EmbeddedOptions { config: config.clone(), workers, servers }, handle)?;
    let listed = Listed::here(&config, embedded.coordinator());
    let announced = announce(embedded.join_string(), &config)?;
    Ok(Joint { embedded, workers, servers, stall_warn: config.stall_warn, _announced: announced, _listed: listed })
}

impl Live for Joint {
    fn news(&self) -> Result<Option<String>> {
        let status = self.embedded.coordinator().status_within(NEWS_PATIENCE)?;
        Ok(who_is_there(&status, self.workers, self.servers))
    }

    fn warns_after(&self) -> Option<Duration> {
        Some(self.stall_warn)
    }

    fn wait(&self) -> Result<()> {
        self.embedded.coordinator().wait(None)
    }

    fn stop(&self) {
        self.embedded.coordinator().stop(stopped());
        // `wait` has reported how the job ended.
        let _ = self.embedded.stop(Duration::ZERO);
    }

    fn dump(&self) {
        self.embedded.dump_by_signal();
    }
}

/// The settings of a coordinator, and how many workers it waits for.
///
/// Where `DMLC_*` variables name its host and port, it is reached under exactly that name, and listens on every address, because the
/// name may be that of a router or of a container's host.
fn decider(mut config: Config) -> Result<(Config, u32)> {
    let Some(workers) = config.size else {
        return Err(Error::Config {
            knob: "size".to_owned(),
            problem: "is not given, but a coordinator must know when its job is complete".to_owned(),
            hint: "give the number of workers: --workers, GRADLANE_SIZE or DMLC_NUM_WORKER".to_owned(),
        });
    };
    config.job = rendezvous::job(&config);
    if let (Origin::Default, Some(port)) = (config.origin("bind"), config.coordinator_port) {
        config.bind = format!("0.0.0.0:{port}");
    }
    config.advertise = config.advertise.or_else(|| config.coordinator_host.clone());
    Ok((config, workers))
}

/// A published join string. Dropping it removes the published files.
struct Announced {
    _published: Option<Published>,
    join_file: Option<PathBuf>,
}

/// Publishes the join string in the join file and for the user's own processes, and says on standard output where it is. On a terminal it
/// also says where the coordinator listens, and what to do with that line.
fn announce(join: &JoinString, config: &Config) -> Result<Announced> {
    let published = match config.state_dir.as_deref() {
        Some(state_dir) => Some(rendezvous::publish(state_dir, &config.job, join)?),
        None => None,
    };
    if let Some(path) = &config.join_file {
        private_file::write(path, format!("{join}\n"))?;
    }
    let file = config.join_file.as_deref().or(published.as_ref().map(Published::path));
    let line = announcement(join, file, std::io::stdout().is_terminal())?;
    tracing::info!(job = config.job, address = join.address, "the coordinator listens");
    if std::io::stderr().is_terminal() {
        let _ = writeln!(
            std::io::stderr(),
            "gradlane: job {}, coordinator listening on {}. Give this variable to its servers and workers; it is a secret:",
            config.job,
            join.address
        );
    }
    let mut stdout = std::io::stdout().lock();
    // A reader that has closed the pipe, such as `head -1`, must not stop the job.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    Ok(Announced { _published: published, join_file: config.join_file.clone() })
}

/// The line that tells a user or a launcher how others join. What is no terminal may be a log that others read, or that is kept: only a
/// terminal is shown the secret itself.
pub(super) fn announcement(join: &JoinString, file: Option<&Path>, is_terminal: bool) -> Result<String> {
    match file {
        _ if is_terminal => Ok(format!("GRADLANE_JOIN={join}")),
        Some(file) => Ok(format!("GRADLANE_JOIN_FILE={}", file.display())),
        None => Err(Error::Config {
            knob: "join_file".to_owned(),
            problem: "is not given, and there is no state_dir, so that there is no place for the join string"
                .to_owned(),
            hint: "give --join-file: the join string is not printed where it could get into a log".to_owned(),
        }),
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some(path) = &self.join_file {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_of_dmlc_variables_is_reached_under_the_name_they_give() {
        let dmlc = [("DMLC_PS_ROOT_URI", "n1"), ("DMLC_PS_ROOT_PORT", "9000"), ("DMLC_NUM_WORKER", "2")];
        let (config, workers) = decider(config(&dmlc)).unwrap();
        assert_eq!(workers, 2);
        assert_eq!(config.bind, "0.0.0.0:9000");
        assert_eq!(config.advertise.as_deref(), Some("n1"));
        assert_eq!(config.job, "n1_9000");
    }

    #[test]
    fn a_coordinator_must_know_how_many_there_will_be() {
        assert!(matches!(decider(config(&[])), Err(Error::Config { knob, .. }) if knob == "size"));
        let workers_only = config(&[("GRADLANE_SIZE", "2")]);
        assert!(matches!(start_coordinator(workers_only), Err(Error::Config { knob, .. }) if knob == "servers"));
        let resumed = config(&[("GRADLANE_SIZE", "2"), ("GRADLANE_RESUME", "true")]);
        assert!(matches!(start_both(resumed, None), Err(Error::Config { knob, .. }) if knob == "resume"));
    }

    #[test]
    fn a_join_string_is_announced_until_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("join-file");
        let config =
            Config { state_dir: Some(dir.path().to_owned()), join_file: Some(file.clone()), ..Config::default() };
        let join = JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: [2; 16] };
        let announced = announce(&join, &config).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{join}\n"));
        assert_eq!(rendezvous::find(dir.path(), "default", Duration::ZERO), Ok(join));
        drop(announced);
        assert!(!file.exists());
        assert!(rendezvous::find(dir.path(), "default", Duration::ZERO).is_err());
    }

    #[test]
    fn only_a_terminal_is_shown_the_secret() {
        let join = JoinString { address: "127.0.0.1:9000".to_owned(), ca_hash: [1; 32], secret: [2; 16] };
        let shown = |file: Option<&str>, is_terminal| announcement(&join, file.map(Path::new), is_terminal);
        assert_eq!(shown(Some("/run/join"), true), Ok(format!("GRADLANE_JOIN={join}")));
        assert_eq!(shown(Some("/run/join"), false), Ok("GRADLANE_JOIN_FILE=/run/join".to_owned()));
        assert!(matches!(shown(None, false), Err(Error::Config { knob, .. }) if knob == "join_file"));
    }

    fn config(variables: &[(&str, &str)]) -> Config {
        let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let role = [("role".to_owned(), "coordinator".to_owned())].into();
        Config::load(&role, environment, None).unwrap().0
    }
}
