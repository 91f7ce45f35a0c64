//! A connection attempt as a value: it tries the addresses in turn, pauses between attempts, and gives up at a deadline or at an error that
//! another attempt cannot mend.
//!
//! ```text
//!  Resolving ──► Trying, one address after the other ──let in──► a link
//!      ▲              │ all failed
//!      └── Pausing ◄──┘         the deadline has passed, or another attempt is pointless: the error
//! ```

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use quinn_proto::ConnectionHandle;

use super::super::dial::{PAUSE_MAX, PAUSE_MIN, random_fraction, silent};
use crate::error::{Error, Result};
use crate::transport::{LinkLost, Peer};
use crate::types::{Done, LinkId};

/// A link that a worker asked for.
pub(super) struct Dial {
    /// `host:port`.
    pub(super) address: String,
    pub(super) peer: Peer,
    pub(super) lost: LinkLost,
    pub(super) done: Done<LinkId>,
    /// When it gives up.
    deadline: Instant,
    pub(super) phase: Phase,
    /// Addresses not tried in this attempt, the next one last.
    rest: Vec<SocketAddr>,
    /// Why the last address did not answer.
    failure: Error,
    pause: Duration,
    probe: Option<Probe>,
}

/// The state of a dial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// It waits for the addresses of a name.
    Resolving,
    /// It waits, until this time, for the server to let it in.
    Trying(ConnectionHandle, Instant),
    /// The next attempt begins at this time.
    Pausing(Instant),
}

/// The next step of a dial, for its driver.
pub(super) enum Then {
    /// Connect to this address.
    Connect(SocketAddr),
    /// Wait for `phase`.
    Wait,
    /// Report this.
    Fail(Error),
}

impl Dial {
    /// A dial to `address`, `host:port`, which is one of those of `peer`.
    pub(super) fn new(
        address: String,
        peer: Peer,
        patience: Duration,
        lost: LinkLost,
        done: Done<LinkId>,
        now: Instant,
    ) -> Self {
        let failure = silent(&address, &peer.name);
        let (phase, rest) = (Phase::Resolving, Vec::new());
        Self {
            address,
            peer,
            lost,
            done,
            deadline: now + patience,
            phase,
            rest,
            failure,
            pause: PAUSE_MIN,
            probe: None,
        }
    }

    /// The addresses of the name are known.
    pub(super) fn resolved(&mut self, mut addresses: Vec<SocketAddr>, now: Instant) -> Then {
        addresses.reverse();
        self.rest = addresses;
        self.next(now)
    }

    /// The last attempt failed, or there is no address.
    pub(super) fn failed(&mut self, failure: Error, now: Instant) -> Then {
        self.failure = failure;
        self.next(now)
    }

