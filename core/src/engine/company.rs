//! The collective of this machine's ranks, which is another one after each change of them.

use std::sync::{Arc, PoisonError, RwLock};

use crate::collective::Collective;

/// The collective that the engine uses now, if its worker reduces with others of its machine.
#[derive(Default)]
pub(super) struct Company(RwLock<Option<Present>>);

#[derive(Clone)]
struct Present {
    /// The team that met, as [`Worker::team`](crate::worker::Worker::team) counts them.
    team: u32,
    collective: Arc<dyn Collective>,
}

impl Company {
    /// The collective, whichever team met in it.
    pub(super) fn any(&self) -> Option<Arc<dyn Collective>> {
        self.present().map(|present| present.collective)
    }

    /// The collective of this team.
    pub(super) fn of(&self, team: u32) -> Option<Arc<dyn Collective>> {
        self.present().filter(|present| present.team == team).map(|present| present.collective)
    }

    /// From now on it is the collective of this team.
    pub(super) fn set(&self, team: u32, collective: Arc<dyn Collective>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Present { team, collective });
    }

    /// From now on there is none.
    pub(super) fn clear(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Leaves the ranks of the collective, if there is one. Idempotent.
    pub(super) fn shutdown(&self) {
        if let Some(collective) = self.any() {
            collective.shutdown();
        }
    }

    fn present(&self) -> Option<Present> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
