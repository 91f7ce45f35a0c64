//! A transport with somebody at the tap: what is pushed can be held up, damaged or made to fail, by its number.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::local::Progress;
use gradlane_core::mem::Region;
use gradlane_core::transport::{LinkLost, Peer, Pulled, Push, Torn, Transport};
use gradlane_core::types::{Done, ExchangeId, LinkId};
use gradlane_core::wire::{Contribution, Request};

/// What happens to the link of a push, before the push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing.
    Stay,
    /// It is lost, with all exchanges under way on it.
    Cut,
    /// Nothing, but the body does not have the checksum that its header tells.
    Damage,
}

/// Carries everything over another transport, and asks `before` about each push, on the thread that pushes, with its number from 1.
///
/// Links are cut by closing them here. Exchanges then end as cancelled, which means the caller's own wish; it is translated to a loss,
/// so that a test that cuts links must not cancel anything itself.
pub struct Tap<T, F> {
    inner: T,
    pushes: AtomicU64,
    before: F,
}

impl<T: Transport, F: Fn(u64) -> Fate + Send + Sync> Tap<T, F> {
    /// Over `inner`.
    pub fn new(inner: T, before: F) -> Self {
        Self { inner, pushes: AtomicU64::new(0), before }
    }
}

impl<T, F> Progress for Tap<T, F> {}

impl<T: Transport, F: Fn(u64) -> Fate + Send + Sync> Transport for Tap<T, F> {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        self.inner.connect(peer, patience, lost, done);
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, mut push: Push, done: Done<()>) {
        let number = self.pushes.fetch_add(1, Ordering::Relaxed) + 1;
        match (self.before)(number) {
            Fate::Stay => {}
            Fate::Cut => self.inner.disconnect(link),
            Fate::Damage => {
                if let Request::Contribute(header) = &mut push.header
                    && let Contribution::First { checksum, .. } = &mut header.contribution
                {
                    *checksum = Some(checksum.unwrap_or(0) ^ 1);
                }
            }
        }
        let done = Done::new(move |outcome: Result<(), Error>| done.report(outcome.map_err(lost)));
        self.inner.push(link, exchange, push, done);
    }

    fn pull(&self, exchange: ExchangeId, into: Vec<Region>, done: Pulled) {
        let done = move |outcome: Result<_, Torn>| {
            done(outcome.map_err(|Torn { error, landed }| Torn { error: lost(error), landed }));
        };
        self.inner.pull(exchange, into, Box::new(done));
    }

    fn abandon(&self, exchange: ExchangeId) {
        self.inner.abandon(exchange);
    }

    fn disconnect(&self, link: LinkId) {
        self.inner.disconnect(link);
    }

    fn shutdown(&self, patience: Duration) {
        self.inner.shutdown(patience);
    }
}

fn lost(error: Error) -> Error {
    match error {
        Error::Cancelled => Error::Unavailable { what: "the server".to_owned(), cause: "its link was cut".to_owned() },
        other => other,
    }
}
