//! A worker's side in tasks: links to servers, and which exchanges are under way on them.
//!
//! The transport's thread owns all links and exchanges; callers send it messages. Each exchange is a task on that thread, which alone
//! knows its streams and memory: see [`exchange`](super::exchange).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tokio::select;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::calls::{Call, DriverHandle, Pull};
use super::closing::{CLOSE_ORDERLY, connection_error};
use super::dial::{Dialed, Dialer};
use super::endpoint;
use super::exchange::{self, Wire};
use super::settings::Settings;
use super::socket;
use super::tls::{self, check_server};
use crate::error::{Error, Result};
use crate::transport::exchange::{link_gone, unknown_exchange};
use crate::transport::identity::Credentials;
use crate::transport::{LinkLost, Peer, Push};
use crate::types::{Done, ExchangeId, LinkId};

/// Starts a driver that connects from any free port with `credentials`, in tasks of a runtime.
pub(super) fn connect(credentials: &Credentials, settings: &Settings) -> Result<DriverHandle> {
    let socket = socket::bind_any(settings.socket_buffer_bytes)?;
    let tls = tls::client(credentials)?;
    let (messages, inbox) = mpsc::unbounded_channel();
    let (own_messages, of_dialer) = (messages.downgrade(), settings.clone());
    let serve = move |endpoint: Endpoint| {
        let dialer = Dialer { endpoint, tls, settings: of_dialer };
        run(ClientState::new(dialer, own_messages), inbox)
    };
    let thread = endpoint::start("gradlane-quic", socket, settings, None, serve)?;
    let calls = move |call| {
        if let Err(refused) = messages.send(Message::Call(call)) {
            refused.0.refuse();
        }
    };
    Ok(DriverHandle { calls: Box::new(calls), thread })
}

enum Message {
    Call(Call),
    // From the tasks of the transport itself.
    Connected { peer: Peer, dialed: Dialed, lost: LinkLost, done: Done<LinkId> },
    LinkEnded { link: LinkId, reason: Error },
    ExchangeEnded { exchange: ExchangeId },
}

impl Message {
    /// Answers for a transport that has been shut down.
    fn refuse(self) {
        match self {
            Self::Call(call) => call.refuse(),
            Self::Connected { done, .. } => done.err(Error::Cancelled),
            Self::LinkEnded { .. } | Self::ExchangeEnded { .. } => {}
        }
    }
}

/// All links and exchanges; owned by the transport's thread.
struct ClientState {
    dialer: Dialer,
    messages: mpsc::WeakUnboundedSender<Message>,
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

async fn run(mut state: ClientState, mut inbox: mpsc::UnboundedReceiver<Message>) {
    while let Some(message) = inbox.recv().await {
        match message {
            Message::Call(Call::Shutdown { patience }) => {
                // What is sent from now on is refused by the channel, and what is in it below.
                inbox.close();
                return state.shutdown(&mut inbox, patience).await;
            }
            Message::Call(call) => state.call(call),
            Message::Connected { peer, dialed, lost, done } => state.connected(peer, dialed, lost, done),
            Message::LinkEnded { link, reason } => state.link_ended(link, reason),
            Message::ExchangeEnded { exchange } => drop(state.exchanges.remove(&exchange)),
        }
        while state.tasks.try_join_next().is_some() {}
    }
}

impl ClientState {
    fn new(dialer: Dialer, messages: mpsc::WeakUnboundedSender<Message>) -> Self {
        let (links, exchanges, tasks) = (BTreeMap::new(), BTreeMap::new(), JoinSet::new());
        Self { dialer, messages, links, exchanges, tasks, stopping: watch::Sender::new(false), links_made: 0 }
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::Connect { peer, patience, lost, done } => self.connect(peer, patience, lost, done),
            Call::Push { link, exchange, push, done } => self.push(link, exchange, push, done),
            Call::Pull { exchange, pull } => self.pull(exchange, pull),
            Call::Abandon { exchange } => self.abandon(exchange),
            Call::Disconnect { link } => {
                if let Some(link) = self.links.get(&link) {
                    link.connection.close(CLOSE_ORDERLY, b"");
                }
            }
            Call::Shutdown { .. } => unreachable!("looked at before"),
        }
    }

    fn connect(&mut self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        let (dialer, messages, mut stopping) = (self.dialer.clone(), self.messages.clone(), self.stopping.subscribe());
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
            send(&messages, Message::Connected { peer, dialed, lost, done });
        });
    }

    fn connected(&mut self, peer: Peer, dialed: Dialed, lost: LinkLost, done: Done<LinkId>) {
        self.links_made += 1;
        let id = LinkId(self.links_made);
        let (connection, name, messages) = (dialed.connection.clone(), peer.name.clone(), self.messages.clone());
        self.tasks.spawn(async move {
            let reason = connection_error(&connection.closed().await, &name);
            let path = connection.stats().path;
            let (mtu, rtt, lost) = (path.current_mtu, path.rtt, path.lost_packets);
            tracing::debug!(peer = name, %reason, mtu, ?rtt, lost_packets = lost, "link ended");
            send(&messages, Message::LinkEnded { link: id, reason });
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
        let ended = Ended { exchange: id, messages: self.messages.clone() };
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

    async fn shutdown(&mut self, inbox: &mut mpsc::UnboundedReceiver<Message>, patience: Duration) {
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
            while let Some(message) = inbox.recv().await {
                message.refuse();
            }
            self.dialer.endpoint.wait_idle().await;
        };
        if tokio::time::timeout(patience, closing).await.is_err() {
            tracing::debug!(?patience, "a peer did not confirm the end of its link");
        }
    }
}

fn send(messages: &mpsc::WeakUnboundedSender<Message>, message: Message) {
    match messages.upgrade() {
        Some(messages) => {
            if let Err(refused) = messages.send(message) {
                refused.0.refuse();
            }
        }
        None => message.refuse(),
    }
}

/// Tells the transport's thread, when it is dropped, that an exchange's task is over.
struct Ended {
    exchange: ExchangeId,
    messages: mpsc::WeakUnboundedSender<Message>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        send(&self.messages, Message::ExchangeEnded { exchange: self.exchange });
    }
}
