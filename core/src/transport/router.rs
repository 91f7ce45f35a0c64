//! Chooses a transport for each link: shared memory to a server of the same machine, QUIC to any other.
//!
//! A worker has one [`Router`], and a server one listener from [`bind`]. Both hold a QUIC half and a shared memory half and look like a
//! single transport to their users. The lowest bit of the id of a link or exchange names the half that it belongs to.
//!
//! With the automatic choice, QUIC is used when shared memory does not work, and a warning is logged: containers of one host may have
//! different file systems, so that one cannot see the socket of the other.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::identity::Credentials;
use super::quic::{self, QuicTransport, Settings};
use super::shm::{self, ShmTransport};
use super::{Answer, Capabilities, Inbox, Incoming, LinkLost, Listener, Outgoing, Peer, Push, Torn, Transport};
use crate::config::{Config, TransportChoice};
use crate::error::{Error, Result};
use crate::local::{Ended, Progress, SharedBacking};
use crate::mem::{Copies, Region};
use crate::types::{Done, ExchangeId, LinkId};

/// A worker's transport to all its servers.
pub struct Router {
    choice: TransportChoice,
    quic: Arc<QuicTransport>,
    /// Absent if the settings rule it out.
    shm: Option<ShmTransport>,
}

impl Router {
    /// A transport with the halves that the settings allow. Bytes that it copies are counted in `copies`.
    ///
    /// # Errors
    /// [`Error::Auth`] if the credentials are not usable, [`Error::Io`] if the system gives no socket or thread. [`Error::Exhausted`] if there
    /// must be shared memory and there is not enough for one server.
    pub fn new(config: &Config, credentials: &Credentials, copies: &Copies) -> Result<Self> {
        if config.transport == TransportChoice::Shm {
            shm::check_memory()?;
        }
        let shm = match config.transport {
            TransportChoice::Quic => None,
            TransportChoice::Auto | TransportChoice::Shm => Some(ShmTransport::new(credentials, copies)?),
        };
        let quic = QuicTransport::new(credentials, &Settings::from_config(config))?;
        Ok(Self { choice: config.transport, quic: Arc::new(quic), shm })
    }

    /// The half that carries `link`, and the id that it gave to it.
    fn at(&self, link: LinkId) -> (&dyn Transport, LinkId) {
        let (half, link) = (Half::of(link.0), LinkId(Half::inner(link.0)));
        match (&self.shm, half) {
            (Some(shm), Half::Shm) => (shm, link),
            (None, Half::Shm) | (_, Half::Quic) => (&*self.quic, link),
        }
    }
}

impl Progress for Router {
    fn poll(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        if let Some(shm) = &self.shm {
            shm.poll(enough, patience);
        }
    }

    fn wake(&self) {
        if let Some(shm) = &self.shm {
            shm.wake();
        }
    }
}

