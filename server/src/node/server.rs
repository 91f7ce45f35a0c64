//! One summation server of a job: joins, listens, adds, ends with the job.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gradlane_core::cluster::{ContactTerms, MemberConfig, MemberEvent};
use gradlane_core::config::{Config, verdict_time};
use gradlane_core::identity::Credentials;
use gradlane_core::local::SharedBacking;
use gradlane_core::mem::{Backing, Copies, Pool};
use gradlane_core::metrics::{OfProcess as _, ServerMetrics};
use gradlane_core::runtime::exporter::{Exporter, Exposure};
use gradlane_core::runtime::timeline::{Clocks, Window};
use gradlane_core::runtime::{Clock, Membership, MembershipOptions, process};
use gradlane_core::transport::mem::MemNetwork;
use gradlane_core::transport::{Listener, router};
use gradlane_core::types::{Address, Role, Scheme, ServerId};
use gradlane_core::wire::limits;
use gradlane_core::{Error, Result};

use crate::handle::Handle;
use crate::memory_limit;
use crate::node::config::NodeConfig;
use crate::node::data_plane::DataPlane;
use crate::node::ending::{self, FAREWELL};
use crate::node::life::ServerState;
use crate::node::orders::Ordered;
use crate::node::recorder::{Flight, Recorder};
use crate::node::trace::{Means, Place};

/// How to start a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Settings of the whole process.
    pub config: Config,
    /// The coordinator's `host:port`.
    pub coordinator: String,
    /// Proves the server's identity.
    pub credentials: Arc<Credentials>,
    /// The requested index; `None` for any.
    pub index: Option<u32>,
}

/// A server from its start to its end: see [`ServerState`]. [`Server::start`] returns in `Joining`; one that has ended does not start again.
pub struct Server {
    options: ServerOptions,
    handle: Option<Arc<dyn Handle>>,
    addresses: Vec<Address>,
    plane: Arc<DataPlane>,
    membership: Arc<Mutex<Membership>>,
    /// While an exporter of this process shows it.
    exposure: Mutex<Option<Exposure>>,
}

impl Server {
    /// Binds, then joins the job in the background.
    ///
    /// # Errors
    /// [`Error::Io`] if the address cannot be bound, [`Error::InvalidArgument`] if it is too long to be announced.
    pub fn start(options: ServerOptions) -> Result<Self> {
        Self::start_with(options, None)
    }

