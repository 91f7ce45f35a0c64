//! A worker's side of QUIC: links to servers, and the exchanges on them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use quinn::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, ConnectionError, ConnectionHandle, Dir, Event, Incoming, StreamEvent, StreamId};

use super::super::calls::Call;
use super::super::closing::{CLOSE_ERROR, CLOSE_ORDERLY, connection_error, encode_reason};
use super::super::commands::WeakCommands;
use super::super::settings::Settings;
use super::super::tls::{self, check_server, peer_of};
use super::dialing::{Dial, Phase, Then, resolve};
use super::driver::{Net, Role, TurnEnd};
use super::exchange::{Exchange, Step};
use super::link::Link;
use super::metered::Metered;
use super::turns::Share;
use crate::error::{Error, Result};
use crate::identity::{Credentials, SERVER_NAME};
use crate::mem::{Loan, Returned};
use crate::transport::exchange::{WorkerExchange, link_gone, of_the_link, unknown_exchange};
use crate::transport::{Pull, Push};
use crate::types::{Done, ExchangeId, LinkId};

/// All links and exchanges of a worker.
pub(super) struct Worker {
    tls: Arc<QuicClientConfig>,
    /// The credentials that `tls` shows.
    credentials: Credentials,
    settings: Settings,
    /// For the threads that look up names.
    calls: WeakCommands<Call>,
    dials: BTreeMap<u64, Dial>,
    dials_made: u64,
    links: BTreeMap<LinkId, Link>,
    links_made: u64,
    owners: BTreeMap<ConnectionHandle, Owner>,
    exchanges: BTreeMap<ExchangeId, Exchange>,
    /// Links whose streams may take more, or may be opened.
    ready: BTreeSet<LinkId>,
    returning: Sender<(ExchangeId, Returned)>,
    returned: Receiver<(ExchangeId, Returned)>,
    /// Exchanges whose memory came back.
    woken: Vec<ExchangeId>,
    /// When the links are to be sampled; absent while nothing happens on them, and none waits to send.
    sample_at: Option<Instant>,
}

#[derive(Clone, Copy)]
enum Owner {
    Dial(u64),
    Link(LinkId),
}

impl Role for Worker {
    type Command = Call;
    /// Dropping the transport waits for its thread, see `DROP_PATIENCE`.
    const GOODBYE: Duration = Duration::from_millis(500);

    fn command(&mut self, net: &mut Net, call: Call) -> Option<Duration> {
        match call {
            Call::Connect { address, peer, patience, lost, done } => {
                self.begin(net, Dial::new(address, peer, patience, lost, done, net.now()));
            }
            Call::Push { link, exchange, push, done } => self.push(link, exchange, push, done),
            Call::Pull { link, exchange, pull } => self.pull(net, link, exchange, pull),
            Call::Abandon { link, exchange } => {
                if self.exchanges.get(&exchange).is_some_and(|known| known.link == link) {
                    self.end_exchange(net, exchange, &Error::Cancelled);
                }
            }
            Call::Disconnect { link } => {
                if let Some(handle) = self.links.get(&link).map(|link| link.handle) {
                    net.close(handle, CLOSE_ORDERLY, Vec::new());
                    self.link_ended(net, link, &Error::Cancelled);
                }
            }
            Call::Measure { link, meter } => {
                if let Some(known) = self.links.get_mut(&link) {
                    known.metered = Some(Metered::new(meter, net.now()));
                    self.sample_at.get_or_insert(net.now() + SAMPLE_EVERY);
                }
            }
            Call::Shutdown { patience } => return Some(patience),
            Call::Resolved { dial, addresses } => self.resolved(net, dial, addresses),
        }
        None
    }

    fn refuse(&mut self, call: Call) {
        call.refuse();
    }

    /// No peer connects, because the endpoint has no configuration for it.
    fn new_connection(&mut self, net: &mut Net, incoming: Incoming) {
        net.refuse(incoming);
    }

