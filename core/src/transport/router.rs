//! Chooses a transport for each link: the nearest that leads to the server.
//!
//! A worker has one [`Router`], and a server one listener from [`bind`]. Each holds a table of transports, the nearest first, and looks like
//! a single transport to its users. The lowest bits of the id of a link or exchange name the place in the table of the transport that it
//! belongs to. `map_ids` is the one function that translates them.
//!
//! A router tries the addresses of a server in the order of its table, and addresses of one scheme in the order in which the server
//! announced them. The first that works is used. If that is one over a network although one of this machine was tried before, a warning is
//! logged: containers of one host may have different file systems, so that one cannot see the socket of the other.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, vec};

use super::exchange::{link_gone, unknown_exchange};
use super::quic::{self, QuicTransport, Settings};
use super::shm::{self, ShmTransport};
use super::{Answer, Capabilities, Inbox, Incoming, LinkLost, Listener, Outgoing, Peer, Push, Torn, Transport};
use crate::config::{Config, TransportChoice};
use crate::error::{Error, Result};
use crate::identity::Credentials;
use crate::local::{Ended, PeerProcess, Progress, SharedBacking};
use crate::mem::{Copies, Region};
use crate::metrics::LinkMeter;
use crate::types::{Address, Done, ExchangeId, LinkId, Reach, Scheme};

/// A worker's transport to all its servers.
pub struct Router {
    table: Vec<Entry>,
    choice: TransportChoice,
}

/// A transport of a router, and the scheme of the addresses to which it connects.
struct Entry {
    scheme: Scheme,
    transport: Arc<dyn Transport>,
}

impl Entry {
    /// `transport` for addresses with `scheme`.
    fn new(scheme: Scheme, transport: impl Transport + 'static) -> Self {
        Self { scheme, transport: Arc::new(transport) }
    }
}

impl Router {
    /// A router with the transports that the settings allow. Bytes that it copies are counted in `copies`.
    ///
    /// # Errors
    /// [`Error::Auth`] if the credentials are not usable, [`Error::Io`] if the system gives no socket or thread. [`Error::Exhausted`] if there
    /// must be shared memory and there is not enough for one server.
    pub fn new(config: &Config, credentials: &Credentials, copies: &Copies) -> Result<Self> {
        let choice = config.transport;
        if choice == TransportChoice::Shm {
            shm::check_memory()?;
        }
        let mut table = Vec::new();
        if choice.allows(Scheme::Shm) {
            table.push(Entry::new(Scheme::Shm, ShmTransport::new(credentials, copies)?));
        }
        if choice.allows(Scheme::Quic) {
            table.push(Entry::new(Scheme::Quic, QuicTransport::new(credentials, &Settings::from_config(config))?));
        }
        Ok(Self::of(table, choice))
    }

    /// A router with these transports, the nearest first. `choice` allowed them.
    ///
    /// # Panics
    /// If there are more than [`TRANSPORTS_MAX`].
    fn of(table: Vec<Entry>, choice: TransportChoice) -> Self {
        assert!(table.len() <= TRANSPORTS_MAX, "ids have room for {TRANSPORTS_MAX} transports");
        Self { table, choice }
    }

    /// The transport that carries `link`, and the id that it gave to it. None if this router did not give the id.
    fn at(&self, link: LinkId) -> Option<(&dyn Transport, LinkId)> {
        let (place, id) = inner(link.0);
        Some((&*self.table.get(place)?.transport, LinkId(id)))
    }

    /// The ways to `peer`, in the order in which they are tried.
    ///
    /// An address of this machine is tried once if another way follows, because a server announces its socket after it has made it. The
    /// ways over a network share `patience` equally.
    fn ways(&self, peer: &Peer, patience: Duration) -> Vec<Way> {
        let mut ways = Vec::new();
        for (place, entry) in self.table.iter().enumerate() {
            for address in peer.addresses.iter().filter(|address| address.scheme == entry.scheme) {
                let (transport, address) = (Arc::clone(&entry.transport), address.clone());
                ways.push(Way { place, transport, address, patience: Duration::ZERO });
            }
        }
        let last = ways.len().saturating_sub(1);
        let is_patient = |(index, way): &(usize, &mut Way)| way.is_remote() || *index == last;
        let patient = ways.iter_mut().enumerate().filter(is_patient).count();
        let share = patience / u32::try_from(patient.max(1)).expect("bounded by the addresses of a peer");
        ways.iter_mut().enumerate().filter(is_patient).for_each(|(_, way)| way.patience = share);
        ways
    }

    /// The error where no address of `peer` is of use.
    fn no_way(&self, peer: &Peer) -> Error {
        if self.choice == TransportChoice::Shm {
            return Error::FailedPrecondition {
                what: format!("{peer} shares no memory with this process"),
                hint: "use transport = auto, or start it on the same machine as the same user".to_owned(),
            };
        }
        let schemes: Vec<String> = self.table.iter().map(|entry| entry.scheme.to_string()).collect();
        peer.has_none(&schemes.join(", "))
    }
}

