//! The one budget of memory of a node: everything that a peer can make grow is booked here before it grows.

use std::time::Duration;

use gradlane_core::error::{Error, Result};
use gradlane_core::types::Time;

/// Booked bytes and their limit.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: u64,
    booked: u64,
    /// How long requests may be refused in vain before the memory counts as too small for the job.
    patience: Duration,
    /// Since when requests are refused and nothing was given back.
    starved: Option<Time>,
}

impl Budget {
    pub(super) fn new(bytes_max: u64, patience: Duration) -> Self {
        Self { bytes_max, booked: 0, patience, starved: None }
    }

    /// Books `bytes`.
    ///
    /// # Errors
    /// [`Error::Exhausted`], which passes when rounds end. [`Error::FailedPrecondition`] if nothing was given back for a step timeout: then
    /// the memory is too small for the job, and to ask again would be to wait for ever.
    pub(super) fn take(&mut self, now: Time, bytes: u64) -> Result<()> {
        let limit = self.bytes_max;
        if let Some(booked) = self.booked.checked_add(bytes).filter(|booked| *booked <= limit) {
            self.booked = booked;
            return Ok(());
        }
        let what = "memory of the server".to_owned();
        let hint = "raise its limit, add servers, or lower the workers' credit".to_owned();
        if *self.starved.get_or_insert(now) + self.patience <= now {
            return Err(Error::FailedPrecondition {
                what: format!("{what}: {limit} bytes are too few for this job"),
                hint,
            });
        }
        Err(Error::Exhausted { what, limit: format!("{limit} bytes"), hint })
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
