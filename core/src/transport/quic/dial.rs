//! Connects with repeated attempts: the pauses between them, and the errors that end them at once.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectError, Connection, Endpoint, RecvStream, SendStream};
use tokio::time::{Instant, sleep, timeout};

use super::closing::connection_error;
use super::endpoint::resolve;
use super::settings::Settings;
use super::tls::{PeerOf, peer_of};
use crate::error::{Error, Result};
use crate::identity::Credentials;

/// How to connect.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) endpoint: Endpoint,
    pub(super) tls: Arc<QuicClientConfig>,
    /// The credentials that `tls` shows. A newcomer has none.
    pub(super) credentials: Option<Credentials>,
    pub(super) settings: Settings,
}

/// A connection that the server let in.
pub(super) struct Dialed {
    pub(super) connection: Connection,
    /// A first stream, not used yet. It proves that the server let this process in. In TLS 1.3 a client finishes its handshake before the server
    /// has seen its certificate, and the server allows streams only after that.
    pub(super) stream: (SendStream, RecvStream),
}

impl Dialed {
    /// The peer that answered.
    pub(super) fn peer(&self) -> Result<PeerOf> {
        peer_of(self.connection.handshake_data(), self.connection.peer_identity())
    }
}

impl Dialer {
    /// Connects to `address`, trying again until `patience` ends. `peer` is its name in messages.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there was no answer in time. Ends at once with an error that another attempt cannot mend, such as
    /// [`Error::Auth`].
    pub(super) async fn dial(&self, address: &str, peer: &str, patience: Duration) -> Result<Dialed> {
        let deadline = Instant::now() + patience;
        let mut pause = PAUSE_MIN;
        loop {
            let error = match timeout(deadline - Instant::now(), self.attempt(address, peer)).await {
                Ok(Ok(dialed)) => return Ok(dialed),
                Ok(Err(error)) => error,
                Err(_) => silent(address, peer),
            };
            if !error.retryable() || Instant::now() + pause >= deadline {
                return Err(error);
            }
            tracing::debug!(peer, address, %error, "connecting again");
            // Half of the pause is random, so that the workers of a job do not all try again at the same moment.
            sleep(pause / 2 + (pause / 2).mul_f64(random_fraction())).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn attempt(&self, address: &str, peer: &str) -> Result<Dialed> {
        let mut failure = silent(address, peer);
        for remote in resolve(address, peer).await? {
            match timeout(self.settings.handshake_timeout, self.connect(remote, peer)).await {
                Ok(Ok(dialed)) => return Ok(dialed),
                Ok(Err(error)) => failure = error,
                Err(_) => failure = silent(address, peer),
            }
        }
        Err(failure)
    }

    async fn connect(&self, remote: SocketAddr, peer: &str) -> Result<Dialed> {
        let mut config = ClientConfig::new(Arc::clone(&self.tls) as _);
        config.transport_config(self.settings.transport(remote.ip().to_canonical(), 0));
        let connecting = self.endpoint.connect_with(config, remote, crate::identity::SERVER_NAME);
        let connecting = connecting.map_err(|error| connect_error(&error, remote, peer))?;
        let failed = |error| {
            let error = connection_error(&error, peer);
            self.credentials.iter().fold(error, |error, own| own.explain(error))
        };
        let connection = connecting.await.map_err(failed)?;
        let stream = connection.open_bi().await.map_err(failed)?;
        Ok(Dialed { connection, stream })
    }
}

pub(super) fn silent(address: &str, peer: &str) -> Error {
    Error::Unavailable { what: peer.to_owned(), cause: format!("nothing answers at {address}") }
}

fn connect_error(error: &ConnectError, remote: SocketAddr, peer: &str) -> Error {
    match error {
        ConnectError::EndpointStopping => Error::Cancelled,
        other => Error::Unavailable { what: format!("{peer} at {remote}"), cause: other.to_string() },
    }
}

pub(super) fn random_fraction() -> f64 {
    f64::from(u16::try_from(RandomState::new().hash_one(0u8) >> 48).expect("16 bits")) / f64::from(u16::MAX)
}

pub(super) const PAUSE_MIN: Duration = Duration::from_millis(100);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(5);