    fn next(&mut self, now: Instant) -> Then {
        if let Some(address) = self.rest.pop() {
            self.probe = Probe::send(address);
            return Then::Connect(address);
        }
        if !self.failure.retryable() || now + self.pause >= self.deadline {
            return Then::Fail(self.failure.clone());
        }
        tracing::debug!(peer = self.peer.name, address = self.address, error = %self.failure, "connecting again");
        // Half of the pause is random, so that the workers of a job do not try again all at once.
        let pause = self.pause / 2 + (self.pause / 2).mul_f64(random_fraction());
        self.phase = Phase::Pausing(now + pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Then::Wait
    }

    /// When its state ends by time.
    pub(super) fn due(&self) -> Instant {
        match self.phase {
            Phase::Resolving => self.deadline,
            Phase::Trying(_, until) | Phase::Pausing(until) => until.min(self.deadline),
        }
    }

    /// Whether its deadline has passed.
    pub(super) fn is_hopeless(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// The error of an attempt without an answer.
    pub(super) fn silence(&self) -> Error {
        match self.probe.as_ref().and_then(Probe::answer) {
            Some(refusal) => Error::Unavailable {
                what: self.peer.name.clone(),
                cause: format!("{} at {}: no process has that UDP port open", refusal, self.address),
            },
            None => silent(&self.address, &self.peer.name),
        }
    }
}

/// A datagram of one byte, which no endpoint answers, beside the handshake. The system tells a connected socket if the other host says that
/// its port is closed (ICMP). It does not tell the socket of the endpoint, because that one is not connected.
struct Probe(UdpSocket);

impl Probe {
    fn send(remote: SocketAddr) -> Option<Self> {
        let any: IpAddr = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(remote).ok()?;
        socket.send(&[0]).ok()?;
        Some(Self(socket))
    }

    /// The error that the other host answered, if it answered.
    fn answer(&self) -> Option<&'static str> {
        let error = self.0.take_error().ok()??;
        (error.kind() == ErrorKind::ConnectionRefused).then_some("connection refused")
    }
}

/// The addresses of `host:port`.
pub(super) fn resolve(address: &str, what: &str) -> Result<Vec<SocketAddr>> {
    let unavailable = |cause: String| Error::Unavailable { what: format!("{what} at {address}"), cause };
    let found: Vec<SocketAddr> = address.to_socket_addrs().map_err(|error| unavailable(error.to_string()))?.collect();
    if found.is_empty() {
        return Err(unavailable("its name has no address".to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::types::NodeId;

    #[test]
    fn addresses_are_tried_in_their_order_and_once_more_after_a_pause() {
        let (mut dial, _report, now) = dial(Duration::from_secs(10));
        let (first, second) = (address(1), address(2));
        assert!(matches!(dial.resolved(vec![first, second], now), Then::Connect(tried) if tried == first));
        assert!(matches!(dial.failed(gone(), now), Then::Connect(tried) if tried == second));
        assert!(matches!(dial.failed(gone(), now), Then::Wait));
        let Phase::Pausing(until) = dial.phase else { panic!("{:?}", dial.phase) };
        assert!(until >= now + PAUSE_MIN / 2 && until <= now + PAUSE_MIN);
        assert_eq!(dial.due(), until);
    }

    #[test]
    fn the_last_failure_is_told_when_another_pause_would_be_too_long() {
        let (mut dial, _report, now) = dial(PAUSE_MIN / 2);
        assert!(matches!(dial.resolved(Vec::new(), now), Then::Fail(Error::Unavailable { .. })));
        assert!(!dial.is_hopeless(now));
        assert!(dial.is_hopeless(now + PAUSE_MIN / 2));
    }

    #[test]
    fn what_trying_again_cannot_mend_ends_it_at_once() {
        let (mut dial, _report, now) = dial(Duration::from_secs(10));
        let refused = Error::Auth { problem: "no".to_owned(), hint: "none".to_owned() };
        assert!(matches!(dial.failed(refused.clone(), now), Then::Fail(error) if error == refused));
    }

    #[test]
    fn pauses_grow() {
        let (mut dial, _report, mut now) = dial(Duration::from_secs(1000));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            assert!(matches!(dial.failed(gone(), now), Then::Wait));
            pauses.push(dial.due() - now);
            now = dial.due();
        }
        assert!(pauses[4] > pauses[0]);
        assert!(pauses.iter().all(|pause| *pause <= PAUSE_MAX));
    }

    fn dial(patience: Duration) -> (Dial, Receiver<crate::error::Result<LinkId>>, Instant) {
        let (sender, report) = channel();
        let peer = Peer { addresses: Vec::new(), node: NodeId([0; 32]), name: "server 0".to_owned() };
        let done = Done::new(move |outcome| drop(sender.send(outcome)));
        #[expect(clippy::disallowed_methods, reason = "any instant will do; there is no other way to make one")]
        let now = Instant::now();
        (Dial::new("a:1".to_owned(), peer, patience, Box::new(|_, _| {}), done, now), report, now)
    }

    fn address(host: u8) -> SocketAddr {
        ([10, 0, 0, host], 1).into()
    }

    fn gone() -> Error {
        Error::Unavailable { what: "server 0".to_owned(), cause: "gone".to_owned() }
    }
}
