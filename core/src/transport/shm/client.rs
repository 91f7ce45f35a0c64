//! A worker's transport over shared memory. [`client_state`](super::client_state) does the work.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::client_state::ClientState;
use super::poller::{Side, help, run};
use crate::error::{Error, Result};
use crate::identity::Credentials;
use crate::local::{Ended, OwnThread, PeerProcess, Progress, ThreadEnd};
use crate::mem::{Copies, Region};
use crate::metrics::LinkMeter;
use crate::transport::exchange::{link_gone, unknown_exchange};
use crate::transport::{Answer, Capabilities, LinkLost, Peer, Pull, Push, Torn, Transport};
use crate::types::{Done, ExchangeId, LinkId, Scheme};

/// Carries exchanges through memory that worker and server share. Dropping it closes it.
pub struct ShmTransport {
    state: Arc<ClientState>,
    thread: OwnThread,
    thread_end: ThreadEnd,
}

impl ShmTransport {
    /// A transport that proves its identity with `credentials`. The bytes that it copies are counted in `copies`.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread or no event queue.
    pub fn new(credentials: &Credentials, copies: &Copies) -> Result<Self> {
        let state = Arc::new(ClientState::new(credentials, copies)?);
        let thread_end = ThreadEnd::default();
        let thread = {
            let state = Arc::clone(&state);
            let run = move || {
                run(&*state);
                Ok(())
            };
            OwnThread::start_watched("gl-shm", thread_end.clone(), run)?
        };
        Ok(Self { state, thread, thread_end })
    }
}

impl Progress for ShmTransport {
    fn poll(&self, enough: &dyn Fn() -> bool, patience: Duration) {
        if self.thread.is_ours() && self.state.has_links() {
            help(&*self.state, enough, patience);
        }
    }

    fn wake(&self) {
        if self.thread.is_ours() {
            self.state.poller().wake_helper();
        }
    }
}

impl Transport for ShmTransport {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        let path = match peer.at(Scheme::Shm) {
            Ok(path) => PathBuf::from(path),
            Err(error) => return done.err(error),
        };
        let dial = if self.thread.is_ours() { self.state.begin_dial() } else { None };
        let Some(dial) = dial else { return done.err(Error::Cancelled) };
        let run = move || {
            let outcome = dial.run(&path, &peer, patience, lost);
            done.report(outcome);
        };
        // If there is no thread, what it would have held is dropped. That reports an error and ends the dial.
        let _ = std::thread::Builder::new().name("gl-dial".to_owned()).spawn(run);
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        let bytes: usize = push.body.iter().map(Region::len).sum();
        assert_eq!(bytes as u64, push.header.body_bytes(), "a push announces the bytes it carries");
        if !self.thread.is_ours() {
            return push.refuse(done, link_gone());
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
        if self.thread.is_ours() {
            self.state.disconnect(link);
        }
    }

    fn capabilities(&self, _link: LinkId) -> Capabilities {
        Capabilities::SHARED_MEMORY
    }

    fn process(&self, link: LinkId) -> Option<Arc<PeerProcess>> {
        self.state.process(link)
    }

    fn measure(&self, link: LinkId, meter: Arc<LinkMeter>) {
        self.state.measure(link, meter);
    }

    fn watch(&self, ended: Ended) {
        self.thread_end.watch(ended);
    }

    fn shutdown(&self, patience: Duration) {
        if !self.thread.is_ours() {
            return;
        }
        self.state.close();
        self.thread.join(patience);
        self.state.wait_for_dials(patience);
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.shutdown(DROP_PATIENCE);
    }
}

/// How long dropping a transport waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
