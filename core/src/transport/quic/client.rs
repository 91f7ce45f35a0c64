//! A worker's side: links to servers, and one task for each exchange.
//!
//! The transport's thread owns all links and exchanges; callers send it messages. An exchange's task is the only one that knows its
//! streams and memory. However an exchange ends, its task first takes its memory back ([`Memory::take_back`]) and then reports.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::select;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::closing::{
    CLOSE_ORDERLY, STREAM_GIVEN_UP, close_with, connection_error, early_end, read_error, read_exact_error, written,
};
use super::dial::{Dialed, Dialer};
use super::endpoint::EndpointThread;
use super::identity::Credentials;
use super::settings::Settings;
use super::socket;
use super::tls::{self, PeerOf, peer_of};
use crate::error::{Error, Result};
use crate::mem::{Landing, Loan, Region, Returned};
use crate::transport::exchange::{PullEnd, check_body, check_sum, link_gone, unknown_exchange};
use crate::transport::{Answer, LinkLost, Peer, Pulled, Push, Torn, Transport};
use crate::types::{Done, ExchangeId, LinkId};
use crate::wire::header::HEADER_BYTES;
use crate::wire::{Flags, Header, HeaderKind, limits, reject};

/// Carries exchanges over QUIC. Dropping it closes it.
#[derive(Debug)]
pub struct QuicTransport {
    calls: mpsc::UnboundedSender<Call>,
    thread: EndpointThread,
}

impl QuicTransport {
    /// A transport that connects as `credentials` say, from any free port.
    ///
    /// # Errors
    /// [`Error::Auth`] if the credentials are not usable, [`Error::Io`] if the system gives no socket or thread.
    pub fn new(credentials: &Credentials, settings: &Settings) -> Result<Self> {
        let socket = socket::bind_any(settings.socket_buffer_bytes)?;
        Self::on_socket(socket, credentials, settings)
    }

    fn on_socket(socket: UdpSocket, credentials: &Credentials, settings: &Settings) -> Result<Self> {
        let tls = tls::client(credentials)?;
        let (calls, inbox) = mpsc::unbounded_channel();
        let (own_calls, of_dialer) = (calls.downgrade(), settings.clone());
        let serve = move |endpoint: Endpoint| {
            let dialer = Dialer { endpoint, tls, settings: of_dialer };
            run(Hub::new(dialer, own_calls), inbox)
        };
        let thread = EndpointThread::start("gradlane-quic", socket, settings, None, serve)?;
        Ok(Self { calls, thread })
    }

    fn call(&self, call: Call) {
        let refused =
            if self.thread.is_ours() { self.calls.send(call).err().map(|refused| refused.0) } else { Some(call) };
        if let Some(call) = refused {
            call.refuse();
        }
    }
}

impl Transport for QuicTransport {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        self.call(Call::Connect { peer, patience, lost, done });
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        let bytes: usize = push.body.iter().map(Region::len).sum();
        assert_eq!(bytes as u64, push.header.body_bytes(), "a push announces the bytes it carries");
        self.call(Call::Push { link, exchange, push, done });
    }

    fn pull(&self, exchange: ExchangeId, into: Vec<Region>, done: Pulled) {
        self.call(Call::Pull { exchange, pull: Pull { into, end: PullEnd::new(done) } });
    }

    fn abandon(&self, exchange: ExchangeId) {
        self.call(Call::Abandon { exchange });
    }

    fn disconnect(&self, link: LinkId) {
        self.call(Call::Disconnect { link });
    }

    fn shutdown(&self, patience: Duration) {
        self.call(Call::Shutdown { patience });
        self.thread.join(patience);
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        self.shutdown(DROP_PATIENCE);
    }
}

/// How long dropping a transport waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

enum Call {
    Connect { peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId> },
    Push { link: LinkId, exchange: ExchangeId, push: Push, done: Done<()> },
    Pull { exchange: ExchangeId, pull: Pull },
    Abandon { exchange: ExchangeId },
    Disconnect { link: LinkId },
    Shutdown { patience: Duration },
    // From the tasks of the transport itself.
    Connected { peer: Peer, dialed: Dialed, lost: LinkLost, done: Done<LinkId> },
    LinkEnded { link: LinkId, reason: Error },
    ExchangeEnded { exchange: ExchangeId },
}

impl Call {
    /// Answers for a transport that has been shut down.
    fn refuse(self) {
        match self {
            Self::Connect { done, .. } | Self::Connected { done, .. } => done.err(Error::Cancelled),
            Self::Push { done, .. } => done.err(link_gone()),
            Self::Pull { pull, .. } => pull.end.torn(unknown_exchange()),
            Self::Abandon { .. }
            | Self::Disconnect { .. }
            | Self::Shutdown { .. }
            | Self::LinkEnded { .. }
            | Self::ExchangeEnded { .. } => {}
        }
    }
}

