//! The time in which a certificate is good, and when its holder asks for the next one.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use super::certificate::unreadable;
use crate::error::Result;
use crate::types::Time;

/// The time in which a certificate is good, by the calendar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// Its first moment. It lies [`BACKDATED`] before the certificate was made.
    pub from: SystemTime,
    /// Its last moment.
    pub to: SystemTime,
}

impl Validity {
    /// The validity of a new certificate. It ends with a whole second, because certificates have no fractions of a second.
    pub(super) fn begin(now: SystemTime, lifetime: Duration) -> Self {
        let end = since_1970(now + lifetime);
        let whole = Duration::from_secs(end.as_secs() + u64::from(end.subsec_nanos() > 0));
        Self { from: now - BACKDATED, to: UNIX_EPOCH + whole }
    }

    /// # Errors
    /// [`Error::Auth`](crate::Error::Auth) if the certificate cannot be read.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| unreadable())?;
        let time = |time: ASN1Time| UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0));
        Ok(Self { from: time(parsed.validity().not_before), to: time(parsed.validity().not_after) })
    }

    /// How long the certificate was good when it was made.
    pub fn lifetime(&self) -> Duration {
        let whole = self.to.duration_since(self.from).unwrap_or_default();
        // A certificate of another authority may be shorter than `BACKDATED`.
        whole.checked_sub(BACKDATED).filter(|rest| !rest.is_zero()).unwrap_or(whole)
    }

    /// How long from `now` until it should be renewed: at two thirds of its lifetime. Zero if that is past.
    pub fn renewal_in(&self, now: SystemTime) -> Duration {
        (self.to - self.lifetime() / 3).duration_since(now).unwrap_or_default()
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "good from {} to {}", calendar(self.from), calendar(self.to))
    }
}

/// The attempts to renew a certificate. They begin after [`Validity::renewal_in`]. They are repeated with growing pauses until the next
/// certificate is there.
#[derive(Clone, Debug, Default)]
pub struct Renewal {
    /// Attempts since the last success.
    attempts: u32,
    /// The next one is not before this.
    rests_until: Option<Time>,
}

impl Renewal {
    /// When to make the next attempt for a certificate that is due in `due_in`.
    pub fn next(&self, now: Time, due_in: Duration) -> Time {
        let due = now + due_in;
        self.rests_until.map_or(due, |until| until.max(due))
    }

    /// An attempt was made for a certificate of this lifetime. It counts as failed until [`succeeded`](Self::succeeded) is called. Returns
    /// whether the caller should log a warning about the failures so far. Of many failures in a row only a few are logged.
    pub fn attempted(&mut self, now: Time, lifetime: Duration) -> bool {
        let pause = PAUSE_MIN.saturating_mul(1 << self.attempts.min(20)).min(PAUSE_MAX);
        // A third of the lifetime is left for attempts.
        self.rests_until = Some(now + pause.min((lifetime / 24).max(PAUSE_LEAST)));
        let failed = self.attempts;
        self.attempts = self.attempts.saturating_add(1);
        failed >= FAILURES_TOLD && failed.is_power_of_two()
    }

    /// The next certificate is there.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }
}

/// The wall clock, for certificates only.
pub(crate) fn wall_clock() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "certificates are dated by the calendar")]
    SystemTime::now()
}

/// A time in words, for messages.
pub(crate) fn calendar(time: SystemTime) -> String {
    let seconds = since_1970(time).as_secs();
    let read = i64::try_from(seconds).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
    read.and_then(|time| time.to_rfc2822().ok()).unwrap_or_else(|| format!("{seconds} s after 1970"))
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A certificate is good from this long before it was made, for hosts whose clock is behind.
pub(super) const BACKDATED: Duration = Duration::from_secs(3600);
/// The pause after the first attempt that failed; it doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// The shortest pause, so that a short lifetime does not make a process ask without end.
const PAUSE_LEAST: Duration = Duration::from_millis(20);
/// Failures before the first warning. A coordinator that is busy or is started again causes fewer.
const FAILURES_TOLD: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const HOUR: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_certificate_is_due_at_two_thirds_of_its_lifetime() {
        let made = UNIX_EPOCH + 1000 * DAY;
        for (lifetime, passed, due_in) in [
            (DAY, Duration::ZERO, 16 * HOUR),
            (DAY, 15 * HOUR, HOUR),
            (DAY, 16 * HOUR, Duration::ZERO),
            (DAY, 30 * HOUR, Duration::ZERO),
            (30 * DAY, DAY, 19 * DAY),
            (3 * SECOND, Duration::ZERO, 2 * SECOND),
            (3 * SECOND, SECOND, SECOND),
            // The clock was set back.
            (DAY, Duration::ZERO, 16 * HOUR),
        ] {
            let validity = Validity::begin(made, lifetime);
            assert_eq!(validity.lifetime(), lifetime);
            assert_eq!(validity.renewal_in(made + passed), due_in, "{lifetime:?} after {passed:?}");
        }
        let validity = Validity::begin(made, DAY);
        assert_eq!(validity.renewal_in(made - HOUR), 17 * HOUR, "by a clock that was set back");
        let foreign = Validity { from: made, to: made + HOUR / 2 };
        assert_eq!(foreign.renewal_in(made), HOUR / 3, "shorter than ours are dated back");
    }

    #[test]
    fn it_begins_an_hour_early_and_ends_with_a_whole_second() {
        let made = UNIX_EPOCH + 1000 * DAY + Duration::from_millis(1);
        let validity = Validity::begin(made, DAY);
        assert_eq!(validity.from, made - HOUR);
        assert_eq!(validity.to, UNIX_EPOCH + 1001 * DAY + SECOND, "not a second too early");
    }

    #[test]
    fn attempts_are_repeated_with_pauses_that_grow_and_few_are_told() {
        let mut renewal = Renewal::default();
        let mut now = Time::ZERO;
        assert_eq!(renewal.next(now, HOUR), now + HOUR);
        let (mut pauses, mut told) = (Vec::new(), Vec::new());
        for attempt in 0..40 {
            if renewal.attempted(now, DAY) {
                told.push(attempt);
            }
            let next = renewal.next(now, Duration::ZERO);
            pauses.push(next.since(now));
            now = next;
        }
        assert_eq!(pauses[..4], [SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND]);
        assert_eq!(pauses[39], PAUSE_MAX);
        assert!(pauses.iter().sum::<Duration>() < DAY / 3, "many attempts before the end");
        assert_eq!(told, [4, 8, 16, 32]);
        renewal.succeeded();
        assert_eq!(renewal.next(now, HOUR), now + HOUR);
        assert!(!renewal.attempted(now, 3 * SECOND));
        assert_eq!(renewal.next(now, Duration::ZERO), now + 3 * SECOND / 24, "a short life has short pauses");
        renewal.attempted(now, Duration::ZERO);
        assert!(renewal.next(now, Duration::ZERO) > now, "but there is always one");
    }

    #[test]
    fn times_are_shown_as_people_read_them() {
        assert_eq!(calendar(UNIX_EPOCH + DAY), "Fri, 02 Jan 1970 00:00:00 +0000");
    }
}
