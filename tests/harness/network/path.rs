//! One direction of a network path, as a machine: what happens to each datagram, and when it arrives. [`Relay`](super::Relay) owns the
//! sockets and the clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use gradlane_core::types::Time;

use crate::random::Random;

/// What one direction of a path does to datagrams.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Conditions {
    /// Which datagrams are lost.
    pub loss: Loss,
    /// The share that arrives twice.
    pub doubled: f64,
    /// The share of which one bit is flipped.
    pub damaged: f64,
    /// The share that is held back for 5 ms, so that later datagrams arrive before it.
    pub overtaken: f64,
    /// How long each datagram travels.
    pub delay: Duration,
    /// Up to so much longer, by chance. The order stays.
    pub jitter: Duration,
    /// What passes in a second, and what may wait for its turn.
    pub rate: Option<Rate>,
    /// Longer datagrams are lost, and their sender is not told.
    pub bytes_max: usize,
}

/// Which datagrams are lost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Loss {
    /// Each is lost with this probability.
    Each(f64),
    /// The path is good or bad, and loses all while it is bad (Gilbert 1960, Elliott 1963). Before each datagram it changes with these
    /// probabilities.
    Bursts {
        /// From good to bad.
        begin: f64,
        /// From bad to good.
        end: f64,
    },
}

/// How much passes, and what waits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Bits of UDP payload in a second.
    pub bits: u64,
    /// Datagrams in a second.
    pub datagrams: u64,
    /// What has to wait for longer is lost. Long queues that are always full are called bufferbloat.
    pub queue: Duration,
}

/// How long a datagram is held back that others overtake.
pub const OVERTAKEN: Duration = Duration::from_millis(5);

/// A network that does no harm.
pub const CLEAR: Conditions = Conditions {
    loss: Loss::Each(0.0),
    doubled: 0.0,
    damaged: 0.0,
    overtaken: 0.0,
    delay: Duration::ZERO,
    jitter: Duration::ZERO,
    rate: None,
    bytes_max: usize::MAX,
};

/// Nothing arrives.
pub const CUT: Conditions = Conditions { loss: Loss::Each(1.0), ..CLEAR };

/// The datagrams on their way in one direction. `T` is where each is to go.
///
/// Give each datagram to [`Path::offer`], and take the datagrams that have arrived from [`Path::arrived`] until it has none, at the latest
/// at [`Path::poll_timeout`]. The same seed and the same datagrams at the same times give the same arrivals.
#[derive(Debug)]
pub struct Path<T> {
    conditions: Conditions,
    random: Random,
    /// Whether a burst of loss goes on.
    is_bad: bool,
    /// When the datagrams that wait for the rate have left.
    free_at: Time,
    /// When the last one arrives that keeps its place in the order.
    last_at: Time,
    offered: u64,
    under_way: BinaryHeap<Reverse<Arrival<T>>>,
    harmed: u64,
}

/// Ordered by time, then by the order in which they were offered.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Arrival<T> {
    at: Time,
    number: u64,
    bytes: Vec<u8>,
    to: T,
}

impl<T: Copy + Ord> Path<T> {
    /// A path that does no harm yet.
    pub fn new(seed: u64) -> Self {
        Self {
            conditions: CLEAR,
            random: Random::new(seed),
            is_bad: false,
            free_at: Time::ZERO,
            last_at: Time::ZERO,
            offered: 0,
            under_way: BinaryHeap::new(),
            harmed: 0,
        }
    }

    /// From now on these conditions hold. What is under way arrives as it was decided before.
    pub fn set(&mut self, conditions: Conditions) {
        (self.conditions, self.is_bad, self.free_at) = (conditions, false, Time::ZERO);
    }

    /// How many datagrams did not arrive in time, in order, once and whole.
    pub fn harmed(&self) -> u64 {
        self.harmed
    }

    /// Somebody sends `bytes` to `to`.
    pub fn offer(&mut self, now: Time, bytes: &[u8], to: T) {
        let Some(left_at) = self.leaves(now, bytes.len()) else {
            self.harmed += 1;
            return;
        };
        let jitter = self.conditions.jitter.mul_f64(self.random.share());
        let mut at = (left_at + self.conditions.delay + jitter).max(self.last_at);
        if self.chance(self.conditions.overtaken) {
            at = at + OVERTAKEN;
        } else {
            self.last_at = at;
        }
        let copies = 1 + usize::from(self.chance(self.conditions.doubled));
        let mut bytes = bytes.to_vec();
        let is_damaged = !bytes.is_empty() && self.chance(self.conditions.damaged);
        if is_damaged {
            let bit = self.random.below(bytes.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        self.harmed += u64::from(at > now || copies > 1 || is_damaged);
        for bytes in std::iter::repeat_n(bytes, copies) {
            self.offered += 1;
            self.under_way.push(Reverse(Arrival { at, number: self.offered, bytes, to }));
        }
    }

    /// When the next datagram arrives.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.under_way.peek().map(|Reverse(next)| next.at)
    }

    /// A datagram that has arrived by now, and where it is to go.
    pub fn arrived(&mut self, now: Time) -> Option<(Vec<u8>, T)> {
        if self.poll_timeout()? > now {
            return None;
        }
        self.under_way.pop().map(|Reverse(arrival)| (arrival.bytes, arrival.to))
    }

    /// When a datagram of this length has left, unless it is lost.
    fn leaves(&mut self, now: Time, len: usize) -> Option<Time> {
        if len > self.conditions.bytes_max {
            return None;
        }
        let is_lost = match self.conditions.loss {
            Loss::Each(share) => self.chance(share),
            Loss::Bursts { begin, end } => {
                let changes = self.chance(if self.is_bad { end } else { begin });
                self.is_bad ^= changes;
                self.is_bad
            }
        };
        if is_lost {
            return None;
        }
        let Some(rate) = self.conditions.rate else { return Some(now) };
        let begins = self.free_at.max(now);
        if begins.since(now) > rate.queue {
            return None;
        }
        let takes = (len as f64 * 8.0 / rate.bits as f64).max(1.0 / rate.datagrams as f64);
        self.free_at = begins + Duration::from_secs_f64(takes);
        Some(self.free_at)
    }

    fn chance(&mut self, share: f64) -> bool {
        // Nothing is drawn for what cannot happen, so that a clear path costs no time.
        share > 0.0 && self.random.share() < share
    }
}
