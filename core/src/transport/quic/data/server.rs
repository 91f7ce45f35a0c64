//! A server's side of QUIC: lets workers in, and serves the exchanges of all links.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    ConnectionError, ConnectionHandle, Dir, Event, Incoming as NewConnection, StreamEvent, StreamId, VarInt,
};

use super::super::admission::{AdmissionControl, Place, Verdict};
use super::super::closing::{CLOSE_ERROR, CLOSE_ORDERLY, connection_error, encode_reason, gave_up};
use super::super::tls::{PeerOf, peer_of};
use super::driver::{Net, Role, keep_ahead, let_ahead};
use super::served::{Found, Served};
use super::turns::Share;
use super::urgency::{Classes, Handed, precedence};
use crate::error::Error;
use crate::identity::PeerIdentity;
use crate::transport::exchange::reject_of;
use crate::transport::{Inbox, Incoming, Outgoing};
use crate::types::{self, ExchangeId, LinkId};
use crate::wire::Reply;

/// A command of the listener's owner.
pub(super) enum Command {
    Outgoing(Outgoing),
    Stop(Duration),
}

/// Exchanges that a peer may have open at first.
const STREAMS_FIRST: u32 = 256;
/// The factor by which this number grows when half of it is used.
const STREAMS_GROWTH: u32 = 8;

/// All links and exchanges of a server.
pub(super) struct Server {
    inbox: Inbox,
    admission_control: AdmissionControl,
    is_closed: bool,
    /// How many exchanges a peer may have open.
    streams: u32,
    /// Handshakes under way, with their places at the gate, and when they are given up.
    arriving: BTreeMap<ConnectionHandle, (Instant, Place)>,
    links: BTreeMap<LinkId, Link>,
    owners: BTreeMap<ConnectionHandle, LinkId>,
    /// The link and stream of each exchange that the server was told of.
    exchanges: BTreeMap<ExchangeId, (LinkId, StreamId)>,
    /// Links whose streams may take more.
    ready: BTreeSet<LinkId>,
    /// Numbers for links and exchanges, never given twice by one listener.
    names: u64,
}

struct Link {
    handle: ConnectionHandle,
    peer: String,
    /// Exchanges that the peer may have open now. quinn-proto keeps memory for each of them, also for a while after the end of the connection. So
    /// the number grows as the peer needs it, and a peer that connects again and again costs little.
    streams_max: u32,
    answers: u32,
    streams: BTreeMap<StreamId, Served>,
    /// Bytes of all its exchanges.
    bytes_open: u64,
    /// Streams with something to write, the most urgent first.
    writers: BTreeSet<(Reverse<i32>, StreamId)>,
    /// Exchanges whose answer was begun and has not reached the peer.
    answering: Classes,
    /// Bytes of the answers that quinn-proto was given and has not sent.
    handed: Handed,
}

impl Role for Server {
    type Command = Command;
    /// No thread waits for a listener that was dropped.
    const GOODBYE: Duration = Duration::from_millis(500);

    fn command(&mut self, net: &mut Net, command: Command) -> Option<Duration> {
        match command {
            Command::Outgoing(outgoing) => self.outgoing(net, outgoing),
            Command::Stop(patience) => return Some(patience),
        }
        None
    }

    fn refuse(&mut self, command: Command) {
        drop(command);
    }

    fn new_connection(&mut self, net: &mut Net, incoming: NewConnection) {
        if self.is_closed {
            return net.refuse(incoming);
        }
        let remote = incoming.remote_address();
        let gatekeeper = self.admission_control.gatekeeper().clone();
        match gatekeeper.arrive(net.now(), remote.ip(), incoming.remote_address_validated()) {
            Verdict::Prove => net.retry(incoming),
            Verdict::TurnAway => {
                tracing::debug!(%remote, "turned away: too many handshakes");
                net.refuse(incoming);
            }
            Verdict::Try(admitted) => {
                if let Some(stalled) = admitted.instead_of {
                    self.give_up(net, |place| place == stalled);
                }
                let config = self.admission_control.config_for(remote.ip());
                match net.accept(incoming, config) {
                    Some(handle) => {
                        self.arriving.insert(handle, (gatekeeper.instant(admitted.until), admitted.place));
                    }
                    None => gatekeeper.leave(admitted.place),
                }
            }
        }
    }

