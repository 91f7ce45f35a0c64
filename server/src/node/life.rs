//! The states of a server, from joining to its end.

use gradlane_core::{Error, Result};

/// The state of a server.
///
/// ```text
///                joined               drain                 nothing is open, or patience passed
///   Joining ──────────────► Running ──────────► Draining ──────────────────────────────────────► Stopped
///      └─────────────────── drain ─────────────────┘
///   Joining, Running, Draining ─── stop, or the job ended ───► Stopped
///   Joining, Running, Draining ─── the job failed ───────────► Failed
///   Stopped, Failed ─── whatever comes ───► (the same)
/// ```
#[derive(Clone, PartialEq, Debug)]
pub enum ServerState {
    /// It listens, and has no place in the job yet.
    Joining,
    /// It is a member of the job and takes part in every round.
    Running,
    /// It completes the rounds that are open, and refuses new ones.
    Draining,
    /// It ended in order: its job did, or it was asked to.
    Stopped,
    /// Its job failed.
    Failed(Error),
}

/// What moves a server on in its life.
#[derive(Clone, Debug)]
pub(super) enum Turn {
    Joined,
    Drain,
    End,
    Fail(Error),
}

impl ServerState {
    /// Whether its life is over.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Stopped | Self::Failed(_))
    }

    /// The state after `turn`; `None` if that changes nothing.
    pub(super) fn after(&self, turn: Turn) -> Option<Self> {
        match (self, turn) {
            (Self::Joining, Turn::Joined) => Some(Self::Running),
            (Self::Joining | Self::Running, Turn::Drain) => Some(Self::Draining),
            (Self::Joining | Self::Running | Self::Draining, Turn::End) => Some(Self::Stopped),
            (Self::Joining | Self::Running | Self::Draining, Turn::Fail(error)) => Some(Self::Failed(error)),
            (Self::Running | Self::Draining, Turn::Joined)
            | (Self::Draining, Turn::Drain)
            | (Self::Stopped | Self::Failed(_), Turn::Joined | Turn::Drain | Turn::End | Turn::Fail(_)) => None,
        }
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<Result<()>> {
        match self {
            Self::Joining | Self::Running | Self::Draining => None,
            Self::Stopped => Some(Ok(())),
            Self::Failed(error) => Some(Err(error.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ServerState::{Draining, Failed, Joining, Running, Stopped};
    use super::*;

    #[test]
    fn every_turn_leads_from_every_state_to_the_one_of_the_table() {
        let (first, second) = (Error::Cancelled, Error::Internal { what: "late".to_owned() });
        let failed = || Failed(first.clone());
        for (state, joined, drained, ended, broken) in [
            (Joining, Running, Draining, Stopped, failed()),
            (Running, Running, Draining, Stopped, failed()),
            (Draining, Draining, Draining, Stopped, failed()),
            (Stopped, Stopped, Stopped, Stopped, Stopped),
        ] {
            let turns = [Turn::Joined, Turn::Drain, Turn::End, Turn::Fail(first.clone())];
            for (turn, expected) in turns.into_iter().zip([joined, drained, ended, broken]) {
                assert_eq!(after(&state, turn.clone()), expected, "{state:?}, {turn:?}");
            }
        }
        for turn in [Turn::Joined, Turn::Drain, Turn::End, Turn::Fail(second)] {
            assert_eq!(after(&failed(), turn.clone()), failed(), "the first cause stays: {turn:?}");
        }
    }

    fn after(state: &ServerState, turn: Turn) -> ServerState {
        state.after(turn).unwrap_or_else(|| state.clone())
    }
}
