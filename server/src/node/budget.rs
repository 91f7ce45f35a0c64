//! The one budget of memory of a node: everything that a peer can make grow is booked here before it grows.

use std::time::Duration;

use gradlane_core::config::units::print_bytes;
use gradlane_core::error::{Error, Result};
use gradlane_core::types::Time;

use super::command::Shortage;

/// Booked bytes and their limit.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: u64,
    booked: u64,
    /// Until when requests may be refused in vain, because nobody can say that a missing worker is lost.
    patient_until: Time,
    /// How long requests may be refused in vain before the memory counts as too small for the job.
    patience: Duration,
    /// Since when requests are refused and nothing was given back.
    starved: Option<Time>,
    /// How often at most a shortage is reported.
    interval: Duration,
    /// When a shortage was noted last.
    noted: Option<Time>,
    /// A shortage that nobody has reported.
    unreported: Option<Shortage>,
}

impl Budget {
    pub(super) fn new(bytes_max: u64, patience: Duration, interval: Duration) -> Self {
        Self {
            bytes_max,
            booked: 0,
            patient_until: Time::ZERO,
            patience,
            starved: None,
            interval,
            noted: None,
            unreported: None,
        }
    }

    /// Until then no worker may come whose contribution would give memory back.
    pub(super) fn be_patient(&mut self, until: Time) {
        self.patient_until = until;
    }

    /// Whether [`take`](Self::take) would book `bytes`.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.booked.checked_add(bytes).is_some_and(|booked| booked <= self.bytes_max)
    }

    /// Books `bytes`.
    ///
    /// # Errors
    /// [`Error::Exhausted`], which passes when rounds end. [`Error::FailedPrecondition`] if `bytes` are more than there will ever be, or if
    /// nothing was given back for the whole patience: then the memory is too small for the job, and to ask again would be to wait for ever.
    pub(super) fn take(&mut self, now: Time, bytes: u64) -> Result<()> {
        if self.fits(bytes) {
            self.booked += bytes;
            return Ok(());
        }
        if self.noted.is_none_or(|noted| noted + self.interval <= now) {
            self.noted = Some(now);
            self.unreported = Some(Shortage { wanted: bytes, booked: self.booked, bytes_max: self.bytes_max });
        }
        let limit = print_bytes(self.bytes_max);
        if bytes > self.bytes_max {
            return Err(Error::FailedPrecondition {
                what: format!(
                    "one part needs {}, more than the memory of the server for tensors, {limit}",
                    print_bytes(bytes)
                ),
                hint: format!("{HINT}, or lower partition_bytes"),
            });
        }
        if *self.starved.get_or_insert(now) + self.patience <= now && self.patient_until <= now {
            return Err(Error::FailedPrecondition {
                what: format!(
                    "the memory of the server for tensors, {limit}, is too small for this job: nothing of it became free"
                ),
                hint: HINT.to_owned(),
            });
        }
        Err(Error::Exhausted { what: "memory of the server for tensors".to_owned(), limit, hint: HINT.to_owned() })
    }

    /// Books `bytes` for what can as well be done later, or not at all.
    ///
    /// # Errors
    /// [`Error::Exhausted`].
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<()> {
        if self.fits(bytes) {
            self.booked += bytes;
            return Ok(());
        }
        Err(Error::Exhausted {
            what: format!("{} more memory of a server, for a checkpoint beside its values", print_bytes(bytes)),
            limit: print_bytes(self.bytes_max),
            hint: "raise server_bytes_max on the servers, or add servers".to_owned(),
        })
    }

    /// A shortage to report, at most one an interval.
    pub(super) fn shortage(&mut self) -> Option<Shortage> {
        self.unreported.take()
    }

    /// Gives booked bytes back.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.booked -= bytes;
        if bytes > 0 {
            self.starved = None;
        }
    }

    /// What was booked as `before` takes `after` now. More was booked for that in advance, if it is more.
    pub(super) fn rebook(&mut self, before: u64, after: u64) {
        self.booked += after;
        self.give_back(before);
    }

    pub(super) fn booked(&self) -> u64 {
        self.booked
    }
}

/// Refuses a part beyond the most that one service of a server knows, of which it knows `parts`.
pub(super) fn check_parts(parts: usize) -> Result<()> {
    if parts < PARTS_MAX {
        return Ok(());
    }
    Err(Error::Exhausted {
        what: "parts of one server".to_owned(),
        limit: PARTS_MAX.to_string(),
        hint: "use larger parts or more servers".to_owned(),
    })
}

/// The most parts of one service: 64 GiB at 64 KiB, the smallest part of a large tensor.
const PARTS_MAX: usize = 1 << 20;

/// What to do about too little memory.
const HINT: &str = "raise server_bytes_max on the servers, add servers, or lower the workers' credit_bytes";
