//! One summation server of a job: joins, listens, adds, ends with the job.

use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use gradlane_core::cluster::{MemberConfig, MemberEvent};
use gradlane_core::config::Config;
use gradlane_core::engine::{Clock, Membership, MembershipOptions, process};
use gradlane_core::transport::quic::Credentials;
use gradlane_core::transport::quic::{Settings, listener};
use gradlane_core::types::{Phase, Role};
use gradlane_core::{Error, Result};

use crate::aggregate::AggregatorConfig;
use crate::connection::DataPlane;

/// How to start a server.
#[derive(Debug)]
pub struct ServerOptions {
    /// Settings of the whole process.
    pub config: Config,
    /// The coordinator's `host:port`.
    pub coordinator: String,
    /// Proves the server's identity.
    pub credentials: Arc<Credentials>,
    /// The index it must have; any if absent.
    pub index: Option<u32>,
}

/// `New → Joining → Running → Ended`. [`Server::start`] returns in `Joining`; a stopped server stays stopped.
pub struct Server {
    address: String,
    plane: Arc<DataPlane>,
    membership: Arc<Mutex<Membership>>,
    end: Arc<End>,
}

/// How the server's life ended; empty while it lives.
#[derive(Default)]
struct End {
    outcome: Mutex<Option<Result<()>>>,
    ended: Condvar,
}

impl Server {
    /// Binds, then joins the job in the background.
    ///
    /// # Errors
    /// [`Error::Io`] if the address cannot be bound.
    pub fn start(options: ServerOptions) -> Result<Self> {
        let ServerOptions { config, coordinator, credentials, index } = options;
        let clock = Clock::start();
        let aggregator = AggregatorConfig {
            deterministic: config.deterministic,
            stall_warn: config.stall_warn,
            step_timeout: config.step_timeout,
            memory_bytes_max: config.server_bytes_max,
            defect: None,
        };
        let sum_threads = NonZeroUsize::new(config.sum_threads_or_cores()).unwrap_or(NonZeroUsize::MIN);
        let plane = DataPlane::new(aggregator, sum_threads, clock)?;
        let settings = Settings::from_config(&config);
        let listener = listener::bind(&config.bind, &credentials, &settings, plane.inbox())?;
        let address = process::announced(&listener.address, config.advertise.as_deref(), &coordinator);
        let member =
            MemberConfig { requested: index, address: address.clone(), ..process::member(Role::Server, &config) };

        let end = Arc::new(End::default());
        let (reporter, followed, finished) = (Arc::clone(&plane), Arc::clone(&plane), Arc::clone(&end));
        let membership = Membership::start(
            MembershipOptions { member, coordinator, credentials },
            clock,
            move || reporter.progress(),
            move |event| on_event(&followed, &finished, event),
        )?;
        let membership = Arc::new(Mutex::new(membership));
        plane.attach(listener, Arc::downgrade(&membership));
        Ok(Self { address, plane, membership, end })
    }

    /// Where it accepts exchanges, `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Bytes in and out.
    pub fn stats(&self) -> &crate::stats::Stats {
        &self.plane.stats
    }

    /// Waits until the job has ended, at most `patience`; `None` waits as long as it lasts.
    ///
    /// # Errors
    /// Why the job failed; [`Error::Timeout`] if it still runs.
    pub fn join(&self, patience: Option<Duration>) -> Result<()> {
        let guard = self.end.outcome.lock().expect(LOCK);
        let running = |outcome: &mut Option<Result<()>>| outcome.is_none();
        let guard = match patience {
            None => self.end.ended.wait_while(guard, running).expect(LOCK),
            Some(patience) => self.end.ended.wait_timeout_while(guard, patience, running).expect(LOCK).0,
        };
        guard.clone().unwrap_or_else(|| {
            Err(Error::Timeout { what: "waiting for the job to end".to_owned(), waited: patience.unwrap_or_default() })
        })
    }

    /// Stops at once: open exchanges fail on the workers' side. Idempotent.
    pub fn stop(&self, patience: Duration) {
        self.end.set(Ok(()));
        self.membership.lock().expect(LOCK).stop();
        self.plane.stop(patience);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::from_secs(1));
    }
}

impl End {
    fn set(&self, outcome: Result<()>) {
        self.outcome.lock().expect(LOCK).get_or_insert(outcome);
        self.ended.notify_all();
    }
}

const LOCK: &str = "nobody panics while holding it";

fn on_event(plane: &Arc<DataPlane>, end: &End, event: MemberEvent) {
    match event {
        MemberEvent::Joined { index, view } => {
            tracing::info!(server = index, epoch = %view.epoch, "joined");
            plane.handle_view(view);
        }
        MemberEvent::View(view) => {
            let ended = view.phase == Phase::Ended;
            plane.handle_view(view);
            if ended {
                end.set(Ok(()));
            }
        }
        MemberEvent::Forget { key, error } => plane.handle_forget(key, error),
        MemberEvent::Failed(error) => {
            tracing::error!(%error, "the job failed");
            plane.handle_failure(&told(&error));
            end.set(Err(error));
        }
        MemberEvent::Left => end.set(Ok(())),
        MemberEvent::StallNotice { .. } | MemberEvent::Declared { .. } | MemberEvent::BarrierDone { .. } => {}
    }
}

/// What workers hear of the end of a server. That it was shut out is its own affair, and no reason for them to restart: they will hear
/// from the coordinator why the job ended.
fn told(error: &Error) -> Error {
    match error {
        Error::Fenced { .. } => {
            Error::Unavailable { what: "the server".to_owned(), cause: "it was given up for dead".to_owned() }
        }
        other => other.clone(),
    }
}
