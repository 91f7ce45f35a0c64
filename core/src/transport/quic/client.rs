//! A worker's side in tasks: links to servers, and which exchanges are under way on them.
//!
//! The transport's thread owns all links and exchanges; callers send it messages. Each exchange is a task on that thread, which alone
//! knows its streams and memory: see [`exchange`](super::exchange).

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::select;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::closing::{CLOSE_ORDERLY, connection_error};
use super::dial::{Dialed, Dialer};
use super::endpoint;
use super::exchange::{self, Pull, Wire};
use super::identity::Credentials;
use super::settings::Settings;
use super::socket;
use super::tls::{self, check_server};
use crate::error::{Error, Result};
use crate::mem::Region;
use crate::transport::exchange::{PullEnd, link_gone, unknown_exchange};
use crate::transport::thread::TransportThread;
use crate::transport::{LinkLost, Peer, Pulled, Push, Transport};
use crate::types::{Done, ExchangeId, LinkId};

/// Carries exchanges over QUIC. Dropping it closes it.
#[derive(Debug)]
pub(super) struct TaskTransport {
    calls: mpsc::UnboundedSender<Call>,
    thread: TransportThread,
}

impl TaskTransport {
    /// A transport that connects as `credentials` say, from any free port.
    pub(super) fn new(credentials: &Credentials, settings: &Settings) -> Result<Self> {
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
        let thread = endpoint::start("gradlane-quic", socket, settings, None, serve)?;
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

impl Transport for TaskTransport {
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

impl Drop for TaskTransport {
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
            if let Err(error) = check_server(dialed.peer(), &peer) {
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
        self.tasks.spawn(exchange::run(wire, push, done, pull, cancel, ended));
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
