//! The thread of an exporter: accepts connections, reads a request of each, and writes the answer. It waits for all of them at once, so that
//! a slow one holds nobody up. When it has used more than its share of a core, it answers probes alone until it has earned some of that, and
//! not even those when they have used their own share.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::answer::{answer, page};
use super::budget::Budget;
use super::hosts::Hosts;
use super::pages::Pages;
use super::request::{HEAD_BYTES_MAX, Page, Reading, Refusal, Verdict, read};
use super::shown::Shown;
use crate::metrics::ExporterMetrics;
use crate::runtime::clock::Clock;
use crate::types::{Time, whole_ns};

/// Connections that are open at once. For a further one, another one must go.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// The usual [`Serving::connection_time`].
pub(super) const CONNECTION_TIME: Duration = Duration::from_secs(2);
/// The pause after the system gave no connection, because it has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Reads the processor time of the calling thread.
pub(super) type ThreadCpu = Box<dyn Fn() -> Duration + Send>;

/// What the thread works with.
pub(super) struct Serving {
    pub(super) listener: TcpListener,
    /// Readable once the thread shall end.
    pub(super) ending: Arc<OwnedFd>,
    pub(super) clock: Clock,
    pub(super) hosts: Hosts,
    /// What is shown now.
    pub(super) shown: Box<dyn Fn() -> Vec<Arc<dyn Shown>> + Send>,
    pub(super) pages: Pages,
    /// Of all that the thread does, but for making pages and for what `probes` pays.
    pub(super) budget: Budget,
    /// Of the turns that answer probes alone.
    pub(super) probes: Budget,
    /// What these turns have used, of all that was `counted`.
    pub(super) probes_took: Duration,
    pub(super) counted: Duration,
    /// Since when others than probes wait, because `budget` is used up.
    pub(super) held_back_since: Option<Time>,
    /// The processor time that this thread has used.
    pub(super) cpu: ThreadCpu,
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
/// Reading ── whole, or refused ──► Asked ── its turn ──► Writing ── all written ──► Parting ── the peer has closed ──► (gone)
/// any ── the peer is gone, `due`, or a further connection needs its place ──► (gone)
/// ```
enum State {
    /// The bytes of the request so far.
    Reading(Vec<u8>),
    /// What it is to get.
    Asked(Verdict),
    /// The answer, and how much of it is written.
    Writing(Vec<u8>, usize),
    /// What the peer still sends is thrown away. If the connection were closed at once, these bytes would make the system reset it, and the
    /// peer might lose the answer.
    Parting,
}

/// Whom the thread serves until it looks at its budgets again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    All,
    /// Those who ask for a probe, for so long. The others wait.
    Probes(Duration),
}

impl Serving {
    /// Serves until `ending` is readable. Then the port is free, also if a child of a fork has a copy of the listener.
    pub(super) fn run(mut self) {
        self.serve();
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    fn serve(&mut self) {
        let mut connections: Vec<Connection> = Vec::new();
        let mut accept_from = Time::ZERO;
        let mut last = Turn::All;
        while let Some(turn) = self.next_turn(last) {
            last = turn;
            let now = self.clock.now();
            let pause = (accept_from > now).then_some(accept_from);
            let due = connections.iter().map(|connection| connection.due).chain(pause).min().map(|due| due.since(now));
            let patience = match turn {
                Turn::All => due,
                Turn::Probes(patience) => Some(due.map_or(patience, |due| due.min(patience))),
            };
            let served: Vec<&Connection> =
                connections.iter().filter(|connection| connection.state.is_served(turn)).collect();
            let Some(ready) = self.next_ready(&served, pause.is_none(), patience) else { return };
            let now = self.clock.now();
            let mut are_ready = ready.connections.into_iter();
            connections.retain_mut(|connection| {
                let is_ready =
                    connection.state.is_served(turn) && are_ready.next().expect("one for each that is served");
                (!is_ready || self.advance(connection, turn).is_some()) && !self.is_over(connection, now)
            });
            if ready.accepts && self.accept(&mut connections, now, turn).is_none() {
                accept_from = now + PAUSE;
            }
        }
    }

    /// Decides whom the thread serves after its `last` turn. Waits while it may serve nobody. What comes meanwhile stays in the system:
    /// connections, requests, and room for answers. `None` if the thread shall end.
    fn next_turn(&mut self, mut last: Turn) -> Option<Turn> {
        loop {
            let (now, cpu) = (self.clock.now(), (self.cpu)());
            let took = cpu.saturating_sub(std::mem::replace(&mut self.counted, cpu));
            if matches!(last, Turn::Probes(_)) {
                self.probes_took += took;
            }
            let used = cpu.saturating_sub(self.pages.took() + self.probes_took);
            let Some(wait) = self.budget.pause(now, used) else {
                let held_back = self.held_back_since.take().map_or(Duration::ZERO, |since| now.since(since));
                ExporterMetrics::add(&self.metrics.held_back_nanoseconds, whole_ns(held_back));
                return Some(Turn::All);
            };
            self.held_back_since.get_or_insert(now);
            let Some(longer) = self.probes.pause(now, self.probes_took) else { return Some(Turn::Probes(wait)) };
            self.next_ready(&[], false, Some(wait.min(longer)))?;
            last = Turn::All;
        }
    }

    /// Waits until something can be done, or for `patience`. `None` if the thread shall end.
    fn next_ready(&self, connections: &[&Connection], accepts: bool, patience: Option<Duration>) -> Option<Ready> {
        let mut waits = vec![
            PollFd::new(&*self.ending, PollFlags::IN),
            PollFd::new(&self.listener, if accepts { PollFlags::IN } else { PollFlags::empty() }),
        ];
        waits.extend(connections.iter().map(|connection| {
            let wanted = match connection.state {
                State::Reading(_) | State::Parting => PollFlags::IN,
                State::Asked(_) | State::Writing(..) => PollFlags::OUT,
            };
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
                return None;
            }
        }
        let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
        (!ready[0]).then(|| Ready { accepts: accepts && ready[1], connections: ready[2..].to_vec() })
    }

    /// Accepts the connections that wait, but no more than there may be, so that a flood of them does not keep the thread. `None` if the
    /// system gives none for now.
    fn accept(&mut self, connections: &mut Vec<Connection>, now: Time, turn: Turn) -> Option<()> {
        for _ in 0..CONNECTIONS_MAX {
            let (stream, asked) = match self.accept_one() {
                Ok(accepted) => accepted,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Some(()),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => continue,
                    _ => return None,
                },
            };
            if connections.len() >= CONNECTIONS_MAX {
                let Some(at) = place_of_least(connections, turn) else {
                    self.turn_away(stream);
                    continue;
                };
                let Connection { stream, state, .. } = connections.remove(at);
                if !matches!(state, State::Parting) {
                    self.turn_away(stream);
                }
            }
            let (due, state) = (now + self.connection_time, State::Reading(Vec::new()));
            let mut connection = Connection { stream, asked, due, state };
            // The request is usually there, so that no other one takes the place of a connection that has asked.
            if self.advance(&mut connection, turn).is_some() {
                connections.push(connection);
            }
        }
        Some(())
    }

    /// There is no place for a connection.
    fn turn_away(&mut self, mut stream: TcpStream) {
        ExporterMetrics::add(&self.metrics.connections_refused, 1);
        let _ = stream.read(&mut [0; HEAD_BYTES_MAX]);
        let _ = stream.write(&self.refusal(Refusal::Busy));
    }

    fn accept_one(&self) -> std::io::Result<(TcpStream, IpAddr)> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        let asked = stream.local_addr()?.ip();
        Ok((stream, asked))
    }

