//! `gradlane run`: a whole job on this host with one command.
//!
//! The coordinator lives in this process; servers and workers are child processes that learn their place from `GRADLANE_*` variables.
//! [`children`] lists them, [`supervision`] decides how they end, and [`supervisor`] starts and ends them.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gradlane_core::config::{Config, Origin};
use gradlane_core::runtime::exporter::Exporter;
use gradlane_core::runtime::process;
use gradlane_core::types::join::JoinString;
use gradlane_core::types::{Phase, Role};
use gradlane_core::{Error, Result};

use crate::coordinator::CoordinatorConfig;
use crate::coordinator::driver::CoordinatorNode;
use crate::embedded::{Embedded, EmbeddedOptions};
use crate::exit;
use crate::signals::Interrupts;

mod children;
pub mod entering;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
mod left_behind;
pub mod rendezvous;
pub mod running;
pub mod sealed;
mod supervision;
mod supervisor;
pub mod waiting;
mod writer_process;

pub use crate::ending::Ending;
pub(crate) use children::is_launched;
pub use children::{Launch, RESTARTS};

use children::{Handover, metrics_bind, processes};
use running::Listed;
use supervisor::{Event, Failure, Job, Supervisor, refused_start};

/// Runs the job, and returns the exit code: 0 if all workers ended with 0, else that of the first process that failed, as a shell reports
/// it. Where the job goes on without lost workers (`on_worker_loss`), 0 if the others ended with 0. Prints failures on standard error as they
/// happen.
///
/// In an elastic job, workers that fail while it runs are started again, and servers if the job survives their loss (`on_server_loss`), as
/// in any job that restores them; [`Launch::restarts`] times in all. They enter by a join string that is
/// good for one process, and the coordinator gives them their ranks.
///
/// Blocks; SIGINT and SIGTERM end everything within two seconds. But where the job goes on without lost workers, SIGTERM asks the workers to
/// leave at the end of a step, for which they have `leave_grace`; the code is 0 if all of them do. Call it on a thread that lives until it
/// returns, and not on two threads at once, because signals belong to the whole process.
///
/// # Errors
/// Why the job could not be started.
///
/// # Panics
/// If `program` or `worker` is empty.
pub fn run(launch: &Launch) -> Result<i32> {
    launch.check()?;
    let Config { on_worker_loss, leave_grace, .. } = launch.config;
    let mut supervisor = Supervisor::new(launch.failure_grace, on_worker_loss, leave_grace);
    supervisor.allow_restarts(launch.restarts);
    if launch.config.on_server_loss.survives() {
        supervisor.outlive_servers();
    }
    if !launch.config.takes_newcomers() {
        supervisor.restart_servers_alone();
    }
    let interrupts = supervisor.events();
    let started: Arc<OnceLock<Arc<Host>>> = Arc::default();
    let asked = Arc::clone(&started);
    let _watch = Interrupts::watch_with_dumps(
        move |signal| drop(interrupts.send(Event::Interrupt(signal))),
        move || asked.get().into_iter().for_each(|host| host.dump_by_signal()),
    )?;
    // Before anything is started: whether there is a port for the last one.
    metrics_bind(launch, launch.workers.saturating_add(launch.servers))?;
    let host = Arc::new(Host::start(launch)?);
    let _ = started.set(Arc::clone(&host));
    host.report_failure_to(&supervisor)?;
    let handover = Handover::make(&launch.config, host.join_string(), "");

    let code = match start_all(&mut supervisor, processes(launch, &handover)) {
        Ok(()) => {
            let mut job =
                Launched { launch, host: &host, consequences: Vec::new(), made: 0, handovers: BTreeMap::new() };
            let code = supervisor.run(&mut job);
            if !job.consequences.is_empty() {
                exit::complain(&format!("{}, because of that", job.consequences.join(", ")));
            }
            code
        }
        Err((code, error)) => {
            exit::complain(&error);
            drop(supervisor);
            code
        }
    };
    host.stop();
    Ok(code)
}

/// The job, as the supervisor of its processes sees it.
struct Launched<'a> {
    launch: &'a Launch<'a>,
    host: &'a Host,
    /// The failures that followed from another one.
    consequences: Vec<String>,
    /// How many replacements were made.
    made: u32,
    /// By child: the way into the job of its last replacement.
    handovers: BTreeMap<usize, Handover>,
}

