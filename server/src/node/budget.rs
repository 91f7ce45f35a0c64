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
    /// How long requests may be refused in vain before the memory counts as too small for the job.
    patience: Duration,
    /// Since when requests are refused and nothing was given back.
    starved: Option<Time>,
    /// When a shortage was reported last.
    reported: Option<Time>,
}

impl Budget {
    pub(super) fn new(bytes_max: u64, patience: Duration) -> Self {
        Self { bytes_max, booked: 0, patience, starved: None, reported: None }
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
        let limit = print_bytes(self.bytes_max);
        if bytes > self.bytes_max {
            return Err(Error::FailedPrecondition {
                what: format!(
                    "one sum needs {}, more than the memory of the server for sums, {limit}",
                    print_bytes(bytes)
                ),
                hint: format!("{HINT}, or lower partition_bytes"),
            });
        }
        if *self.starved.get_or_insert(now) + self.patience <= now {
            return Err(Error::FailedPrecondition {
                what: format!(
                    "the memory of the server for sums, {limit}, is too small for this job: nothing of it became free"
                ),
                hint: HINT.to_owned(),
            });
        }
        Err(Error::Exhausted { what: "memory of the server for sums".to_owned(), limit, hint: HINT.to_owned() })
    }

    /// What to report of a request for `wanted` bytes that was refused now; `None` if a shortage was reported less than `interval` ago.
    pub(super) fn shortage(&mut self, now: Time, wanted: u64, interval: Duration) -> Option<Shortage> {
        if self.reported.is_some_and(|reported| now < reported + interval) {
            return None;
        }
        self.reported = Some(now);
        Some(Shortage { wanted, booked: self.booked, bytes_max: self.bytes_max })
    }

    /// Gives booked bytes back.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.booked -= bytes;
        if bytes > 0 {
            self.starved = None;
        }
    }

    pub(super) fn booked(&self) -> u64 {
        self.booked
    }
}

/// What to do about too little memory.
const HINT: &str = "raise server_bytes_max on the servers, add servers, or lower the workers' credit_bytes";
