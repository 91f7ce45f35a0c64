//! A server's side in tasks: one for each link and one for each exchange, all on the listener's thread.
//!
//! ```text
//!  the body     held ──Accept──► Body, Body, … its end      (an Answer that is not early, and a Reject, stop it)
//!  the answer   header read ──► Opened ──► waits ──Answer──► Block, Block, … End ──► confirmed ──► Answered
//!                                          └────Reject──────────────────────────────┘
//!             the peer gives up, the link is lost, or a body is cut short: Torn, from every state after Opened
//! ```
//! The task of a link ends after those of its exchanges, so that every [`Incoming::Torn`] comes before [`Incoming::LinkDown`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use tokio::select;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::admission::{AdmissionControl, Arrival};
use super::closing::{
    CLOSE_ORDERLY, STREAM_ANSWERED, STREAM_GIVEN_UP, close_for_fault, close_with, connection_error, early_end, gave_up,
    read_error,
};
use super::endpoint;
use super::settings::{Driver, Settings};
use super::socket;
use super::tls::Admission;
use crate::error::{Error, Result};
use crate::transport::exchange::{broken_off, reject_of};
use crate::transport::identity::{Credentials, PeerIdentity};
use crate::transport::{Inbox, Incoming, Listener, Outgoing};
use crate::types::{ExchangeId, LinkId};
use crate::wire::{HeaderReader, Request};