impl Progress for Router {
    fn poll(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        // Of these, shared memory alone has work for the calling thread. The others return at once.
        self.table.iter().for_each(|entry| entry.transport.poll(enough, patience));
    }

    fn wake(&self) {
        self.table.iter().for_each(|entry| entry.transport.wake());
    }
}

impl Transport for Router {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        let ways = self.ways(&peer, patience);
        if ways.is_empty() {
            return done.err(self.no_way(&peer));
        }
        let (ways, lost) = (ways.into_iter(), Arc::new(Mutex::new(Some(lost))));
        Search { peer, ways, lost, near_failure: None, done }.go_on();
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        match self.at(link) {
            Some((transport, link)) => transport.push(link, exchange, push, done),
            None => push.refuse(done, link_gone()),
        }
    }

    fn pull(&self, link: LinkId, exchange: ExchangeId, into: Vec<Region>, done: Done<Answer, Torn>) {
        match self.at(link) {
            Some((transport, link)) => transport.pull(link, exchange, into, done),
            None => done.err(unknown_exchange()),
        }
    }

    fn abandon(&self, link: LinkId, exchange: ExchangeId) {
        if let Some((transport, link)) = self.at(link) {
            transport.abandon(link, exchange);
        }
    }

    fn cork(&self) {
        self.table.iter().for_each(|entry| entry.transport.cork());
    }

    fn uncork(&self) {
        self.table.iter().for_each(|entry| entry.transport.uncork());
    }

    fn disconnect(&self, link: LinkId) {
        if let Some((transport, link)) = self.at(link) {
            transport.disconnect(link);
        }
    }

    fn capabilities(&self, link: LinkId) -> Capabilities {
        self.at(link).map_or(Capabilities::NETWORK, |(transport, link)| transport.capabilities(link))
    }

    fn process(&self, link: LinkId) -> Option<Arc<PeerProcess>> {
        self.at(link).and_then(|(transport, link)| transport.process(link))
    }

    fn measure(&self, link: LinkId, meter: Arc<LinkMeter>) {
        if let Some((transport, link)) = self.at(link) {
            transport.measure(link, meter);
        }
    }

    fn watch(&self, ended: Ended) {
        self.table.iter().for_each(|entry| entry.transport.watch(Arc::clone(&ended)));
    }

    fn shutdown(&self, patience: Duration) {
        self.table.iter().for_each(|entry| entry.transport.shutdown(patience));
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schemes: Vec<Scheme> = self.table.iter().map(|entry| entry.scheme).collect();
        f.debug_struct("Router").field("table", &schemes).finish_non_exhaustive()
    }
}

/// One address of a server, and the transport that connects to it.
struct Way {
    place: usize,
    transport: Arc<dyn Transport>,
    address: Address,
    patience: Duration,
}

impl Way {
    fn is_remote(&self) -> bool {
        self.address.scheme.reach() == Reach::Network
    }
}

/// The search for a way to a server.
struct Search {
    peer: Peer,
    /// Not tried yet.
    ways: vec::IntoIter<Way>,
    /// Taken by the link. There is at most one, because the next way is tried after the one before has failed.
    lost: Arc<Mutex<Option<LinkLost>>>,
    /// Why the last way within this machine failed.
    near_failure: Option<Error>,
    done: Done<LinkId>,
}

impl Search {
    fn go_on(mut self) {
        let way = self.ways.next().expect("the caller saw one");
        let is_remote = way.is_remote();
        let Way { place, transport, address, patience } = way;
        let lost = Arc::clone(&self.lost);
        let lost = Box::new(move |link: LinkId, error| {
            let lost = lost.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(lost) = lost {
                lost(LinkId(outer(place, link.0)), error);
            }
        });
        let peer = Peer { addresses: vec![address.clone()], ..self.peer.clone() };
        let tried = Done::new(move |outcome: Result<LinkId>| match outcome {
            Ok(link) => {
                if let Some(error) = self.near_failure.filter(|_| is_remote) {
                    tracing::warn!(server = self.peer.name, %address, %error, "on this machine, but reached over a network");
                }
                self.done.ok(LinkId(outer(place, link.0)));
            }
            Err(error) if error == Error::Cancelled || self.ways.len() == 0 => self.done.err(error),
            Err(error) => {
                tracing::debug!(server = self.peer.name, %address, %error, "not reachable at this address");
                if !is_remote {
                    self.near_failure = Some(error);
                }
                self.go_on();
            }
        });
        transport.connect(peer, patience, lost, tried);
    }
}

