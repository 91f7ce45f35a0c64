//! How long a thread waits for an operation before it asks whether the engine still works at it.
//!
//! The worker machine ends every operation by its own deadlines. That needs the engine's threads. If they are stuck, or if a wake-up was
//! lost, nobody ends the operation. Then the waiting thread itself ends its wait.
//!
//! ```text
//! Trusted(ask at) ──asked, the engine works──► Trusted(later)
//!       │  ▲
//!       │  └─────────────── the engine works ──┐
//!       └──asked, the engine does not work──► Suspected(ask at) ──asked, it still does not──► the wait fails
//! ```

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::local::sync::{Mutex, PoisonError};
use crate::runtime::Clock;
use crate::types::Time;
use crate::worker::Liveness;

/// When the threads that wait for one operation stop to trust the engine. All clones of a handle share it.
pub(super) struct Limit {
    clock: Clock,
    began: Time,
    /// What it is, such as `tensor`, and its name, for the error.
    what: (&'static str, Arc<str>),
    trust: Mutex<Trust>,
}

#[derive(Clone, Copy)]
enum Trust {
    /// The engine worked at the operation. Ask again at this time.
    Trusted(Time),
    /// The engine did not work at the operation. It fails if that is still so at this time.
    Suspected(Time),
}

impl Limit {
    /// The limit of an operation that begins now, for which the engine needs at most `bound`. `what` it is, such as `tensor`, and its name.
    pub(super) fn new(clock: Clock, bound: Duration, what: &'static str, name: impl Into<Arc<str>>) -> Self {
        let began = clock.now();
        Self { clock, began, what: (what, name.into()), trust: Mutex::new(Trust::Trusted(began + bound)) }
    }

    /// How long to wait before the next call of [`ask`](Self::ask).
    pub(super) fn left(&self) -> Duration {
        let (Trust::Trusted(at) | Trust::Suspected(at)) = *self.trust.lock().unwrap_or_else(PoisonError::into_inner);
        at.since(self.clock.now())
    }

    /// Asks whether the engine works at the operation, if it is time to ask.
    ///
    /// # Errors
    /// [`Error::Unresponsive`] if it did not work twice. The second look comes [`GRACE`] after the first one, so that a process that was
    /// stopped for a while has time to catch up.
    pub(super) fn ask(&self, liveness: impl FnOnce() -> Liveness) -> Result<()> {
        if !self.left().is_zero() {
            return Ok(());
        }
        let (found, now) = (liveness(), self.clock.now());
        let mut trust = self.trust.lock().unwrap_or_else(PoisonError::into_inner);
        *trust = match (found, *trust) {
            (Liveness::Works { ask_in }, _) => Trust::Trusted(now + ask_in),
            (Liveness::Stuck, Trust::Trusted(_)) => Trust::Suspected(now + GRACE),
            (Liveness::Stuck, Trust::Suspected(at)) if now < at => Trust::Suspected(at),
            (Liveness::Stuck, Trust::Suspected(_)) => {
                let (what, name) = &self.what;
                return Err(Error::Unresponsive {
                    what: format!("{what} {name}"),
                    waited: now.since(self.began),
                    hint: "its threads are stuck, and its memory stays in use; look at what they do (py-spy dump --native, gdb), and start \
                           the job again"
                        .to_owned(),
                });
            }
        };
        Ok(())
    }
}

/// The time between the first look at an engine that does not work and the look after which a wait fails.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// How often a thread that waits asks again whether a device has come to an operation. The time of the operation begins then, so this is
/// how much later it may be given up.
pub(super) const DEVICE_LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_asked_only_when_its_time_has_passed() {
        let limit = Limit::new(Clock::start(), Duration::from_secs(3600), "tensor", "a");
        assert_eq!(limit.ask(|| panic!("too early")), Ok(()));
        assert!(limit.left() > Duration::from_secs(3000));
    }

    #[test]
    fn an_engine_that_works_is_asked_again_later() {
        let limit = Limit::new(Clock::start(), Duration::ZERO, "tensor", "a");
        assert_eq!(limit.ask(|| Liveness::Works { ask_in: Duration::from_secs(3600) }), Ok(()));
        assert!(limit.left() > Duration::from_secs(3000));
    }

    #[test]
    fn a_wait_fails_only_if_the_engine_was_found_stuck_twice() {
        let limit = Limit::new(Clock::start(), Duration::ZERO, "tensor", "a");
        assert_eq!(limit.ask(|| Liveness::Stuck), Ok(()));
        assert!(limit.left() > Duration::ZERO, "it has some time to catch up");
        let passed = Limit { trust: Mutex::new(Trust::Suspected(Time::ZERO)), ..limit };
        for _ in 0..2 {
            let error = passed.ask(|| Liveness::Stuck).unwrap_err();
            assert!(matches!(&error, Error::Unresponsive { what, .. } if what == "tensor a"), "{error}");
        }
        assert_eq!(passed.ask(|| Liveness::Works { ask_in: Duration::ZERO }), Ok(()), "it came back");
    }
}
