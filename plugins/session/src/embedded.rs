//! A coordinator and servers inside this process, and the file with which other processes of the user find them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gradlane_core::Result;
use gradlane_core::config::Config;
use gradlane_core::runtime::exporter::Exporter;
use gradlane_core::types::JoinString;
use gradlane_server::EmbeddedOptions;
use gradlane_server::launch::rendezvous::{self, Published};
use gradlane_server::launch::running::Listed;

use crate::own_process::OwnProcess;

/// What to embed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EmbeddedPlan {
    /// Where the coordinator listens, as `host:port`.
    pub bind: String,
    /// How many workers the job has.
    pub workers: u32,
    /// How many servers the job has.
    pub servers: u32,
    /// The job's name.
    pub job: String,
    /// Whether the servers are separate processes.
    pub coordinator_only: bool,
}

/// A job's coordinator and servers. Stops when it is dropped.
pub struct Embedded {
    /// `None` once it was stopped. `stop` waits for workers meanwhile, and a signal may ask for dumps then.
    inner: Mutex<Option<Arc<OwnProcess<gradlane_server::Embedded>>>>,
    join: JoinString,
    /// The file with the join string of this job, while it runs.
    published: Mutex<Option<Published>>,
    /// The file by which `gradlane status` finds this job, while it runs.
    listed: Mutex<Option<OwnProcess<Option<Listed>>>>,
}

impl Embedded {
    /// Starts coordinator and servers.
    ///
    /// # Errors
    /// As [`gradlane_server::Embedded::start`].
    pub fn start(plan: EmbeddedPlan, config: Config) -> Result<Self> {
        let EmbeddedPlan { bind, workers, servers, job, coordinator_only } = plan;
        // The coordinator's log says which workers a sum waits for.
        gradlane_server::log::start(&config)?;
        let options = EmbeddedOptions { config: Config { bind, job, ..config }, workers, servers };
        let config = options.config.clone();
        let embedded = match coordinator_only {
            true => gradlane_server::Embedded::start_coordinator(&options)?,
            false => gradlane_server::Embedded::start(options)?,
        };
        let join = embedded.join_string().clone();
        let listed = Mutex::new(Some(OwnProcess::new(Listed::here(&config, embedded.coordinator()))));
        Ok(Self {
            inner: Mutex::new(Some(Arc::new(OwnProcess::new(embedded)))),
            join,
            published: Mutex::default(),
            listed,
        })
    }

    /// The join string for the workers. It is a secret.
    pub fn join(&self) -> &JoinString {
        &self.join
    }

    /// The exporter of this process, if the settings asked for one.
    pub(crate) fn exporter(&self) -> Option<Arc<Exporter>> {
        self.inner.lock().expect(LOCK).as_ref().and_then(|embedded| embedded.exporter())
    }

    /// Writes the join string to this user's state directory, for processes that look for `job`, until [`stop`](Self::stop).
    ///
    /// # Errors
    /// As [`rendezvous::publish`] and [`rendezvous::state_dir`].
    pub fn publish(&self, config: &Config, job: &str) -> Result<()> {
        let published = rendezvous::publish(rendezvous::state_dir(config)?, job, &self.join)?;
        *self.published.lock().expect(LOCK) = Some(published);
        Ok(())
    }

    /// Whether a signal that asks for dumps has a place for them: see [`dump_by_signal`](Self::dump_by_signal).
    pub fn is_dumped_by_signal(&self) -> bool {
        let embedded = self.inner.lock().expect(LOCK);
        embedded.as_ref().is_some_and(|embedded| embedded.coordinator().is_dumped_by_signal())
    }

    /// As [`gradlane_server::Embedded::dump_by_signal`]. Does nothing once it was stopped.
    pub fn dump_by_signal(&self) {
        if let Some(embedded) = &*self.inner.lock().expect(LOCK) {
            embedded.dump_by_signal();
        }
    }

    /// Waits until all workers have left, at most `grace`, then stops everything. Idempotent.
    ///
    /// # Errors
    /// As [`gradlane_server::Embedded::stop`].
    pub fn stop(&self, grace: Duration) -> Result<()> {
        self.published.lock().expect(LOCK).take();
        self.listed.lock().expect(LOCK).take();
        let Some(embedded) = self.inner.lock().expect(LOCK).clone() else { return Ok(()) };
        let stopped = embedded.stop(grace);
        self.inner.lock().expect(LOCK).take();
        stopped
    }
}

const LOCK: &str = "no thread panics while it holds this lock";