/// A server's listener for all transports. It has no address of shared memory if workers of this machine come over QUIC too. Otherwise
/// these workers read sums that lie in `shared_memory` without a copy.
///
/// # Errors
/// As for [`quic::bind`]; [`Error::Io`] if shared memory is the only choice and not to be had.
pub fn bind(
    config: &Config,
    credentials: &Credentials,
    shared_memory: &Arc<SharedBacking>,
    copies: &Copies,
    inbox: Inbox,
) -> Result<Listener> {
    let choice = config.transport;
    let mut listeners = Listeners::new(inbox);
    // QUIC is there whatever the setting, because workers of other machines may have another one.
    let settings = Settings::from_config(config).for_server();
    listeners.add(quic::bind(&config.bind, credentials, &settings, listeners.inbox())?);
    if choice.allows(Scheme::Shm) {
        match bind_shm(config, credentials, shared_memory, copies, || listeners.inbox()) {
            Ok(listener) => listeners.add(listener),
            Err(error) if choice == TransportChoice::Auto => {
                tracing::warn!(%error, "workers of this machine come over QUIC");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(listeners.together())
}

fn bind_shm(
    config: &Config,
    credentials: &Credentials,
    shared_memory: &Arc<SharedBacking>,
    copies: &Copies,
    inbox: impl Fn() -> Inbox,
) -> Result<Listener> {
    let bind = |parent: &Path| shm::listener::bind(parent, credentials, shared_memory, copies, inbox());
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

/// Listeners of several transports that become one.
struct Listeners {
    inbox: Arc<dyn Fn(Incoming) + Send + Sync>,
    table: Vec<Listener>,
}

impl Listeners {
    fn new(inbox: Inbox) -> Self {
        Self { inbox: inbox.into(), table: Vec::new() }
    }

    /// The inbox of the listener that is added next.
    fn inbox(&self) -> Inbox {
        let (place, inbox) = (self.table.len(), Arc::clone(&self.inbox));
        assert!(place < TRANSPORTS_MAX, "ids have room for {TRANSPORTS_MAX} transports");
        Box::new(move |mut incoming| {
            map_ids(&mut incoming, |id| outer(place, id));
            inbox(incoming);
        })
    }

    /// Adds a listener, which was made with the [`inbox`](Self::inbox) of its place.
    fn add(&mut self, listener: Listener) {
        self.table.push(listener);
    }

    /// One listener for all.
    fn together(self) -> Listener {
        let addresses = self.table.iter().flat_map(|listener| listener.addresses.clone()).collect();
        let table = Arc::new(self.table);
        let (stopped, watched) = (Arc::clone(&table), Arc::clone(&table));
        Listener {
            addresses,
            outbox: Box::new(move |mut outgoing| {
                let mut place = 0;
                map_ids(&mut outgoing, |id| {
                    let id = inner(id);
                    place = id.0;
                    id.1
                });
                // An id that no listener gave names nothing that still goes on.
                if let Some(listener) = table.get(place) {
                    (listener.outbox)(outgoing);
                }
            }),
            stop: Box::new(move |patience| stopped.iter().rev().for_each(|listener| (listener.stop)(patience))),
            watch: Box::new(move |ended| watched.iter().for_each(|listener| (listener.watch)(Arc::clone(&ended)))),
        }
    }
}

/// How many transports a router may have: as many as the lowest bits of an id tell apart.
const TRANSPORTS_MAX: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 3;

/// The id that users see for the `id` that the transport at `place` gave.
fn outer(place: usize, id: u64) -> u64 {
    id << PLACE_BITS | place as u64
}

/// The place of a transport, and the id that it gave, of an id that users see.
fn inner(id: u64) -> (usize, u64) {
    (id as usize % TRANSPORTS_MAX, id >> PLACE_BITS)
}

/// Translates the ids of an event or a command.
fn map_ids(of: &mut impl Ids, mut map: impl FnMut(u64) -> u64) {
    let (link, exchange) = of.ids();
    if let Some(LinkId(id)) = link {
        *id = map(*id);
    }
    if let Some(ExchangeId(id)) = exchange {
        *id = map(*id);
    }
}

/// What has the ids of a link, an exchange or both.
trait Ids {
    fn ids(&mut self) -> (Option<&mut LinkId>, Option<&mut ExchangeId>);
}

impl Ids for Incoming {
    fn ids(&mut self) -> (Option<&mut LinkId>, Option<&mut ExchangeId>) {
        match self {
            Self::LinkUp { link, .. } | Self::LinkDown { link, .. } => (Some(link), None),
            Self::ProcessEnded { .. } => (None, None),
            Self::Opened { link, exchange, .. } => (Some(link), Some(exchange)),
            Self::Body { exchange, .. } | Self::Torn { exchange, .. } | Self::Answered { exchange } => {
                (None, Some(exchange))
            }
        }
    }
}

impl Ids for Outgoing {
    fn ids(&mut self) -> (Option<&mut LinkId>, Option<&mut ExchangeId>) {
        match self {
            Self::Grant { link, .. } | Self::Disconnect { link, .. } => (Some(link), None),
            Self::Accept { exchange }
            | Self::Answer { exchange, .. }
            | Self::Block { exchange, .. }
            | Self::End { exchange, .. }
            | Self::Reject { exchange, .. } => (None, Some(exchange)),
        }
    }
}

#[cfg(test)]
mod tests;
