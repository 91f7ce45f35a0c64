//! A worker's QUIC transport. It hands every call to its thread.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::calls::Call;
use super::commands::Commands;
use super::data;
use super::settings::Settings;
use crate::error::Result;
use crate::identity::Credentials;
use crate::local::{Ended, OwnThread, Progress, ThreadEnd};
use crate::mem::Region;
use crate::metrics::LinkMeter;
use crate::transport::{Answer, LinkLost, Peer, Pull, Push, Torn, Transport};
use crate::types::{Done, ExchangeId, LinkId, Scheme};

/// Carries exchanges over QUIC. Dropping it closes it.
pub struct QuicTransport {
    calls: Commands<Call>,
    thread: OwnThread,
    thread_end: ThreadEnd,
}

impl QuicTransport {
    /// A transport that connects as `credentials` say, from any free port.
    ///
    /// # Errors
    /// [`Error::Auth`](crate::Error::Auth) if the credentials are not usable, [`Error::Io`](crate::Error::Io) if the system gives no socket
    /// or thread.
    pub fn new(credentials: &Credentials, settings: &Settings) -> Result<Self> {
        data::connect(credentials, settings).map(Self::driven)
    }

    /// A transport of this driver.
    pub(super) fn driven(data::Driven { calls, thread, thread_end }: data::Driven) -> Self {
        Self { calls, thread, thread_end }
    }

    fn call(&self, call: Call) {
        let refused = if self.thread.is_ours() { self.calls.send(call).err() } else { Some(call) };
        if let Some(call) = refused {
            call.refuse();
        }
    }
}

impl Progress for QuicTransport {}

impl Transport for QuicTransport {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        match peer.at(Scheme::Quic).map(str::to_owned) {
            Ok(address) => self.call(Call::Connect { address, peer, patience, lost, done }),
            Err(error) => done.err(error),
        }
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        let bytes: usize = push.body.iter().map(Region::len).sum();
        assert_eq!(bytes as u64, push.header.body_bytes(), "a push announces the bytes it carries");
        self.call(Call::Push { link, exchange, push, done });
    }

    fn pull(&self, link: LinkId, exchange: ExchangeId, into: Vec<Region>, done: Done<Answer, Torn>) {
        self.call(Call::Pull { link, exchange, pull: Pull { into, done } });
    }

    fn abandon(&self, link: LinkId, exchange: ExchangeId) {
        self.call(Call::Abandon { link, exchange });
    }

    fn cork(&self) {
        self.calls.cork();
    }

    fn uncork(&self) {
        self.calls.uncork();
    }

    fn disconnect(&self, link: LinkId) {
        self.call(Call::Disconnect { link });
    }

    fn measure(&self, link: LinkId, meter: Arc<LinkMeter>) {
        self.call(Call::Measure { link, meter });
    }

    fn watch(&self, ended: Ended) {
        self.thread_end.watch(ended);
    }

    fn shutdown(&self, patience: Duration) {
        self.call(Call::Shutdown { patience });
        self.thread.join(patience);
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        self.shutdown(DROP_PATIENCE);
    }
}

impl fmt::Debug for QuicTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicTransport").field("thread", &self.thread).finish_non_exhaustive()
    }
}

/// How long dropping a transport waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
