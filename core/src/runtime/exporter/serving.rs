//! The thread of an exporter: accepts connections, reads a request of each, and writes the answer. It waits for all of them at once, so that
//! a slow one holds nobody up.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::answer::answer;
use super::hosts::Hosts;
use super::request::{HEAD_BYTES_MAX, Reading, Refusal, Verdict, read};
use super::shown::Shown;
use crate::metrics::ExporterMetrics;
use crate::runtime::clock::Clock;
use crate::types::Time;

/// Connections that are open at once. A further one is answered with 503.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// The usual [`Serving::connection_time`].
pub(super) const CONNECTION_TIME: Duration = Duration::from_secs(2);
/// The pause after the system gave no connection, because it has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// What the thread works with.
pub(super) struct Serving {
    pub(super) listener: TcpListener,
    /// Readable once the thread shall end.
    pub(super) ending: Arc<OwnedFd>,
    pub(super) clock: Clock,
    pub(super) hosts: Hosts,
    /// What is shown now.
    pub(super) shown: Box<dyn Fn() -> Vec<Arc<dyn Shown>> + Send>,
    pub(super) metrics: ExporterMetrics,
    /// How long a connection may last, from its beginning until its answer is read.
    pub(super) connection_time: Duration,
}

struct Connection {
    stream: TcpStream,
    /// The address of this host at which it arrived.
    asked: IpAddr,
    /// When it ends, whatever it does.
    due: Time,
    state: State,
}

/// ```text
/// Reading ── whole, refused or late ──► Writing ── all written ──► Parting ── the peer has closed ──► (gone)
/// any ── the peer is gone, or `due` ──► (gone)
/// ```
enum State {
    /// The bytes of the request so far.
    Reading(Vec<u8>),
    /// The answer, and how much of it is written.
    Writing(Vec<u8>, usize),
    /// What the peer still sends is thrown away. If the connection were closed at once, these bytes would make the system reset it, and the
    /// peer might lose the answer.
    Parting,
}

