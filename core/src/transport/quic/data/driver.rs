//! The loop of an endpoint. It carries out the decisions of quinn-proto with system calls, on one thread.
//!
//! Each turn handles one batch of datagrams, timers, the events of the connections and commands, in this order. Then it sends as many
//! datagrams as it may. Commands come last, because the owner of a listener answers events by commands: a request whose header and body came
//! together is read, accepted, summed and answered in one turn. After a turn without work the thread looks for more for a moment
//! ([`Spin`]), and then sleeps in `poll(2)` until the socket, a command or a timer wakes it. There is no lock and no task. Connections are
//! fields, and the loop calls the [`Role`], a worker's or a server's, for each of their events.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    ClientConfig, ConnectError, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, Event, Incoming,
    ServerConfig, VarInt,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::super::commands::{Inbox, Next};
use super::turns::{Share, Turns};
use super::wire::{Batch, Wire};
use crate::error::{Error, Result};
use crate::local::failpoint::{Failpoint, reach};
use crate::local::progress::Spin;
use crate::transport::quic::settings::SEND_WINDOW_BYTES;

/// The use of an endpoint: a worker or a server.
pub(super) trait Role {
    /// A call of its user.
    type Command;

    /// Carries out a command. If it was the last one, returns how long to wait until the peers confirm the end of their connections.
    fn command(&mut self, net: &mut Net, command: Self::Command) -> Option<Duration>;

    /// Answers a command that came after the last one.
    fn refuse(&mut self, command: Self::Command);

    /// A peer wants to connect.
    fn new_connection(&mut self, net: &mut Net, incoming: Incoming);

    /// A connection has an event.
    fn event(&mut self, net: &mut Net, connection: ConnectionHandle, event: Event);

    /// All events of this turn were handled. Does the work that is done once a turn.
    fn settle(&mut self, net: &mut Net);

    /// A connection has sent so many bytes.
    fn sent(&mut self, connection: ConnectionHandle, bytes: usize);

    /// A connection had its turn to send, which began at `now` and ended so.
    fn had_turn(&mut self, _net: &Net, _connection: ConnectionHandle, _now: Instant, _end: TurnEnd) {}

    /// How much a connection has to send, and how urgent it is.
    fn share(&self, connection: ConnectionHandle) -> Share;

    /// Whether an exchange is open, so that more datagrams are likely to come soon.
    fn is_waiting(&self) -> bool;

    /// When [`expire`](Self::expire) is due, even without an event.
    fn deadline(&self) -> Option<Instant>;

    /// The deadline has passed.
    fn expire(&mut self, net: &mut Net);

    /// Closes all connections and makes all reports. Called once, before the loop waits for the peers.
    fn end(&mut self, net: &mut Net, reason: &Error);

    /// How long to wait for the peers when all callers are gone.
    const GOODBYE: Duration;
}

/// How a connection's turn to send ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TurnEnd {
    /// It sends nothing more now.
    Dry,
    /// Others take their turn. It goes on in the next one.
    GoesOn,
    /// The socket has no room.
    SocketFull,
}

/// Runs `role` until its last command, or until all callers are gone.
///
/// # Errors
/// [`Error::Io`] if the socket failed before.
pub(super) fn run<R: Role>(mut net: Net, mut role: R, mut inbox: Inbox<R::Command>) -> Result<()> {
    let (mut spin, began) = (Spin::new(), now());
    let (patience, failure) = loop {
        net.now = now();
        let mut moved = match net.take_in(&mut role) {
            Ok(moved) => moved,
            Err(error) => {
                let error = Error::Io { what: "receiving from the UDP socket".to_owned(), cause: error.to_string() };
                break (Duration::ZERO, Some(error));
            }
        };
        let mut last = None;
        for _ in 0..COMMANDS_A_TURN {
            match inbox.next() {
                Next::Command(command) => {
                    moved = true;
                    last = role.command(&mut net, command);
                }
                Next::Empty => break,
                Next::Closed => last = Some(R::GOODBYE),
            }
            if last.is_some() {
                break;
            }
        }
        if let Some(patience) = last {
            break (patience, None);
        }
        moved |= net.send_off(&mut role);
        if moved {
            spin.worked();
        } else if role.is_waiting() && !net.wire.is_full() && spin.goes_on(net.now - began, SPIN) {
            // A look costs two system calls: the one that yields the core and the one that receives.
            spin.yield_core();
        } else if inbox.prepare_sleep() {
            let woken = net.sleep(role.deadline(), &inbox);
            inbox.awake(woken);
        }
    };
    // From now on the queue refuses commands. Those that are in it are refused below.
    inbox.close();
    role.end(&mut net, failure.as_ref().unwrap_or(&Error::Cancelled));
    while let Next::Command(command) = inbox.next() {
        role.refuse(command);
    }
    let until = net.now + patience;
    while !net.is_idle() && now() < until {
        net.now = now();
        let Ok(moved) = net.take_in(&mut role) else { break };
        if !(net.send_off(&mut role) || moved) {
            let _ = net.sleep(Some(until), &inbox);
        }
    }
    if !net.is_idle() {
        tracing::debug!(?patience, "a peer did not confirm the end of its link");
    }
    failure.map_or(Ok(()), Err)
}