impl Transport for Router {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        let shm = self.shm.as_ref().filter(|_| !peer.socket_path.is_empty());
        match (self.choice, shm) {
            (TransportChoice::Shm, Some(shm)) => connect(shm, Half::Shm, peer, patience, lost, done),
            (TransportChoice::Shm, None) => done.err(Error::FailedPrecondition {
                what: format!("{} at {} shares no memory with this process", peer.name, peer.address),
                hint: "use transport = auto, or start it on the same machine as the same user".to_owned(),
            }),
            (TransportChoice::Quic | TransportChoice::Auto, None) | (TransportChoice::Quic, Some(_)) => {
                connect(&*self.quic, Half::Quic, peer, patience, lost, done);
            }
            (TransportChoice::Auto, Some(shm)) => {
                // At most one of the two attempts makes a link, and that one takes the callback.
                let lost = Arc::new(Mutex::new(Some(lost)));
                let (quic, lost_later, again) = (Arc::clone(&self.quic), Arc::clone(&lost), peer.clone());
                let tried = Done::new(move |outcome: Result<LinkId>| match outcome {
                    Ok(link) => done.ok(link),
                    Err(Error::Cancelled) => done.err(Error::Cancelled),
                    Err(error) => {
                        let name = again.name.clone();
                        let told = Done::new(move |outcome: Result<LinkId>| {
                            if outcome.is_ok() {
                                tracing::warn!(server = name, %error, "on this machine, but reached over QUIC");
                            }
                            done.report(outcome);
                        });
                        connect(&*quic, Half::Quic, again, patience, late(lost_later), told);
                    }
                });
                connect(shm, Half::Shm, peer, Duration::ZERO, late(lost), tried);
            }
        }
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        let (transport, link) = self.at(link);
        transport.push(link, exchange, push, done);
    }

    fn pull(&self, link: LinkId, exchange: ExchangeId, into: Vec<Region>, done: Done<Answer, Torn>) {
        let (transport, link) = self.at(link);
        transport.pull(link, exchange, into, done);
    }

    fn abandon(&self, link: LinkId, exchange: ExchangeId) {
        let (transport, link) = self.at(link);
        transport.abandon(link, exchange);
    }

    fn cork(&self) {
        self.quic.cork();
    }

    fn uncork(&self) {
        self.quic.uncork();
    }

    fn disconnect(&self, link: LinkId) {
        let (transport, link) = self.at(link);
        transport.disconnect(link);
    }

    fn capabilities(&self, link: LinkId) -> Capabilities {
        let (transport, link) = self.at(link);
        transport.capabilities(link)
    }

    fn watch(&self, ended: Ended) {
        if let Some(shm) = &self.shm {
            shm.watch(Arc::clone(&ended));
        }
        self.quic.watch(ended);
    }

    fn shutdown(&self, patience: Duration) {
        if let Some(shm) = &self.shm {
            shm.shutdown(patience);
        }
        self.quic.shutdown(patience);
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("choice", &self.choice).finish_non_exhaustive()
    }
}

fn connect(transport: &dyn Transport, half: Half, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
    let lost = Box::new(move |link: LinkId, error| lost(LinkId(half.outer(link.0)), error));
    let done = Done::new(move |outcome: Result<LinkId>| done.report(outcome.map(|link| LinkId(half.outer(link.0)))));
    transport.connect(peer, patience, lost, done);
}

fn late(lost: Arc<Mutex<Option<LinkLost>>>) -> LinkLost {
    Box::new(move |link, error| {
        let lost = lost.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(lost) = lost {
            lost(link, error);
        }
    })
}

/// A server's listener for both transports, and the path of its socket for workers of the same machine. The path is empty if they come
/// over QUIC too. These workers read sums that lie in `shared_memory` without a copy.
///
/// # Errors
/// As for [`quic::bind`]; [`Error::Io`] if shared memory is the only choice and not to be had.
pub fn bind(
    config: &Config,
    credentials: &Credentials,
    shared_memory: &Arc<SharedBacking>,
    copies: &Copies,
    inbox: Inbox,
) -> Result<(Listener, String)> {
    let inbox: Arc<dyn Fn(Incoming) + Send + Sync> = inbox.into();
    let settings = Settings::from_config(config).for_server();
    let quic = quic::bind(&config.bind, credentials, &settings, Half::Quic.inbox(&inbox))?;
    let shm = match config.transport {
        TransportChoice::Quic => None,
        TransportChoice::Shm => Some(bind_shm(config, credentials, shared_memory, copies, &inbox)?),
        TransportChoice::Auto => bind_shm(config, credentials, shared_memory, copies, &inbox)
            .inspect_err(|error| tracing::warn!(%error, "workers of this machine come over QUIC"))
            .ok(),
    };
    let Some(shm) = shm else { return Ok((quic_alone(quic), String::new())) };
    let (address, socket_path) = (quic.address.clone(), shm.address.clone());
    let (quic, shm) = (Arc::new(quic), Arc::new(shm));
    let (quic_stop, shm_stop) = (Arc::clone(&quic), Arc::clone(&shm));
    let (quic_watch, shm_watch) = (Arc::clone(&quic), Arc::clone(&shm));
    let listener = Listener {
        address,
        outbox: Box::new(move |outgoing| {
            let (half, outgoing) = inward(outgoing);
            match half {
                Half::Quic => (quic.outbox)(outgoing),
                Half::Shm => (shm.outbox)(outgoing),
            }
        }),
        stop: Box::new(move |patience| {
            (shm_stop.stop)(patience);
            (quic_stop.stop)(patience);
        }),
        watch: Box::new(move |ended| {
            (quic_watch.watch)(Arc::clone(&ended));
            (shm_watch.watch)(ended);
        }),
    };
    Ok((listener, socket_path))
}