    fn event(&mut self, net: &mut Net, handle: ConnectionHandle, event: Event) {
        let Some(owner) = self.owners.get(&handle).copied() else { return };
        match (owner, event) {
            (Owner::Dial(dial), Event::ConnectionLost { reason }) => {
                self.owners.remove(&handle);
                if let Some(known) = self.dials.get_mut(&dial) {
                    let error = match reason {
                        ConnectionError::TimedOut => known.silence(),
                        reason => self.credentials.explain(connection_error(&reason, &known.peer.name)),
                    };
                    let then = known.failed(error, net.now());
                    self.follow(net, dial, then);
                }
            }
            (Owner::Dial(dial), Event::Connected | Event::Stream(StreamEvent::Available { dir: Dir::Bi })) => {
                self.let_in(net, dial, handle);
            }
            (Owner::Link(link), Event::ConnectionLost { reason }) => {
                if let Some(known) = self.links.get(&link) {
                    let reason = connection_error(&reason, &known.peer.name);
                    if let Some(connection) = net.connection(handle) {
                        let path = connection.stats().path;
                        let (mtu, rtt, lost) = (path.current_mtu, path.rtt, path.lost_packets);
                        tracing::debug!(peer = known.peer.name, %reason, mtu, ?rtt, lost_packets = lost, "link ended");
                    }
                    self.link_ended(net, link, &reason);
                }
            }
            (Owner::Link(link), Event::Stream(event)) => self.stream_event(net, link, event),
            (
                Owner::Dial(_) | Owner::Link(_),
                Event::HandshakeDataReady
                | Event::Connected
                | Event::Stream(_)
                | Event::DatagramReceived
                | Event::DatagramsUnblocked,
            ) => {}
        }
    }

    fn settle(&mut self, net: &mut Net) {
        while let Some(link) = self.ready.pop_first() {
            self.write(net, link);
        }
        self.take_back();
        while let Some(id) = self.woken.pop() {
            self.read(net, id);
            self.take_back();
        }
    }

    fn sent(&mut self, connection: ConnectionHandle, bytes: usize) {
        if let Some(Owner::Link(link)) = self.owners.get(&connection)
            && let Some(link) = self.links.get_mut(link)
        {
            link.sent(bytes as u64);
        }
    }

    fn had_turn(&mut self, net: &Net, connection: ConnectionHandle, now: Instant, end: TurnEnd) {
        if let Some(Owner::Link(link)) = self.owners.get(&connection)
            && let Some(link) = self.links.get_mut(link)
            && let Some(connection) = net.look_at(connection)
        {
            link.had_turn(connection, now, end);
            if link.metered.is_some() {
                self.sample_at.get_or_insert(now + SAMPLE_EVERY);
            }
        }
    }

    fn share(&self, connection: ConnectionHandle) -> Share {
        match self.owners.get(&connection) {
            Some(Owner::Link(link)) => self.links.get(link).map_or(Share::default(), Link::share),
            Some(Owner::Dial(_)) | None => Share::default(),
        }
    }

    fn is_waiting(&self) -> bool {
        !self.exchanges.is_empty()
    }

    fn deadline(&self) -> Option<Instant> {
        self.dials.values().map(Dial::due).chain(self.sample_at).min()
    }

    fn expire(&mut self, net: &mut Net) {
        let now = net.now();
        if self.sample_at.take_if(|at| *at <= now).is_some() {
            self.links.values_mut().for_each(|link| sample(net, link));
            let is_held = |link: &Link| link.metered.as_ref().is_some_and(|metered| !metered.limits.is_idle());
            self.sample_at = self.links.values().any(is_held).then(|| now + SAMPLE_EVERY);
        }
        let due: Vec<u64> = self.dials.iter().filter(|(_, dial)| dial.due() <= now).map(|(id, _)| *id).collect();
        for id in due {
            let Some(dial) = self.dials.get_mut(&id) else { continue };
            if let Phase::Trying(handle, _) = dial.phase {
                self.owners.remove(&handle);
                net.close(handle, CLOSE_ORDERLY, Vec::new());
            }
            let silence = dial.silence();
            match dial.phase {
                _ if dial.is_hopeless(now) => self.follow(net, id, Then::Fail(silence)),
                Phase::Trying(..) => {
                    let then = dial.failed(silence, now);
                    self.follow(net, id, then);
                }
                Phase::Pausing(_) | Phase::Resolving => self.attempt(net, id),
            }
        }
    }

    fn end(&mut self, net: &mut Net, reason: &Error) {
        for dial in std::mem::take(&mut self.dials).into_values() {
            if let Phase::Trying(handle, _) = dial.phase {
                net.close(handle, CLOSE_ORDERLY, Vec::new());
            }
            dial.done.err(reason.clone());
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            if let Some(handle) = self.links.get(&link).map(|link| link.handle) {
                net.close(handle, CLOSE_ORDERLY, Vec::new());
            }
            self.link_ended(net, link, reason);
        }
        let exchanges: Vec<ExchangeId> = self.exchanges.keys().copied().collect();
        exchanges.into_iter().for_each(|id| self.end_exchange(net, id, reason));
        self.settle(net);
    }
}

impl Worker {
    /// # Errors
    /// [`Error::Auth`] if the credentials are unusable.
    pub(super) fn new(credentials: &Credentials, settings: Settings, calls: WeakCommands<Call>) -> Result<Self> {
        let (returning, returned) = unbounded();
        Ok(Self {
            tls: tls::client(credentials)?,
            credentials: credentials.clone(),
            settings,
            calls,
            dials: BTreeMap::new(),
            dials_made: 0,
            links: BTreeMap::new(),
            links_made: 0,
            owners: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            ready: BTreeSet::new(),
            returning,
            returned,
            woken: Vec::new(),
            sample_at: None,
        })
    }

