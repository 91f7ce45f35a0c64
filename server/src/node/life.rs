//! Where a server stands in its life, and who waits for its end. What is done at each turn is decided in [`crate::node::server`].

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use gradlane_core::{Error, Result};

/// Where a server stands in its life.
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
pub(crate) enum Turn {
    Joined,
    Drain,
    End,
    Fail(Error),
}

impl ServerState {
    /// Whether its life is over.
    pub fn has_ended(&self) -> bool {
        self.outcome().is_some()
    }

    /// The state after `turn`; `None` if that changes nothing.
    fn after(&self, turn: Turn) -> Option<Self> {
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

    fn outcome(&self) -> Option<Result<()>> {
        match self {
            Self::Joining | Self::Running | Self::Draining => None,
            Self::Stopped => Some(Ok(())),
            Self::Failed(error) => Some(Err(error.clone())),
        }
    }
}

/// The state of one server, for those who change it and those who wait for its end.
pub(crate) struct Life {
    state: Mutex<ServerState>,
    changed: Condvar,
}

impl Life {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(ServerState::Joining), changed: Condvar::new() }
    }

    pub(crate) fn state(&self) -> ServerState {
        self.state.lock().expect(LOCK).clone()
    }

    /// Takes a turn, and returns where that led.
    pub(crate) fn turn(&self, turn: Turn) -> ServerState {
        let mut state = self.state.lock().expect(LOCK);
        if let Some(next) = state.after(turn) {
            *state = next;
            self.changed.notify_all();
        }
        state.clone()
    }

    /// Waits for the end, at most `patience`; `None` as the outcome if it did not come.
    pub(crate) fn wait(&self, patience: Option<Duration>) -> Option<Result<()>> {
        let state = self.state.lock().expect(LOCK);
        let lives = |state: &mut ServerState| !state.has_ended();
        let state = match patience {
            None => self.changed.wait_while(state, lives).expect(LOCK),
            Some(patience) => self.changed.wait_timeout_while(state, patience, lives).expect(LOCK).0,
        };
        state.outcome()
    }
}

const LOCK: &str = "nobody panics while holding it";

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

    #[test]
    fn only_an_end_ends_the_wait() {
        let life = Life::new();
        for turn in [Turn::Joined, Turn::Drain] {
            life.turn(turn);
            assert_eq!(life.wait(Some(Duration::ZERO)), None);
        }
        life.turn(Turn::Fail(Error::Cancelled));
        assert_eq!(life.wait(None), Some(Err(Error::Cancelled)));
    }

    fn after(state: &ServerState, turn: Turn) -> ServerState {
        state.after(turn).unwrap_or_else(|| state.clone())
    }
}
