//! Calls of a worker that wait for the coordinator. While it is out of contact, and for a while after it is back, their usual time does not
//! pass. A time that the caller has named does.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::driver::Engine;
use super::handle::{Ended, Handle, HandleBackend};
use super::limit::Limit;
use super::recorder::Flight;
use super::shared::Shared;
use crate::cluster::Patience;
use crate::config::Bounds;
use crate::error::Error;
use crate::types::Done;
use crate::worker::Liveness;

impl Engine {
    /// How long a request to the coordinator waits whose caller has named this time, or none. As long as a sum waits for others, because the
    /// coordinator may be about to give one of them up.
    pub(super) fn patience(&self, named: Option<Duration>) -> Patience {
        Patience::of(named, self.config.bounds().step)
    }

    /// Waits for what the coordinator must bring about, at most for `patience`, and for as long as no usual time passes then. `wait` sleeps at
    /// most for its argument.
    ///
    /// # Errors
    /// How long it has waited, if `wait` has found nothing.
    pub(super) fn wait_patiently<T>(
        &self,
        patience: Duration,
        mut wait: impl FnMut(Duration) -> Option<T>,
    ) -> Result<T, Duration> {
        let (mut left, mut waited) = (patience, Duration::ZERO);
        loop {
            if let Some(found) = wait(left) {
                return Ok(found);
            }
            (waited, left) = (waited + left, self.patience_left());
            if left.is_zero() {
                return Err(waited);
            }
        }
    }

    /// How long nothing fails because it has waited too long for others.
    pub(super) fn patience_left(&self) -> Duration {
        let now = self.shared.clock.now();
        self.shared.look(|state| state.worker.patient_until().since(now))
    }

    /// The handle with this number of such a request, and the token that resolves it. `what` it is, such as `key`, and its name.
    pub(super) fn request(&self, id: u64, patience: Patience, what: &'static str, name: &str) -> (Handle, Done<()>) {
        let (bounds, flight) = (self.config.bounds(), Arc::clone(&self.shared.flight));
        let is_usual = matches!(patience, Patience::Usual(_));
        let backend = Requests { shared: Arc::downgrade(&self.shared), flight: Arc::clone(&flight), bounds, is_usual };
        let (handle, done) = Handle::new(id, Some(Arc::new(backend)), Arc::default(), move |ended: Ended<'_>| {
            if let Err(error) = ended.outcome {
                flight.request_failed(error);
            }
        });
        (handle.limited(Limit::new(self.shared.clock, bounds.barrier(patience.length()), what, name)), done)
    }
}

/// The backend of the handles of requests.
struct Requests {
    shared: Weak<Shared>,
    flight: Arc<Flight>,
    bounds: Bounds,
    /// Whether the time of the request does not pass without a coordinator.
    is_usual: bool,
}

impl HandleBackend for Requests {
    fn cancel(&self, _id: u64) {
        // Nobody takes an arrival at a barrier back.
    }

    fn free_memory(&self, _id: u64) {
        // It has none.
    }

    fn liveness(&self, _id: u64) -> Liveness {
        let Some(shared) = self.shared.upgrade().filter(|_| self.is_usual) else { return Liveness::Stuck };
        match shared.patience_left() {
            // The membership ends the request then.
            Some(left) if !left.is_zero() => Liveness::Works { ask_in: self.bounds.barrier(left) },
            Some(_) | None => Liveness::Stuck,
        }
    }

    fn given_up(&self, _id: u64, error: &Error) {
        self.flight.failed(error);
    }
}