/// An endpoint: its socket and its connections.
pub(super) struct Net {
    wire: Wire,
    endpoint: Endpoint,
    /// By handle. quinn-proto gives out small numbers, and reuses them.
    lines: Vec<Option<Line>>,
    /// Connections that may have events or something to send in this turn.
    stirred: Vec<ConnectionHandle>,
    turns: Turns,
    /// Their timers.
    due: BTreeSet<(Instant, ConnectionHandle)>,
    now: Instant,
    batches: Vec<Batch>,
    buffer: Vec<u8>,
    /// How the turns of connections ended in this turn of the loop.
    ends: Vec<(ConnectionHandle, TurnEnd)>,
}

struct Line {
    connection: Connection,
    due: Option<Instant>,
    /// It is in `stirred`.
    is_stirred: bool,
    /// It was changed after its events were polled, so it may have new ones.
    is_touched: bool,
}

impl Net {
    pub(super) fn new(wire: Wire, config: EndpointConfig, server: Option<ServerConfig>) -> Self {
        let probes = !wire.may_fragment();
        Self {
            endpoint: Endpoint::new(Arc::new(config), server.map(Arc::new), probes, None),
            wire,
            lines: Vec::new(),
            stirred: Vec::new(),
            turns: Turns::default(),
            due: BTreeSet::new(),
            now: now(),
            batches: Vec::new(),
            buffer: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// When this turn began.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// The connection, to change it; none if it was forgotten.
    pub(super) fn connection(&mut self, handle: ConnectionHandle) -> Option<&mut Connection> {
        let line = self.lines.get_mut(handle.0)?.as_mut()?;
        line.is_touched = true;
        if !line.is_stirred {
            line.is_stirred = true;
            self.stirred.push(handle);
        }
        Some(&mut line.connection)
    }

    /// The connection, to look at it; none if it was forgotten.
    pub(super) fn look_at(&self, handle: ConnectionHandle) -> Option<&Connection> {
        Some(&self.lines.get(handle.0)?.as_ref()?.connection)
    }

    /// Begins to connect.
    pub(super) fn connect(
        &mut self,
        config: ClientConfig,
        remote: SocketAddr,
        name: &str,
    ) -> std::result::Result<ConnectionHandle, ConnectError> {
        let (handle, connection) = self.endpoint.connect(self.now, config, self.wire.own_family(remote), name)?;
        self.insert(handle, connection);
        Ok(handle)
    }

    /// Begins the handshake of a peer.
    pub(super) fn accept(&mut self, incoming: Incoming, config: Arc<ServerConfig>) -> Option<ConnectionHandle> {
        let remote = incoming.remote_address();
        self.buffer.clear();
        match self.endpoint.accept(incoming, self.now, &mut self.buffer, Some(config)) {
            Ok((handle, connection)) => {
                self.insert(handle, connection);
                Some(handle)
            }
            Err(error) => {
                tracing::debug!(%remote, error = %error.cause, "handshake not begun");
                if let Some(transmit) = error.response {
                    self.wire.respond(&transmit, &self.buffer);
                }
                None
            }
        }
    }

    /// Makes a peer prove that its address is real.
    pub(super) fn retry(&mut self, incoming: Incoming) {
        self.buffer.clear();
        match self.endpoint.retry(incoming, &mut self.buffer) {
            Ok(transmit) => self.wire.respond(&transmit, &self.buffer),
            Err(error) => self.endpoint.ignore(error.into_incoming()),
        }
    }

    /// Refuses a peer.
    pub(super) fn refuse(&mut self, incoming: Incoming) {
        self.buffer.clear();
        let transmit = self.endpoint.refuse(incoming, &mut self.buffer);
        self.wire.respond(&transmit, &self.buffer);
    }

    /// Closes a connection. The role gets no more events of it.
    pub(super) fn close(&mut self, handle: ConnectionHandle, code: VarInt, reason: Vec<u8>) {
        let now = self.now;
        if let Some(connection) = self.connection(handle) {
            connection.close(now, code, Bytes::from(reason));
        }
    }

    /// Whether all connections are over, and their peers know it.
    fn is_idle(&self) -> bool {
        self.lines.iter().all(Option::is_none)
    }

    fn insert(&mut self, handle: ConnectionHandle, mut connection: Connection) {
        keep_ahead(&mut connection);
        if self.lines.len() <= handle.0 {
            self.lines.resize_with(handle.0 + 1, || None);
        }
        self.lines[handle.0] = Some(Line { connection, due: None, is_stirred: true, is_touched: false });
        self.stirred.push(handle);
    }

    /// The first half of a turn: receives, and tells the role what happened. Returns whether there was anything.
    fn take_in<R: Role>(&mut self, role: &mut R) -> std::io::Result<bool> {
        let received = self.receive(role)?;
        let expired = self.expire(role);
        self.tell(role);
        Ok(received || expired)
    }

    /// The second half. Returns whether it sent anything, or has more to do at once.
    fn send_off<R: Role>(&mut self, role: &mut R) -> bool {
        role.settle(self);
        let sent = self.transmit(role);
        sent || (!self.stirred.is_empty() && !self.wire.is_full())
    }

    fn receive<R: Role>(&mut self, role: &mut R) -> std::io::Result<bool> {
        let mut batches = std::mem::take(&mut self.batches);
        let received = self.wire.receive(&mut batches);
        for mut batch in batches.drain(..) {
            while !batch.datagrams.is_empty() {
                let datagram = batch.datagrams.split_to(batch.stride.min(batch.datagrams.len()));
                self.buffer.clear();
                let event = self.endpoint.handle(self.now, batch.from, batch.to, batch.ecn, datagram, &mut self.buffer);
                match event {
                    Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                        // Not by `connection`, because `tell` polls this connection in this turn anyway.
                        if let Some(Some(line)) = self.lines.get_mut(handle.0) {
                            line.connection.handle_event(event);
                            stir(&mut self.stirred, line, handle);
                        }
                    }
                    Some(DatagramEvent::NewConnection(incoming)) => role.new_connection(self, incoming),
                    Some(DatagramEvent::Response(transmit)) => self.wire.respond(&transmit, &self.buffer),
                    None => {}
                }
            }
        }
        self.batches = batches;
        received
    }

    fn expire<R: Role>(&mut self, role: &mut R) -> bool {
        let mut expired = false;
        while let Some((_, handle)) = self.due.first().copied().filter(|(due, _)| *due <= self.now) {
            self.due.pop_first();
            expired = true;
            if let Some(Some(line)) = self.lines.get_mut(handle.0) {
                line.due = None;
                line.connection.handle_timeout(self.now);
                stir(&mut self.stirred, line, handle);
            }
        }
        if role.deadline().is_some_and(|deadline| deadline <= self.now) {
            role.expire(self);
            expired = true;
        }
        expired
    }

    /// Passes the events of the connections on, to the endpoint and to the role.
    fn tell<R: Role>(&mut self, role: &mut R) {
        let mut at = 0;
        // The role may add connections to the list.
        while at < self.stirred.len() {
            let handle = self.stirred[at];
            at += 1;
            let mut is_over = false;
            while let Some(Some(line)) = self.lines.get_mut(handle.0) {
                line.is_touched = false;
                while let Some(event) = line.connection.poll_endpoint_events() {
                    is_over |= event.is_drained();
                    if let Some(reply) = self.endpoint.handle_event(handle, event) {
                        line.connection.handle_event(reply);
                    }
                }
                match line.connection.poll() {
                    Some(event) => {
                        keep_ahead(&mut line.connection);
                        role.event(self, handle, event);
                    }
                    None => break,
                }
            }
            if is_over {
                self.forget(handle);
            }
        }
    }

    fn forget(&mut self, handle: ConnectionHandle) {
        self.turns.forget(handle);
        if let Some(due) = self.lines[handle.0].take().and_then(|line| line.due) {
            self.due.remove(&(due, handle));
        }
    }

    /// Sends datagrams, in small turns of the connections. A connection that has more to send stays in `stirred`.
    ///
    /// The turns are small because a server needs the bytes of every worker to sum. If a worker sent everything for one server first, and each
    /// worker chose another server, no server could send anything back. If all workers chose the same server, the others would wait for
    /// their first bytes. What their links could have carried meanwhile is never made up for.
    fn transmit<R: Role>(&mut self, role: &mut R) -> bool {
        if self.stirred.is_empty() || !self.wire.flush() {
            return false;
        }
        let now = now();
        let is_alone = self.lines.len() == 1;
        let mut bytes = 0;
        let mut waiting: Vec<(ConnectionHandle, Share)> =
            std::mem::take(&mut self.stirred).into_iter().map(|handle| (handle, role.share(handle))).collect();
        while bytes < BYTES_A_TURN && !self.wire.is_full() {
            let Some(place) = self.turns.next(&waiting) else { break };
            let (handle, _) = waiting[place];
            let Some(Some(line)) = self.lines.get_mut(handle.0) else {
                waiting.swap_remove(place);
                continue;
            };
            let batch_bytes = if is_alone { usize::MAX } else { waiting[place].1.batch_bytes() };
            let segments = self.wire.segments(line.connection.current_mtu(), batch_bytes);
            self.buffer.clear();
            match line.connection.poll_transmit(now, segments, &mut self.buffer) {
                Some(transmit) => {
                    bytes += transmit.size;
                    self.turns.charge(&waiting, place, transmit.size);
                    role.sent(handle, transmit.size);
                    waiting[place].1 = role.share(handle);
                    let is_full = transmit.size >= FULL_BYTES;
                    self.wire.send(transmit, &mut self.buffer);
                    if is_full {
                        reach(Failpoint::BytesLeave);
                    }
                }
                None => {
                    waiting.swap_remove(place);
                    self.ends.push((handle, TurnEnd::Dry));
                    line.is_stirred = false;
                    // A change after its events were polled may have made new ones.
                    if line.is_touched {
                        stir(&mut self.stirred, line, handle);
                    }
                }
            }
            let due = line.connection.poll_timeout();
            if due != line.due {
                line.due.map(|due| self.due.remove(&(due, handle)));
                due.map(|due| self.due.insert((due, handle)));
                line.due = due;
            }
        }
        let left = if self.wire.is_full() { TurnEnd::SocketFull } else { TurnEnd::GoesOn };
        self.ends.extend(waiting.iter().map(|(handle, _)| (*handle, left)));
        self.stirred.extend(waiting.into_iter().map(|(handle, _)| handle));
        let mut ends = std::mem::take(&mut self.ends);
        ends.drain(..).for_each(|(handle, end)| role.had_turn(self, handle, now, end));
        self.ends = ends;
        bytes > 0
    }

    /// Sleeps until a datagram, a command or a timer is there, at most until `deadline`. Returns whether a command woke it.
    fn sleep<C>(&self, deadline: Option<Instant>, inbox: &Inbox<C>) -> bool {
        let timers = self.due.first().map(|(due, _)| *due);
        let until = deadline.into_iter().chain(timers).min();
        let wait = until.map_or(SLEEP_MAX, |until| until.saturating_duration_since(now()).min(SLEEP_MAX));
        let wait = Timespec::try_from(wait).expect("a minute fits");
        let events = if self.wire.is_full() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let wakeup = inbox.wakeup();
        let mut sources = [PollFd::new(&self.wire, events), PollFd::new(&wakeup, PollFlags::IN)];
        // It fails only because of a signal. Then the loop takes another turn.
        let _ = rustix::event::poll(&mut sources, Some(&wait));
        sources[1].revents().contains(PollFlags::IN)
    }
}

/// Sets a connection's send window to its congestion window and a little more. quinn-proto can reorder the bytes that it was given only by the
/// priority of streams. So the other bytes stay with the role, which chooses the next ones when the window has space.
pub(super) fn keep_ahead(connection: &mut Connection) {
    connection.set_send_window(ahead(connection));
}

/// Raises the send window by `URGENT_AHEAD_BYTES`, so that urgent streams can be given to quinn-proto while a backlog fills the window.
/// [`keep_ahead`] restores it.
pub(super) fn let_ahead(connection: &mut Connection) {
    connection.set_send_window(ahead(connection) + URGENT_AHEAD_BYTES);
}

fn ahead(connection: &Connection) -> u64 {
    let window = connection.congestion_state().window();
    (window + window / 4 + AHEAD_BYTES).min(SEND_WINDOW_BYTES)
}

fn stir(stirred: &mut Vec<ConnectionHandle>, line: &mut Line, handle: ConnectionHandle) {
    if !line.is_stirred {
        line.is_stirred = true;
        stirred.push(handle);
    }
}

#[expect(clippy::disallowed_methods, reason = "quinn-proto's time is the system's, and this loop is its driver")]
fn now() -> Instant {
    Instant::now()
}

/// Commands that one turn handles at most.
const COMMANDS_A_TURN: usize = 256;
/// Bytes that one turn sends at most, before it receives again.
const BYTES_A_TURN: usize = 1 << 20;
/// Bytes that a connection is given beyond its congestion window: more than it sends in a turn.
const AHEAD_BYTES: u64 = 256 << 10;
/// Bytes of the most urgent exchanges that a connection is given beside all else: two parts. Not more, because all of it may be sent at
/// once, and has to fit into the buffer of the receiver's socket.
const URGENT_AHEAD_BYTES: u64 = 8 << 20;
/// How long a thread that worked looks for more before it sleeps.
const SPIN: Duration = Duration::from_micros(30);
/// A datagram of so many bytes is of a body or of a handshake: every path takes it (RFC 9000, 14).
pub(super) const FULL_BYTES: usize = 1200;
/// The longest sleep. Nothing depends on its length.
const SLEEP_MAX: Duration = Duration::from_secs(60);
