//! A coordinator and its servers inside the calling process: for rank 0 of a job without a server pool, for tests and notebooks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gradlane_core::config::Config;
use gradlane_core::runtime::exporter::Exporter;
use gradlane_core::types::{JoinString, Phase, Role};
use gradlane_core::wire::frame::Status;
use gradlane_core::{Error, Result};

use crate::coordinator::CoordinatorConfig;
use crate::coordinator::driver::CoordinatorNode;
use crate::handle::Handle;
use crate::node::{Server, ServerOptions};

/// What to embed.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Settings of the process. The coordinator listens on `bind`; the servers take free ports of the same host.
    pub config: Config,
    /// The number of workers.
    pub workers: u32,
    /// The number of servers.
    pub servers: u32,
}

/// A job's coordinator and, unless they are elsewhere, its servers. Dropping it stops them.
pub struct Embedded {
    coordinator: CoordinatorNode,
    servers: Vec<Server>,
    exporter: Mutex<Option<Arc<Exporter>>>,
}

impl Embedded {
    /// Starts them all; the workers may join from now on.
    ///
    /// # Errors
    /// [`Error::Io`] if an address cannot be bound.
    pub fn start(options: EmbeddedOptions) -> Result<Self> {
        Self::start_with(options, None)
    }

    /// The same with a handle for keys of `KVWorker`, if there is one.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(options: EmbeddedOptions, handle: Option<&Arc<dyn Handle>>) -> Result<Self> {
        let Self { coordinator, exporter, .. } = Self::start_coordinator(&options)?;
        let EmbeddedOptions { config, workers: _, servers } = options;
        let host = config.bind.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
        let config = Config { bind: format!("{host}:0"), ..config.clone() };
        let join = coordinator.join_string();
        let servers = (0..servers)
            .map(|index| {
                let options = ServerOptions {
                    config: config.clone(),
                    coordinator: join.address.clone(),
                    credentials: Arc::new(coordinator.credentials(Role::Server)?),
                    index: Some(index),
                };
                Server::start_with(options, handle.cloned())
            })
            .collect::<Result<Vec<_>>>()?;
        if let Some(exporter) = &*exporter.lock().unwrap_or_else(PoisonError::into_inner) {
            servers.iter().for_each(|server| server.show_at(exporter));
        }
        Ok(Self { coordinator, servers, exporter })
    }

    /// Starts the coordinator alone, for a job whose servers are separate processes and join as the workers do.
    ///
    /// # Errors
    /// [`Error::Io`] if its address cannot be bound.
    pub fn start_coordinator(options: &EmbeddedOptions) -> Result<Self> {
        if options.config.lets_in_later() {
            let (knob, set) = match (options.config.elastic, options.config.takes_newcomers()) {
                (Some(_), _) => ("elastic", "set"),
                (None, true) => ("on_worker_loss", "wait"),
                (None, false) => ("on_server_loss", "restore"),
            };
            return Err(Error::Config {
                knob: knob.to_owned(),
                problem: format!("is {set}, but coordinator or servers would live in a process that is no server"),
                hint: "start them as processes of their own: `gradlane run -s 1`, or `gradlane coordinator` and `gradlane server`"
                    .to_owned(),
            });
        }
        let exporter = Exporter::by_settings(&options.config)?;
        let machine = CoordinatorConfig::from_config(&options.config, options.workers, options.servers);
        let coordinator = CoordinatorNode::start(machine, &options.config, None)?;
        if let Some(exporter) = &exporter {
            coordinator.show_at(exporter);
        }
        Ok(Self { coordinator, servers: Vec::new(), exporter: Mutex::new(exporter) })
    }

    /// The join string for the workers. It is a secret.
    pub fn join_string(&self) -> &JoinString {
        self.coordinator.join_string()
    }

    /// The embedded servers, by index.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The coordinator.
    pub fn coordinator(&self) -> &CoordinatorNode {
        &self.coordinator
    }

    /// The exporter that the settings asked for, which shows the coordinator and the servers until they are stopped. A worker in the same
    /// process is shown there too.
    pub fn exporter(&self) -> Option<Arc<Exporter>> {
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes what the flight recorders of all of them have into files, because a signal asks for it. Does not wait for the files.
    pub fn dump_by_signal(&self) {
        self.coordinator.dump_by_signal();
        self.servers.iter().for_each(Server::dump_by_signal);
    }

    /// The state of the job.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] once it was stopped.
    pub fn status(&self) -> Result<Status> {
        self.coordinator.status()
    }

    /// Waits until all workers have left, at most `grace`, then stops everything. Idempotent.
    ///
    /// # Errors
    /// Why the job failed; [`Error::Timeout`] if workers had not left. They are told that the job has ended.
    pub fn stop(&self, grace: Duration) -> Result<()> {
        // A job that never formed has nobody to wait for.
        let forming = self.status().is_ok_and(|status| status.view.phase == Phase::Forming);
        let outcome = if forming { Ok(()) } else { self.coordinator.wait(Some(grace)) };
        self.coordinator.stop(Error::FailedPrecondition {
            what: "the job's embedded server was stopped".to_owned(),
            hint: "the process that embeds it must outlive the other workers".to_owned(),
        });
        for server in &self.servers {
            server.stop(Duration::from_secs(1));
        }
        let exporter = self.exporter.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(exporter);
        outcome
    }
}
