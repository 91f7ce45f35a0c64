//! A worker's transport, whoever drives it.

use std::fmt;
use std::time::Duration;

use super::client::TaskTransport;
use super::identity::Credentials;
use super::settings::{Driver, Settings};
use crate::error::Result;
use crate::mem::Region;
use crate::transport::{LinkLost, Peer, Pulled, Push, Transport};
use crate::types::{Done, ExchangeId, LinkId};

/// Carries exchanges over QUIC. Dropping it closes it.
pub struct QuicTransport(Box<dyn Transport>);

impl QuicTransport {
    /// A transport that connects as `credentials` say, from any free port.
    ///
    /// # Errors
    /// [`Error::Auth`](crate::error::Error::Auth) if the credentials are not usable, [`Error::Io`](crate::error::Error::Io) if the system
    /// gives no socket or thread.
    pub fn new(credentials: &Credentials, settings: &Settings) -> Result<Self> {
        #[cfg(target_os = "linux")]
        if settings.driver == Driver::Direct {
            return Ok(Self(Box::new(super::direct::DirectTransport::new(credentials, settings)?)));
        }
        Ok(Self(Box::new(TaskTransport::new(credentials, settings)?)))
    }
}

impl Transport for QuicTransport {
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        self.0.connect(peer, patience, lost, done);
    }

    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        self.0.push(link, exchange, push, done);
    }

    fn pull(&self, exchange: ExchangeId, into: Vec<Region>, done: Pulled) {
        self.0.pull(exchange, into, done);
    }

    fn abandon(&self, exchange: ExchangeId) {
        self.0.abandon(exchange);
    }

    fn disconnect(&self, link: LinkId) {
        self.0.disconnect(link);
    }

    fn shutdown(&self, patience: Duration) {
        self.0.shutdown(patience);
    }
}

impl fmt::Debug for QuicTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuicTransport")
    }
}
