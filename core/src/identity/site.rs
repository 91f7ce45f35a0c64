//! Certificates that a site gives to its processes (SPIFFE, cert-manager). They let a newcomer enrol in place of the join string's secret.
//!
//! A site's authority certifies much more than one job. So each side accepts only certificates whose URI or DNS name is on the list of the
//! setting `tls_peer`. Such a certificate permits an enrolment and nothing else. The newcomer makes a key of its own, and the job's authority
//! certifies this key for one role, as with a join string.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustls::client::{ResolvesClientCert, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore, SignatureScheme};

use super::certificate::names_of;
use super::validity::wall_clock;
use crate::error::{Error, Result};

/// The contents of the files that a site gives to a process, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct SiteFiles {
    /// The process's certificate, then those between it and an authority.
    pub certificate: String,
    /// The key of that certificate.
    pub key: String,
    /// The authorities of the site.
    pub authorities: String,
}

/// Reads the files anew.
pub type Load = Box<dyn Fn() -> Result<SiteFiles> + Send + Sync>;

/// The certificates of a site, as its files hold them now. Clones share them.
#[derive(Clone)]
pub struct Site(Arc<Inner>);

struct Inner {
    peers: Vec<String>,
    load: Load,
    /// Locked while the certificates are looked up, or the files are read.
    state: Mutex<State>,
}

struct State {
    files: SiteFiles,
    held: Held,
    looked_at: SystemTime,
    /// Whether the files could not be used when they were read last.
    is_damaged: bool,
}

/// The parsed contents of the files.
#[derive(Clone)]
struct Held {
    certified: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
}

impl Site {
    /// The certificates in the files that `load` reads. Peers must show a certificate with one of the names in `peers`: a DNS name, a URI, or the
    /// beginning of a URI followed by `/*`.
    ///
    /// # Errors
    /// [`Error::Config`] if `peers` is empty or has a name that would match too much, or if the files cannot be used. Also the errors of `load`.
    pub fn new(peers: &[String], load: Load) -> Result<Self> {
        let bad = |problem: String| Error::Config {
            knob: "tls_peer".to_owned(),
            problem,
            hint: "list whose certificates take part in this job, such as spiffe://site/ns/training/*".to_owned(),
        };
        if peers.is_empty() {
            return Err(bad("is empty, so that every certificate of the site would be accepted".to_owned()));
        }
        // A star may stand only at the end of a path, and the URI must name its authority.
        let is_exact = |peer: &str| match peer.strip_suffix("/*").unwrap_or(peer) {
            front if front.contains('*') || front.is_empty() => false,
            front => front == peer || front.split_once("://").is_some_and(|(_, host)| !host.is_empty()),
        };
        if let Some(peer) = peers.iter().find(|peer| !is_exact(peer)) {
            return Err(bad(format!(
                "has {peer:?}, which is neither a name nor the beginning of a URI followed by /*"
            )));
        }
        let files = load()?;
        let state = State { held: Held::of(&files)?, files, looked_at: wall_clock(), is_damaged: false };
        Ok(Self(Arc::new(Inner { peers: peers.to_owned(), load, state: Mutex::new(state) })))
    }

    /// Shows TLS the newest certificate.
    pub(crate) fn resolver(&self) -> Arc<SiteResolver> {
        Arc::new(SiteResolver(self.clone()))
    }

    /// The newest certificate.
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified_at(wall_clock())
    }

    pub(crate) fn certified_at(&self, now: SystemTime) -> Arc<CertifiedKey> {
        self.held(now).certified
    }

    /// Checks the chain of a process that connects.
    ///
    /// # Errors
    /// Why the process may not enrol.
    pub(crate) fn verify_client(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<(), rustls::Error> {
        let roots = self.held(wall_clock()).roots;
        WebPkiClientVerifier::builder_with_provider(roots, Arc::new(default_provider()))
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_client_cert(end_entity, intermediates, now)?;
        self.check_name(end_entity)
    }

    /// Checks the chain of a coordinator.
    ///
    /// # Errors
    /// Why the coordinator cannot be trusted.
    pub(crate) fn verify_server(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<(), rustls::Error> {
        let roots = self.held(wall_clock()).roots;
        let algorithms = default_provider().signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, now, algorithms)?;
        self.check_name(end_entity)
    }

    fn check_name(&self, certificate: &CertificateDer<'_>) -> std::result::Result<(), rustls::Error> {
        let names = names_of(certificate);
        if names.iter().any(|name| self.0.peers.iter().any(|peer| permits(peer, name))) {
            return Ok(());
        }
        tracing::debug!(?names, "none of these names is in tls_peer");
        Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    /// The contents of the files. They are read again after [`LOOK_EVERY`]. If new files cannot be used, the former contents count.
    fn held(&self, now: SystemTime) -> Held {
        let mut state = self.lock();
        // If the clock was set back, the age is unknown, and the files are read.
        let is_fresh = now.duration_since(state.looked_at).is_ok_and(|age| age < LOOK_EVERY);
        if !is_fresh {
            state.looked_at = now;
            let read = (self.0.load)().and_then(|files| match files == state.files {
                true => Ok(None),
                false => Held::of(&files).map(|held| Some((files, held))),
            });
            match read {
                Ok(None) => state.is_damaged = false,
                Ok(Some((files, held))) => {
                    (state.files, state.held, state.is_damaged) = (files, held, false);
                    tracing::info!("the site's certificate was replaced");
                }
                Err(error) => {
                    if !std::mem::replace(&mut state.is_damaged, true) {
                        tracing::warn!(%error, "new certificate files cannot be used; the former certificate stays");
                    }
                }
            }
        }
        state.held.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn of(files: &SiteFiles) -> Result<Self> {
        let chain = certificates(&files.certificate, "tls_cert")?;
        let key = PrivateKeyDer::from_pem_slice(files.key.as_bytes())
            .map_err(|error| unusable("tls_key", &format!("holds no key: {error}")))?;
        let key = any_supported_type(&key).map_err(|error| unusable("tls_key", &error.to_string()))?;
        let certified = CertifiedKey::new(chain, key);
        certified.keys_match().map_err(|_| unusable("tls_key", "is not the key of tls_cert"))?;
        let mut roots = RootCertStore::empty();
        for authority in certificates(&files.authorities, "tls_ca")? {
            roots.add(authority).map_err(|error| unusable("tls_ca", &error.to_string()))?;
        }
        Ok(Self { certified: Arc::new(certified), roots: Arc::new(roots) })
    }
}

fn certificates(pem: &str, knob: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(found) if found.is_empty() => Err(unusable(knob, "holds no certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(knob, &format!("is no PEM: {error}"))),
    }
}

fn unusable(knob: &str, problem: &str) -> Error {
    Error::Config {
        knob: knob.to_owned(),
        problem: format!("names a file that {problem}"),
        hint: "give files in PEM: tls_cert and tls_key of this process, tls_ca of the site's authorities".to_owned(),
    }
}

/// Whether the entry `peer` of `tls_peer` permits `name`.
fn permits(peer: &str, name: &str) -> bool {
    match peer.strip_suffix('*') {
        // `front` ends with a slash. The rest must not contain `..`, which would lead to another path.
        Some(front) => name.strip_prefix(front).is_some_and(|rest| !rest.is_empty() && !rest.contains("..")),
        None => peer == name,
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Site({:?})", self.0.peers)
    }
}

/// Answers TLS's question which certificate a newcomer shows.
#[derive(Debug)]
pub(crate) struct SiteResolver(Site);

impl ResolvesClientCert for SiteResolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

const LOOK_EVERY: Duration = Duration::from_secs(10);
