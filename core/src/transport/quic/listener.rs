//! A server's side: one task for each link and one for each exchange, all on the listener's thread.
//!
//! ```text
//!  exchange   header read ──► Opened ──► waits ──Land──► reads the body ──► Landed ──► waits ──Answer, Reject──► writes, confirmed ──► Answered
//!                                          └────────────────────Answer, Reject: the body is stopped──────────────────┘
//!             the peer gives up, the link is lost, or a body is cut short: Torn, from every state after Opened
//! ```
//! The task of a link ends after those of its exchanges, so that every [`Incoming::Torn`] comes before [`Incoming::LinkDown`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use tokio::select;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;

use super::closing::{
    CLOSE_ORDERLY, STREAM_ANSWERED, STREAM_GIVEN_UP, close_with, connection_error, early_end, read_error,
};
use super::door::{Arrival, Door};
use super::endpoint::EndpointThread;
use super::identity::{Credentials, PeerIdentity};
use super::settings::Settings;
use super::socket;
use super::tls::Admission;
use crate::error::{Error, Result};
use crate::mem::Lease;
use crate::transport::{Inbox, Incoming, Listener, Outgoing};
use crate::types::{ExchangeId, LinkId};
use crate::wire::header::HEADER_BYTES;
use crate::wire::{Flags, Header, HeaderKind, reject};

/// Listens at `address`, `ip:port`; port 0 takes any free one. Peers must show a certificate of the same job.
///
/// # Errors
/// [`Error::InvalidArgument`] if `address` is not one, [`Error::Io`] if it is taken, [`Error::Auth`] if the credentials are unusable.
pub fn bind(address: &str, credentials: &Credentials, settings: &Settings, inbox: Inbox) -> Result<Listener> {
    let socket = socket::bind(parse(address)?, settings.socket_buffer_bytes)?;
    let bound =
        socket.local_addr().map_err(|error| Error::Io { what: address.to_owned(), cause: error.to_string() })?;
    let (door, server) = Door::new(credentials, settings, Admission::Members)?;
    let (commands, outbox) = mpsc::unbounded_channel();
    let hall = Hall { inbox: inbox.into(), commands: commands.downgrade(), streams: settings.exchanges_in_flight_max };
    let serve = move |endpoint| run(endpoint, door, hall, outbox);
    let thread = EndpointThread::start("gradlane-listen", socket, settings, Some(server), serve)?;
    // Dropping the listener drops its outbox, and with the last sender the thread ends.
    let stop = commands.clone();
    Ok(Listener {
        address: bound.to_string(),
        outbox: Box::new(move |outgoing| drop(commands.send(Command::Outgoing(outgoing)))),
        stop: Box::new(move |patience| {
            if thread.is_ours() {
                let _ = stop.send(Command::Stop(patience));
                thread.join(patience);
            }
        }),
    })
}

/// An address to listen at.
pub(super) fn parse(address: &str) -> Result<SocketAddr> {
    address.parse().map_err(|_| Error::InvalidArgument {
        what: format!("{address:?} is no address to listen at"),
        hint: "give an IP address and a port, such as 0.0.0.0:0".to_owned(),
    })
}

enum Command {
    Outgoing(Outgoing),
    Stop(Duration),
    // From the tasks of the listener itself.
    LinkUp { link: LinkId, connection: Connection },
    LinkDown { link: LinkId },
    Opened { exchange: ExchangeId, commands: UnboundedSender<Outgoing> },
    Ended { exchange: ExchangeId },
}

/// What all links share.
struct Hall {
    inbox: Arc<dyn Fn(Incoming) + Send + Sync>,
    commands: mpsc::WeakUnboundedSender<Command>,
    /// How many exchanges a peer may have open.
    streams: u32,
}

impl Hall {
    fn tell(&self, event: Incoming) {
        (self.inbox)(event);
    }

    fn command(&self, command: Command) {
        if let Some(commands) = self.commands.upgrade() {
            let _ = commands.send(command);
        }
    }
}

