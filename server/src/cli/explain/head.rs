//! What the dumps of all members have.

use std::collections::BTreeSet;
use std::time::Duration;

use gradlane_core::types::Epoch;
use serde_json::Value;

use super::fields::{Fields, number, optional, ranks, small, text_of};
use super::run::Life;

/// What every dump has.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) job: String,
    /// The rank of a worker, or the index of a server; `None` if it had none.
    pub(super) index: Option<u32>,
    pub(super) host: String,
    pub(super) pid: u64,
    pub(super) version: String,
    /// The latest epoch of which this member knew; `None` if it was no member yet.
    pub(super) epoch: Option<Epoch>,
    /// The ranks of the workers in that epoch.
    pub(super) workers: BTreeSet<u32>,
    /// The indexes of the servers in that epoch.
    pub(super) servers: BTreeSet<u32>,
    pub(super) reason: String,
    /// When it was made, by its own clock.
    now_ns: u64,
    /// The same moment by the wall clock of its host, in nanoseconds since 1970.
    unix_ns: Option<u64>,
    /// The same moment by the clock of the job, and by how much that may be wrong.
    job_clock: Option<(u64, u64)>,
    /// Why the work of this member ended, if it has.
    pub(super) end: Option<Failure>,
}

/// An error, and when it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) at_ns: u64,
    pub(super) error: String,
    /// The number of the operation.
    pub(super) id: Option<u64>,
}

/// A part in a round, as all members know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct PartOfRound {
    /// The key of the tensor that the part is called by.
    pub(super) key: u64,
    pub(super) part: u64,
    pub(super) round: u64,
}

impl Head {
    /// That of the fields of a dump.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn of(value: &Fields) -> Result<Self, String> {
        let members = |name: &str| ranks(value, name).into_iter().flatten().collect();
        Ok(Self {
            job: text_of(value, "job")?,
            index: small(value, "index"),
            host: text_of(value, "host")?,
            pid: number(value, "pid")?,
            version: text_of(value, "version").unwrap_or_default(),
            epoch: value.get("epoch").and_then(Value::as_str).and_then(Epoch::of_text),
            workers: members("workers"),
            servers: members("servers"),
            reason: text_of(value, "reason")?,
            now_ns: number(value, "now_ns")?,
            unix_ns: optional(value, "unix_ns"),
            job_clock: optional(value, "job_unix_ns").zip(optional(value, "job_error_ns")),
            end: value.get("end").and_then(Value::as_object).map(Failure::of).transpose()?,
        })
    }

    /// Says what this member `lacks` of something that another one did at `at_ns`. If this dump was written before that, it says `older` instead.
    pub(super) fn says(&self, lacks: String, older: String, (other, at_ns): (&Self, u64)) -> String {
        match self.is_after(other, at_ns) {
            Some(true) => lacks,
            Some(false) => older,
            None => format!("{lacks}, unless its dump is older"),
        }
    }

    /// Whether this dump was written after the time `at_ns` of another member. Within the error of clocks it was not. `None` if their clocks cannot be
    /// compared: a wall clock counts on its own host only.
    fn is_after(&self, other: &Self, at_ns: u64) -> Option<bool> {
        let age = other.now_ns.saturating_sub(at_ns);
        if let Some(((ours, error), (theirs, their_error))) = self.job_clock.zip(other.job_clock) {
            let errors = error.saturating_add(their_error).saturating_add(age / DRIFT);
            return Some(ours > theirs.saturating_sub(age).saturating_add(errors));
        }
        let (ours, theirs) = self.unix_ns.zip(other.unix_ns).filter(|_| self.host == other.host)?;
        Some(ours > theirs.saturating_sub(age))
    }

    /// When its process was there, by the clock of the job, or else by the wall clock.
    pub(super) fn life(&self) -> Life {
        let written_ns = self.job_clock.map(|(job_ns, _)| job_ns).or(self.unix_ns);
        let span = written_ns.map(|written_ns| (written_ns.saturating_sub(self.now_ns), written_ns));
        Life { epoch: self.epoch, span }
    }

    /// The time from `at_ns` to the dump.
    pub(super) fn ago(&self, at_ns: u64) -> Duration {
        Duration::from_nanos(self.now_ns.saturating_sub(at_ns))
    }
}

/// A clock may have drifted by this part of the time since. `cluster::offsets` allows a rate of 1200 ppm.
const DRIFT: u64 = 1_000_000 / 1_200;

impl Failure {
    /// That of these fields.
    pub(super) fn of(value: &Fields) -> Result<Self, String> {
        Ok(Self { at_ns: number(value, "at_ns")?, error: text_of(value, "error")?, id: optional(value, "id") })
    }
}
