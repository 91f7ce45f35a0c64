//! The admission control of a listening endpoint: lets peers try a handshake, and passes on those that succeed.
//!
//! The [`Gate`] decides. This file reads the clock for it and carries out its verdicts. Existing links are not affected.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quinn::{Connection, Endpoint, Incoming, ServerConfig};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use super::closing::{close_with, connection_error};
use super::settings::Settings;
use super::tls::{self, Admission, Authorities, PeerOf, peer_of};
use crate::error::{Error, Result};
use crate::identity::enrolment::Vouched;
pub(super) use crate::identity::gate::{Admitted, Place, Verdict};
use crate::identity::gate::{Gate, Repeated};
use crate::identity::{Credentials, PeerIdentity};
use crate::types::Time;

/// A peer whose handshake has succeeded.
pub(super) enum Arrival {
    /// A member. It may not open a stream before the server allows one.
    Member(Connection, PeerIdentity),
    /// A process that wants to enrol, and when its handshake began.
    Newcomer(Connection, Instant, Vouched),
}

/// Admits peers. Has one configuration for peers of this host and one for others, because their datagrams differ in size.
pub(super) struct AdmissionControl {
    near: Arc<ServerConfig>,
    far: Arc<ServerConfig>,
    gatekeeper: Gatekeeper,
    /// Present if certificates of more than one authority are accepted.
    authorities: Option<Arc<Authorities>>,
}

/// The gate of an endpoint with its clock, and the tasks that hold its places. Clones share all of it.
#[derive(Clone)]
pub(super) struct Gatekeeper(Arc<Mutex<Guarded>>);

/// Locked for a look-up at a time, never while anything is awaited.
struct Guarded {
    gate: Gate,
    /// The zero of the gate's time: when the gate was first asked.
    origin: Option<Instant>,
    tasks: BTreeMap<Place, AbortHandle>,
    refusals: Repeated,
}

/// A place at the gate that a task holds. Dropping this frees the place.
pub(super) struct Held {
    gatekeeper: Gatekeeper,
    pub(super) place: Place,
    /// When the peer must be done.
    pub(super) until: Instant,
}

impl AdmissionControl {
    /// Admits the peers that `admission` names. Also returns the configuration that the endpoint needs.
    pub(super) fn new(
        credentials: &Credentials,
        settings: &Settings,
        admission: Admission<'_>,
    ) -> Result<(Self, ServerConfig)> {
        let authorities = match admission {
            Admission::Members | Admission::MembersAndNewcomers => None,
            Admission::MembersAndSite(site) => Some(Arc::new(Authorities::new(credentials, site)?)),
        };
        let tls = tls::server(credentials, admission)?;
        let config = |remote: IpAddr| {
            let mut config = ServerConfig::with_crypto(Arc::clone(&tls) as _);
            config
                // No stream before the certificate is known; see `Dialed::stream`.
                .transport_config(settings.transport(remote, 0))
                // A router between hosts may forget its table of addresses. Then the peer's packets come from another address. With migration
                // the connection goes on at once, instead of ending by the idle timeout. quinn-proto validates the new address before it sends
                // there more than three times the bytes that came from there. It returns to the old address if the validation fails (RFC 9000,
                // section 9).
                .migration(true)
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
            gatekeeper: Gatekeeper::new(settings.handshake_timeout),
            authorities,
        };
        Ok((control, far))
    }

    /// The configuration for a handshake with a peer at `remote`.
    pub(super) fn config_for(&self, remote: IpAddr) -> Arc<ServerConfig> {
        Arc::clone(if remote.to_canonical().is_loopback() { &self.near } else { &self.far })
    }

    /// Decides about peers.
    pub(super) fn gatekeeper(&self) -> &Gatekeeper {
        &self.gatekeeper
    }

    /// Admits peers until the endpoint is closed.
    pub(super) async fn watch(self, endpoint: Endpoint, arrivals: mpsc::Sender<Arrival>) {
        while let Some(incoming) = endpoint.accept().await {
            self.admit(incoming, &arrivals);
        }
    }