    /// Reads or writes what can be without waiting. `None` once the connection is gone.
    fn advance(&mut self, connection: &mut Connection, turn: Turn) -> Option<()> {
        loop {
            match &mut connection.state {
                State::Reading(head) => {
                    let mut piece = [0; 2 << 10];
                    let room = piece.len().min(HEAD_BYTES_MAX - head.len());
                    match gone_or_later(connection.stream.read(&mut piece[..room]))? {
                        Step::Later => return Some(()),
                        // It sends no more, but may read.
                        Step::Done(0) if head.is_empty() => return None,
                        Step::Done(0) => connection.state = State::Asked(refused(Refusal::Malformed)),
                        Step::Done(count) => {
                            head.extend_from_slice(&piece[..count]);
                            if let Reading::Whole(verdict) = read(head, &self.hosts, connection.asked) {
                                connection.state = State::Asked(verdict);
                            }
                        }
                    }
                }
                State::Asked(verdict) => {
                    let verdict = *verdict;
                    if matches!(turn, Turn::Probes(_)) && !verdict.is_probe() {
                        return Some(());
                    }
                    connection.state = State::Writing(self.answer(verdict), 0);
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

    /// Whether the time of a connection is over. One that has no answer yet is told why.
    fn is_over(&mut self, connection: &mut Connection, now: Time) -> bool {
        if now < connection.due {
            return false;
        }
        let refusal = match connection.state {
            State::Reading(_) => Some(Refusal::Slow),
            State::Asked(_) => Some(Refusal::Busy),
            State::Writing(..) | State::Parting => None,
        };
        if let Some(refusal) = refusal {
            let _ = connection.stream.write(&self.refusal(refusal));
        }
        true
    }

    fn refusal(&mut self, refusal: Refusal) -> Vec<u8> {
        self.answer(refused(refusal))
    }

    fn answer(&mut self, verdict: Verdict) -> Vec<u8> {
        match verdict.outcome {
            Ok(_) => ExporterMetrics::add(&self.metrics.answers, 1),
            Err(Refusal::Busy) => {}
            Err(_) => ExporterMetrics::add(&self.metrics.refusals, 1),
        }
        let Self { shown, clock, cpu, metrics, pages, .. } = self;
        let make = |asked| page(asked, &shown(), || metrics.instance(env!("CARGO_PKG_VERSION")));
        answer(verdict, |asked| match asked {
            Page::Metrics | Page::Front | Page::Job => pages.get(asked, clock.now(), &*cpu, || make(asked)),
            // What a probe asks for is always new.
            Page::Health | Page::Readiness => make(asked),
        })
    }
}

impl State {
    /// Whether something is done for a connection in such a turn.
    fn is_served(&self, turn: Turn) -> bool {
        match (turn, self) {
            (Turn::All, _) | (Turn::Probes(_), Self::Reading(_)) => true,
            (Turn::Probes(_), Self::Asked(_) | Self::Writing(..) | Self::Parting) => false,
        }
    }
}

/// The connection that goes if a further one needs its place: one that has its answer; else the oldest one that has not asked; else the newest one
/// that waits behind the probes, because it would wait longest.
fn place_of_least(connections: &[Connection], turn: Turn) -> Option<usize> {
    let of = |is_it: fn(&State) -> bool| move |connection: &Connection| is_it(&connection.state);
    let parting = connections.iter().position(of(|state| matches!(state, State::Parting)));
    let oldest = || connections.iter().position(of(|state| matches!(state, State::Reading(_))));
    let newest = || connections.iter().rposition(of(|state| matches!(state, State::Asked(_))));
    parting.or_else(oldest).or_else(|| if turn == Turn::All { None } else { newest() })
}

fn refused(refusal: Refusal) -> Verdict {
    Verdict { outcome: Err(refusal), wants_body: true }
}

/// What can be done.
struct Ready {
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