impl Job for Launched<'_> {
    fn failed(&mut self, failure: Failure) {
        let coordinator = self.host.coordinator();
        match failure {
            Failure::Child { pid, cause, is_cause } => {
                match is_cause {
                    true => exit::complain(&cause),
                    false => self.consequences.push(cause.clone()),
                }
                coordinator.report_death(pid, cause);
            }
            Failure::Restarts { pid, cause, after } => {
                match after.as_secs() {
                    0 => exit::complain(&format!("{cause}; it is started again")),
                    seconds => exit::complain(&format!("{cause}; it is started again in {seconds} s")),
                }
                coordinator.report_restart(pid, cause);
            }
            Failure::Unstarted { name, error } => {
                exit::complain(&format!("{name} cannot be started again now: {error}"))
            }
            Failure::Job(error) => exit::complain(&error),
        }
    }

    fn runs(&self) -> bool {
        match self.host.coordinator().status_within(ASKING).map(|status| (status.view.phase, status.view.formed_before))
        {
            Ok((Phase::Forming, formed_before)) => formed_before > 0,
            Ok((Phase::Running | Phase::FormsAgain | Phase::Restores(_), _)) => true,
            Ok((Phase::Ended | Phase::Aborted(_), _)) => false,
            // The coordinator is there and has much to do. If the job is over, the new worker is refused.
            Err(Error::Timeout { .. }) => true,
            Err(_) => false,
        }
    }

    fn replacement(&mut self, child: usize) -> Result<Command> {
        let child_number = u32::try_from(child).expect("children are few");
        // Servers were started first.
        let (role, number) = match child_number.checked_sub(self.launch.servers) {
            Some(rank) => (Role::Worker, rank),
            None => (Role::Server, child_number),
        };
        let join = self.host.coordinator().invite(role, COMES_WITHIN)?;
        self.made += 1;
        let handover = Handover::make(&self.launch.config, &join, &format!("-{}", self.made));
        let command = children::replacement(self.launch, role, number, &handover);
        self.handovers.insert(child, handover);
        Ok(command)
    }
}

/// How long a question to the coordinator of this process may take. A signal waits so long, too.
const ASKING: Duration = Duration::from_secs(1);
/// How long the join string of a process that is started again is good. A program may work for long before it joins.
const COMES_WITHIN: Duration = Duration::from_secs(3600);

fn start_all(
    supervisor: &mut Supervisor,
    processes: Vec<(Role, String, Command)>,
) -> std::result::Result<(), (i32, Error)> {
    for (role, name, command) in processes {
        let program = command.get_program().to_string_lossy().into_owned();
        supervisor.spawn(role, name, command).map_err(|error| refused_start(&program, &error))?;
    }
    Ok(())
}

/// The parts of the job in this process.
enum Host {
    Coordinator { node: CoordinatorNode, _listed: Option<Listed> },
    Embedded { embedded: Embedded, _listed: Option<Listed> },
}

impl Host {
    fn start(launch: &Launch) -> Result<Self> {
        let mut config = launch.config.clone();
        if *config.origin("bind") == Origin::Default {
            config.bind = format!("{}:0", process::loopback());
        }
        let (workers, servers) = (launch.workers, launch.servers);
        if servers == 0 {
            let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers, servers: 1 })?;
            let _listed = Listed::here(&config, embedded.coordinator());
            return Ok(Self::Embedded { embedded, _listed });
        }
        let machine = CoordinatorConfig::from_config(&config, workers, servers);
        let exporter = Exporter::by_settings(&config)?;
        let node = CoordinatorNode::start(machine, &config, None)?;
        if let Some(exporter) = &exporter {
            node.show_at(exporter);
        }
        let _listed = Listed::here(&config, &node);
        Ok(Self::Coordinator { node, _listed })
    }

    fn coordinator(&self) -> &CoordinatorNode {
        match self {
            Self::Coordinator { node, .. } => node,
            Self::Embedded { embedded, .. } => embedded.coordinator(),
        }
    }

    fn dump_by_signal(&self) {
        match self {
            Self::Coordinator { node, .. } => node.dump_by_signal(),
            Self::Embedded { embedded, .. } => embedded.dump_by_signal(),
        }
    }

    fn join_string(&self) -> &JoinString {
        self.coordinator().join_string()
    }

    /// The job can fail although no process failed: members may never join, or fall silent.
    fn report_failure_to(self: &Arc<Self>, supervisor: &Supervisor) -> Result<()> {
        let (host, events) = (Arc::clone(self), supervisor.events());
        let watch = move || {
            if let Err(error) = host.coordinator().wait(None) {
                let _ = events.send(Event::JobFailed { code: exit::code(&error), error });
            }
        };
        match std::thread::Builder::new().name("gl-job".to_owned()).spawn(watch) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() }),
        }
    }

    /// The workers have ended; the other members are told so.
    fn stop(&self) {
        match self {
            Self::Coordinator { node, .. } => node.stop(Error::FailedPrecondition {
                what: "the launcher has ended the job".to_owned(),
                hint: "look at the launcher's output: it says which process ended first, and with which exit code"
                    .to_owned(),
            }),
            Self::Embedded { embedded, .. } => {
                // The exit codes have decided the outcome of the job.
                let _ = embedded.stop(Duration::ZERO);
            }
        }
    }
}
