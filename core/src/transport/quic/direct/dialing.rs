//! Connecting with patience, as a value: addresses tried in turn, pauses between attempts, and when to give up at once.
//!
//! ```text
//!  Resolving ──► Trying, one address after the other ──let in──► a link
//!      ▲              │ all failed
//!      └── Pausing ◄──┘         no patience left, or trying again cannot mend it: the error
//! ```

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quinn_proto::ConnectionHandle;

use super::super::dial::{PAUSE_MAX, PAUSE_MIN, random_fraction, silent};
use crate::error::Error;
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