/// Translates the ids of a QUIC listener that has no shared memory half beside it.
fn quic_alone(quic: Listener) -> Listener {
    let Listener { address, outbox, stop, watch } = quic;
    Listener { address, outbox: Box::new(move |outgoing| outbox(inward(outgoing).1)), stop, watch }
}

fn bind_shm(
    config: &Config,
    credentials: &Credentials,
    shared_memory: &Arc<SharedBacking>,
    copies: &Copies,
    inbox: &Arc<dyn Fn(Incoming) + Send + Sync>,
) -> Result<Listener> {
    let bind = |parent: &Path| shm::listener::bind(parent, credentials, shared_memory, copies, Half::Shm.inbox(inbox));
    match config.runtime_dir.as_deref().map(bind) {
        Some(Ok(listener)) => Ok(listener),
        Some(Err(error)) => {
            tracing::debug!(%error, "no socket in runtime_dir");
            bind(Path::new(TEMPORARY))
        }
        None => bind(Path::new(TEMPORARY)),
    }
}

/// Every user may make a private directory here.
const TEMPORARY: &str = "/tmp";

/// A half of the router. Its number is the lowest bit of the ids that users see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    Quic = 0,
    Shm = 1,
}

impl Half {
    fn of(name: u64) -> Self {
        if name & 1 == 0 { Self::Quic } else { Self::Shm }
    }

    /// The id that users see for `inner`.
    fn outer(self, inner: u64) -> u64 {
        inner << 1 | self as u64
    }

    /// The id that the half gave.
    fn inner(name: u64) -> u64 {
        name >> 1
    }

    /// An inbox for the listener of this half, which passes its events on under the ids that users see.
    fn inbox(self, inbox: &Arc<dyn Fn(Incoming) + Send + Sync>) -> Inbox {
        let inbox = Arc::clone(inbox);
        let link = move |link: LinkId| LinkId(self.outer(link.0));
        let name = move |exchange: ExchangeId| ExchangeId(self.outer(exchange.0));
        Box::new(move |incoming| {
            inbox(match incoming {
                Incoming::LinkUp { link: id, node, address } => Incoming::LinkUp { link: link(id), node, address },
                Incoming::LinkDown { link: id, reason } => Incoming::LinkDown { link: link(id), reason },
                Incoming::Opened { link: id, exchange, header } => {
                    Incoming::Opened { link: link(id), exchange: name(exchange), header }
                }
                Incoming::Body { exchange, chunks } => Incoming::Body { exchange: name(exchange), chunks },
                Incoming::Torn { exchange, reason } => Incoming::Torn { exchange: name(exchange), reason },
                Incoming::Answered { exchange } => Incoming::Answered { exchange: name(exchange) },
            });
        })
    }
}

