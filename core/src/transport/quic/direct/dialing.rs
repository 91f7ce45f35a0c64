//! Connecting with patience, as a value: addresses tried in turn, pauses between attempts, and when to give up at once.
//!
//! ```text
//!  Resolving ──► Trying, one address after the other ──let in──► a link
//!      ▲              │ all failed
//!      └── Pausing ◄──┘         no patience left, or trying again cannot mend it: the error
//! ```

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use quinn_proto::ConnectionHandle;

use super::super::dial::{PAUSE_MAX, PAUSE_MIN, random_fraction, silent};
use crate::error::{Error, Result};
use crate::transport::{LinkLost, Peer};
use crate::types::{Done, LinkId};

/// A link that is wanted.
pub(super) struct Dial {
    pub(super) peer: Peer,
    pub(super) lost: LinkLost,
    pub(super) done: Done<LinkId>,
    /// When patience ends.
    deadline: Instant,
    pub(super) phase: Phase,
    /// Addresses not tried in this attempt, the next one last.
    rest: Vec<SocketAddr>,
    /// Why the last address did not answer.
    failure: Error,
    pause: Duration,
}

/// What a dial waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The addresses of a name.
    Resolving,
    /// To be let in, until then.
    Trying(ConnectionHandle, Instant),
    /// The next attempt, then.
    Pausing(Instant),
}

/// What is to be done next.
pub(super) enum Then {
    /// Connect to this address.
    Connect(SocketAddr),
    /// Wait for `phase`.
    Wait,
    /// Report this.
    Fail(Error),
}

impl Dial {
    pub(super) fn new(peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>, now: Instant) -> Self {
        let failure = silent(&peer.address, &peer.name);
        let (phase, rest) = (Phase::Resolving, Vec::new());
        Self { peer, lost, done, deadline: now + patience, phase, rest, failure, pause: PAUSE_MIN }
    }

    /// The addresses of the name are known.
    pub(super) fn resolved(&mut self, mut addresses: Vec<SocketAddr>, now: Instant) -> Then {
        addresses.reverse();
        self.rest = addresses;
        self.next(now)
    }

    /// The address that was tried did not work out, or there is none.
    pub(super) fn failed(&mut self, failure: Error, now: Instant) -> Then {
        self.failure = failure;
        self.next(now)
    }

    fn next(&mut self, now: Instant) -> Then {
        if let Some(address) = self.rest.pop() {
            return Then::Connect(address);
        }
        if !self.failure.retryable() || now + self.pause >= self.deadline {
            return Then::Fail(self.failure.clone());
        }
        tracing::debug!(peer = self.peer.name, address = self.peer.address, error = %self.failure, "connecting again");
        // Half of it is random, so that the workers of a job do not come back in step.
        let pause = self.pause / 2 + (self.pause / 2).mul_f64(random_fraction());
        self.phase = Phase::Pausing(now + pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Then::Wait
    }

    /// When to look at it again.
    pub(super) fn due(&self) -> Instant {
        match self.phase {
            Phase::Resolving => self.deadline,
            Phase::Trying(_, until) | Phase::Pausing(until) => until.min(self.deadline),
        }
    }

    /// What it means that `now` has come, if it is due: whether patience has ended.
    pub(super) fn is_hopeless(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Nobody answered.
    pub(super) fn silence(&self) -> Error {
        silent(&self.peer.address, &self.peer.name)
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
        let peer = Peer {
            address: "a:1".to_owned(),
            socket_path: String::new(),
            node: NodeId([0; 32]),
            name: "server 0".to_owned(),
        };
        let done = Done::new(move |outcome| drop(sender.send(outcome)));
        #[expect(clippy::disallowed_methods, reason = "any instant will do; there is no other way to make one")]
        let now = Instant::now();
        (Dial::new(peer, patience, Box::new(|_, _| {}), done, now), report, now)
    }

    fn address(host: u8) -> SocketAddr {
        ([10, 0, 0, host], 1).into()
    }

    fn gone() -> Error {
        Error::Unavailable { what: "server 0".to_owned(), cause: "gone".to_owned() }
    }
}