impl Serving {
    /// Serves until `ending` is readable. Then the port is free, also if a child of a fork has a copy of the listener.
    pub(super) fn run(self) {
        self.serve();
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    fn serve(&self) {
        let mut connections: Vec<Connection> = Vec::new();
        let mut accept_from = Time::ZERO;
        loop {
            let now = self.clock.now();
            let pause = (accept_from > now).then_some(accept_from);
            let due = connections.iter().map(|connection| connection.due).chain(pause).min();
            let Ok(ready) = self.next_ready(&connections, pause.is_none(), due.map(|due| due.since(now))) else {
                return;
            };
            if ready.ends {
                return;
            }
            let now = self.clock.now();
            let mut at = 0;
            connections.retain_mut(|connection| {
                at += 1;
                (!ready.connections[at - 1] || self.advance(connection).is_some()) && !self.is_over(connection, now)
            });
            if ready.accepts && self.accept(&mut connections, now).is_none() {
                accept_from = now + PAUSE;
            }
        }
    }

    /// Waits until something can be done, or for `patience`.
    fn next_ready(
        &self,
        connections: &[Connection],
        accepts: bool,
        patience: Option<Duration>,
    ) -> Result<Ready, Errno> {
        let mut waits = vec![
            PollFd::new(&*self.ending, PollFlags::IN),
            PollFd::new(&self.listener, if accepts { PollFlags::IN } else { PollFlags::empty() }),
        ];
        waits.extend(connections.iter().map(|connection| {
            let wanted = if let State::Writing(..) = connection.state { PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(connection.stream.as_fd(), wanted)
        }));
        let patience = patience.map(|patience| Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(patience.subsec_nanos()),
        });
        match poll(&mut waits, patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "metrics are not shown any more");
                return Err(error);
            }
        }
        let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
        Ok(Ready { ends: ready[0], accepts: accepts && ready[1], connections: ready[2..].to_vec() })
    }

    /// Accepts the connections that wait, but no more than there may be, so that a flood of them does not keep the thread. `None` if the
    /// system gives none for now.
    fn accept(&self, connections: &mut Vec<Connection>, now: Time) -> Option<()> {
        for _ in 0..CONNECTIONS_MAX {
            let (mut stream, asked) = match self.accept_one() {
                Ok(accepted) => accepted,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Some(()),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                    _ => return None,
                },
            };
            if connections.len() >= CONNECTIONS_MAX {
                // One that has its answer can go.
                let parting = connections.iter().position(|connection| matches!(connection.state, State::Parting));
                let Some(parting) = parting else {
                    ExporterMetrics::add(&self.metrics.connections_refused, 1);
                    let _ = stream.read(&mut [0; HEAD_BYTES_MAX]);
                    let _ = stream.write(&self.refusal(Refusal::Busy));
                    continue;
                };
                connections.remove(parting);
            }
            connections.push(Connection {
                stream,
                asked,
                due: now + self.connection_time,
                state: State::Reading(Vec::new()),
            });
        }
        Some(())
    }

    fn accept_one(&self) -> std::io::Result<(TcpStream, IpAddr)> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        let asked = stream.local_addr()?.ip();
        Ok((stream, asked))
    }

    /// Reads or writes what can be without waiting. `None` once the connection is gone.
    fn advance(&self, connection: &mut Connection) -> Option<()> {
        loop {
            match &mut connection.state {
                State::Reading(head) => {
                    let mut piece = [0; 2 << 10];
                    let room = piece.len().min(HEAD_BYTES_MAX - head.len());
                    match gone_or_later(connection.stream.read(&mut piece[..room]))? {
                        Step::Later => return Some(()),
                        // It sends no more, but may read.
                        Step::Done(0) if head.is_empty() => return None,
                        Step::Done(0) => connection.state = State::Writing(self.refusal(Refusal::Malformed), 0),
                        Step::Done(count) => {
                            head.extend_from_slice(&piece[..count]);
                            if let Reading::Whole(verdict) = read(head, &self.hosts, connection.asked) {
                                connection.state = State::Writing(self.answer(verdict), 0);
                            }
                        }
                    }
                }
                State::Writing(answer, written) => {
                    match gone_or_later(connection.stream.write(&answer[*written..]))? {
                        Step::Later => return Some(()),
                        Step::Done(count) => *written += count,
                    }
                    if *written == answer.len() {
                        connection.stream.shutdown(Shutdown::Write).ok()?;
                        connection.state = State::Parting;
                    }
                }
                // One piece at a time, because a peer may send without end.
                State::Parting => match gone_or_later(connection.stream.read(&mut [0; HEAD_BYTES_MAX]))? {
                    Step::Done(0) => return None,
                    Step::Later | Step::Done(_) => return Some(()),
                },
            }
        }
    }

    /// Whether the time of a connection is over. One that has not asked yet is told so.
    fn is_over(&self, connection: &mut Connection, now: Time) -> bool {
        if now < connection.due {
            return false;
        }
        if let State::Reading(_) = connection.state {
            let _ = connection.stream.write(&self.refusal(Refusal::Slow));
        }
        true
    }

    fn refusal(&self, refusal: Refusal) -> Vec<u8> {
        self.answer(Verdict { outcome: Err(refusal), wants_body: true })
    }

    fn answer(&self, verdict: Verdict) -> Vec<u8> {
        match verdict.outcome {
            Ok(_) => ExporterMetrics::add(&self.metrics.answers, 1),
            Err(Refusal::Busy) => {}
            Err(_) => ExporterMetrics::add(&self.metrics.refusals, 1),
        }
        answer(verdict, &(self.shown)(), || self.metrics.instance(env!("CARGO_PKG_VERSION")))
    }
}

/// What can be done.
struct Ready {
    /// The thread shall end.
    ends: bool,
    /// A connection waits to be accepted.
    accepts: bool,
    /// For each connection, whether it can go on.
    connections: Vec<bool>,
}

enum Step {
    /// So many bytes.
    Done(usize),
    /// None now.
    Later,
}

/// `None` if the connection is broken.
fn gone_or_later(outcome: std::io::Result<usize>) -> Option<Step> {
    match outcome {
        Ok(count) => Some(Step::Done(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Some(Step::Later),
        Err(_) => None,
    }
}
