//! Enrolment over QUIC: how a process with a join string becomes a member.
//!
//! ```text
//!  newcomer                                                   coordinator
//!     │  TLS, protocol `gradlane-enroll/1`: its chain must hold    │
//!     │  the authority whose hash is in the join string            │
//!     │ ── version, role, HMAC(secret, role, TLS exporter), CSR ──►│ checks the proof in constant time, then the CSR
//!     │ ◄─────────────── certificate, authority's certificate ─────│
//! ```
//! Members are certified until the job has formed. Later the coordinator certifies admins, and observers, which may ask for the job's state, and in an
//! elastic job also newcomers that have an invitation or a certificate of the site.
//!
//! If a site has certificates of its own ([`Site`]), the protocol is `gradlane-site/1`: both sides show such a certificate in the handshake.
//! The proof is sent, but it is checked only if the newcomer wants to be an admin.
//!
//! A wrong proof changes nothing for other processes, also not for those at the same address. A user's mistake must not lock out a host, and
//! 128 bits cannot be guessed. The gate in front of handshakes and enrolments bounds the cost of wrong proofs.
//!
//! The secret is never sent. The exporter binds the proof to this one connection, so that the proof cannot be relayed or used again. The
//! newcomer makes the key, and the key never leaves it. The signature of the signing request (CSR) shows that the newcomer has the key.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use quinn::{Connection, Endpoint, RecvStream, SendStream, VarInt};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, sleep, timeout};

use super::closing::{CLOSE_ORDERLY, connection_error, early_end, written};
use super::dial::Dialer;
use super::endpoint;
use super::settings::Settings;
use super::tls::certified;
use super::{socket, tls};
use crate::error::{Error, Result};
use crate::identity::enrolment::{Answer, Exported, Request, Terms, Vouched, prove};
use crate::identity::{Credentials, Site, public_key_hash};
use crate::types::Role;
use crate::types::join::JoinString;

impl Credentials {
    /// Makes a key and has the coordinator certify it as `role`: any but a coordinator. Blocks at most `patience`.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if the job has formed (observers and admins may come at any time),
    /// [`Error::Auth`] if the coordinator is not the one of the join string or does not know the secret, [`Error::Token`] if the join string
    /// is not good for this role or any more, [`Error::Unavailable`] if the coordinator cannot be reached in time, [`Error::Timeout`] if
    /// it has no place for a newcomer.
    pub fn enroll(join: &JoinString, role: Role, patience: Duration) -> Result<Self> {
        Self::enroll_by(None, join, role, patience)
    }

    /// The same. If there is a `site`, its certificates vouch for both sides in place of the join string's secret.
    ///
    /// # Errors
    /// As [`enroll`](Self::enroll).
    pub fn enroll_by(site: Option<&Site>, join: &JoinString, role: Role, patience: Duration) -> Result<Self> {
        let settings = Settings::default();
        let (tls, vouched) = match site {
            Some(site) => (tls::site_newcomer(site)?, Vouched::BySite),
            None => (tls::newcomer(join.ca_hash)?, Vouched::BySecret),
        };
        let socket = socket::bind_any(settings.socket_buffer_bytes)?;
        let (sender, outcome) = mpsc::channel();
        let (join, of_dialer) = (join.clone(), settings.clone());
        let serve = move |endpoint: Endpoint| async move {
            let dialer = Dialer { endpoint: endpoint.clone(), tls, credentials: None, settings: of_dialer };
            let enrolled = timeout(patience, insist(&dialer, vouched, &join, role, patience)).await;
            let timed_out = || Error::Timeout { what: format!("enrolling at {}", join.address), waited: patience };
            let _ = sender.send(enrolled.unwrap_or_else(|_| Err(timed_out())));
            endpoint.close(CLOSE_ORDERLY, b"");
            let _ = timeout(GOODBYE, endpoint.wait_idle()).await;
        };
        let thread = endpoint::start("gl-enroll", socket, settings.endpoint(), None, serve)?;
        // The thread ends within `patience` by itself. The wait is a bit longer, for a thread that is late or stuck.
        let outcome = outcome.recv_timeout(patience.saturating_add(GOODBYE)).map_err(|error| match error {
            RecvTimeoutError::Disconnected => {
                Error::Internal { what: "the thread of an enrolment ended without an outcome".to_owned() }
            }
            RecvTimeoutError::Timeout => Error::Timeout { what: "enrolling".to_owned(), waited: patience },
        })?;
        thread.join(GOODBYE * 2);
        outcome
    }
}

