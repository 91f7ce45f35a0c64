//! The admission control of a listening endpoint: which peers may try a handshake, and which have succeeded.
//!
//! Until a handshake is done a peer costs one of a few places, for a few seconds. When half of them are taken, an address has to prove
//! first that it is real; when all are, newcomers are turned away. Links that exist do not notice.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Connection, Endpoint, Incoming, ServerConfig};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::closing::{close_with, connection_error};
use super::settings::Settings;
use super::tls::{self, Admission, PeerOf, peer_of};
use crate::error::Result;
use crate::transport::identity::{Credentials, PeerIdentity};

/// A peer whose handshake has succeeded.
pub(super) enum Arrival {
    /// A member; it may not open a stream before it is given some.
    Member(Connection, PeerIdentity),
    /// A process that wants to enrol.
    Newcomer(Connection),
}

/// The decision about a peer that wants to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Its handshake begins.
    Try,
    /// It has to prove first that its address is real.
    Prove,
    /// There is no place.
    TurnAway,
}

/// Admits peers. Has a configuration for peers of this host and one for others, because their datagrams differ in size.
pub(super) struct AdmissionControl {
    near: Arc<ServerConfig>,
    far: Arc<ServerConfig>,
    places: Arc<Semaphore>,
    handshake_timeout: Duration,
}

impl AdmissionControl {
    /// Admits the peers that `admission` names. Also returns the configuration that the endpoint needs.
    pub(super) fn new(
        credentials: &Credentials,
        settings: &Settings,
        admission: Admission,
    ) -> Result<(Self, ServerConfig)> {
        let tls = tls::server(credentials, admission)?;
        let config = |remote: IpAddr| {
            let mut config = ServerConfig::with_crypto(Arc::clone(&tls) as _);
            config
                // No stream before the certificate is known; see `Dialed::stream`.
                .transport_config(settings.transport(remote, 0))
                // Peers in a data centre do not move: another address is another connection.
                .migration(false)
                .max_incoming(INCOMING_MAX)
                .incoming_buffer_size(INCOMING_BYTES_MAX)
                .incoming_buffer_size_total(INCOMING_BYTES_TOTAL_MAX);
            config
        };
        let near = config(std::net::Ipv4Addr::LOCALHOST.into());
        let far = config(std::net::Ipv4Addr::UNSPECIFIED.into());
        let control = Self {
            near: Arc::new(near),
            far: Arc::new(far.clone()),
            places: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            handshake_timeout: settings.handshake_timeout,
        };
        Ok((control, far))
    }

    /// What to do with a peer that wants to connect while `taken` handshakes are under way.
    pub(super) fn verdict(&self, taken: usize, may_retry: bool) -> Verdict {
        if taken >= HANDSHAKES_MAX / 2 && may_retry {
            Verdict::Prove
        } else if taken >= HANDSHAKES_MAX {
            Verdict::TurnAway
        } else {
            Verdict::Try
        }
    }

    /// The configuration for a handshake with a peer at `remote`.
    pub(super) fn config_for(&self, remote: IpAddr) -> Arc<ServerConfig> {
        Arc::clone(if remote.to_canonical().is_loopback() { &self.near } else { &self.far })
    }

    /// How long a handshake may take.
    pub(super) fn handshake_timeout(&self) -> Duration {
        self.handshake_timeout
    }

    /// Admits peers until the endpoint is closed.
    pub(super) async fn watch(self, endpoint: Endpoint, arrivals: mpsc::UnboundedSender<Arrival>) {
        while let Some(incoming) = endpoint.accept().await {
            self.admit(incoming, &arrivals);
        }
    }

    fn admit(&self, incoming: Incoming, arrivals: &mpsc::UnboundedSender<Arrival>) {
        let remote = incoming.remote_address();
        let may_retry = !incoming.remote_address_validated() && incoming.may_retry();
        let verdict = self.verdict(HANDSHAKES_MAX - self.places.available_permits(), may_retry);
        let place = match verdict {
            // Fails only for an address that has proven itself.
            Verdict::Prove => return drop(incoming.retry()),
            Verdict::TurnAway => None,
            Verdict::Try => Arc::clone(&self.places).try_acquire_owned().ok(),
        };
        let Some(place) = place else {
            tracing::debug!(%remote, "turned away: too many handshakes at once");
            return incoming.refuse();
        };
        let connecting = match incoming.accept_with(self.config_for(remote.ip())) {
            Ok(connecting) => connecting,
            Err(error) => return tracing::debug!(%remote, %error, "handshake not begun"),
        };
        let (arrivals, patience) = (arrivals.clone(), self.handshake_timeout);
        tokio::spawn(async move {
            let _place = place;
            let connection = match timeout(patience, connecting).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => {
                    let error = connection_error(&error, &format!("the process at {remote}"));
                    return tracing::warn!(%remote, %error, "refused");
                }
                Err(_) => return tracing::debug!(%remote, "handshake not finished in time"),
            };
            let arrival = match peer_of(connection.handshake_data(), connection.peer_identity()) {
                Ok(PeerOf::Member(identity)) => Arrival::Member(connection, identity),
                Ok(PeerOf::Newcomer) => Arrival::Newcomer(connection),
                Err(error) => {
                    tracing::warn!(%remote, %error, "refused");
                    return close_with(&connection, &error);
                }
            };
            let _ = arrivals.send(arrival);
        });
    }
}

/// Handshakes under way at once.
const HANDSHAKES_MAX: usize = 64;
/// Peers whose first packet waits to be looked at, and what else of theirs is kept until then.
const INCOMING_MAX: usize = 1_024;
const INCOMING_BYTES_MAX: u64 = 64 << 10;
const INCOMING_BYTES_TOTAL_MAX: u64 = 8 << 20;
