//! What a worker knows of a server that does not answer: since when, and why the last attempt to reach it failed.

use std::time::Duration;

use super::command::Destination;
use crate::error::Error;
use crate::types::Time;

/// A server that does not answer.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Silence {
    /// When it answered last, or was dialled first.
    pub(super) since: Time,
    /// How the last attempt to reach it failed; absent before the first one has failed.
    cause: Option<Error>,
    /// How long a submission waits for it.
    pub(super) patience: Duration,
    /// When to look for submissions that have waited too long.
    pub(super) check_at: Time,
}

impl Silence {
    /// A silence that begins now. Nothing that waits for the server fails before `patience` has passed.
    pub(super) fn new(now: Time, patience: Duration) -> Self {
        Self { since: now, cause: None, patience, check_at: now + patience }
    }

    /// Another attempt failed now. Nothing waits for a server that cannot be reached with these settings.
    pub(super) fn failed(&mut self, now: Time, cause: Error) {
        if matches!(cause, Error::FailedPrecondition { .. }) {
            (self.patience, self.check_at) = (Duration::ZERO, now);
        }
        // What a driver reports of a dial that it gave up says nothing of the server.
        if cause != Error::Cancelled {
            self.cause = Some(cause);
        }
    }

    /// The error of what waited for this server in vain.
    pub(super) fn error(&self, now: Time, to: &Destination) -> Error {
        let (cause, hint) = match &self.cause {
            Some(Error::Unavailable { cause, .. }) => (cause.clone(), UNREACHED),
            Some(Error::Auth { problem: cause, hint } | Error::FailedPrecondition { what: cause, hint }) => {
                (cause.clone(), hint.as_str())
            }
            Some(Error::Exhausted { what, limit, hint }) => {
                (format!("there is no more {what}: {limit}"), hint.as_str())
            }
            Some(Error::CertExpired { holder, times, hint }) => {
                (format!("the certificate of {holder} is not good now: {times}"), hint.as_str())
            }
            Some(other) => (other.to_string(), UNREACHED),
            None => ("the first attempt to connect has not ended".to_owned(), UNREACHED),
        };
        Error::ServerUnreachable {
            server: format!("{} at {}", to.name, to.address),
            waited: now.since(self.since),
            cause,
            hint: hint.to_owned(),
        }
    }
}

/// The error of what waited in vain for a server that is connected.
pub(super) fn stuck(to: &Destination, waited: Duration) -> Error {
    Error::ServerUnreachable {
        server: format!("{} at {}", to.name, to.address),
        waited,
        cause: "it is connected and its process lives, but it has answered nothing".to_owned(),
        hint: "look at what its threads do (py-spy, gdb) and at its log, and start the job again".to_owned(),
    }
}

const UNREACHED: &str = "check that the server runs, that this host can reach that address (set `advertise` on the server if \
                         not), and that no firewall drops UDP to or from it";
