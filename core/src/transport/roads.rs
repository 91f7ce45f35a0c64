//! Which road a link takes: through shared memory to a server on the same machine, over QUIC to any other.
//!
//! [`Roads`] is a worker's transport and [`bind`] a server's listener; each holds one of either kind, and everybody else sees one. Names of
//! links and exchanges say by their lowest bit whose they are.
//!
//! Where shared memory was chosen by itself and does not come about, QUIC is taken instead, with a warning: containers on one host may have
//! different file systems and so not find each other's socket.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::quic::{self, Credentials, QuicTransport, Settings};
use super::shm::{self, ShmTransport};
use super::{Inbox, Incoming, LinkLost, Listener, Outgoing, Peer, Pulled, Push, Road, Transport};
use crate::config::{Config, RoadChoice};
use crate::error::{Error, Result};
use crate::local::SharedGround;
use crate::mem::{Copies, Region};
use crate::types::{Done, ExchangeId, LinkId};

/// A worker's transport over all roads.
pub struct Roads {
    choice: RoadChoice,
    quic: Arc<QuicTransport>,
    /// Absent where no link shall take it.
    shm: Option<ShmTransport>,
}

impl Roads {
    /// The roads that the settings allow. What is copied on the way counts in `copies`.
    ///
    /// # Errors
    /// [`Error::Auth`] if the credentials are not usable, [`Error::Io`] if the system gives no socket or thread.
    pub fn new(config: &Config, credentials: &Credentials, copies: &Copies) -> Result<Self> {
        let shm = match config.road {
            RoadChoice::Quic => None,
            RoadChoice::Auto | RoadChoice::Shm => Some(ShmTransport::new(credentials, copies)?),
        };
        let quic = QuicTransport::new(credentials, &Settings::from_config(config))?;
        Ok(Self { choice: config.road, quic: Arc::new(quic), shm })
    }

    /// The transport that has an exchange.
    fn of(&self, exchange: ExchangeId) -> &dyn Transport {
        match &self.shm {
            Some(shm) if shm.has(exchange) => shm,
            Some(_) | None => &*self.quic,
        }
    }

    /// The transport that has a link, and its own name for it.
    fn at(&self, link: LinkId) -> (&dyn Transport, LinkId) {
        let (way, link) = (Way::of(link.0), LinkId(Way::inner(link.0)));
        match (&self.shm, way) {
            (Some(shm), Way::Near) => (shm, link),
            (None, Way::Near) | (_, Way::Far) => (&*self.quic, link),
        }
    }
}

impl Transport for Roads {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        let near = self.shm.as_ref().filter(|_| !peer.door.is_empty());
        match (self.choice, near) {
            (RoadChoice::Shm, Some(shm)) => connect(shm, Way::Near, peer, patience, lost, done),
            (RoadChoice::Shm, None) => done.err(Error::FailedPrecondition {
                what: format!("{} at {} shares no memory with this process", peer.name, peer.address),
                hint: "use road = auto, or start it on the same machine as the same user".to_owned(),
            }),
            (RoadChoice::Quic | RoadChoice::Auto, None) | (RoadChoice::Quic, Some(_)) => {
                connect(&*self.quic, Way::Far, peer, patience, lost, done);
            }
            (RoadChoice::Auto, Some(shm)) => {
                // Whichever link comes about takes it.
                let lost = Arc::new(Mutex::new(Some(lost)));
                let (quic, of_far, again) = (Arc::clone(&self.quic), Arc::clone(&lost), peer.clone());
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
                        connect(&*quic, Way::Far, again, patience, late(of_far), told);
                    }
                });
                connect(shm, Way::Near, peer, Duration::ZERO, late(lost), tried);
            }
        }
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        let (transport, link) = self.at(link);
        transport.push(link, exchange, push, done);
    }

    fn pull(&self, exchange: ExchangeId, into: Vec<Region>, done: Pulled) {
        self.of(exchange).pull(exchange, into, done);
    }

    fn abandon(&self, exchange: ExchangeId) {
        self.of(exchange).abandon(exchange);
    }

    fn disconnect(&self, link: LinkId) {
        let (transport, link) = self.at(link);
        transport.disconnect(link);
    }

    fn road(&self, link: LinkId) -> Road {
        let (transport, link) = self.at(link);
        transport.road(link)
    }

    fn help(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        if let Some(shm) = &self.shm {
            shm.help(enough, patience);
        }
    }

    fn nudge(&self) {
        if let Some(shm) = &self.shm {
            shm.nudge();
        }
    }

    fn shutdown(&self, patience: Duration) {
        if let Some(shm) = &self.shm {
            shm.shutdown(patience);
        }
        self.quic.shutdown(patience);
    }
}

