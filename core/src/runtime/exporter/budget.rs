//! How much of a core the exporter may take, however often somebody asks.
//!
//! There are three budgets. One is for making pages ([`super::pages`]): when it is used up, answers are old. The second one is for the rest of the
//! thread, which accepts, reads and writes ([`super::serving`]): when it is used up, answers are late. From then on, the third one is for the
//! answers to probes. With a single budget, requests would leave nothing for new pages, and a page that takes long to make would delay the probes.

use std::time::Duration;

use crate::types::Time;

/// Processor time that may be used: one of [`SHARE`] seconds, and what was saved of that, at most `saved_max`.
pub(super) struct Budget {
    saved_max: Duration,
    /// What may have been used by now, since the beginning.
    allowed: Duration,
    /// What was used, and when, as far as it was told.
    used: Duration,
    now: Time,
}

impl Default for Budget {
    fn default() -> Self {
        Self::saving(SAVED_MAX)
    }
}

impl Budget {
    /// All that may be saved is there.
    pub(super) fn saving(saved_max: Duration) -> Self {
        Self { saved_max, allowed: saved_max, used: Duration::ZERO, now: Time::ZERO }
    }

    /// How long to wait before more is used, if `used` was used until `now` since the beginning. `None` if nobody has to wait.
    ///
    /// What was used too much must be earned first, and [`SLICE`] beyond it. So a thread does not wake for less than that.
    pub(super) fn pause(&mut self, now: Time, used: Duration) -> Option<Duration> {
        let earned = now.since(self.now) / SHARE;
        self.allowed = (self.allowed + earned).min(self.used + self.saved_max);
        (self.now, self.used) = (now, used);
        let too_much = used.checked_sub(self.allowed)?;
        Some((too_much + SLICE) * SHARE)
    }
}

/// One of so many seconds. So one exporter takes a two-hundredth of a core, and those of four processes on two cores a hundredth of the machine.
/// Probes take half as much again, if there are others all the time.
pub(super) const SHARE: u32 = 400;
/// Some thousand requests or pages, so that nobody waits who does not ask all the time.
pub(super) const SAVED_MAX: Duration = Duration::from_millis(100);
/// The same for probes: some thirty.
pub(super) const PROBES_SAVED_MAX: Duration = Duration::from_millis(1);
/// Two or three requests.
pub(super) const SLICE: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_used_too_much_waits_until_it_is_earned_and_a_slice_beyond() {
        let ms = Duration::from_millis;
        let mut budget = Budget::default();
        let mut pause = |now, used| budget.pause(Time::ZERO + now, used);
        assert_eq!(pause(ms(0), ms(0)), None);
        assert_eq!(pause(ms(1), ms(99)), None, "it was saved");
        assert_eq!(pause(ms(401), ms(99)), None, "a millisecond is earned");
        assert_eq!(pause(ms(401), ms(103)), Some((ms(2) + SLICE) * SHARE));
        assert_eq!(pause(ms(801), ms(103)), Some((ms(1) + SLICE) * SHARE), "a half of it is earned");
        assert_eq!(pause(ms(1241), ms(103)), None);
        assert_eq!(pause(ms(1241), ms(104)), Some(SLICE * 10 * SHARE));
    }

    #[test]
    fn nobody_saves_more_than_there_may_be() {
        let day = Duration::from_secs(24 * 3600);
        let mut budget = Budget::default();
        assert_eq!(budget.pause(Time::ZERO + day, Duration::ZERO), None);
        let all = SAVED_MAX;
        assert_eq!(budget.pause(Time::ZERO + day, all), Some(SLICE * SHARE));
        assert_eq!(budget.pause(Time::ZERO + day * 2, all), None);
        assert_eq!(budget.pause(Time::ZERO + day * 2, all + SAVED_MAX), Some(SLICE * SHARE));
    }

    proptest! {
        #[test]
        fn no_more_than_the_share_is_used_whoever_asks(
            turns in proptest::collection::vec((0..2_000_000_u64, 0..3_000_000_u64, any::<bool>()), 1..400),
        ) {
            let mut budget = Budget::default();
            let (mut now, mut used) = (Time::ZERO, Duration::ZERO);
            for (pause, takes, is_woken) in turns {
                now = now + Duration::from_nanos(pause);
                if let Some(wait) = budget.pause(now, used) {
                    if is_woken {
                        // Before its time, as by a signal.
                        now = now + wait / 3;
                        continue;
                    }
                    now = now + wait;
                    prop_assert_eq!(budget.pause(now, used), None, "it waits no longer than it was told");
                }
                let takes = Duration::from_nanos(takes);
                used += takes;
                let earned = now.since(Time::ZERO) / SHARE;
                prop_assert!(used <= SAVED_MAX + earned + takes, "{used:?} until {now:?}, {takes:?} of it at last");
            }
        }

        #[test]
        fn who_uses_less_than_the_share_never_waits(
            turns in proptest::collection::vec((0..100_000_000_u64, 0..=100_u64), 1..400),
        ) {
            let mut budget = Budget::default();
            let (mut now, mut used) = (Time::ZERO, Duration::ZERO);
            for (pause, percent) in turns {
                now = now + Duration::from_nanos(pause);
                prop_assert_eq!(budget.pause(now, used), None);
                used += Duration::from_nanos(pause / u64::from(SHARE) * percent / 100);
            }
        }
    }
}