    fn event(&mut self, net: &mut Net, handle: ConnectionHandle, event: Event) {
        if self.arriving.contains_key(&handle) {
            match event {
                Event::Connected => self.arrived(net, handle),
                Event::ConnectionLost { reason } => {
                    self.leave(handle);
                    let Some(remote) = net.connection(handle).map(|connection| connection.remote_address()) else {
                        return;
                    };
                    let error = connection_error(&reason, &format!("the process at {remote}"));
                    match error {
                        // The peer gave up itself, for example because its job has ended.
                        Error::Unavailable { .. } => tracing::debug!(%remote, %error, "handshake not finished"),
                        _ => self.admission_control.gatekeeper().log_refusal(net.now(), remote, &error),
                    }
                }
                Event::HandshakeDataReady | Event::Stream(_) | Event::DatagramReceived | Event::DatagramsUnblocked => {}
            }
            return;
        }
        let Some(id) = self.owners.get(&handle).copied() else { return };
        match event {
            Event::ConnectionLost { reason } => self.link_ended(net, id, &reason),
            Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                while let Some(stream) = net.connection(handle).and_then(|line| line.streams().accept(Dir::Bi)) {
                    let exchange = ExchangeId(self.name());
                    let Some(link) = self.links.get_mut(&id) else { return };
                    link.streams.insert(stream, Served::new(exchange, stream));
                    if link.streams.len() >= link.streams_max as usize / 2 && link.streams_max < self.streams {
                        link.streams_max = link.streams_max.saturating_mul(STREAMS_GROWTH).min(self.streams);
                        if let Some(connection) = net.connection(handle) {
                            connection.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(link.streams_max));
                        }
                    }
                    self.read(net, id, stream);
                }
            }
            Event::Stream(StreamEvent::Readable { id: stream }) => self.read(net, id, stream),
            Event::Stream(StreamEvent::Writable { .. }) => drop(self.ready.insert(id)),
            Event::Stream(StreamEvent::Stopped { id: stream, .. }) => {
                if let Some(peer) = self.links.get(&id).map(|link| link.peer.clone()) {
                    self.torn(net, id, stream, gave_up(&peer));
                }
            }
            Event::Stream(StreamEvent::Finished { id: stream }) => {
                if let Some(exchange) = self.forget(net, id, stream) {
                    self.tell(Incoming::Answered { exchange });
                }
            }
            Event::HandshakeDataReady
            | Event::Connected
            | Event::Stream(StreamEvent::Opened { .. } | StreamEvent::Available { .. })
            | Event::DatagramReceived
            | Event::DatagramsUnblocked => {}
        }
    }

    fn settle(&mut self, net: &mut Net) {
        while let Some(link) = self.ready.pop_first() {
            self.write(net, link);
        }
    }

    fn sent(&mut self, connection: ConnectionHandle, bytes: usize) {
        if let Some(link) = self.owners.get(&connection).and_then(|link| self.links.get_mut(link)) {
            link.handed.sent(bytes as u64);
        }
    }

    /// All links have the same share, because a sum is of use only when all workers have it.
    fn share(&self, connection: ConnectionHandle) -> Share {
        let Some(link) = self.owners.get(&connection).and_then(|link| self.links.get(link)) else {
            return Share::default();
        };
        // A stream may wait for its sum instead of the connection. So only the bytes that quinn-proto was given say what is sent next.
        Share { urgency: link.handed.most_urgent(None, &link.answering), bytes: 0, open: link.bytes_open }
    }

    fn is_waiting(&self) -> bool {
        !self.exchanges.is_empty()
    }

    fn deadline(&self) -> Option<Instant> {
        self.arriving.values().map(|(until, _)| *until).min()
    }

    fn expire(&mut self, net: &mut Net) {
        let now = net.now();
        let late: Vec<Place> =
            self.arriving.values().filter(|(until, _)| *until <= now).map(|(_, place)| *place).collect();
        self.give_up(net, |place| late.contains(&place));
    }

    fn end(&mut self, net: &mut Net, _reason: &Error) {
        self.is_closed = true;
        for handle in std::mem::take(&mut self.arriving).into_keys() {
            net.close(handle, CLOSE_ORDERLY, Vec::new());
        }
        let links: Vec<(LinkId, ConnectionHandle)> = self.links.iter().map(|(id, link)| (*id, link.handle)).collect();
        for (link, handle) in links {
            net.close(handle, CLOSE_ORDERLY, Vec::new());
            self.link_ended(net, link, &ConnectionError::LocallyClosed);
        }
    }
}