impl fmt::Debug for Roads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roads").field("choice", &self.choice).finish_non_exhaustive()
    }
}

fn connect(transport: &dyn Transport, way: Way, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
    let lost = Box::new(move |link: LinkId, error| lost(LinkId(way.outer(link.0)), error));
    let done = Done::new(move |outcome: Result<LinkId>| done.report(outcome.map(|link| LinkId(way.outer(link.0)))));
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

/// A server's listener on all roads, and the path of the socket where processes of its machine reach it; empty if they do not.
/// Workers of the machine read sums in memory of `ground` where they lie.
///
/// # Errors
/// As for [`quic::listener::bind`]; [`Error::Io`] if shared memory is the only choice and not to be had.
pub fn bind(
    config: &Config,
    credentials: &Credentials,
    ground: &Arc<SharedGround>,
    copies: &Copies,
    inbox: Inbox,
) -> Result<(Listener, String)> {
    let inbox: Arc<dyn Fn(Incoming) + Send + Sync> = inbox.into();
    let far = quic::listener::bind(&config.bind, credentials, &Settings::from_config(config), Way::Far.inbox(&inbox))?;
    let near = match config.road {
        RoadChoice::Quic => None,
        RoadChoice::Shm => Some(bind_near(config, credentials, ground, copies, &inbox)?),
        RoadChoice::Auto => bind_near(config, credentials, ground, copies, &inbox)
            .inspect_err(|error| tracing::warn!(%error, "workers of this machine come over QUIC"))
            .ok(),
    };
    let Some(near) = near else { return Ok((renamed(far), String::new())) };
    let door = near.address.clone();
    let address = far.address.clone();
    let (far, near) = (Arc::new(far), Arc::new(near));
    let (far_stop, near_stop) = (Arc::clone(&far), Arc::clone(&near));
    let listener = Listener {
        address,
        outbox: Box::new(move |outgoing| {
            let (way, outgoing) = inward(outgoing);
            match way {
                Way::Far => (far.outbox)(outgoing),
                Way::Near => (near.outbox)(outgoing),
            }
        }),
        stop: Box::new(move |patience| {
            (near_stop.stop)(patience);
            (far_stop.stop)(patience);
        }),
    };
    Ok((listener, door))
}

/// A listener whose names are those of a far one.
fn renamed(far: Listener) -> Listener {
    let Listener { address, outbox, stop } = far;
    Listener { address, outbox: Box::new(move |outgoing| outbox(inward(outgoing).1)), stop }
}

fn bind_near(
    config: &Config,
    credentials: &Credentials,
    ground: &Arc<SharedGround>,
    copies: &Copies,
    inbox: &Arc<dyn Fn(Incoming) + Send + Sync>,
) -> Result<Listener> {
    let bind = |parent: &Path| shm::listener::bind(parent, credentials, ground, copies, Way::Near.inbox(inbox));
    match config.runtime_dir.as_deref().map(bind) {
        Some(Ok(listener)) => Ok(listener),
        Some(Err(error)) => {
            tracing::debug!(%error, "no socket in runtime_dir");
            bind(Path::new(TEMPORARY))
        }
        None => bind(Path::new(TEMPORARY)),
    }
}

/// Everybody may make a directory here that is only theirs.
const TEMPORARY: &str = "/tmp";

/// Whose a name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Far = 0,
    Near = 1,
}

impl Way {
    fn of(name: u64) -> Self {
        if name & 1 == 0 { Self::Far } else { Self::Near }
    }

    /// The name that everybody knows for `inner`.
    fn outer(self, inner: u64) -> u64 {
        inner << 1 | self as u64
    }

    /// The name that its transport gave.
    fn inner(name: u64) -> u64 {
        name >> 1
    }

