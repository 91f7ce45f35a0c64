//! The membership of a process in its job: the session, and the servers that this process embeds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::{Error, Result};

use crate::embedded::Embedded;
use crate::launch::{Entrance, Launch, find_join, read_join};
use crate::session::{JoinRequest, Session};
use crate::settings::Settings;

/// A process in its job.
pub struct Job {
    session: Arc<Session>,
    embedded: Option<Embedded>,
}

impl Job {
    /// Finds the job of this process and joins it. Returns once the job runs. `arguments` are those of [`Launch::detect`], and
    /// `generation` is that of [`Launch::entrance`].
    ///
    /// # Errors
    /// [`Error::Config`] if the coordinator is unknown; [`Error::NotFormed`] names the members that did not join.
    pub fn enter(arguments: Settings, generation: u64) -> Result<Self> {
        let launch = Launch::detect(arguments)?;
        let (config, patience) = (&launch.config, launch.config.join_timeout);
        let (embedded, found) = match launch.entrance(generation)? {
            Entrance::Alone => return Ok(Arc::new(Session::alone(config)?).into()),
            Entrance::Join(join) => (None, join.into()),
            Entrance::Read(path) => (None, read_join(&path, patience)?),
            Entrance::Find { job } => (None, find_join(config, &job, patience)?),
            Entrance::Embed(plan) => {
                let job = plan.job.clone();
                let embedded = Embedded::start(plan, config.clone())?;
                embedded.publish(config, &job)?;
                let join = embedded.join().clone();
                (Some(embedded), join.into())
            }
        };
        let (rank, workers, servers) = (launch.rank, launch.size, config.servers);
        let request = JoinRequest { rank, workers, servers, patience, software: BTreeMap::new() };
        // An embedded server stops when it is dropped, as after a failure here.
        let session = match &embedded {
            Some(embedded) => Session::join_beside(embedded, found, request, config.clone())?,
            None => Session::join(found, request, config.clone())?,
        };
        Ok(Self { session: Arc::new(session), embedded })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Whether this process serves the other workers, which end with it.
    pub fn serves(&self) -> bool {
        self.embedded.is_some()
    }

    /// Leaves the job, then stops the embedded servers, which first wait for the other members to leave. Each step waits at most `grace`.
    /// Idempotent.
    ///
    /// # Errors
    /// As [`Session::shutdown`] and [`Embedded::stop`].
    pub fn leave(&self, grace: Duration) -> Result<()> {
        let left = self.session.shutdown(grace);
        let Some(embedded) = &self.embedded else { return left };
        let stopped = embedded.stop(grace);
        match left {
            // Members that still work can continue without this worker, but not without its embedded servers: `stop` reports them.
            Ok(()) | Err(Error::Timeout { .. }) => stopped,
            Err(error) => Err(error),
        }
    }
}

impl From<Arc<Session>> for Job {
    /// The job of a session that has joined by itself.
    fn from(session: Arc<Session>) -> Self {
        Self { session, embedded: None }
    }
}