async fn run(endpoint: Endpoint, door: Door, hall: Hall, mut commands: UnboundedReceiver<Command>) {
    let hall = Arc::new(hall);
    let (arriving, mut arrivals) = mpsc::unbounded_channel();
    tokio::spawn(door.watch(endpoint.clone(), arriving));
    let (mut links, mut exchanges) = (BTreeMap::new(), BTreeMap::new());
    let mut tasks = JoinSet::new();
    let names = Names::default();
    let patience = loop {
        select! {
            command = commands.recv() => match command {
                Some(Command::Outgoing(Outgoing::Disconnect { link, reason })) => {
                    if let Some(connection) = links.get(&link) {
                        close_with(connection, &reason);
                    }
                }
                Some(Command::Outgoing(outgoing)) => {
                    let exchange = match &outgoing {
                        Outgoing::Land { exchange, .. }
                        | Outgoing::Answer { exchange, .. }
                        | Outgoing::Reject { exchange, .. } => *exchange,
                        Outgoing::Disconnect { .. } => unreachable!("matched above"),
                    };
                    if let Some(commands) = exchanges.get::<ExchangeId>(&exchange) {
                        let commands: &UnboundedSender<Outgoing> = commands;
                        let _ = commands.send(outgoing);
                    }
                }
                Some(Command::LinkUp { link, connection }) => drop(links.insert(link, connection)),
                Some(Command::LinkDown { link }) => drop(links.remove(&link)),
                Some(Command::Opened { exchange, commands }) => drop(exchanges.insert(exchange, commands)),
                Some(Command::Ended { exchange }) => drop(exchanges.remove(&exchange)),
                Some(Command::Stop(patience)) => break patience,
                None => break GOODBYE,
            },
            Some(arrival) = arrivals.recv() => match arrival {
                Arrival::Member(connection, identity) => {
                    let link = LinkId(names.next());
                    tasks.spawn(serve_link(Arc::clone(&hall), names.clone(), link, connection, identity));
                }
                Arrival::Newcomer(connection) => connection.close(CLOSE_ORDERLY, b""),
            },
        }
        while tasks.try_join_next().is_some() {}
    };
    // The senders of the exchanges stay until their tasks ended by the loss of their link.
    let closing = async {
        endpoint.close(CLOSE_ORDERLY, b"");
        while tasks.join_next().await.is_some() {}
        endpoint.wait_idle().await;
    };
    if tokio::time::timeout(patience, closing).await.is_err() {
        tracing::debug!(?patience, "a peer did not confirm the end of its link");
    }
}

/// Numbers for links and exchanges, never given twice by one listener.
#[derive(Clone, Default)]
struct Names(Arc<std::sync::atomic::AtomicU64>);

impl Names {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

async fn serve_link(hall: Arc<Hall>, names: Names, link: LinkId, connection: Connection, identity: PeerIdentity) {
    let address = connection.remote_address().to_string();
    let peer: Arc<str> = format!("{} {} at {address}", identity.role, identity.node).into();
    hall.command(Command::LinkUp { link, connection: connection.clone() });
    hall.tell(Incoming::LinkUp { link, node: identity.node, address });
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(hall.streams));
    let mut exchanges = JoinSet::new();
    let lost = loop {
        select! {
            stream = connection.accept_bi() => match stream {
                Ok((sender, receiver)) => {
                    let wire = Wire {
                        hall: Arc::clone(&hall),
                        connection: connection.clone(),
                        peer: Arc::clone(&peer),
                        sender,
                        receiver,
                    };
                    exchanges.spawn(serve_exchange(wire, link, ExchangeId(names.next())));
                }
                Err(lost) => break lost,
            },
            Some(_) = exchanges.join_next() => {}
        }
    };
    while exchanges.join_next().await.is_some() {}
    let reason = connection_error(&lost, &peer);
    hall.command(Command::LinkDown { link });
    hall.tell(Incoming::LinkDown { link, reason });
}

/// One exchange's half of the world.
struct Wire {
    hall: Arc<Hall>,
    connection: Connection,
    peer: Arc<str>,
    sender: SendStream,
    receiver: RecvStream,
}

async fn serve_exchange(mut wire: Wire, link: LinkId, exchange: ExchangeId) {
    let Some(header) = wire.header().await else { return };
    let hall = Arc::clone(&wire.hall);
    let (sender, mut commands) = mpsc::unbounded_channel();
    // First that it can be answered, then that it is there: the answer to an event never misses its exchange.
    hall.command(Command::Opened { exchange, commands: sender });
    hall.tell(Incoming::Opened { link, exchange, header });
    let event = match wire.serve(exchange, &header, &mut commands).await {
        Ok(()) => Incoming::Answered { exchange },
        Err(reason) => {
            let _ = wire.sender.reset(STREAM_GIVEN_UP);
            let _ = wire.receiver.stop(STREAM_GIVEN_UP);
            Incoming::Torn { exchange, reason }
        }
    };
    hall.command(Command::Ended { exchange });
    hall.tell(event);
}

impl Wire {
    /// The header of the push; nothing if the peer gave up before or does not follow the protocol, which costs it the link.
    async fn header(&mut self) -> Option<Header> {
        let mut bytes = [0; HEADER_BYTES];
        let header = match self.receiver.read_exact(&mut bytes).await {
            Ok(()) => Header::decode(&bytes, &self.peer),
            Err(quinn::ReadExactError::FinishedEarly(got)) => {
                Err(early_end("header", &format!("ends after {got} bytes"), &self.peer))
            }
            Err(quinn::ReadExactError::ReadError(_)) => return None,
        };
        let header = header.and_then(|header| match header.kind {
            HeaderKind::Push => Ok(header),
            HeaderKind::Sum | HeaderKind::Reject => {
                Err(early_end("kind", &format!("is {:?} where a push was due", header.kind), &self.peer))
            }
        });
        header.inspect_err(|error| self.broken(error)).ok()
    }