    /// An inbox for one listener, whose names become those that everybody knows.
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

/// A command with the names that its listener gave.
fn inward(outgoing: Outgoing) -> (Way, Outgoing) {
    let name = |exchange: ExchangeId| ExchangeId(Way::inner(exchange.0));
    match outgoing {
        Outgoing::Accept { exchange } => (Way::of(exchange.0), Outgoing::Accept { exchange: name(exchange) }),
        Outgoing::Answer { exchange, header } => {
            (Way::of(exchange.0), Outgoing::Answer { exchange: name(exchange), header })
        }
        Outgoing::Block { exchange, block } => {
            (Way::of(exchange.0), Outgoing::Block { exchange: name(exchange), block })
        }
        Outgoing::End { exchange, checksum } => {
            (Way::of(exchange.0), Outgoing::End { exchange: name(exchange), checksum })
        }
        Outgoing::Reject { exchange, target, error } => {
            (Way::of(exchange.0), Outgoing::Reject { exchange: name(exchange), target, error })
        }
        Outgoing::Disconnect { link, reason } => {
            (Way::of(link.0), Outgoing::Disconnect { link: LinkId(Way::inner(link.0)), reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::contract::{self, World, connect, connected};
    use crate::transport::quic::Authority;
    use crate::types::{NodeId, Role};

    contract::promises!(Job::new(RoadChoice::Auto, RoadChoice::Auto));

    #[test]
    fn a_server_of_this_machine_is_reached_through_shared_memory_unless_somebody_minds() {
        for (ours, theirs, road) in [
            (RoadChoice::Auto, RoadChoice::Auto, Road::SharedMemory),
            (RoadChoice::Shm, RoadChoice::Auto, Road::SharedMemory),
            (RoadChoice::Quic, RoadChoice::Auto, Road::Network),
            (RoadChoice::Auto, RoadChoice::Quic, Road::Network),
        ] {
            let (server, worker) = connected(&Job::new(ours, theirs));
            assert_eq!(worker.transport.road(worker.link), road, "{ours:?} to {theirs:?}");
            server.still_serves(&worker);
        }
    }

    #[test]
    fn a_socket_that_is_not_there_is_gone_round_by_itself_only() {
        let job = Job::new(RoadChoice::Auto, RoadChoice::Auto);
        let server = contract::Server::new(&job);
        let peer = Peer { door: "/nowhere/door".to_owned(), ..server.peer.clone() };
        let transport = job.transport();
        let link = connect(&*transport, peer.clone()).0.soon().unwrap();
        assert_eq!(transport.road(link), Road::Network);
        let stubborn = Job { ours: RoadChoice::Shm, ..job };
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
    fn who_insists_on_shared_memory_hears_that_a_server_is_elsewhere() {
        let job = Job::new(RoadChoice::Shm, RoadChoice::Quic);
        let server = contract::Server::new(&job);
        let error = connect(&*job.transport(), server.peer.clone()).0.soon().unwrap_err();
        assert!(matches!(&error, Error::FailedPrecondition { hint, .. } if hint.contains("road = auto")), "{error}");
    }

    struct Job {
        authority: Arc<Authority>,
        directory: Arc<tempfile::TempDir>,
        ours: RoadChoice,
        theirs: RoadChoice,
        door: Mutex<String>,
    }

    impl Job {
        fn new(ours: RoadChoice, theirs: RoadChoice) -> Self {
            let authority = Arc::new(Authority::create("test").unwrap());
            Self { authority, directory: Arc::new(tempfile::tempdir().unwrap()), ours, theirs, door: Mutex::default() }
        }

        fn config(&self, road: RoadChoice) -> Config {
            let runtime_dir = Some(self.directory.path().to_owned());
            Config { bind: "127.0.0.1:0".to_owned(), road, runtime_dir, ..Config::default() }
        }
    }

    impl World for Job {
        fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
            let credentials = self.authority.credentials(Role::Server).unwrap();
            let (listener, door) =
                bind(&self.config(self.theirs), &credentials, &Arc::default(), &Copies::default(), inbox).unwrap();
            *self.door.lock().unwrap() = door;
            (listener, credentials.node())
        }

        fn door(&self, _listener: &Listener) -> String {
            self.door.lock().unwrap().clone()
        }

        fn transport(&self) -> Arc<dyn Transport> {
            let credentials = self.authority.credentials(Role::Worker).unwrap();
            Arc::new(Roads::new(&self.config(self.ours), &credentials, &Copies::default()).unwrap())
        }
    }
}