/// Only workers begin exchanges.
fn only_a_worker(peer: PeerOf) -> Result<PeerIdentity, Error> {
    match peer {
        PeerOf::Member(identity) => identity.must_be(types::Role::Worker).map(|()| identity),
        PeerOf::Newcomer(_) => Err(Error::Auth {
            problem: "a process without a certificate begins exchanges".to_owned(),
            hint: "enrol at the coordinator first".to_owned(),
        }),
    }
}

impl Server {
    pub(super) fn new(admission_control: AdmissionControl, streams: u32, inbox: Inbox) -> Self {
        Self {
            inbox,
            admission_control,
            is_closed: false,
            streams,
            arriving: BTreeMap::new(),
            links: BTreeMap::new(),
            owners: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            ready: BTreeSet::new(),
            names: 0,
        }
    }

    fn tell(&self, event: Incoming) {
        (self.inbox)(event);
    }

    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    /// Ends handshakes that have taken too long, or whose place was given to another peer.
    fn give_up(&mut self, net: &mut Net, which: impl Fn(Place) -> bool) {
        let handles: Vec<ConnectionHandle> =
            self.arriving.iter().filter(|(_, (_, place))| which(*place)).map(|(handle, _)| *handle).collect();
        for handle in handles {
            self.leave(handle);
            tracing::debug!("handshake not finished in time");
            net.close(handle, CLOSE_ORDERLY, Vec::new());
        }
    }

    /// A handshake has ended.
    fn leave(&mut self, handle: ConnectionHandle) {
        if let Some((_, place)) = self.arriving.remove(&handle) {
            self.admission_control.gatekeeper().leave(place);
        }
    }