/// Where a sum is wanted, and who waits for it.
struct Pull {
    into: Vec<Region>,
    end: PullEnd,
}

/// All links and exchanges; owned by the transport's thread.
struct Hub {
    dialer: Dialer,
    calls: mpsc::WeakUnboundedSender<Call>,
    links: BTreeMap<LinkId, Link>,
    exchanges: BTreeMap<ExchangeId, Exchange>,
    tasks: JoinSet<()>,
    /// Ends the waiting of those that dial.
    stopping: watch::Sender<bool>,
    links_made: u64,
}

struct Link {
    connection: Connection,
    peer: Peer,
    /// The stream that proved that the server let this worker in; the first exchange takes it.
    first_stream: Option<(SendStream, RecvStream)>,
    lost: LinkLost,
}

struct Exchange {
    /// Absent once the pull was handed to the task.
    pull: Option<oneshot::Sender<Pull>>,
    cancel: Arc<Notify>,
}

async fn run(mut hub: Hub, mut inbox: mpsc::UnboundedReceiver<Call>) {
    while let Some(call) = inbox.recv().await {
        match call {
            Call::Connect { peer, patience, lost, done } => hub.connect(peer, patience, lost, done),
            Call::Push { link, exchange, push, done } => hub.push(link, exchange, push, done),
            Call::Pull { exchange, pull } => hub.pull(exchange, pull),
            Call::Abandon { exchange } => hub.abandon(exchange),
            Call::Disconnect { link } => {
                if let Some(link) = hub.links.get(&link) {
                    link.connection.close(CLOSE_ORDERLY, b"");
                }
            }
            Call::Shutdown { patience } => {
                // What is sent from now on is refused by the channel, and what is in it below.
                inbox.close();
                hub.shutdown(&mut inbox, patience).await;
                return;
            }
            Call::Connected { peer, dialed, lost, done } => hub.connected(peer, dialed, lost, done),
            Call::LinkEnded { link, reason } => hub.link_ended(link, reason),
            Call::ExchangeEnded { exchange } => drop(hub.exchanges.remove(&exchange)),
        }
        while hub.tasks.try_join_next().is_some() {}
    }
}

impl Hub {
    fn new(dialer: Dialer, calls: mpsc::WeakUnboundedSender<Call>) -> Self {
        let (links, exchanges, tasks) = (BTreeMap::new(), BTreeMap::new(), JoinSet::new());
        Self { dialer, calls, links, exchanges, tasks, stopping: watch::Sender::new(false), links_made: 0 }
    }

    fn connect(&mut self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        let (dialer, calls, mut stopping) = (self.dialer.clone(), self.calls.clone(), self.stopping.subscribe());
        self.tasks.spawn(async move {
            let dialed = select! {
                dialed = dialer.dial(&peer.address, &peer.name, patience) => dialed,
                _ = stopping.changed() => Err(Error::Cancelled),
            };
            let dialed = match dialed {
                Ok(dialed) => dialed,
                Err(error) => return done.err(error),
            };
            if let Err(error) = check_server(&dialed.connection, &peer) {
                dialed.connection.close(CLOSE_ORDERLY, b"");
                return done.err(error);
            }
            send(&calls, Call::Connected { peer, dialed, lost, done });
        });
    }

    fn connected(&mut self, peer: Peer, dialed: Dialed, lost: LinkLost, done: Done<LinkId>) {
        self.links_made += 1;
        let id = LinkId(self.links_made);
        let (connection, name, calls) = (dialed.connection.clone(), peer.name.clone(), self.calls.clone());
        self.tasks.spawn(async move {
            let reason = connection_error(&connection.closed().await, &name);
            let path = connection.stats().path;
            let (mtu, rtt, lost) = (path.current_mtu, path.rtt, path.lost_packets);
            tracing::debug!(peer = name, %reason, mtu, ?rtt, lost_packets = lost, "link ended");
            send(&calls, Call::LinkEnded { link: id, reason });
        });
        let link = Link { connection: dialed.connection, peer, first_stream: Some(dialed.stream), lost };
        self.links.insert(id, link);
        done.ok(id);
    }