/// Listens at `address`, `ip:port`; port 0 takes any free one. Peers must show a certificate of the same job.
///
/// # Errors
/// [`Error::InvalidArgument`] if `address` is not one, [`Error::Io`] if it is taken, [`Error::Auth`] if the credentials are unusable.
pub fn bind(address: &str, credentials: &Credentials, settings: &Settings, inbox: Inbox) -> Result<Listener> {
    #[cfg(target_os = "linux")]
    if settings.driver == Driver::Direct {
        return super::direct::bind(address, credentials, settings, inbox);
    }
    let socket = socket::bind(socket::parse(address)?, settings.socket_buffer_bytes)?;
    let bound =
        socket.local_addr().map_err(|error| Error::Io { what: address.to_owned(), cause: error.to_string() })?;
    let (admission_control, config) = AdmissionControl::new(credentials, settings, Admission::Members)?;
    let (commands, outbox) = mpsc::unbounded_channel();
    let server =
        ServerState { inbox: inbox.into(), commands: commands.downgrade(), streams: settings.exchanges_in_flight_max };
    let serve = move |endpoint| run(endpoint, admission_control, server, outbox);
    let thread = endpoint::start("gradlane-listen", socket, settings, Some(config), serve)?;
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
struct ServerState {
    inbox: Arc<dyn Fn(Incoming) + Send + Sync>,
    commands: mpsc::WeakUnboundedSender<Command>,
    /// How many exchanges a peer may have open.
    streams: u32,
}

impl ServerState {
    fn tell(&self, event: Incoming) {
        (self.inbox)(event);
    }

    fn command(&self, command: Command) {
        if let Some(commands) = self.commands.upgrade() {
            let _ = commands.send(command);
        }
    }
}

async fn run(
    endpoint: Endpoint,
    admission_control: AdmissionControl,
    server: ServerState,
    mut commands: UnboundedReceiver<Command>,
) {
    let server = Arc::new(server);
    let (arriving, mut arrivals) = mpsc::unbounded_channel();
    tokio::spawn(admission_control.watch(endpoint.clone(), arriving));
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
                        Outgoing::Accept { exchange }
                        | Outgoing::Answer { exchange, .. }
                        | Outgoing::Block { exchange, .. }
                        | Outgoing::End { exchange, .. }
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
                    tasks.spawn(serve_link(Arc::clone(&server), names.clone(), link, connection, identity));
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

async fn serve_link(
    server: Arc<ServerState>,
    names: Names,
    link: LinkId,
    connection: Connection,
    identity: PeerIdentity,
) {
    let address = connection.remote_address().to_string();
    let peer: Arc<str> = format!("{} {} at {address}", identity.role, identity.node).into();
    server.command(Command::LinkUp { link, connection: connection.clone() });
    server.tell(Incoming::LinkUp { link, node: identity.node, address });
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(server.streams));
    let mut exchanges = JoinSet::new();
    let lost = loop {
        select! {
            stream = connection.accept_bi() => match stream {
                Ok((sender, receiver)) => {
                    let wire = Wire {
                        server: Arc::clone(&server),
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
    server.command(Command::LinkDown { link });
    server.tell(Incoming::LinkDown { link, reason });
}

/// One exchange's half of the world.
struct Wire {
    server: Arc<ServerState>,
    connection: Connection,
    peer: Arc<str>,
    sender: SendStream,
    receiver: RecvStream,
}

async fn serve_exchange(mut wire: Wire, link: LinkId, exchange: ExchangeId) {
    let Some(header) = wire.header().await else { return };
    let server = Arc::clone(&wire.server);
    let (sender, mut commands) = mpsc::unbounded_channel();
    // First that it can be answered, then that it is there: the answer to an event never misses its exchange.
    server.command(Command::Opened { exchange, commands: sender });
    server.tell(Incoming::Opened { link, exchange, header });
    let event = match wire.serve(exchange, &header, &mut commands).await {
        Ok(()) => Incoming::Answered { exchange },
        Err(reason) => Incoming::Torn { exchange, reason },
    };
    server.command(Command::Ended { exchange });
    server.tell(event);
}

impl Wire {
    /// The header of the push; nothing if the peer gave up before or does not follow the protocol, which costs it the link.
    async fn header(&mut self) -> Option<Request> {
        let mut header = HeaderReader::default();
        while header.missing() > 0 {
            let Some(chunk) = self.receiver.read_chunk(header.missing(), true).await.ok()? else { break };
            header.take(&chunk.bytes);
        }
        let header = header.finish(&self.peer).and_then(|header| header.into_request(&self.peer));
        header.inspect_err(|error| self.broken(error)).ok()
    }

    /// Follows the commands until the peer has the answer.
    async fn serve(
        self,
        exchange: ExchangeId,
        header: &Request,
        commands: &mut UnboundedReceiver<Outgoing>,
    ) -> Result<()> {
        let Self { server, connection, peer, mut sender, mut receiver } = self;
        let given_up = sender.stopped();
        let (intake, wishes) = watch::channel(Intake::Hold);
        let receiving = async {
            let outcome = receive(&server, exchange, header, &mut receiver, wishes, &peer).await;
            if let Err(error @ Error::Protocol { .. }) = &outcome {
                broken(&connection, &peer, error);
            }
            match outcome {
                // The exchange ends with its answer.
                Ok(()) => std::future::pending().await,
                Err(error) => error,
            }
        };
        let outcome = select! {
            biased;
            stopped = given_up => Err(stopped_error(stopped, &peer)),
            error = receiving => Err(error),
            answered = answer(&mut sender, commands, &intake, header.urgency(), &peer) => answered,
        };
        let outcome = match outcome {
            Ok(()) => {
                let _ = receiver.stop(STREAM_ANSWERED);
                // What is written lies in this process still, and the end of the link would take it along.
                match sender.stopped().await {
                    Ok(None) => Ok(()),
                    stopped => Err(stopped_error(stopped, &peer)),
                }
            }
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            let _ = sender.reset(STREAM_GIVEN_UP);
            let _ = receiver.stop(STREAM_GIVEN_UP);
        }
        outcome
    }

    fn broken(&self, error: &Error) {
        broken(&self.connection, &self.peer, error);
    }
}

/// A peer that breaks the protocol loses its link and is told why; nobody else is disturbed.
fn broken(connection: &Connection, peer: &str, error: &Error) {
    tracing::warn!(peer, %error, "closing a link");
    close_for_fault(connection, error);
}

/// What is to become of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Intake {
    Hold,
    Accept,
    Refuse,
}

/// Passes the body on when it is accepted, and sees its end; stops it once it is refused.
async fn receive(
    server: &ServerState,
    exchange: ExchangeId,
    header: &Request,
    receiver: &mut RecvStream,
    mut wishes: watch::Receiver<Intake>,
    peer: &str,
) -> Result<()> {
    let accepted = wishes.wait_for(|wish| *wish != Intake::Hold).await.is_ok_and(|wish| *wish == Intake::Accept);
    if accepted {
        let refused = async {
            if wishes.wait_for(|wish| *wish == Intake::Refuse).await.is_err() {
                std::future::pending().await
            }
        };
        select! {
            biased;
            outcome = receive_all(server, exchange, header, receiver, peer) => return outcome,
            () = refused => {}
        }
    }
    let _ = receiver.stop(STREAM_ANSWERED);
    Ok(())
}

async fn receive_all(
    server: &ServerState,
    exchange: ExchangeId,
    header: &Request,
    receiver: &mut RecvStream,
    peer: &str,
) -> Result<()> {
    let mut left = header.body_bytes();
    loop {
        let mut chunks = vec![Bytes::new(); CHUNKS_A_READ];
        let read = receiver.read_chunks(&mut chunks).await.map_err(|error| read_error(error, peer))?;
        let Some(count) = read else { break };
        chunks.truncate(count);
        let bytes: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        left = left.checked_sub(bytes).ok_or_else(|| early_end("body", "is longer than announced", peer))?;
        if bytes > 0 {
            server.tell(Incoming::Body { exchange, chunks });
        }
    }
    if left > 0 {
        return Err(early_end("body", &format!("ends {left} bytes early"), peer));
    }
    Ok(())
}

/// Writes what the commands say, until the stream is finished.
async fn answer(
    sender: &mut SendStream,
    commands: &mut UnboundedReceiver<Outgoing>,
    intake: &watch::Sender<Intake>,
    urgency: u8,
    peer: &str,
) -> Result<()> {
    // Bytes behind the last block, once the sum has begun.
    let mut begun = None;
    loop {
        let command = commands.recv().await.ok_or(Error::Cancelled)?;
        let mut chunks: Vec<Bytes> = match (command, begun) {
            (Outgoing::Accept { .. }, _) => {
                intake.send_if_modified(|wish| {
                    *wish == Intake::Hold && {
                        *wish = Intake::Accept;
                        true
                    }
                });
                continue;
            }
            (Outgoing::Answer { header, .. }, None) => {
                if !header.early {
                    intake.send_replace(Intake::Refuse);
                }
                let _ = sender.set_priority(i32::from(urgency));
                begun = Some(header.trailer_bytes());
                vec![Bytes::from(header.encode())]
            }
            (Outgoing::Block { block, .. }, Some(_)) => vec![Bytes::from_owner(block)],
            (Outgoing::End { checksum, .. }, Some(trailer_bytes)) => {
                let trailer = Bytes::from(Vec::from(checksum.to_le_bytes())).slice(..trailer_bytes);
                write(sender, &mut [trailer], peer).await?;
                let _ = sender.finish();
                return Ok(());
            }
            (Outgoing::Reject { target, error, .. }, None) => {
                intake.send_replace(Intake::Refuse);
                let (header, body) = reject_of(target, &error);
                write(sender, &mut [Bytes::from(Vec::from(header.encode())), Bytes::from(body)], peer).await?;
                let _ = sender.finish();
                return Ok(());
            }
            (Outgoing::Reject { .. }, Some(_)) => return Err(broken_off()),
            (Outgoing::Answer { .. }, Some(_)) | (Outgoing::Block { .. } | Outgoing::End { .. }, None) => {
                return Err(Error::Internal { what: "an answer was begun twice or not at all".to_owned() });
            }
            (Outgoing::Disconnect { .. }, _) => unreachable!("not sent to an exchange"),
        };
        write(sender, &mut chunks, peer).await?;
    }
}

async fn write(sender: &mut SendStream, chunks: &mut [Bytes], peer: &str) -> Result<()> {
    sender.write_all_chunks(chunks).await.map_err(|error| match error {
        quinn::WriteError::ConnectionLost(lost) => connection_error(&lost, peer),
        other => Error::Unavailable { what: peer.to_owned(), cause: other.to_string() },
    })
}

fn stopped_error(stopped: std::result::Result<Option<VarInt>, quinn::StoppedError>, peer: &str) -> Error {
    match stopped {
        Err(quinn::StoppedError::ConnectionLost(lost)) => connection_error(&lost, peer),
        Ok(_) | Err(quinn::StoppedError::ZeroRttRejected) => gave_up(peer),
    }
}

/// How many pieces of a body are taken from the connection at once.
const CHUNKS_A_READ: usize = 32;
/// How long the thread of a listener that was dropped waits for its peers to hear of it; nobody waits for the thread.
const GOODBYE: Duration = Duration::from_millis(500);