    /// A handshake has succeeded. Identifies the peer and lets it in, or closes the connection.
    fn arrived(&mut self, net: &mut Net, handle: ConnectionHandle) {
        self.leave(handle);
        let Some(connection) = net.connection(handle) else { return };
        let address = connection.remote_address();
        let session = connection.crypto_session();
        let found = peer_of(session.handshake_data(), session.peer_identity());
        let identity = match found.and_then(only_a_worker) {
            Ok(identity) => identity,
            Err(error) => {
                self.admission_control.gatekeeper().log_refusal(net.now(), address, &error);
                return net.close(handle, CLOSE_ERROR, encode_reason(&error));
            }
        };
        self.admission_control.gatekeeper().proven(address.ip());
        let Some(connection) = net.connection(handle) else { return };
        let streams_max = self.streams.min(STREAMS_FIRST);
        connection.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(streams_max));
        let link = LinkId(self.name());
        let peer = format!("{} {} at {address}", identity.role, identity.node);
        let (streams, writers) = (BTreeMap::new(), BTreeSet::new());
        let (answering, handed) = (Classes::default(), Handed::default());
        let (answers, bytes_open) = (0, 0);
        self.links
            .insert(link, Link { handle, peer, streams_max, answers, streams, bytes_open, writers, answering, handed });
        self.owners.insert(handle, link);
        self.tell(Incoming::LinkUp { link, node: identity.node, address: address.to_string() });
    }

    fn outgoing(&mut self, net: &mut Net, outgoing: Outgoing) {
        let exchange = match &outgoing {
            Outgoing::Grant { link, unread_bytes_max } => {
                let handle = self.links.get(link).map(|link| link.handle);
                if let Some(connection) = handle.and_then(|handle| net.connection(handle)) {
                    connection.set_receive_window(VarInt::from_u64(*unread_bytes_max).unwrap_or(VarInt::MAX));
                }
                return;
            }
            Outgoing::Disconnect { link, reason } => {
                if let Some(handle) = self.links.get(link).map(|link| link.handle) {
                    net.close(handle, CLOSE_ERROR, encode_reason(reason));
                    self.link_ended(net, *link, &ConnectionError::LocallyClosed);
                }
                return;
            }
            Outgoing::Accept { exchange }
            | Outgoing::Answer { exchange, .. }
            | Outgoing::Block { exchange, .. }
            | Outgoing::End { exchange, .. }
            | Outgoing::Reject { exchange, .. } => *exchange,
        };
        let Some((id, stream)) = self.exchanges.get(&exchange).copied() else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        let (Some(served), Some(connection)) = (link.streams.get_mut(&stream), net.connection(link.handle)) else {
            return;
        };
        let was_begun = served.is_answering();
        let outcome = match outgoing {
            Outgoing::Accept { .. } => {
                served.accept();
                return self.read(net, id, stream);
            }
            Outgoing::Answer { header, .. } => {
                link.answers = link.answers.wrapping_add(1);
                served.answer(connection, &Reply::Response(header), precedence(served.urgency, link.answers))
            }
            Outgoing::Block { block, .. } => served.block(Bytes::from_owner(block)),
            Outgoing::End { checksum, .. } => served.last(checksum),
            Outgoing::Reject { about, error, .. } => {
                link.answers = link.answers.wrapping_add(1);
                let (header, body) = reject_of(about, &error);
                let precedence = precedence(served.urgency, link.answers);
                let begun = served.answer(connection, &Reply::Reject(header), precedence);
                begun.and_then(|()| served.block(Bytes::from(body))).and_then(|()| served.last(0))
            }
            Outgoing::Grant { .. } | Outgoing::Disconnect { .. } => unreachable!("obeyed above"),
        };
        if !was_begun && served.is_answering() {
            link.answering.enter(served.precedence);
        }
        match outcome {
            Ok(()) => {
                link.writers.insert((Reverse(served.precedence), stream));
                self.ready.insert(id);
            }
            Err(error) => self.torn(net, id, stream, error),
        }
    }

    /// Passes on the bytes and events of a stream.
    fn read(&mut self, net: &mut Net, id: LinkId, stream: StreamId) {
        loop {
            let Some(link) = self.links.get_mut(&id) else { return };
            let (Some(served), Some(connection)) = (link.streams.get_mut(&stream), net.connection(link.handle)) else {
                return;
            };
            let exchange = served.id;
            match served.read(connection, &link.peer) {
                Found::Nothing => return,
                Found::Opened(header) => {
                    link.bytes_open += served.part_bytes;
                    self.exchanges.insert(exchange, (id, stream));
                    self.tell(Incoming::Opened { link: id, exchange, header });
                }
                Found::Body(chunks) => self.tell(Incoming::Body { exchange, chunks }),
                Found::Torn(reason) => return self.torn(net, id, stream, reason),
                Found::Broken(error) => {
                    tracing::warn!(peer = link.peer, %error, "closing a link");
                    net.close(link.handle, CLOSE_ERROR, encode_reason(&error.told_to_peer()));
                    self.torn(net, id, stream, error);
                    return self.link_ended(net, id, &ConnectionError::LocallyClosed);
                }
            }
        }
    }

    /// Writes, the most urgent answer first.
    fn write(&mut self, net: &mut Net, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let Some(connection) = net.connection(link.handle) else { return };
        let_ahead(connection);
        let mut is_ahead = true;
        for (precedence, stream) in std::mem::take(&mut link.writers) {
            let Some(served) = link.streams.get_mut(&stream) else { continue };
            if is_ahead && !link.answering.is_ahead(precedence.0) {
                keep_ahead(connection);
                is_ahead = false;
            }
            let written = served.write(connection);
            link.handed.took(precedence.0, written as u64);
            if served.is_writing() {
                link.writers.insert((precedence, stream));
            }
        }
        keep_ahead(connection);
    }

    /// An exchange ended without its answer delivered.
    fn torn(&mut self, net: &mut Net, id: LinkId, stream: StreamId, reason: Error) {
        if let Some(exchange) = self.forget(net, id, stream) {
            self.tell(Incoming::Torn { exchange, reason });
        }
    }

    /// Drops an exchange with its streams. Returns it if the server was told of it.
    fn forget(&mut self, net: &mut Net, id: LinkId, stream: StreamId) -> Option<ExchangeId> {
        let link = self.links.get_mut(&id)?;
        let served = link.streams.remove(&stream)?;
        link.bytes_open -= served.part_bytes;
        if served.is_answering() {
            link.answering.leave(served.precedence);
        }
        link.writers.remove(&(Reverse(served.precedence), stream));
        if let Some(connection) = net.connection(link.handle) {
            served.end(connection);
        }
        self.exchanges.remove(&served.id);
        served.was_opened().then_some(served.id)
    }

    /// A link is over. Reports its exchanges as torn, and then the end of the link.
    fn link_ended(&mut self, net: &mut Net, id: LinkId, reason: &ConnectionError) {
        let Some(link) = self.links.get(&id) else { return };
        let reason = connection_error(reason, &link.peer);
        let streams: Vec<StreamId> = link.streams.keys().copied().collect();
        for stream in streams {
            self.torn(net, id, stream, reason.clone());
        }
        if let Some(link) = self.links.remove(&id) {
            self.owners.remove(&link.handle);
            self.tell(Incoming::LinkDown { link: id, reason });
        }
    }
}