    fn push(&mut self, link: LinkId, id: ExchangeId, push: Push, done: Done<()>) {
        let Some(link) = self.links.get_mut(&link) else { return done.err(link_gone()) };
        let wire = Wire {
            connection: link.connection.clone(),
            first_stream: link.first_stream.take(),
            peer: link.peer.name.clone(),
        };
        let (pull_sender, pull) = oneshot::channel();
        let cancel = Arc::new(Notify::new());
        let ended = Ended { exchange: id, calls: self.calls.clone() };
        self.exchanges.insert(id, Exchange { pull: Some(pull_sender), cancel: Arc::clone(&cancel) });
        self.tasks.spawn(exchange(wire, push, done, pull, cancel, ended));
    }

    fn pull(&mut self, exchange: ExchangeId, pull: Pull) {
        let waiting = self.exchanges.get_mut(&exchange).and_then(|exchange| exchange.pull.take());
        let refused = match waiting {
            Some(waiting) => waiting.send(pull).err(),
            None => Some(pull),
        };
        if let Some(pull) = refused {
            pull.end.torn(unknown_exchange());
        }
    }

    fn abandon(&mut self, exchange: ExchangeId) {
        if let Some(exchange) = self.exchanges.get(&exchange) {
            exchange.cancel.notify_one();
        }
    }

    fn link_ended(&mut self, id: LinkId, reason: Error) {
        if let Some(link) = self.links.remove(&id) {
            (link.lost)(id, reason);
        }
    }

    async fn shutdown(&mut self, inbox: &mut mpsc::UnboundedReceiver<Call>, patience: Duration) {
        let exchanges: Vec<ExchangeId> = self.exchanges.keys().copied().collect();
        exchanges.into_iter().for_each(|exchange| self.abandon(exchange));
        self.exchanges.clear();
        let links = std::mem::take(&mut self.links);
        let closing = async {
            let _ = self.stopping.send(true);
            self.dialer.endpoint.close(CLOSE_ORDERLY, b"");
            while self.tasks.join_next().await.is_some() {}
            for (id, link) in links {
                (link.lost)(id, Error::Cancelled);
            }
            while let Some(call) = inbox.recv().await {
                call.refuse();
            }
            self.dialer.endpoint.wait_idle().await;
        };
        if tokio::time::timeout(patience, closing).await.is_err() {
            tracing::debug!(?patience, "a peer did not confirm the end of its link");
        }
    }
}

fn send(calls: &mpsc::WeakUnboundedSender<Call>, call: Call) {
    match calls.upgrade() {
        Some(calls) => {
            if let Err(refused) = calls.send(call) {
                refused.0.refuse();
            }
        }
        None => call.refuse(),
    }
}

/// Tells the hub, when it is dropped, that an exchange's task is over.
struct Ended {
    exchange: ExchangeId,
    calls: mpsc::WeakUnboundedSender<Call>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        send(&self.calls, Call::ExchangeEnded { exchange: self.exchange });
    }
}

fn check_server(connection: &Connection, peer: &Peer) -> Result<()> {
    let found = match peer_of(connection)? {
        PeerOf::Member(identity) if identity.node == peer.node => return Ok(()),
        PeerOf::Member(identity) => format!("{} {}", identity.role, identity.node),
        PeerOf::Newcomer => "a process that is no member".to_owned(),
    };
    Err(Error::Auth {
        problem: format!("at {} answers {found} instead of {}, {}", peer.address, peer.name, peer.node),
        hint: "another process took its address, or it was restarted: wait for the next membership".to_owned(),
    })
}

/// What an exchange needs of its link.
struct Wire {
    connection: Connection,
    first_stream: Option<(SendStream, RecvStream)>,
    peer: String,
}

/// Runs one exchange to its end. The memory it was lent is free again before it reports that end.
async fn exchange(
    mut wire: Wire,
    push: Push,
    done: Done<()>,
    mut pull: oneshot::Receiver<Pull>,
    cancel: Arc<Notify>,
    _ended: Ended,
) {
    let (sender, returned) = oneshot::channel();
    let loan = Loan::new(push.body, move |proof| {
        let _ = sender.send(proof);
    });
    let mut memory = Memory { streams: wire.first_stream.take(), returned: Some(returned) };

    let sending = memory.send(&wire, &push.header, loan.into_pieces(), push.urgency);
    let sent = select! {
        biased;
        () = cancel.notified() => Err(Error::Cancelled),
        sent = sending => sent,
    };
    if let Err(error) = sent {
        memory.take_back().await;
        done.err(error.clone());
        // It may be pulled already.
        if let Ok(pull) = pull.try_recv() {
            pull.end.torn(error);
        }
        return;
    }
    done.ok(());

    let pulled = select! {
        biased;
        () = cancel.notified() => None,
        pull = pull => pull.ok(),
    };
    let Some(Pull { into, end }) = pulled else {
        memory.take_back().await;
        return;
    };
    let mut landing_begun = false;
    let receiving = memory.receive(&wire, &push.header, into, &mut landing_begun);
    let outcome = select! {
        biased;
        () = cancel.notified() => Err(Error::Cancelled),
        outcome = receiving => outcome,
    };
    memory.take_back().await;
    end.report(outcome.map_err(|error| Torn { error, landing_begun }));
}

