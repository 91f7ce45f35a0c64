//! A worker's QUIC transport. It starts the driver that the settings name, and hands every call to the driver's thread.

use std::fmt;
use std::time::Duration;

use super::calls::{Call, DriverHandle, Pull};
use super::client;
use super::settings::{Driver, Settings};
use crate::error::Result;
use crate::local::Progress;
use crate::mem::Region;
use crate::transport::exchange::PullEnd;
use crate::transport::identity::Credentials;
use crate::transport::{LinkLost, Peer, Pulled, Push, Transport};
use crate::types::{Done, ExchangeId, LinkId};

/// Carries exchanges over QUIC. Dropping it closes it.
pub struct QuicTransport {
    driver: DriverHandle,
}

impl QuicTransport {
    /// A transport that connects as `credentials` say, from any free port.
    ///
    /// # Errors
    /// [`Error::Auth`] if the credentials are not usable, [`Error::Io`] if the system gives no socket or thread.
    pub fn new(credentials: &Credentials, settings: &Settings) -> Result<Self> {
        #[cfg(target_os = "linux")]
        if settings.driver == Driver::Direct {
            return super::direct::connect(credentials, settings).map(Self::driven);
        }
        client::connect(credentials, settings).map(Self::driven)
    }

    pub(super) fn driven(driver: DriverHandle) -> Self {
        Self { driver }
    }

    fn call(&self, call: Call) {
        if self.driver.thread.is_ours() { (self.driver.calls)(call) } else { call.refuse() }
    }
}

impl Progress for QuicTransport {}

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
        self.driver.thread.join(patience);
    }
}

impl Drop for QuicTransport {
    fn drop(&mut self) {
        self.shutdown(DROP_PATIENCE);
    }
}

impl fmt::Debug for QuicTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicTransport").field("thread", &self.driver.thread).finish_non_exhaustive()
    }
}

/// How long dropping a transport waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_secs(2);
