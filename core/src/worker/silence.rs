//! What a worker knows of a server that does not answer: since when, and why the last attempt to reach it failed.

use std::time::Duration;

use crate::error::Error;
use crate::types::{Address, Peer, Time};

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
    /// A silence that began at `since`. Nothing that waits for the server fails before `patience` has passed.
    pub(super) fn new(since: Time, patience: Duration) -> Self {
        Self { since, cause: None, patience, check_at: since + patience }
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
    pub(super) fn error(&self, now: Time, to: &Peer) -> Error {
        let unreached = || {
            format!(
                "check that no firewall drops {}, that the server runs, and that this host can reach that address (set `advertise` on \
                 the server if not)",
                port(to)
            )
        };
        let (cause, hint) = match &self.cause {
            Some(Error::Unavailable { cause, .. }) => (cause.clone(), unreached()),
            Some(Error::Auth { problem: cause, hint } | Error::FailedPrecondition { what: cause, hint }) => {
                (cause.clone(), hint.clone())
            }
            Some(Error::Exhausted { what, limit, hint }) => (format!("there is no more {what}: {limit}"), hint.clone()),
            Some(Error::CertExpired { holder, times, hint }) => {
                (format!("the certificate of {holder} is not good now: {times}"), hint.clone())
            }
            Some(other) => (other.to_string(), unreached()),
            None => ("the first attempt to connect has not ended".to_owned(), unreached()),
        };
        Error::ServerUnreachable { server: to.to_string(), waited: now.since(self.since), cause, hint }
    }
}

/// The error of what waited in vain for a server that is connected.
pub(super) fn stuck(to: &Peer, waited: Duration) -> Error {
    Error::ServerUnreachable {
        server: to.to_string(),
        waited,
        cause: "it is connected, but it has answered nothing".to_owned(),
        hint: format!(
            "check that no firewall or tunnel drops {}, small packets or large ones, look at the log of the server and at what its \
             threads do (py-spy, gdb), and start the job again",
            port(to)
        ),
    }
}

/// Where a server gets packets, in words for those who look after firewalls.
fn port(to: &Peer) -> String {
    Address::shown(&to.addresses).map_or_else(|| to.to_string(), Address::traffic)
}