    fn begin(&mut self, net: &mut Net, dial: Dial) {
        self.dials_made += 1;
        self.dials.insert(self.dials_made, dial);
        self.attempt(net, self.dials_made);
    }

    /// Begins an attempt: looks up the addresses.
    fn attempt(&mut self, net: &mut Net, id: u64) {
        let Some(dial) = self.dials.get_mut(&id) else { return };
        dial.phase = Phase::Resolving;
        if let Ok(address) = dial.address.parse() {
            return self.resolved(net, id, Ok(vec![address]));
        }
        // Looking up a name blocks, and there is no bound for it. So a thread of its own does it.
        let (address, name) = (dial.address.clone(), dial.peer.name.clone());
        let Some(calls) = self.calls.upgrade() else { return };
        let ask = move || {
            let addresses = resolve(&address, &name);
            drop(calls.send(Call::Resolved { dial: id, addresses }));
        };
        if let Err(error) = std::thread::Builder::new().name("gl-resolve".to_owned()).spawn(ask) {
            let error = Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() };
            self.resolved(net, id, Err(error));
        }
    }

    fn resolved(&mut self, net: &mut Net, id: u64, addresses: Result<Vec<SocketAddr>>) {
        let Some(dial) = self.dials.get_mut(&id).filter(|dial| dial.phase == Phase::Resolving) else { return };
        let then = match addresses {
            Ok(addresses) => dial.resolved(addresses, net.now()),
            Err(error) => dial.failed(error, net.now()),
        };
        self.follow(net, id, then);
    }

    fn follow(&mut self, net: &mut Net, id: u64, mut then: Then) {
        loop {
            let Some(dial) = self.dials.get_mut(&id) else { return };
            match then {
                Then::Wait => return,
                Then::Fail(error) => {
                    let dial = self.dials.remove(&id).expect("found above");
                    return dial.done.err(error);
                }
                Then::Connect(remote) => {
                    let mut config = ClientConfig::new(Arc::clone(&self.tls) as _);
                    config.transport_config(self.settings.transport(remote.ip().to_canonical(), 0));
                    match net.connect(config, remote, SERVER_NAME) {
                        Ok(handle) => {
                            dial.phase = Phase::Trying(handle, net.now() + self.settings.handshake_timeout);
                            self.owners.insert(handle, Owner::Dial(id));
                            return;
                        }
                        Err(error) => {
                            let what = format!("{} at {remote}", dial.peer.name);
                            then = dial.failed(Error::Unavailable { what, cause: error.to_string() }, net.now());
                        }
                    }
                }
            }
        }
    }

    /// The server knows the certificate once it grants a stream; see [`Dialed`](super::super::dial::Dialed).
    fn let_in(&mut self, net: &mut Net, id: u64, handle: ConnectionHandle) {
        let Some(connection) = net.connection(handle) else { return };
        let Some(stream) = connection.streams().open(Dir::Bi) else { return };
        let session = connection.crypto_session();
        let found = peer_of(session.handshake_data(), session.peer_identity());
        let Some(dial) = self.dials.remove(&id) else { return };
        if let Err(error) = check_server(found, &dial.address, &dial.peer) {
            self.owners.remove(&handle);
            net.close(handle, CLOSE_ORDERLY, Vec::new());
            return dial.done.err(error);
        }
        self.links_made += 1;
        let link = LinkId(self.links_made);
        self.owners.insert(handle, Owner::Link(link));
        self.links.insert(link, Link::new(handle, dial.peer, stream, dial.lost));
        dial.done.ok(link);
    }

    fn stream_event(&mut self, net: &mut Net, link: LinkId, event: StreamEvent) {
        let Some(known) = self.links.get(&link) else { return };
        let of = |id: StreamId| known.streams.get(&id).copied();
        match event {
            StreamEvent::Writable { .. } | StreamEvent::Available { dir: Dir::Bi } => drop(self.ready.insert(link)),
            StreamEvent::Readable { id } => {
                if let Some(id) = of(id) {
                    self.read(net, id);
                }
            }
            StreamEvent::Stopped { id, .. } => {
                let exchange = of(id).and_then(|id| self.exchanges.get_mut(&id));
                if let (Some(exchange), Some(connection)) = (exchange, net.connection(known.handle)) {
                    exchange.refused(connection);
                }
            }
            // Servers open no streams. The worker notices acknowledgements by the memory that comes back.
            StreamEvent::Opened { .. } | StreamEvent::Finished { .. } | StreamEvent::Available { .. } => {}
        }
    }

    fn push(&mut self, link: LinkId, id: ExchangeId, push: Push, done: Done<()>) {
        let Some(known) = self.links.get_mut(&link) else { return push.refuse(done, link_gone()) };
        if self.exchanges.contains_key(&id) {
            return push.refuse(done, Error::Internal { what: format!("exchange {} was begun twice", id.0) });
        }
        let returning = self.returning.clone();
        let loan = Loan::new(push.body, move |proof| drop(returning.send((id, proof))));
        let precedence = known.enter(id, &push.header);
        let state = WorkerExchange::new(push.header, done, push.pull);
        self.exchanges.insert(id, Exchange::new(link, precedence, state, loan.into_pieces()));
        self.ready.insert(link);
    }

    fn write(&mut self, net: &mut Net, link: LinkId) {
        let Some(link) = self.links.get_mut(&link) else { return };
        if let Some(connection) = net.connection(link.handle) {
            link.write(connection, &mut self.exchanges);
        }
    }

    fn pull(&mut self, net: &mut Net, link: LinkId, id: ExchangeId, pull: Pull) {
        let here = |exchange: &&mut Exchange| exchange.link == link && !exchange.state.is_pulled();
        match self.exchanges.get_mut(&id).filter(here) {
            Some(exchange) => {
                exchange.state.pull(pull);
                self.read(net, id);
            }
            None => pull.done.err(unknown_exchange()),
        }
    }

    /// Reads the bytes that an exchange can use now, and reports its end.
    fn read(&mut self, net: &mut Net, id: ExchangeId) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let link = exchange.link;
        if let (Some(known), false) = (self.links.get(&link), exchange.state.has_ended())
            && let Some(connection) = net.connection(known.handle)
        {
            match exchange.read(connection, &known.peer.name) {
                Step::Waits => return,
                Step::Ended => {}
                Step::Broken(error) => {
                    tracing::warn!(peer = known.peer.name, %error, "closing a link");
                    net.close(known.handle, CLOSE_ERROR, encode_reason(&error.told_to_peer()));
                    // First ends the exchange, with the error. Then ends the link and its other exchanges.
                    self.end_exchange(net, id, &error);
                    return self.link_ended(net, link, &error);
                }
            }
        }
        self.report(id);
    }

    /// Ends an exchange. Reports the end now, or when its memory is free.
    fn end_exchange(&mut self, net: &mut Net, id: ExchangeId, error: &Error) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        let handle = self.links.get(&exchange.link).map(|link| link.handle);
        match handle.and_then(|handle| net.connection(handle)) {
            Some(connection) => exchange.end(connection, Err(error.clone())),
            None => exchange.end_detached(Err(error.clone())),
        }
        self.take_back();
        self.report(id);
    }

    /// Handles the exchanges whose memory came back.
    fn take_back(&mut self) {
        while let Ok((id, proof)) = self.returned.try_recv() {
            if let Some(exchange) = self.exchanges.get_mut(&id) {
                exchange.state.returned(proof);
                if let Some(link) = self.links.get_mut(&exchange.link) {
                    link.pushing.leave(exchange.precedence);
                }
                self.woken.push(id);
            }
        }
    }

    fn report(&mut self, id: ExchangeId) {
        let Entry::Occupied(entry) = self.exchanges.entry(id) else { return };
        if !entry.get().state.is_over() {
            return;
        }
        let exchange = entry.remove();
        if let Some(link) = self.links.get_mut(&exchange.link) {
            link.leave(id, &exchange);
        }
        exchange.report();
    }

    /// A link is over. Fails its exchanges, and then reports the end of the link.
    fn link_ended(&mut self, net: &mut Net, id: LinkId, reason: &Error) {
        let under_way: Vec<ExchangeId> =
            self.exchanges.iter().filter(|(_, exchange)| exchange.link == id).map(|(id, _)| *id).collect();
        if let Some(link) = self.links.get(&id) {
            let error = of_the_link(reason, &link.peer.name);
            under_way.into_iter().for_each(|exchange| self.end_exchange(net, exchange, &error));
        }
        if let Some(mut link) = self.links.remove(&id) {
            sample(net, &mut link);
            if let Some(metered) = &link.metered {
                metered.meter.ended();
            }
            self.owners.remove(&link.handle);
            (link.lost)(id, reason.clone());
        }
    }
}

/// Counts what was measured on a link since the last time.
fn sample(net: &Net, link: &mut Link) {
    if let Some((metered, connection)) = link.metered.as_mut().zip(net.look_at(link.handle)) {
        metered.sample(connection, net.now());
    }
}

/// The most time between something that happens on a link and its sample. A sample costs less than a microsecond.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