    fn admit(&self, incoming: Incoming, arrivals: &mpsc::Sender<Arrival>) {
        let remote = incoming.remote_address();
        let began = now();
        let admitted = match self.gatekeeper.arrive(began, remote.ip(), incoming.remote_address_validated()) {
            // `retry` fails only for an address that has answered, and that is never asked to prove itself.
            Verdict::Prove => return drop(incoming.retry()),
            Verdict::TurnAway => {
                tracing::debug!(%remote, "turned away: too many handshakes");
                return incoming.refuse();
            }
            Verdict::Try(admitted) => admitted,
        };
        let held = self.gatekeeper.hold(admitted);
        let connecting = match incoming.accept_with(self.config_for(remote.ip())) {
            Ok(connecting) => connecting,
            Err(error) => return tracing::debug!(%remote, %error, "handshake not begun"),
        };
        let (arrivals, gatekeeper) = (arrivals.clone(), self.gatekeeper.clone());
        let authorities = self.authorities.clone();
        let task = tokio::spawn(async move {
            // Moves the whole value into the task, so that the place is free when the task ends. Without this line only its fields are copied.
            let held = held;
            let connection = match timeout_at(held.until.into(), connecting).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(error)) => {
                    let error = connection_error(&error, &format!("the process at {remote}"));
                    return gatekeeper.log_refusal(now(), remote, &error);
                }
                Err(_) => return tracing::debug!(%remote, "handshake not finished in time"),
            };
            let (handshake, identity) = (connection.handshake_data(), connection.peer_identity());
            let peer = match authorities {
                Some(authorities) => authorities.judge(handshake, identity),
                None => peer_of(handshake, identity),
            };
            let arrival = match peer {
                Ok(PeerOf::Member(identity)) => {
                    gatekeeper.proven(remote.ip());
                    Arrival::Member(connection, identity)
                }
                Ok(PeerOf::Newcomer(vouched)) => Arrival::Newcomer(connection, began, vouched),
                Err(error) => {
                    gatekeeper.log_refusal(now(), remote, &error);
                    return close_with(&connection, &error);
                }
            };
            let _ = arrivals.send(arrival).await;
        });
        self.gatekeeper.works_for(admitted.place, task.abort_handle());
    }
}

impl Gatekeeper {
    fn new(handshake_timeout: Duration) -> Self {
        let (gate, tasks, refusals) = (Gate::new(handshake_timeout), BTreeMap::new(), Repeated::default());
        Self(Arc::new(Mutex::new(Guarded { gate, origin: None, tasks, refusals })))
    }

    /// As [`Gate::arrive`].
    pub(super) fn arrive(&self, now: Instant, remote: IpAddr, has_answered: bool) -> Verdict {
        let mut guarded = self.lock();
        let now = guarded.time(now);
        let verdict = guarded.gate.arrive(now, remote, has_answered);
        if let Verdict::Try(admitted) = verdict {
            guarded.make_room(admitted);
        }
        verdict
    }

    /// As [`Gate::enrol`].
    pub(super) fn enrol(&self, now: Instant, began: Instant) -> Option<Admitted> {
        let mut guarded = self.lock();
        let (now, began) = (guarded.time(now), guarded.time(began));
        let admitted = guarded.gate.enrol(now, began)?;
        guarded.make_room(admitted);
        Some(admitted)
    }

    /// Holds a place until it is dropped.
    pub(super) fn hold(&self, admitted: Admitted) -> Held {
        Held { gatekeeper: self.clone(), place: admitted.place, until: self.instant(admitted.until) }
    }

    /// `task` serves the peer in this place. The task is aborted when the place is given to another peer.
    pub(super) fn works_for(&self, place: Place, task: AbortHandle) {
        self.lock().tasks.insert(place, task);
    }

    /// As [`Gate::leave`].
    pub(super) fn leave(&self, place: Place) {
        let mut guarded = self.lock();
        guarded.tasks.remove(&place);
        guarded.gate.leave(place);
    }

    /// As [`Gate::give_way`].
    pub(super) fn give_way(&self, now: Instant, place: Place) {
        let mut guarded = self.lock();
        let now = guarded.time(now);
        guarded.gate.give_way(now, place);
    }

    /// As [`Gate::proven`].
    pub(super) fn proven(&self, remote: IpAddr) {
        self.lock().gate.proven(remote);
    }

    /// A moment of the gate's time.
    pub(super) fn instant(&self, time: Time) -> Instant {
        let origin = self.lock().origin.expect("only the gate makes its times, and it was asked for this one");
        origin + Duration::from_nanos(time.0)
    }

    /// Logs why a peer was refused. In a flood most are counted only.
    pub(super) fn log_refusal(&self, now: Instant, remote: SocketAddr, error: &Error) {
        if *error == Error::Cancelled {
            // This process ends.
            return tracing::debug!(%remote, "not admitted any more");
        }
        let unlogged = {
            let mut guarded = self.lock();
            let now = guarded.time(now);
            guarded.refusals.happened(now)
        };
        match unlogged {
            Some(unlogged) => tracing::warn!(%remote, %error, unlogged, "refused"),
            None => tracing::debug!(%remote, %error, "refused"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Guarded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guarded {
    fn time(&mut self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(*self.origin.get_or_insert(now))
    }

    fn make_room(&mut self, admitted: Admitted) {
        if let Some(task) = admitted.instead_of.and_then(|place| self.tasks.remove(&place)) {
            task.abort();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gatekeeper.leave(self.place);
    }
}

/// The clock of the gate.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Peers whose first packet waits to be handled, and the bytes that are kept until then: for one peer, and for all.
const INCOMING_MAX: usize = 1_024;
const INCOMING_BYTES_MAX: u64 = 64 << 10;
const INCOMING_BYTES_TOTAL_MAX: u64 = 8 << 20;