/// The half that a command is for, and the command with the ids that this half gave.
fn inward(outgoing: Outgoing) -> (Half, Outgoing) {
    let name = |exchange: ExchangeId| ExchangeId(Half::inner(exchange.0));
    match outgoing {
        Outgoing::Accept { exchange } => (Half::of(exchange.0), Outgoing::Accept { exchange: name(exchange) }),
        Outgoing::Answer { exchange, header } => {
            (Half::of(exchange.0), Outgoing::Answer { exchange: name(exchange), header })
        }
        Outgoing::Block { exchange, block } => {
            (Half::of(exchange.0), Outgoing::Block { exchange: name(exchange), block })
        }
        Outgoing::End { exchange, checksum } => {
            (Half::of(exchange.0), Outgoing::End { exchange: name(exchange), checksum })
        }
        Outgoing::Reject { exchange, target, error } => {
            (Half::of(exchange.0), Outgoing::Reject { exchange: name(exchange), target, error })
        }
        Outgoing::Grant { link, unread_bytes_max } => {
            (Half::of(link.0), Outgoing::Grant { link: LinkId(Half::inner(link.0)), unread_bytes_max })
        }
        Outgoing::Disconnect { link, reason } => {
            (Half::of(link.0), Outgoing::Disconnect { link: LinkId(Half::inner(link.0)), reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::contract::{self, World, connect, connected};
    use crate::transport::identity::Authority;
    use crate::types::{NodeId, Role};

    contract::promises!(Job::new(TransportChoice::Auto, TransportChoice::Auto));

    #[test]
    fn a_server_of_this_machine_is_reached_through_shared_memory_unless_a_setting_forbids_it() {
        for (ours, theirs, capabilities) in [
            (TransportChoice::Auto, TransportChoice::Auto, Capabilities::SHARED_MEMORY),
            (TransportChoice::Shm, TransportChoice::Auto, Capabilities::SHARED_MEMORY),
            (TransportChoice::Quic, TransportChoice::Auto, Capabilities::NETWORK),
            (TransportChoice::Auto, TransportChoice::Quic, Capabilities::NETWORK),
        ] {
            let (server, worker) = connected(&Job::new(ours, theirs));
            assert_eq!(worker.transport.capabilities(worker.link), capabilities, "{ours:?} to {theirs:?}");
            server.still_serves(&worker);
        }
    }

    #[test]
    fn a_missing_socket_leads_to_quic_only_with_the_automatic_choice() {
        let job = Job::new(TransportChoice::Auto, TransportChoice::Auto);
        let server = contract::Server::new(&job);
        let peer = Peer { socket_path: "/nowhere/socket".to_owned(), ..server.peer.clone() };
        let transport = job.transport();
        let link = connect(&*transport, peer.clone()).0.soon().unwrap();
        assert_eq!(transport.capabilities(link), Capabilities::NETWORK);
        let stubborn = Job { ours: TransportChoice::Shm, ..job };
        let transport = stubborn.transport();
        let refused = Arc::new(Mutex::new(None));
        let told = Arc::clone(&refused);
        let (sender, done) = std::sync::mpsc::channel();
        let report = Done::new(move |outcome: Result<LinkId>| {
            *told.lock().unwrap() = outcome.err();
            sender.send(()).unwrap();
        });
        transport.connect(peer, Duration::ZERO, Box::new(|_, _| ()), report);
        done.recv_timeout(contract::SOON).unwrap();
        assert!(matches!(*refused.lock().unwrap(), Some(Error::Unavailable { .. })), "{refused:?}");
    }

    #[test]
    fn with_shared_memory_alone_a_server_elsewhere_is_an_error() {
        let job = Job::new(TransportChoice::Shm, TransportChoice::Quic);
        let server = contract::Server::new(&job);
        let error = connect(&*job.transport(), server.peer.clone()).0.soon().unwrap_err();
        assert!(
            matches!(&error, Error::FailedPrecondition { hint, .. } if hint.contains("transport = auto")),
            "{error}"
        );
    }

    struct Job {
        authority: Arc<Authority>,
        directory: Arc<tempfile::TempDir>,
        ours: TransportChoice,
        theirs: TransportChoice,
        socket_path: Mutex<String>,
    }

    impl Job {
        fn new(ours: TransportChoice, theirs: TransportChoice) -> Self {
            let authority = Arc::new(Authority::create("test").unwrap());
            Self {
                authority,
                directory: Arc::new(tempfile::tempdir().unwrap()),
                ours,
                theirs,
                socket_path: Mutex::default(),
            }
        }

        fn config(&self, transport: TransportChoice) -> Config {
            let runtime_dir = Some(self.directory.path().to_owned());
            Config { bind: "127.0.0.1:0".to_owned(), transport, runtime_dir, ..Config::default() }
        }
    }

    impl World for Job {
        fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
            let credentials = self.authority.credentials(Role::Server).unwrap();
            let (listener, socket_path) =
                bind(&self.config(self.theirs), &credentials, &Arc::default(), &Copies::default(), inbox).unwrap();
            *self.socket_path.lock().unwrap() = socket_path;
            (listener, credentials.node())
        }

        fn socket_path(&self, _listener: &Listener) -> String {
            self.socket_path.lock().unwrap().clone()
        }

        fn transport(&self) -> Arc<dyn Transport> {
            let credentials = self.authority.credentials(Role::Worker).unwrap();
            Arc::new(Router::new(&self.config(self.ours), &credentials, &Copies::default()).unwrap())
        }
    }
}
