//! The engine's side of its handles, and what the engine does when an operation ends.

use std::ops::Range;
use std::sync::{Arc, Weak};

use super::followed::Followed;
use super::handle::{Ended, HandleBackend};
use super::recorder::Flight;
use super::shared::Shared;
use super::submit_budget::Reservation;
use crate::error::Error;
use crate::types::Time;
use crate::worker::Liveness;

/// The backend of the handles of all single submissions of an engine, or of one batch.
pub(super) struct Submissions {
    shared: Weak<Shared>,
    flight: Arc<Flight>,
    /// Those of a batch; `None` if the id of a handle is that of its submission.
    batch: Option<Range<u64>>,
}

impl Submissions {
    /// The backend of the handles of single submissions.
    pub(super) fn single(shared: &Arc<Shared>) -> Arc<dyn HandleBackend> {
        Arc::new(Self { shared: Arc::downgrade(shared), flight: Arc::clone(&shared.flight), batch: None })
    }

    /// The backend of the handle of a batch.
    pub(super) fn of_batch(shared: &Arc<Shared>, ids: Range<u64>) -> Arc<dyn HandleBackend> {
        let flight = Arc::clone(&shared.flight);
        Arc::new(Self { shared: Arc::downgrade(shared), flight, batch: Some(ids) })
    }

    fn ids(&self, id: u64) -> Range<u64> {
        self.batch.clone().unwrap_or(id..id + 1)
    }
}

impl HandleBackend for Submissions {
    /// Cancels all of them, under one lock.
    fn cancel(&self, id: u64) {
        if let Some(shared) = self.shared.upgrade() {
            shared.report(|state, now| self.ids(id).for_each(|id| state.worker.cancel(now, id)));
        }
    }

    fn free_memory(&self, id: u64) {
        if let Some(shared) = self.shared.upgrade() {
            shared.report(|state, _| self.ids(id).for_each(|id| state.loans.free(id)));
        }
    }

    fn liveness(&self, id: u64) -> Liveness {
        let Some(shared) = self.shared.upgrade() else { return Liveness::Stuck };
        shared.liveness(self.ids(id))
    }

    fn waits(&self, now: Time, id: u64) {
        self.flight.recorder.waits(now, id);
    }

    fn waited(&self, now: Time, id: u64, since: Time) {
        self.flight.recorder.waited(now, id, since);
    }

    fn given_up(&self, _id: u64, error: &Error) {
        self.flight.failed(error);
    }
}

/// The function that a handle calls when it resolves: makes room for other submissions, keeps an error of which the caller was not told in
/// time, then calls `then`. `names` are the tensors, for that error.
pub(super) fn ending(
    room: Reservation,
    followed: &Arc<Followed>,
    names: Arc<str>,
    then: impl FnOnce(u64) + Send + 'static,
) -> impl FnOnce(Ended<'_>) + Send + 'static {
    let followed = Arc::clone(followed);
    move |Ended { id, outcome, is_followed }| {
        drop(room);
        then(id);
        // Last, because whoever waits for it expects that the memory is free.
        if is_followed {
            followed.end(id, outcome, &names);
        }
    }
}
