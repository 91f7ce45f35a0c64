//! A worker's side, as its engine sees it: see [`hub`](super::hub) for what happens inside.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::books::{End, State};
use super::hub::Hub;
use super::poller::{help, run};
use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::mem::{Copies, Region};
use crate::transport::exchange::{PullEnd, link_gone, unknown_exchange};
use crate::transport::quic::Credentials;
use crate::transport::{LinkLost, Peer, Pulled, Push, Road, Transport};
use crate::types::{Done, ExchangeId, LinkId};

/// Carries exchanges through memory that worker and server share. Dropping it closes it.
pub struct ShmTransport {
    hub: Arc<Hub>,
    thread: OwnThread,
}

impl ShmTransport {
    /// A transport that connects as `credentials` say. What it copies counts in `copies`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread or no event queue.
    pub fn new(credentials: &Credentials, copies: &Copies) -> Result<Self> {
        let hub = Arc::new(Hub::new(credentials, copies)?);
        let thread = {
            let hub = Arc::clone(&hub);
            OwnThread::start("gradlane-shm", move || run(&*hub))?
        };
        Ok(Self { hub, thread })
    }

    /// Whether this transport has the exchange: it was pushed here and has not ended.
    pub fn has(&self, exchange: ExchangeId) -> bool {
        self.thread.is_ours() && self.hub.state().exchanges.contains_key(&exchange)
    }
}

impl Transport for ShmTransport {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        if !self.thread.is_ours() || self.hub.state().closing {
            return done.err(Error::Cancelled);
        }
        self.hub.state().dialling += 1;
        let hub = Arc::clone(&self.hub);
        let dial = move || {
            let outcome = hub.dial(&peer, patience, lost);
            done.report(outcome);
            hub.state().dialling -= 1;
            hub.dialled.notify_all();
        };
        if std::thread::Builder::new().name("gradlane-dial".to_owned()).spawn(dial).is_err() {
            // What it held was dropped, which reported.
            self.hub.state().dialling -= 1;
        }
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        let bytes: usize = push.body.iter().map(Region::len).sum();
        assert_eq!(bytes as u64, push.header.body_bytes(), "a push announces the bytes it carries");
        if !self.thread.is_ours() {
            return done.err(link_gone());
        }
        self.hub.push(link, exchange, push, done);
    }

    fn pull(&self, exchange: ExchangeId, into: Vec<Region>, done: Pulled) {
        let pull = PullEnd::new(done);
        if !self.thread.is_ours() {
            return pull.torn(unknown_exchange());
        }
        self.hub.pull(exchange, into, pull);
    }

    fn abandon(&self, exchange: ExchangeId) {
        if self.thread.is_ours() {
            self.hub.end(exchange, End::Abandoned);
        }
    }

    fn disconnect(&self, link: LinkId) {
        if self.thread.is_ours()
            && let Some(entry) = self.hub.state().links.get(&link)
        {
            entry.link.fail(Error::Cancelled);
            self.hub.poller.wake();
        }
    }

    fn road(&self, _link: LinkId) -> Road {
        Road::SharedMemory
    }

    fn help(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        if self.thread.is_ours() && !self.hub.state().links.is_empty() {
            help(&*self.hub, enough, patience);
        }
    }

    fn nudge(&self) {
        if self.thread.is_ours() {
            self.hub.poller.nudge();
        }
    }

    fn shutdown(&self, patience: Duration) {
        if !self.thread.is_ours() {
            return;
        }
        let mut state = self.hub.state();
        state.closing = true;
        let exchanges: Vec<ExchangeId> = state.exchanges.keys().copied().collect();
        drop(state);
        self.hub.dialled.notify_all();
        exchanges.into_iter().for_each(|exchange| self.hub.end(exchange, End::Abandoned));
        self.hub.poller.wake();
        self.thread.join(patience);
        let waiting = |state: &mut State| state.dialling > 0;
        let waited = self.hub.dialled.wait_timeout_while(self.hub.state(), patience, waiting);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.shutdown(DROP_PATIENCE);
    }
}

/// How long dropping a transport waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
