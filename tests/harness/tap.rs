//! A transport with somebody at the tap: what is pushed can be held up, damaged or made to fail, by its number.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::local::{Ended, PeerProcess, Progress};
use gradlane_core::mem::Region;
use gradlane_core::metrics::LinkMeter;
use gradlane_core::transport::{Answer, Capabilities, LinkLost, Peer, Pull, Push, Torn, Transport};
use gradlane_core::types::{Done, ExchangeId, LinkId};
use gradlane_core::wire::{Contribute, Contribution, Request, Rows, Sent, Use};

/// What happens to the link of a push, before the push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing.
    Stay,
    /// It is lost, with all exchanges under way on it.
    Cut,
    /// Nothing, but the body does not have the checksum that its header tells.
    Damage,
    /// Nothing, but the header says that the part has one element, so that its body is longer than it can be.
    Overlong,
}

/// Carries everything over another transport, and asks `before` about each push, on the thread that pushes, with its number from 1.
///
/// Links are cut by closing them here. Exchanges then end as cancelled, which means the caller's own wish; it is translated to a loss,
/// so that a test that cuts links must not cancel anything itself.
pub struct Tap<F> {
    inner: Arc<dyn Transport>,
    pushes: AtomicU64,
    before: F,
    watchers: Mutex<Vec<Ended>>,
    /// The answers that nobody reads, if it reads none.
    unread: Option<Arc<Unread>>,
}

type Unread = Mutex<BTreeMap<ExchangeId, Done<Answer, Torn>>>;

impl<F: Fn(u64) -> Fate + Send + Sync> Tap<F> {
    /// Over `inner`.
    pub fn new(inner: Arc<dyn Transport>, before: F) -> Self {
        Self { inner, pushes: AtomicU64::new(0), before, watchers: Mutex::default(), unread: None }
    }

    /// Reads no answer at all.
    #[must_use]
    pub fn deaf(self) -> Self {
        Self { unread: Some(Arc::default()), ..self }
    }

    /// Says that the transport's thread ended because of `cause`.
    ///
    /// # Panics
    /// If a watcher panicked before.
    pub fn end_thread(&self, cause: &Error) {
        let watchers = self.watchers.lock().expect("no watcher panics").clone();
        watchers.iter().for_each(|ended| ended(cause.clone()));
    }
}

impl<F> Progress for Tap<F> {
    fn poll(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        self.inner.poll(enough, patience);
    }

    fn wake(&self) {
        self.inner.wake();
    }
}

impl<F: Fn(u64) -> Fate + Send + Sync> Transport for Tap<F> {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        self.inner.connect(peer, patience, lost, done);
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, mut push: Push, done: Done<()>) {
        let number = self.pushes.fetch_add(1, Ordering::Relaxed) + 1;
        match (self.before)(number) {
            Fate::Stay => {}
            Fate::Cut => self.inner.disconnect(link),
            Fate::Damage => {
                if let Request::Contribute(Contribute { contribution: Contribution::First { checksum, .. }, .. })
                | Request::Use(Use { sent: Sent::Whole { checksum }, .. })
                | Request::Rows(Rows { checksum, .. }) = &mut push.header
                {
                    *checksum = Some(checksum.unwrap_or(0) ^ 1);
                }
            }
            Fate::Overlong => {
                if let Request::Contribute(Contribute { dtype, part_bytes, .. }) = &mut push.header {
                    *part_bytes = dtype.bytes();
                }
            }
        }
        if let Some(Pull { into, done }) = push.pull.take() {
            match &self.unread {
                Some(unread) => drop(unread.lock().expect("nobody panics while holding it").insert(exchange, done)),
                None => push.pull = Some(Pull { into, done: retried(done) }),
            }
        }
        let unread = self.unread.clone();
        let done = Done::new(move |outcome: Result<(), Error>| {
            let outcome = outcome.map_err(lost);
            if let (Err(error), Some(unread)) = (&outcome, unread) {
                let pulled = unread.lock().expect("nobody panics while holding it").remove(&exchange);
                pulled.into_iter().for_each(|pulled| pulled.err(error.clone()));
            }
            done.report(outcome);
        });
        self.inner.push(link, exchange, push, done);
    }

    fn pull(&self, link: LinkId, exchange: ExchangeId, into: Vec<Region>, done: Done<Answer, Torn>) {
        self.inner.pull(link, exchange, into, retried(done));
    }

    fn abandon(&self, link: LinkId, exchange: ExchangeId) {
        if let Some(unread) = &self.unread {
            let done = unread.lock().expect("nobody panics while holding it").remove(&exchange);
            if let Some(done) = done {
                done.report(Err(Error::Cancelled.into()));
            }
        }
        self.inner.abandon(link, exchange);
    }

    fn measure(&self, link: LinkId, meter: Arc<LinkMeter>) {
        self.inner.measure(link, meter);
    }

    fn cork(&self) {
        self.inner.cork();
    }

    fn uncork(&self) {
        self.inner.uncork();
    }

    fn disconnect(&self, link: LinkId) {
        self.inner.disconnect(link);
    }

    fn capabilities(&self, link: LinkId) -> Capabilities {
        self.inner.capabilities(link)
    }

    fn process(&self, link: LinkId) -> Option<Arc<PeerProcess>> {
        self.inner.process(link)
    }

    fn watch(&self, ended: Ended) {
        self.watchers.lock().expect("no watcher panics").push(ended.clone());
        self.inner.watch(ended);
    }

    fn shutdown(&self, patience: Duration) {
        self.inner.shutdown(patience);
    }
}

/// Reports to `done`, and translates the end of a link.
fn retried(done: Done<Answer, Torn>) -> Done<Answer, Torn> {
    Done::new(move |outcome: Result<_, Torn>| {
        done.report(outcome.map_err(|Torn { error, landed }| Torn { error: lost(error), landed }));
    })
}

fn lost(error: Error) -> Error {
    match error {
        Error::Cancelled => Error::Unavailable { what: "the server".to_owned(), cause: "its link was cut".to_owned() },
        other => other,
    }
}
