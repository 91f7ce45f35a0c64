//! For whom the others wait alone, and why: by the clock of the process where all come together, which is a server, or the leader of the ranks
//! of a machine.
//!
//! When the last of them has come, the time since the one before it came is the time in which only that worker was missing. It is split over causes
//! by walking back from its arrival: the time for which the process here was behind with its additions, the transfer since the first byte came,
//! then what the worker says that the part waited for, the latest first. What is left, the worker spent before it submitted.
//!
//! A step has many tensors, and a late worker is late with all of them at the same time. So [`Blamed`] counts the time in which anything waits
//! for a worker alone: what a step is delayed by it, and never more than the time that passes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Cause, Round, Time, Waited, WorkerId};

/// A time for each [`Cause`], in their order.
pub type Late = [Duration; Cause::ALL.len()];

/// How a contribution came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coming {
    /// When its first byte came.
    pub since: Time,
    /// What its worker says that it waited for.
    pub waited: Waited,
    /// For how long its bytes lay here before they were added.
    pub behind: Duration,
}

/// For which workers everything together has waited.
#[derive(Default, Debug)]
pub struct Blamed {
    /// Until when time is counted for each worker.
    until: BTreeMap<WorkerId, Time>,
    /// The highest number of a round for which all have come.
    highest: Option<Round>,
}

impl Blamed {
    /// The last worker of a round has come, for which the round waited alone `since` then. Returns the time that no other round has counted for
    /// this worker, by cause.
    ///
    /// Rounds end in order of time. So what is new of this one lies behind the end of the last one, unless it began before a pause between
    /// others; such a pause is not counted.
    pub fn handle_last(&mut self, now: Time, worker: WorkerId, since: Time, coming: Coming) -> Late {
        let until = self.until.entry(worker).or_default();
        let counted = *until;
        *until = counted.max(now);
        split(now.since(since.max(counted)), now.since(coming.since), coming)
    }

    /// All workers of a round of this number have come. Returns whether it is the first with so high a number.
    pub fn is_step(&mut self, round: Round) -> bool {
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
    use super::*;
    use crate::types::Wait;

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
