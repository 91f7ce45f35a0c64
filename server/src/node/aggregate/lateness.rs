//! Who was late in a round, and why, by the clock of this server alone.
//!
//! When the last contribution of a round is whole, the time since the one before it was whole is the time in which only its worker was missing.
//! It is split over causes by walking back from the last byte: the time for which the server was behind with its additions, the transfer since the
//! first byte came, then what the header says that the part waited for, the latest first. What is left, the worker spent before it submitted. So
//! no two clocks are compared.
//!
//! A contribution that breaks off and is repeated counts from its first byte on: that is a slow transfer. After a restart all begin anew.
//!
//! A step has many tensors, and a late worker is late with all of them at the same time. So [`Blamed`] counts the time in which any round waits
//! for a worker alone: what a step is delayed by it, and never more than the time that passes.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::types::{Cause, Round, Time, Waited, WorkerId};

use crate::node::command::Late;

/// The times of a round so far.
#[derive(Default, Debug)]
pub(super) struct Lateness {
    began: Option<Time>,
    /// When the latest contribution was counted.
    counted: Option<Time>,
}

/// The beginning of a contribution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Coming {
    /// When its header came.
    pub(super) since: Time,
    /// What that says.
    pub(super) waited: Waited,
    /// For how long the server had bytes that it had not added, when it had added the last one.
    pub(super) behind: Duration,
}

impl Lateness {
    /// A header of the round came.
    pub(super) fn handle_header(&mut self, now: Time) {
        self.began.get_or_insert(now);
    }

    /// A contribution was counted. Returns when the one before it was; `None` if it is the first.
    pub(super) fn handle_counted(&mut self, now: Time) -> Option<Time> {
        self.counted.replace(now)
    }

    /// The time since the first header.
    pub(super) fn took(&self, now: Time) -> Duration {
        self.began.map(|began| now.since(began)).unwrap_or_default()
    }
}

/// For which workers all rounds together have waited.
#[derive(Default, Debug)]
pub(super) struct Blamed {
    /// Until when time is counted for each worker.
    until: BTreeMap<WorkerId, Time>,
    /// The highest number of a round that has its sum.
    highest: Option<Round>,
}

impl Blamed {
    /// A round has its sum, for whose last contribution it waited alone `since` then. Returns the time that no other round has counted for this
    /// worker, by cause.
    ///
    /// Rounds end in order of time. So what is new of this one lies behind the end of the last one, unless it began before a pause between
    /// others; such a pause is not counted.
    pub(super) fn handle_last(&mut self, now: Time, worker: WorkerId, since: Time, coming: Coming) -> Late {
        let counted = self.until.insert(worker, now).unwrap_or(Time::ZERO);
        split(now.since(since.max(counted)), now.since(coming.since), coming)
    }

    /// A round of this number has its sum. Returns whether it is the first with so high a number.
    pub(super) fn is_step(&mut self, round: Round) -> bool {
        let is_step = self.highest.is_none_or(|highest| highest < round);
        if is_step {
            self.highest = Some(round);
        }
        is_step
    }
}

/// Splits the time in which only one worker was missing, whose contribution took `taken` from its first byte to its last.
fn split(late: Duration, taken: Duration, Coming { waited, behind, .. }: Coming) -> Late {
    let adding = behind.min(taken);
    let mut left = late;
    let mut by_cause = Late::default();
    for (cause, time) in [
        (Cause::Sum, adding),
        (Cause::Transfer, taken - adding),
        (Cause::Credit, waited.credit.duration()),
        (Cause::Queue, waited.queue.duration()),
        (Cause::Device, waited.device.duration()),
        (Cause::Submit, Duration::MAX),
    ] {
        let share = time.min(left);
        by_cause[cause as usize] = share;
        left -= share;
    }
    by_cause
}

#[cfg(test)]
mod tests {
    use gradlane_core::types::Wait;

    use super::*;

    #[test]
    fn time_in_which_several_rounds_wait_for_a_worker_counts_once() {
        let mut blamed = Blamed::default();
        let at = |micros: u64| Time::ZERO + Duration::from_micros(micros);
        // Since when only this rank was missing, its first byte, the end; the new time by submit and transfer.
        for (rank, since, began, now, [submit, transfer]) in [
            (3, 0, 70, 71, [70, 1]),
            (3, 1, 70, 72, [0, 1]),
            (3, 2, 73, 75, [1, 2]),
            (5, 60, 70, 76, [10, 6]),
            (3, 80, 90, 95, [10, 5]),
            (3, 10, 94, 96, [0, 1]),
            (3, 96, 96, 96, [0, 0]),
        ] {
            let coming = Coming { since: at(began), ..coming() };
            let late = blamed.handle_last(at(now), WorkerId(rank), at(since), coming);
            let expected = [submit, 0, 0, 0, transfer, 0].map(Duration::from_micros);
            assert_eq!(late, expected, "rank {rank} since {since} until {now}");
        }
    }

    #[test]
    fn a_step_is_a_round_with_a_higher_number() {
        let mut blamed = Blamed::default();
        let steps = [0, 0, 1, 0, 1, 5, 4, 6].map(|round| blamed.is_step(Round(round)));
        assert_eq!(steps, [true, false, true, false, false, true, false, true]);
    }

    #[test]
    fn the_causes_are_as_long_as_the_delay_and_the_last_ones_on_the_way_come_first() {
        // What the header says of device, queue and credit; from the first byte to the last, and behind; the delay, and that by cause: submit,
        // device, queue, credit, transfer, sum.
        for (said, [taken, behind], late, expected) in [
            ([0, 0, 0], [0, 0], 10, [10, 0, 0, 0, 0, 0]),
            ([0, 0, 0], [4, 0], 10, [6, 0, 0, 0, 4, 0]),
            ([0, 0, 0], [40, 0], 10, [0, 0, 0, 0, 10, 0]),
            ([1, 2, 3], [2, 0], 10, [2, 1, 2, 3, 2, 0]),
            ([1, 2, 3], [0, 0], 4, [0, 0, 1, 3, 0, 0]),
            ([8, 0, 0], [0, 0], 4, [0, 4, 0, 0, 0, 0]),
            ([8, 8, 8], [8, 8], 0, [0; 6]),
            ([0, 0, 0], [6, 4], 10, [4, 0, 0, 0, 2, 4]),
            // It was behind before this contribution began.
            ([0, 0, 1], [6, 40], 10, [3, 0, 0, 1, 0, 6]),
        ] {
            let micros = |micros: u64| Duration::from_micros(micros);
            let [device, queue, credit] = said.map(|said| Wait::of(micros(said)));
            let waited = Waited { device, queue, credit };
            let by_cause = split(micros(late), micros(taken), Coming { waited, behind: micros(behind), ..coming() });
            assert_eq!(by_cause, expected.map(micros), "{said:?} {taken} {late}");
        }
    }

    #[test]
    fn what_a_header_claims_is_bounded_by_the_delay() {
        let waited = Waited { device: Wait::MAX, queue: Wait::MAX, credit: Wait::MAX };
        let by_cause = split(Duration::from_micros(7), Duration::ZERO, Coming { waited, ..coming() });
        assert_eq!(by_cause.iter().sum::<Duration>(), Duration::from_micros(7));
    }

    fn coming() -> Coming {
        Coming { since: Time::ZERO, waited: Waited::default(), behind: Duration::ZERO }
    }
}
