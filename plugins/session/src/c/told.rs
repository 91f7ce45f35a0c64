//! What the program of a session was told of its steps.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::session::Session;
use gradlane_abi::GradlaneStep;

/// The steps of a session, as its program knows them.
#[derive(Default)]
pub(super) struct Steps(Mutex<Told>);

/// What the program was told, and what it has said.
#[derive(Default)]
pub(super) struct Told {
    /// The ranks of the workers that train; empty before the first step.
    pub(super) ranks: Vec<u32>,
    /// This worker is to leave.
    pub(super) leaves: bool,
}

impl Steps {
    /// A thread that panics with this lock leaves consistent facts.
    pub(super) fn known(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be said of a step of this session.
    pub(super) fn step(&self, session: &Session, has_changed: bool) -> GradlaneStep {
        let Told { ranks, .. } = &*self.known();
        let rank = session.rank();
        let count = |of: usize| u32::try_from(of).expect("there are at most so many workers");
        GradlaneStep {
            has_changed: u32::from(has_changed),
            size: count(ranks.len()),
            rank,
            index: count(ranks.iter().filter(|other| **other < rank).count()),
            lowest_rank: ranks.first().copied().unwrap_or(rank),
            ..GradlaneStep::empty()
        }
    }
}
