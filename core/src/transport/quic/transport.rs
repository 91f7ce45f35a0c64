//! A worker's transport, whoever drives it: what callers ask is handed to the driver's thread.

use std::fmt;
use std::time::Duration;

use super::client;
use super::identity::Credentials;
use super::settings::{Driver, Settings};
use crate::error::{Error, Result};
use crate::local::OwnThread;
use crate::mem::Region;
use crate::transport::exchange::{PullEnd, link_gone, unknown_exchange};
use crate::transport::{LinkLost, Peer, Pulled, Push, Transport};
use crate::types::{Done, ExchangeId, LinkId};

/// Carries exchanges over QUIC. Dropping it closes it.
pub struct QuicTransport {
    /// Hands a call to the thread, or refuses it if that has ended.
    calls: Box<dyn Fn(Call) + Send + Sync>,
    thread: OwnThread,
}

/// What callers ask of the driver.
pub(super) enum Call {
    Connect { peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId> },
    Push { link: LinkId, exchange: ExchangeId, push: Push, done: Done<()> },
    Pull { exchange: ExchangeId, pull: Pull },
    Abandon { exchange: ExchangeId },
    Disconnect { link: LinkId },
    Shutdown { patience: Duration },
}

/// Where a sum is wanted, and who waits for it.
pub(super) struct Pull {
    pub(super) into: Vec<Region>,
    pub(super) end: PullEnd,
}

impl Call {
    /// Answers for a transport that has been shut down.
    pub(super) fn refuse(self) {
        match self {
            Self::Connect { done, .. } => done.err(Error::Cancelled),
            Self::Push { done, .. } => done.err(link_gone()),
            Self::Pull { pull, .. } => pull.end.torn(unknown_exchange()),
            Self::Abandon { .. } | Self::Disconnect { .. } | Self::Shutdown { .. } => {}
        }
    }
}

impl QuicTransport {
    /// A transport that connects as `credentials` say, from any free port.
    ///
    /// # Errors
    /// [`Error::Auth`] if the credentials are not usable, [`Error::Io`] if the system gives no socket or thread.
    pub fn new(credentials: &Credentials, settings: &Settings) -> Result<Self> {
        #[cfg(target_os = "linux")]
        if settings.driver == Driver::Direct {
            return super::direct::connect(credentials, settings);
        }
        client::connect(credentials, settings)
    }

    /// A transport driven by `thread`, which ends after [`Call::Shutdown`].
    pub(super) fn driven(calls: impl Fn(Call) + Send + Sync + 'static, thread: OwnThread) -> Self {
        Self { calls: Box::new(calls), thread }
    }

    fn call(&self, call: Call) {
        if self.thread.is_ours() { (self.calls)(call) } else { call.refuse() }
    }
}

impl Transport for QuicTransport {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        self.call(Call::Connect { peer, patience, lost, done });
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        let bytes: usize = push.body.iter().map(Region::len).sum();
        assert_eq!(bytes as u64, push.header.body_bytes(), "a push announces the bytes it carries");
        self.call(Call::Push { link, exchange, push, done });
    }

    fn pull(&self, exchange: ExchangeId, into: Vec<Region>, done: Pulled) {
        self.call(Call::Pull { exchange, pull: Pull { into, end: PullEnd::new(done) } });
    }

    fn abandon(&self, exchange: ExchangeId) {
        self.call(Call::Abandon { exchange });
    }

    fn disconnect(&self, link: LinkId) {
        self.call(Call::Disconnect { link });
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