    /// Follows the commands until the peer has the answer.
    async fn serve(
        &mut self,
        exchange: ExchangeId,
        header: &Header,
        commands: &mut UnboundedReceiver<Outgoing>,
    ) -> Result<()> {
        let mut landed = false;
        let mut given_up = std::pin::pin!(self.sender.stopped());
        loop {
            let mut command = select! {
                biased;
                stopped = &mut given_up => return Err(gave_up(stopped, &self.peer)),
                command = commands.recv() => command.ok_or(Error::Cancelled)?,
            };
            if let Outgoing::Land { into, .. } = command {
                if landed {
                    return Err(Error::Internal { what: "a body was landed twice".to_owned() });
                }
                if into.len() as u64 != header.body_bytes() {
                    let what = format!("a body of {} bytes was to land in {}", header.body_bytes(), into.len());
                    return Err(Error::Internal { what });
                }
                command = select! {
                    biased;
                    stopped = &mut given_up => return Err(gave_up(stopped, &self.peer)),
                    body = read_body(&mut self.receiver, into, &self.peer) => {
                        let body = body.inspect_err(|error| {
                            if matches!(error, Error::Protocol { .. }) {
                                broken(&self.connection, &self.peer, error);
                            }
                        })?;
                        landed = true;
                        self.hall.tell(Incoming::Landed { exchange, body });
                        continue;
                    }
                    command = commands.recv() => command.ok_or(Error::Cancelled)?,
                };
            }
            if !landed {
                let _ = self.receiver.stop(STREAM_ANSWERED);
            }
            let (header, body) = match command {
                Outgoing::Answer { mut header, body, .. } => {
                    header.kind = HeaderKind::Sum;
                    (header, Bytes::from_owner(body))
                }
                Outgoing::Reject { mut header, error, .. } => {
                    let body = reject::to_body(&error);
                    header.kind = HeaderKind::Reject;
                    header.flags = Flags::default();
                    (header.bytes, header.weight, header.contributors, header.checksum) =
                        (body.len() as u64, 0.0, 0, 0);
                    (header, Bytes::from(body))
                }
                Outgoing::Land { .. } => {
                    return Err(Error::Internal { what: "a body was landed twice".to_owned() });
                }
                Outgoing::Disconnect { .. } => unreachable!("not sent to an exchange"),
            };
            let mut chunks = [Bytes::copy_from_slice(&header.encode()), body];
            self.sender.write_all_chunks(&mut chunks).await.map_err(|error| match error {
                quinn::WriteError::ConnectionLost(lost) => connection_error(&lost, &self.peer),
                other => Error::Unavailable { what: self.peer.to_string(), cause: other.to_string() },
            })?;
            let _ = self.sender.finish();
            // What is written lies in this process still, and the end of the link would take it along.
            return match given_up.await {
                Ok(None) => Ok(()),
                stopped => Err(gave_up(stopped, &self.peer)),
            };
        }
    }

    fn broken(&self, error: &Error) {
        broken(&self.connection, &self.peer, error);
    }
}

/// A peer that breaks the protocol loses its link and is told why; nobody else is disturbed.
fn broken(connection: &Connection, peer: &str, error: &Error) {
    tracing::warn!(peer, %error, "closing a link");
    close_with(connection, error);
}

/// Reads exactly the body, and sees its end: what is cut short never counts.
async fn read_body(receiver: &mut RecvStream, mut into: Lease, peer: &str) -> Result<Lease> {
    let mut filled = 0;
    while let Some(chunk) = receiver.read_chunk(usize::MAX, true).await.map_err(|error| read_error(error, peer))? {
        let Some(place) = into.get_mut(filled..filled + chunk.bytes.len()) else {
            return Err(early_end("body", "is longer than announced", peer));
        };
        place.copy_from_slice(&chunk.bytes);
        filled += chunk.bytes.len();
    }
    if filled < into.len() {
        return Err(early_end("body", &format!("ends after {filled} of {} bytes", into.len()), peer));
    }
    Ok(into)
}

fn gave_up(stopped: std::result::Result<Option<VarInt>, quinn::StoppedError>, peer: &str) -> Error {
    match stopped {
        Err(quinn::StoppedError::ConnectionLost(lost)) => connection_error(&lost, peer),
        Ok(_) | Err(quinn::StoppedError::ZeroRttRejected) => {
            Error::Unavailable { what: peer.to_owned(), cause: "it gave the exchange up".to_owned() }
        }
    }
}

/// How long the thread of a listener that was dropped waits for its peers to hear of it; nobody waits for the thread.
const GOODBYE: Duration = Duration::from_millis(500);