    /// The same with a handle for keys of `KVWorker`, if there is one.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(options: ServerOptions, handle: Option<Arc<dyn Handle>>) -> Result<Self> {
        // Sums and values lie in memory that workers of this machine can map, if shared memory is in use.
        let backing = Arc::new(SharedBacking::new());
        let pool = if options.config.transport.allows(Scheme::Shm) {
            Pool::on(Arc::clone(&backing) as Arc<dyn Backing>)
        } else {
            Pool::new()
        };
        Self::start_at(options, handle, pool, |ServerOptions { config, credentials, .. }, plane| {
            let copies = Copies::counted_in(&plane.stats.copied_bytes);
            router::bind(config, credentials, &backing, &copies, plane.inbox())
        })
    }

    /// The same for workers of this process alone, which connect over `network`. It still joins its job over QUIC.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread.
    pub fn start_in(options: ServerOptions, network: &MemNetwork) -> Result<Self> {
        Self::start_at(options, None, Pool::new(), |ServerOptions { credentials, .. }, plane| {
            let node = credentials.node();
            network.listen(&node.to_string(), node, plane.inbox())
        })
    }

    fn start_at(
        options: ServerOptions,
        handle: Option<Arc<dyn Handle>>,
        pool: Pool,
        listen: impl FnOnce(&ServerOptions, &Arc<DataPlane>) -> Result<Listener>,
    ) -> Result<Self> {
        let config = &options.config;
        let clock = Clock::start();
        let bytes_max = memory_bytes_max(config);
        // An eighth, so that a small server can take in a part of each worker at once, and a large one loses little.
        let unread_bytes_max = bytes_max / 8;
        let node = NodeConfig {
            deterministic: config.deterministic,
            stall_warn: config.stall_warn,
            step_timeout: config.bounds().step,
            contact: ContactTerms::of(config, verdict_time(config.dead_timeout)),
            memory_bytes_max: bytes_max - unread_bytes_max,
            unread_bytes_max,
            block_bytes_max: BLOCK_BYTES_MAX,
            block_bytes_min: BLOCK_BYTES_MIN,
            defect: None,
        };
        let sum_threads = NonZeroUsize::new(config.sum_threads_or_cores()).unwrap_or(NonZeroUsize::MIN);
        let directory = config.checkpoint_dir.clone();
        let flight = Arc::new(Flight::new(config, Role::Server, clock, Recorder::new(config.recorder_events)));
        let plane = DataPlane::new(node, sum_threads, pool, clock, flight, directory, handle.as_ref())?;
        let listener = listen(&options, &plane)?;
        let ServerOptions { config, coordinator, credentials, index } = options.clone();
        let mut member = MemberConfig { requested: index, ..process::member(Role::Server, &config) };
        let announced = |bound: &Address| process::announced_address(bound, config.advertise.as_deref(), &coordinator);
        let addresses: Vec<Address> = listener.addresses.iter().map(announced).collect();
        limits::check_addresses(&addresses)?;
        member.process.addresses.clone_from(&addresses);

        let (reporter, waiting, followed) = (Arc::clone(&plane), Arc::clone(&plane), Arc::clone(&plane));
        let ordered = Arc::new(Ordered::new(&plane, config.on_server_loss, config.dump_dir.clone()));
        let obeying = Arc::clone(&ordered);
        let membership = Membership::start(
            MembershipOptions { member, coordinator, credentials },
            clock,
            Some(Arc::clone(&plane.probe) as _),
            move || reporter.progress(),
            Some(Box::new(move || waiting.waits())),
            move |event| match event {
                MemberEvent::Command { number, command } => obeying.obey(number, command),
                other => follow(&followed, other),
            },
        )?;
        plane.stats.configured(config.fingerprint());
        plane.attach(listener, membership.reporter());
        let clocks = Clocks { own: clock, job: Some(membership.job_clock().clone()) };
        plane.trace.equip(Means { bytes_max: config.timeline_bytes_max, clocks, counts: plane.stats.trace_counts() });
        plane.probe.usage.joined(membership.job_clock().clone());
        plane.flight.follow_clock(membership.job_clock().clone());
        if let Some(place) = config.timeline {
            let window = Window::by_settings(config.timeline_from_step, config.timeline_steps);
            plane.trace.start(Place { place, window });
        }
        let membership = Arc::new(Mutex::new(membership));
        ordered.attach(&membership);
        Ok(Self { options, handle, addresses, plane, membership, exposure: Mutex::default() })
    }

    /// Where it accepts exchanges from other machines, `host:port`.
    pub fn address(&self) -> &str {
        Address::shown(&self.addresses).map_or("", |address| &address.at)
    }

    /// Shows it at this exporter until it is stopped.
    pub fn show_at(&self, exporter: &Arc<Exporter>) {
        let exposure = exporter.show(Arc::clone(&self.plane.probe) as _);
        *self.exposure.lock().unwrap_or_else(PoisonError::into_inner) = Some(exposure);
    }

    /// Writes what its flight recorder has into a file, because a signal asks for it. Does not wait for the file.
    pub fn dump_by_signal(&self) {
        self.plane.flight.signalled(None);
    }

    /// Bytes in and out.
    pub fn stats(&self) -> &ServerMetrics {
        &self.plane.stats
    }

    /// Bytes of memory for sums and values: in use, and taken from the system.
    pub fn memory_bytes(&self) -> (u64, u64) {
        self.plane.memory_bytes()
    }

    /// How often the lock of its node was taken, for the test that bounds it.
    #[cfg(feature = "testing")]
    pub fn node_takings(&self) -> u64 {
        self.plane.takings()
    }

    /// Its state.
    pub fn state(&self) -> ServerState {
        self.plane.state()
    }

    /// Waits until the job has ended, at most `patience`; `None` waits as long as it lasts.
    ///
    /// # Errors
    /// Why the job failed; [`Error::Timeout`] if it still runs.
    pub fn join(&self, patience: Option<Duration>) -> Result<()> {
        self.plane.wait(patience).unwrap_or_else(|| {
            Err(Error::Timeout { what: "waiting for the job to end".to_owned(), waited: patience.unwrap_or_default() })
        })
    }

    /// Stops, and if the job has ended only to form again, also with an error, starts the server of its next formation at the same place. `None` if the job is
    /// over.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_again(&self) -> Result<Option<Self>> {
        if !self.plane.forms_again() {
            return Ok(None);
        }
        self.stop(FAREWELL);
        Self::start_with(self.options.clone(), self.handle.clone()).map(Some)
    }

    /// Stops gently, and returns whether nothing was left open.
    ///
    /// A job that survives the loss of a server survives this one: it is told at once, and this returns when the job knows. In another job, rounds of parts that no worker had begun, and new uses of parameters, are refused with [`Error::FailedPrecondition`] from now on.
    /// What is open is completed and answered, for at most `patience`; then the server stops. A second call waits for the same, with its own
    /// patience.
    pub fn drain(&self, patience: Duration) -> bool {
        let drained = ending::drain(&self.plane, &self.membership, self.options.config.on_server_loss, patience);
        self.stop(FAREWELL);
        drained
    }

    /// Stops at once: open exchanges fail on the workers' side. Idempotent.
    pub fn stop(&self, patience: Duration) {
        ending::stop(&self.plane, &self.membership, patience);
        // Frees the port, if nobody else is shown there.
        let exposure = self.exposure.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(exposure);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(FAREWELL);
    }
}