/// The streams that may refer to the caller's memory, and the news that they do no longer.
struct Memory {
    streams: Option<(SendStream, RecvStream)>,
    /// Absent once the memory is back.
    returned: Option<oneshot::Receiver<Returned>>,
}

impl Memory {
    async fn send(&mut self, wire: &Wire, header: &Header, mut body: Vec<Bytes>, urgency: u8) -> Result<()> {
        if self.streams.is_none() {
            let opened = wire.connection.open_bi().await;
            self.streams = Some(opened.map_err(|error| connection_error(&error, &wire.peer))?);
        }
        let (sender, _) = self.streams.as_mut().expect("opened above");
        // Fails only for a stream that has ended, which the writing below reports.
        let _ = sender.set_priority(i32::from(urgency));
        body.insert(0, Bytes::copy_from_slice(&header.encode()));
        written(sender.write_all_chunks(&mut body).await, &wire.peer)?;
        let _ = sender.finish();
        Ok(())
    }

    async fn receive(
        &mut self,
        wire: &Wire,
        push: &Header,
        into: Vec<Region>,
        landing_begun: &mut bool,
    ) -> Result<Answer> {
        let peer = wire.peer.as_str();
        let (sender, receiver) = self.streams.as_mut().expect("what is pulled was sent");
        let mut header = [0; HEADER_BYTES];
        let read = receiver.read_exact(&mut header).await;
        read.map_err(|error| read_exact_error(error, "header", peer))?;
        let header = broken(wire, Header::decode(&header, peer))?;
        if header.kind == HeaderKind::Reject {
            let length = usize::try_from(header.bytes.min(limits::REJECT_BYTES_MAX)).expect("64 KiB");
            let mut body = vec![0; length];
            let read = receiver.read_exact(&mut body).await;
            read.map_err(|error| read_exact_error(error, "reject", peer))?;
            return Ok(Answer::Reject(broken(wire, reject::from_body(&body, peer))?));
        }
        broken(wire, check_sum(&header, push, into.iter().map(Region::len).sum(), peer))?;

        // A server that answers needs no more of the body: what is not acknowledged yet would only be kept for a retransmission. So the
        // memory is free now, not an acknowledgement's delay later.
        let _ = sender.reset(STREAM_GIVEN_UP);
        let returned = self.returned.take().expect("taken only here").await.expect("a loan returns");
        let mut landing = Landing::new(into, returned);
        let mut crc = 0;
        while let Some(chunk) = receiver.read_chunk(usize::MAX, true).await.map_err(|error| read_error(error, peer))? {
            if chunk.bytes.len() > landing.bytes_left() {
                return broken(wire, Err(early_end("sum", "is longer than announced", peer)));
            }
            *landing_begun = true;
            landing.write(&chunk.bytes);
            if header.flags.contains(Flags::CHECKSUM) {
                // Here the bytes are still in the cache.
                crc = crc32c::crc32c_append(crc, &chunk.bytes);
            }
        }
        if landing.bytes_left() > 0 {
            let problem = format!("ends {} bytes early", landing.bytes_left());
            return broken(wire, Err(early_end("sum", &problem, peer)));
        }
        check_body(&header, crc, peer)?;
        Ok(Answer::Sum(header))
    }

    /// Ends the streams, which frees what they still hold, and waits until nothing refers to the caller's memory.
    ///
    /// A reset drops unacknowledged data at once, also on a connection that is lost; what is already acknowledged was dropped then.
    async fn take_back(mut self) {
        if let Some((mut sender, mut receiver)) = self.streams.take() {
            let _ = sender.reset(STREAM_GIVEN_UP);
            let _ = receiver.stop(STREAM_GIVEN_UP);
        }
        if let Some(returned) = self.returned {
            let _ = returned.await;
        }
    }
}

/// Passes a server's answer on; one that breaks the protocol costs it the link, with the error as the reason.
fn broken<T>(wire: &Wire, outcome: Result<T>) -> Result<T> {
    if let Err(error) = &outcome {
        tracing::warn!(peer = wire.peer, %error, "closing a link");
        close_with(&wire.connection, error);
    }
    outcome
}
