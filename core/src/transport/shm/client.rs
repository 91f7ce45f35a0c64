//! A worker's transport over shared memory. [`client_state`](super::client_state) says how it works inside.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::client_state::ClientState;
use super::client_tables::ClientTables;
use super::poller::{help, run};
use crate::error::{Error, Result};
use crate::local::{Ended, Obituary, OwnThread, Progress};
use crate::mem::{Copies, Region};
use crate::transport::exchange::{Pull, link_gone, unknown_exchange};
use crate::transport::identity::Credentials;
use crate::transport::{Answer, Capabilities, LinkLost, Peer, Push, Torn, Transport};
use crate::types::{Done, ExchangeId, LinkId, Scheme};

/// Carries exchanges through memory that worker and server share. Dropping it closes it.
pub struct ShmTransport {
    state: Arc<ClientState>,
    thread: OwnThread,
    obituary: Obituary,
}

impl ShmTransport {
    /// A transport that connects as `credentials` say. What it copies counts in `copies`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread or no event queue.
    pub fn new(credentials: &Credentials, copies: &Copies) -> Result<Self> {
        let state = Arc::new(ClientState::new(credentials, copies)?);
        let obituary = Obituary::default();
        let thread = {
            let state = Arc::clone(&state);
            let run = move || {
                run(&*state);
                Ok(())
            };
            OwnThread::start_watched("gradlane-shm", obituary.clone(), run)?
        };
        Ok(Self { state, thread, obituary })
    }
}

impl Progress for ShmTransport {
    fn poll(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        if self.thread.is_ours() && !self.state.tables().links.is_empty() {
            help(&*self.state, enough, patience);
        }
    }

    fn wake(&self) {
        if self.thread.is_ours() {
            self.state.poller.wake_helper();
        }
    }
}

impl Transport for ShmTransport {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        if !self.thread.is_ours() || self.state.tables().closing {
            return done.err(Error::Cancelled);
        }
        let path = match peer.at(Scheme::Shm) {
            Ok(path) => PathBuf::from(path),
            Err(error) => return done.err(error),
        };
        self.state.tables().dialling += 1;
        let state = Arc::clone(&self.state);
        let dial = move || {
            let outcome = state.dial(&path, &peer, patience, lost);
            done.report(outcome);
            state.tables().dialling -= 1;
            state.dialled.notify_all();
        };
        if std::thread::Builder::new().name("gradlane-dial".to_owned()).spawn(dial).is_err() {
            // What it held was dropped, which reported.
            self.state.tables().dialling -= 1;
        }
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        let bytes: usize = push.body.iter().map(Region::len).sum();
        assert_eq!(bytes as u64, push.header.body_bytes(), "a push announces the bytes it carries");
        if !self.thread.is_ours() {
            return done.err(link_gone());
        }
        self.state.push(link, exchange, push, done);
    }

    fn pull(&self, link: LinkId, exchange: ExchangeId, into: Vec<Region>, done: Done<Answer, Torn>) {
        if !self.thread.is_ours() {
            return done.err(unknown_exchange());
        }
        self.state.pull(link, exchange, Pull { into, done });
    }

    fn abandon(&self, link: LinkId, exchange: ExchangeId) {
        if self.thread.is_ours() {
            self.state.abandon(link, exchange);
        }
    }

    fn disconnect(&self, link: LinkId) {
        if self.thread.is_ours()
            && let Some(entry) = self.state.tables().links.get(&link)
        {
            entry.link.fail(Error::Cancelled);
            self.state.poller.wake();
        }
    }

    fn capabilities(&self, _link: LinkId) -> Capabilities {
        Capabilities::SHARED_MEMORY
    }

    fn watch(&self, ended: Ended) {
        self.obituary.tell(ended);
    }

    fn shutdown(&self, patience: Duration) {
        if !self.thread.is_ours() {
            return;
        }
        let mut tables = self.state.tables();
        tables.closing = true;
        let exchanges: Vec<ExchangeId> = tables.exchanges.keys().copied().collect();
        drop(tables);
        self.state.dialled.notify_all();
        exchanges.into_iter().for_each(|exchange| self.state.end(exchange, Error::Cancelled));
        self.state.poller.wake();
        self.thread.join(patience);
        let waiting = |tables: &mut ClientTables| tables.dialling > 0;
        let waited = self.state.dialled.wait_timeout_while(self.state.tables(), patience, waiting);
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