fn memory_bytes_max(config: &Config) -> u64 {
    let bytes = config.server_bytes_max.or_else(memory_limit::default_bytes_max).unwrap_or(u64::MAX);
    tracing::info!(bytes, "memory for tensors and for what arrives");
    bytes
}

fn follow(plane: &Arc<DataPlane>, event: MemberEvent) {
    match &event {
        MemberEvent::Joined { index, view } => {
            plane.probe.joined(*index);
            plane.trace.joined(ServerId(*index));
            plane.flight.joined(*index);
            plane.formed(view);
            tracing::info!(server = index, epoch = %view.epoch, "joined");
        }
        MemberEvent::View(view) => plane.formed(view),
        MemberEvent::Failed(error) => {
            plane.flight.ended(error);
            // The owner of the server gets it as an error.
            tracing::info!(%error, "the job failed");
        }
        MemberEvent::Contact { .. }
        | MemberEvent::Ended { .. }
        | MemberEvent::Forget { .. }
        | MemberEvent::Left
        | MemberEvent::StallNotice { .. }
        | MemberEvent::Declared { .. }
        | MemberEvent::BarrierDone { .. }
        | MemberEvent::Close(_)
        | MemberEvent::Order(_)
        | MemberEvent::Command { .. }
        | MemberEvent::Answered { .. }
        | MemberEvent::Boundary { .. }
        | MemberEvent::Passed { .. }
        | MemberEvent::Restore { .. }
        | MemberEvent::Renewed { .. }
        | MemberEvent::WorkersKey(_) => {}
    }
    plane.handle_member(event);
}

/// Small enough to be finished while it is in a core's cache, large enough that its bookkeeping does not show.
const BLOCK_BYTES_MAX: u64 = 256 << 10;
/// A sixteenth of a millisecond on a link of 1 Gbit/s. Each block costs a message, so smaller ones would be felt on fast links.
const BLOCK_BYTES_MIN: u64 = 8 << 10;

#[cfg(test)]
mod tests;
