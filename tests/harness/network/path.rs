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
pub(super) const OVERTAKEN: Duration = Duration::from_millis(5);

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
pub(super) struct Path<T> {
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
    pub(super) fn new(seed: u64) -> Self {
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
    pub(super) fn set(&mut self, conditions: Conditions) {
        (self.conditions, self.is_bad, self.free_at) = (conditions, false, Time::ZERO);
    }

    /// How many datagrams did not arrive in time, in order, once and whole.
    pub(super) fn harmed(&self) -> u64 {
        self.harmed
    }

    /// Somebody sends `bytes` to `to`.
    pub(super) fn offer(&mut self, now: Time, bytes: &[u8], to: T) {
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
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.under_way.peek().map(|Reverse(next)| next.at)
    }

    /// A datagram that has arrived by now, and where it is to go.
    pub(super) fn arrived(&mut self, now: Time) -> Option<(Vec<u8>, T)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_path_passes_everything_at_once_and_in_order() {
        assert_eq!(arrivals(CLEAR, 100), (0..100).map(|number| (0, vec![number; 100])).collect::<Vec<_>>());
    }

    #[test]
    fn as_many_are_lost_as_the_conditions_say() {
        assert_eq!(arrivals(CUT, 200), []);
        let lost = |loss| 200 - arrivals(Conditions { loss, ..CLEAR }, 200).len();
        assert!((20..=60).contains(&lost(Loss::Each(0.2))));
        // Bad for ten datagrams on average, good for ten: half of them.
        let bursts = Loss::Bursts { begin: 0.1, end: 0.1 };
        assert!((50..=150).contains(&lost(bursts)));
        let left = arrivals(Conditions { loss: bursts, ..CLEAR }, 200);
        let gaps = left.windows(2).filter(|pair| pair[1].1[0] - pair[0].1[0] > 1).count();
        assert!(gaps < 40, "{gaps} gaps: they are lost one after the other");
    }

    #[test]
    fn a_share_is_doubled_damaged_or_overtaken() {
        assert_eq!(arrivals(Conditions { doubled: 1.0, ..CLEAR }, 3).len(), 6);
        let damaged = arrivals(Conditions { damaged: 1.0, ..CLEAR }, 1);
        assert_eq!(damaged[0].1.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1, "a single bit");
        let order = arrivals(Conditions { overtaken: 0.2, ..CLEAR }, 100);
        let late = order.iter().filter(|(at, _)| *at == OVERTAKEN.as_millis()).count();
        assert!((5..=40).contains(&late) && order[99].0 > order[0].0, "{late} late");
    }

    #[test]
    fn jitter_changes_no_order() {
        let slow = Conditions { delay: Duration::from_millis(20), jitter: Duration::from_millis(20), ..CLEAR };
        let arrived = arrivals(slow, 50);
        assert!(arrived.iter().all(|(at, _)| (20..=40).contains(at)));
        assert!(arrived.is_sorted_by_key(|(_, bytes)| bytes[0]));
    }

    #[test]
    fn what_the_rate_does_not_pass_waits_and_what_waits_too_long_is_lost() {
        // 100 bytes are 800 bits: one each millisecond.
        let rate = Some(Rate { bits: 800_000, datagrams: u64::MAX, queue: Duration::from_millis(9) });
        let arrived = arrivals(Conditions { rate, ..CLEAR }, 50);
        assert_eq!(arrived.iter().map(|(at, _)| *at).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
        let rate = Some(Rate { bits: u64::MAX, datagrams: 500, queue: Duration::from_millis(3) });
        let arrived = arrivals(Conditions { rate, ..CLEAR }, 50);
        assert_eq!(arrived.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn datagrams_that_are_too_long_are_lost() {
        assert_eq!(arrivals(Conditions { bytes_max: 99, ..CLEAR }, 5), []);
        assert_eq!(arrivals(Conditions { bytes_max: 100, ..CLEAR }, 5).len(), 5);
    }

    /// Offers so many datagrams of 100 bytes at the beginning; returns when each arrived, in milliseconds, and what.
    fn arrivals(conditions: Conditions, count: u8) -> Vec<(u128, Vec<u8>)> {
        let mut path = Path::new(1);
        path.set(conditions);
        (0..count).for_each(|number| path.offer(Time::ZERO, &[number; 100], ()));
        let mut arrived = Vec::new();
        while let Some(at) = path.poll_timeout() {
            let (bytes, ()) = path.arrived(at).expect("it is due");
            arrived.push((at.since(Time::ZERO).as_millis(), bytes));
        }
        arrived
    }
}
