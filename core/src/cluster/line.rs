//! The control connection of a member: when to dial, when to send a heartbeat, and whether it may be used.

use std::time::Duration;

use crate::error::Error;
use crate::types::Time;

use super::MemberConfig;

/// The control connection and the pauses between attempts to open it.
#[derive(Debug)]
pub(super) struct Line {
    state: State,
    heartbeat_interval: Duration,
    silence_max: Duration,
    /// The pause before the next attempt to connect. It doubles with each failure.
    pause: Duration,
    redial_min: Duration,
    redial_max: Duration,
    /// Why the last connection ended or did not come up.
    error: Option<Error>,
}

/// ```text
///            pause over   connected   disconnected   silent     cut
/// Resting    Dialling     -           -              -          Cut
/// Dialling   -            Up          Resting        -          Cut
/// Up         -            -           Resting        Dialling   Cut
/// Cut        -            -           -              -          -
/// ```
/// A silent connection may be one whose path is broken. The member must be back before the coordinator counts it as dead.
#[derive(Debug)]
enum State {
    Resting {
        until: Time,
    },
    Dialling,
    Up {
        heartbeat_at: Time,
        /// When the coordinator sent something, or the connection came up.
        heard_at: Time,
        /// Whether the coordinator showed a formed view on this connection, so that it knows the member. The member sends no requests
        /// before.
        welcomed: bool,
    },
    /// The membership is over.
    Cut,
}

/// The next action of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    Dial,
    Heartbeat,
}

impl Line {
    /// A connection that is dialled for the first time.
    pub(super) fn new(config: &MemberConfig) -> Self {
        Self {
            state: State::Dialling,
            heartbeat_interval: config.heartbeat_interval,
            silence_max: config.silence_max,
            pause: config.redial_min,
            redial_min: config.redial_min,
            redial_max: config.redial_max,
            error: None,
        }
    }

    /// The dialled connection is up. Returns whether it was expected.
    pub(super) fn connected(&mut self, now: Time) -> bool {
        match self.state {
            State::Dialling => {
                let heartbeat_at = now + self.heartbeat_interval;
                self.state = State::Up { heartbeat_at, heard_at: now, welcomed: false };
                true
            }
            State::Resting { .. } | State::Up { .. } | State::Cut => false,
        }
    }

    /// The connection ended, or did not come up: it is dialled again after a pause.
    pub(super) fn disconnected(&mut self, now: Time, error: Error) {
        match self.state {
            State::Dialling | State::Up { .. } => {
                self.state = State::Resting { until: now + self.pause };
                self.pause = (self.pause * 2).min(self.redial_max);
                self.error = Some(error);
            }
            State::Resting { .. } | State::Cut => {}
        }
    }

    /// The coordinator sent a frame, so the next attempt to connect follows after the shortest pause.
    pub(super) fn heard(&mut self, now: Time) {
        self.pause = self.redial_min;
        if let State::Up { heard_at, .. } = &mut self.state {
            *heard_at = now;
        }
    }

    /// The coordinator showed a formed view. Returns whether that is the first one on this connection.
    pub(super) fn welcome(&mut self) -> bool {
        match &mut self.state {
            State::Up { welcomed, .. } => !std::mem::replace(welcomed, true),
            State::Resting { .. } | State::Dialling | State::Cut => false,
        }
    }

    /// Ends the connection for good. Returns whether there is one to hang up.
    pub(super) fn cut(&mut self) -> bool {
        match std::mem::replace(&mut self.state, State::Cut) {
            State::Dialling | State::Up { .. } => true,
            State::Resting { .. } | State::Cut => false,
        }
    }

    /// Takes the action that is due at `now`, if any.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Due> {
        match &mut self.state {
            State::Resting { until } if *until <= now => {
                self.state = State::Dialling;
                Some(Due::Dial)
            }
            State::Up { heard_at, .. } if *heard_at + self.silence_max <= now => {
                let cause = format!("silent for {:.1} s", now.since(*heard_at).as_secs_f64());
                self.error = Some(Error::Unavailable { what: "the coordinator".to_owned(), cause });
                self.state = State::Dialling;
                Some(Due::Dial)
            }
            State::Up { heartbeat_at, .. } if *heartbeat_at <= now => {
                *heartbeat_at = now + self.heartbeat_interval;
                Some(Due::Heartbeat)
            }
            State::Resting { .. } | State::Dialling | State::Up { .. } | State::Cut => None,
        }
    }

    /// When [`Line::take_due`] has something.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self.state {
            State::Resting { until } => Some(until),
            State::Up { heartbeat_at, heard_at, .. } => Some(heartbeat_at.min(heard_at + self.silence_max)),
            State::Dialling | State::Cut => None,
        }
    }

    /// Whether a connection is up or being dialled.
    pub(super) fn is_in_use(&self) -> bool {
        matches!(self.state, State::Dialling | State::Up { .. })
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    /// Whether the coordinator knows on this connection which member asks.
    pub(super) fn is_welcomed(&self) -> bool {
        matches!(self.state, State::Up { welcomed: true, .. })
    }

    pub(super) fn is_cut(&self) -> bool {
        matches!(self.state, State::Cut)
    }

    /// Whether the last connection ended, or did not come up, because who answered is another one than before, or does not know this process.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.error, Some(Error::Auth { .. } | Error::CertExpired { .. }))
    }

    /// Why there is no connection, in words.
    pub(super) fn trouble(&self) -> String {
        self.error.as_ref().map_or_else(|| "no answer".to_owned(), Error::to_string)
    }
}
