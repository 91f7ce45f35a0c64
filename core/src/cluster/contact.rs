//! Until when nothing fails because of a missing member: only the coordinator can say that a member is lost.

use std::time::Duration;

use crate::config::{ANSWER_MARGIN, Config};
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

/// How long a request to the coordinator may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// The caller has named this time. It is a promise, which passes whatever happens.
    Named(Duration),
    /// The job's own time. It does not pass while the coordinator is out of contact; see [`Contact::patient_until`].
    Usual(Duration),
}

impl Patience {
    /// The time that the caller has named, or else the usual one.
    pub fn of(named: Option<Duration>, usual: Duration) -> Self {
        named.map_or(Self::Usual(usual), Self::Named)
    }

    /// How long it is while the coordinator is in contact.
    pub fn length(self) -> Duration {
        let (Self::Named(length) | Self::Usual(length)) = self;
        length
    }
}

/// When a request ends that has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Due {
    at: Time,
    is_named: bool,
}

impl Due {
    /// Of a request that is made at `now`.
    pub(super) fn new(now: Time, patience: Patience) -> Self {
        Self { at: now + patience.length(), is_named: matches!(patience, Patience::Named(_)) }
    }

    /// When it is, in a process that is patient until then.
    pub(super) fn at(self, patient_until: Time) -> Time {
        if self.is_named { self.at } else { self.at.max(patient_until) }
    }

    /// When the process gives the answer up, which may be on its way. If the time was not named, the coordinator may also have been lost just
    /// before, which only its silence shows.
    pub(super) fn given_up_at(self, patient_until: Time, silence_max: Duration) -> Time {
        let silence = if self.is_named { Duration::ZERO } else { silence_max };
        self.at(patient_until) + ANSWER_MARGIN.max(silence)
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
    fn a_time_that_a_caller_has_named_passes_without_a_coordinator_and_the_usual_one_does_not() {
        let due = |patience| Due::new(at(1), patience);
        assert_eq!(due(Patience::of(Some(SECOND * 5), SECOND * 9)).at(at(70)), at(6));
        assert_eq!(due(Patience::of(None, SECOND * 9)).at(at(70)), at(70));
        assert_eq!(due(Patience::of(None, SECOND * 9)).at(at(0)), at(10));
        assert_eq!(due(Patience::Named(SECOND)).given_up_at(at(70), SECOND * 9), at(2) + ANSWER_MARGIN);
        assert_eq!(due(Patience::Usual(SECOND)).given_up_at(at(70), SECOND * 9), at(70 + 9));
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
