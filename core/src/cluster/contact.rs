//! Until when nothing fails because of a missing member: only the coordinator can say that a member is lost.

use std::time::Duration;

use crate::config::Config;
use crate::types::Time;

/// The patience of a process with missing members, in a job that goes on without lost ones.
///
/// While the process has no coordinator, nobody gives lost members up, so what waits for them goes on waiting. A coordinator that is back
/// needs some time for its verdicts. A process whose connection is lost again and again is not patient for ever.
///
/// ```text
///              lost                       back                     the time for verdicts is over
/// Decided ────────────► without contact ────────► about to decide ──────────────────────────────► Decided
///                              ▲                        │ lost
///                              └────────────────────────┘ the trouble goes on
/// ```
#[derive(Clone, Debug)]
pub struct Contact {
    terms: ContactTerms,
    /// When the coordinator was lost, after it had been in contact for long enough to decide.
    trouble: Time,
    /// When it will have been in contact for so long again.
    steady_from: Time,
    until: Time,
}

/// How patient a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContactTerms {
    /// How long a coordinator that is back may take for its verdicts, and for what follows from them.
    pub verdicts: Duration,
    /// How long a process goes on without a coordinator at most.
    pub lost_max: Duration,
}

impl ContactTerms {
    /// Those of a process with these settings, whose coordinator may take this long for its verdicts. `None` if the job ends with a loss.
    pub fn of(config: &Config, verdicts: Duration) -> Option<Self> {
        let terms = Self { verdicts, lost_max: config.control_lost_timeout };
        Some(terms).filter(|_| config.on_worker_loss.goes_on())
    }
}

impl Contact {
    /// A process whose coordinator is in contact.
    pub fn new(terms: ContactTerms) -> Self {
        Self { terms, trouble: Time::ZERO, steady_from: Time::ZERO, until: Time::ZERO }
    }

    /// The coordinator is out of contact since `at`, or is back since then.
    pub fn handle(&mut self, at: Time, is_lost: bool) {
        let ContactTerms { verdicts, lost_max } = self.terms;
        if is_lost && self.steady_from <= at {
            self.trouble = at;
        }
        let longest = self.trouble + lost_max;
        self.steady_from = if is_lost { Time(u64::MAX) } else { at + verdicts };
        self.until = if is_lost { longest } else { at.min(longest) } + verdicts;
    }

    /// Until when nothing fails because of a missing member.
    pub fn patient_until(&self) -> Time {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn nothing_fails_without_a_coordinator_nor_before_its_verdicts_when_it_is_back() {
        let mut contact = contact();
        assert_eq!(contact.patient_until(), Time::ZERO);
        contact.handle(at(100), true);
        assert_eq!(contact.patient_until(), at(100 + 60 + 10), "unless it stays away");
        contact.handle(at(120), false);
        assert_eq!(contact.patient_until(), at(130));
        contact.handle(at(500), true);
        assert_eq!(contact.patient_until(), at(500 + 60 + 10), "the former trouble is over");
    }

    #[test]
    fn a_coordinator_that_comes_and_goes_is_waited_for_as_long_as_one_that_stays_away() {
        let mut contact = contact();
        for begins in (100..200).step_by(5) {
            contact.handle(at(begins), true);
            contact.handle(at(begins + 2), false);
            assert!(contact.patient_until() <= at(100 + 60 + 10));
        }
        contact.handle(at(210), true);
        assert_eq!(contact.patient_until(), at(210 + 60 + 10), "that was long ago");
    }

    fn contact() -> Contact {
        Contact::new(ContactTerms { verdicts: SECOND * 10, lost_max: SECOND * 60 })
    }

    fn at(seconds: u32) -> Time {
        Time::ZERO + SECOND * seconds
    }
}
