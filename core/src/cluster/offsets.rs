//! How far the coordinator's clock is ahead of this process's, by the answers to heartbeats.
//!
//! An exchange has four times: this process sends at t1 and hears at t4 by its own clock, the coordinator receives at t2 and answers at t3
//! by its clock. Nothing arrives before it is sent, so the offset of the coordinator's clock lies between t3 - t4 and t2 - t1. The middle is
//! NTP's ((t2 - t1) + (t3 - t4)) / 2, and the interval is as wide as the network's delay, (t4 - t1) - (t3 - t2), however the delay is
//! divided between the two ways (RFC 5905, section 8).
//!
//! An interval says little about later times, because clocks drift. But two clocks of steady rates differ by a line over time, and that line
//! crosses all intervals. So the bounds of the offset at a later time are those of all lines that do: the tightest that the exchanges allow.
//! Quick exchanges have narrow intervals and fix the line; slow ones are no worse than useless. Taking the quickest exchange alone, as
//! NTP does, would leave a choice between its delay and its age.

use std::collections::VecDeque;
use std::time::Duration;

use crate::types::Time;

/// The times of an answered heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// When this process sent, by its clock.
    pub sent: Time,
    /// When the coordinator received, by its clock.
    pub received: Time,
    /// When the coordinator answered, by its clock.
    pub answered: Time,
    /// When this process heard the answer, by its clock.
    pub heard: Time,
}

/// How far the coordinator's clock is ahead at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offset {
    /// What to add to a time of this process, in nanoseconds, to get the coordinator's.
    pub ns: i64,
    /// The offset is wrong by at most so much.
    pub error: Duration,
}

/// What the last exchanges say about the coordinator's clock.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Offsets {
    /// Which clock they are about.
    began_unix_ns: u64,
    /// In the order of time.
    intervals: VecDeque<Interval>,
}

/// At the time `at` of this process, the coordinator's clock was ahead by `low` to `high` nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Interval {
    at: Time,
    low: i64,
    high: i64,
}

/// So many exchanges count: the last quarter of a minute, with the usual interval of heartbeats.
const EXCHANGES_MAX: usize = 64;
/// Two clocks drift apart by no more than this share of the time. Oscillators are good to 100 ppm, and Linux slews a clock that is being set
/// by at most 500 ppm.
const RATE_MAX: f64 = 1200e-6;
/// While the exchanges last, the rate departs by no more than this from a steady one. Temperature changes a rate by less.
const WANDER: f64 = 1e-6;

impl Offsets {
    /// Takes in an exchange with the coordinator whose clock began at `began_unix_ns` by the coordinator's wall clock. What is known of another
    /// clock is forgotten: another coordinator has taken over.
    ///
    /// An exchange that took the coordinator longer than it took this process tells nothing, and is left out.
    pub fn add(&mut self, began_unix_ns: u64, exchange: Exchange) {
        if self.began_unix_ns != began_unix_ns {
            (self.began_unix_ns, self.intervals) = (began_unix_ns, VecDeque::new());
        }
        let Exchange { sent, received, answered, heard } = exchange;
        let Some((high, low)) = ahead(sent, received).zip(ahead(heard, answered)) else { return };
        let at = Time(sent.0.midpoint(heard.0));
        let is_late = self.intervals.back().is_none_or(|last| last.at < at);
        if low > high || !is_late {
            return;
        }
        if self.intervals.len() == EXCHANGES_MAX {
            self.intervals.pop_front();
        }
        // An exchange lasts a while, in which the clocks drift as well.
        let drift = (RATE_MAX * nanos(heard.since(sent)) / 2.0).ceil() as i64;
        self.intervals.push_back(Interval { at, low: low.saturating_sub(drift), high: high.saturating_add(drift) });
        // A clock whose rate has jumped is on no line any more. What is new counts.
        while self.intervals.len() > 1 && self.bounds(at).is_none() {
            self.intervals.pop_front();
        }
    }

    /// The offset at `now`, which is not before the last exchange. `None` before the first.
    pub fn at(&self, now: Time) -> Option<Offset> {
        let (low, high) = self.bounds(now)?;
        let error = Duration::from_nanos((high.abs_diff(low)).div_ceil(2));
        Some(Offset { ns: low.midpoint(high), error })
    }

    /// When the coordinator's clock began, by its wall clock then, in nanoseconds since 1970. It does not follow later changes of that wall
    /// clock, so it is the clock of the whole job. 0 before the first exchange.
    pub fn began_unix_ns(&self) -> u64 {
        self.began_unix_ns
    }

    /// The least and the greatest offset at `now` of all lines that cross all intervals; `None` if no line does.
    fn bounds(&self, now: Time) -> Option<(i64, i64)> {
        // Offsets are hours, and what matters are nanoseconds. Relative to one of them a double is exact.
        let zero = self.intervals.back()?.low;
        let aged: Vec<Aged> = self.intervals.iter().map(|interval| interval.aged(now, zero)).collect();
        let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
        for (index, late) in aged.iter().enumerate() {
            // Whatever its rate is, a line through this interval ends no further away than this.
            low = low.max(late.low - RATE_MAX * late.age);
            high = high.min(late.high + RATE_MAX * late.age);
            for early in &aged[..index] {
                // The flattest and the steepest line that cross both.
                let beyond = late.age / (early.age - late.age);
                low = low.max(late.low + beyond * (late.low - early.high));
                high = high.min(late.high + beyond * (late.high - early.low));
            }
        }
        (low <= high).then(|| (zero.saturating_add(low.floor() as i64), zero.saturating_add(high.ceil() as i64)))
    }
}

/// An interval as seen from a later time.
struct Aged {
    age: f64,
    low: f64,
    high: f64,
}

impl Interval {
    /// Wider by what the rate may have wandered since. Offsets are relative to `zero`.
    fn aged(&self, now: Time, zero: i64) -> Aged {
        let age = nanos(now.since(self.at));
        let relative = |ns: i64| ns.saturating_sub(zero) as f64;
        Aged { age, low: relative(self.low) - WANDER * age, high: relative(self.high) + WANDER * age }
    }
}

/// How far `theirs` is ahead of `ours`, in nanoseconds. `None` if that is more than centuries.
fn ahead(ours: Time, theirs: Time) -> Option<i64> {
    i64::try_from(i128::from(theirs.0) - i128::from(ours.0)).ok()
}

fn nanos(span: Duration) -> f64 {
    span.as_nanos() as f64
}

#[cfg(test)]
mod tests;