/// Asks again until `patience` ends, if the coordinator had no place for this process or gave its place to another one.
async fn insist(
    dialer: &Dialer,
    vouched: Vouched,
    join: &JoinString,
    role: Role,
    patience: Duration,
) -> Result<Credentials> {
    let until = Instant::now() + patience;
    loop {
        let error = match ask(dialer, vouched, join, role, until - Instant::now()).await {
            Err(error) if error.retryable() => error,
            outcome => return outcome,
        };
        if until - Instant::now() <= PAUSE {
            return Err(match error {
                Error::Exhausted { .. } => {
                    let what = format!("waiting for a place among the newcomers of {COORDINATOR} at {}", join.address);
                    Error::Timeout { what, waited: patience }
                }
                other => other,
            });
        }
        sleep(PAUSE).await;
    }
}

async fn ask(
    dialer: &Dialer,
    vouched: Vouched,
    join: &JoinString,
    role: Role,
    patience: Duration,
) -> Result<Credentials> {
    let dialed = dialer.dial(&join.address, COORDINATOR, patience).await?;
    match vouched {
        // Every member of the job has a certificate of its authority and could pretend to be the coordinator.
        Vouched::BySecret => certified(dialed.connection.peer_identity())?.must_be(Role::Coordinator)?,
        // TLS has checked the name. The authority that the coordinator sends is checked against the join string below.
        Vouched::BySite => {}
    }
    let internal = |error: rcgen::Error| Error::Internal { what: format!("making a signing request: {error}") };
    let key = KeyPair::generate().map_err(internal)?;
    let request = CertificateParams::default().serialize_request(&key).map_err(internal)?;

    let proof = prove(&join.secret, role, &exported(&dialed.connection)?);
    let message = Request { role, proof: &proof, signing_request: request.der() }.bytes();
    let (mut sender, mut receiver) = dialed.stream;
    written(sender.write_all(&message).await, COORDINATOR)?;
    let _ = sender.finish();

    let answer = read_all(&mut receiver, COORDINATOR).await?;
    match Answer::read(&answer, COORDINATOR)? {
        Answer::Issued { certificate, authority } => {
            let authority = CertificateDer::from(authority.to_vec());
            if public_key_hash(&authority)? != join.ca_hash {
                return Err(early_end("authority", "is not the authority of the join string", COORDINATOR));
            }
            Credentials::new(key.serialize_der(), CertificateDer::from(certificate.to_vec()), authority)
        }
        Answer::Refused(error) => Err(error),
    }
}

/// Serves one newcomer. The caller sets a deadline. Calls `refused` before it tells a newcomer that it is refused.
///
/// # Errors
/// [`Error::Auth`] for a wrong proof; the newcomer was told.
pub(super) async fn serve(
    terms: &Terms,
    vouched: Vouched,
    connection: &Connection,
    refused: impl FnOnce(),
) -> Result<()> {
    let peer = format!("the process at {}", connection.remote_address());
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(1));
    let (sender, mut receiver) = connection.accept_bi().await.map_err(|lost| connection_error(&lost, &peer))?;
    let issued = match read_all(&mut receiver, &peer).await {
        Ok(message) => exported(connection).and_then(|key| terms.certify(vouched, &message, &key, &peer)),
        Err(error) => Err(error),
    };
    let answer = match &issued {
        Ok(certificate) => Answer::Issued { certificate, authority: terms.authority().certificate() },
        Err(error) => {
            refused();
            Answer::Refused(error.told_to_peer())
        }
    };
    let answer = answer.bytes();
    say_goodbye(connection, sender, &answer, &peer).await?;
    issued.map(drop)
}

/// Sends the answer and waits until the newcomer has received it.
async fn say_goodbye(connection: &Connection, mut sender: SendStream, answer: &[u8], peer: &str) -> Result<()> {
    written(sender.write_all(answer).await, peer)?;
    let _ = sender.finish();
    connection.closed().await;
    Ok(())
}

/// The key that TLS exports for this connection.
fn exported(connection: &Connection) -> Result<Exported> {
    let mut key = [0; 32];
    connection
        .export_keying_material(&mut key, b"EXPORTER-gradlane-enroll", b"")
        .map_err(|_| Error::Internal { what: "TLS exported no key".to_owned() })?;
    Ok(key)
}

async fn read_all(receiver: &mut RecvStream, peer: &str) -> Result<Vec<u8>> {
    receiver.read_to_end(MESSAGE_BYTES_MAX).await.map_err(|error| match error {
        quinn::ReadToEndError::TooLong => early_end("length", &format!("is above {MESSAGE_BYTES_MAX}"), peer),
        quinn::ReadToEndError::Read(error) => super::closing::read_error(error, peer),
    })
}

const COORDINATOR: &str = "the coordinator";
/// A request or an answer: two certificates and change.
const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// Before this process asks again.
const PAUSE: Duration = Duration::from_millis(200);
/// For the closing of a connection to reach the peer.
const GOODBYE: Duration = Duration::from_millis(500);
