//! The key and the certificate by which a process proves its identity. The certificate is replaced while the process runs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};

use super::certificate::PeerIdentity;
use super::validity::{Validity, wall_clock};
use crate::error::{Error, Result};
use crate::types::NodeId;

/// The key of a process and its certificate. All clones show the newest certificate. So do all endpoints that were made with them, because each
/// handshake asks for the certificate when it begins.
#[derive(Clone)]
pub struct Credentials(Arc<Holder>);

struct Holder {
    identity: PeerIdentity,
    authority: CertificateDer<'static>,
    key: Arc<dyn SigningKey>,
    /// Locked for a look-up at a time.
    current: Mutex<Current>,
}

/// The newest certificate.
struct Current {
    certified: Arc<CertifiedKey>,
    validity: Validity,
}

impl Credentials {
    /// `key` is a PKCS #8 document and `certificate` that of the same key, issued by `authority`; all in DER.
    ///
    /// # Errors
    /// [`Error::Auth`] if the certificate does not name a member of a job, or is not that of the key.
    pub fn new(key: Vec<u8>, certificate: CertificateDer<'static>, authority: CertificateDer<'static>) -> Result<Self> {
        let identity = PeerIdentity::of(&certificate)?;
        let key = any_supported_type(&PrivatePkcs8KeyDer::from(key).into()).map_err(|error| unusable(&error))?;
        let current = Mutex::new(Current::new(&key, certificate, &authority)?);
        Ok(Self(Arc::new(Holder { identity, authority, key, current })))
    }

    /// This process's identity.
    pub fn node(&self) -> NodeId {
        self.0.identity.node
    }

    /// The identity in this process's certificate.
    pub fn identity(&self) -> &PeerIdentity {
        &self.0.identity
    }

    /// The time in which its newest certificate is good.
    pub fn validity(&self) -> Validity {
        self.0.lock().validity
    }

    /// How long until its certificate should be renewed.
    pub fn renewal_in(&self) -> Duration {
        self.validity().renewal_in(wall_clock())
    }

    /// Shows `certificate`, in DER, from the next handshake on. Connections that exist are not affected.
    ///
    /// # Errors
    /// [`Error::Auth`] if it is not for the same key, role and job. The former one stays.
    pub fn renew(&self, certificate: Vec<u8>) -> Result<()> {
        let certificate = CertificateDer::from(certificate);
        let named = PeerIdentity::of(&certificate)?;
        if named != self.0.identity {
            return Err(Error::Auth {
                problem: format!(
                    "the certificate that should replace that of this {} of job {} is for a {} of job {}, or for another key",
                    self.0.identity.role, self.0.identity.job, named.role, named.job
                ),
                hint: "look at what answers at the coordinator's address".to_owned(),
            });
        }
        let renewed = Current::new(&self.0.key, certificate, &self.0.authority)?;
        *self.0.lock() = renewed;
        Ok(())
    }

    /// `error` with the times of this process's own certificate, if it says that this certificate is not good now.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match error {
            Error::CertExpired { holder, times, hint } if holder == THIS_PROCESS => {
                Error::CertExpired { holder, times: format!("{}; {times}", self.validity()), hint }
            }
            other => other,
        }
    }

    pub(crate) fn authority(&self) -> &CertificateDer<'static> {
        &self.0.authority
    }

    /// The newest certificate.
    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.0.lock().certified.cert[0].clone()
    }

    /// Gives TLS the newest certificate at each handshake.
    pub(crate) fn resolver(&self) -> Arc<Resolver> {
        Arc::new(Resolver(self.clone()))
    }
}

impl Holder {
    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    fn new(
        key: &Arc<dyn SigningKey>,
        certificate: CertificateDer<'static>,
        authority: &CertificateDer<'static>,
    ) -> Result<Self> {
        let validity = Validity::of(&certificate)?;
        // The own certificate goes first. The authority's is sent too, because a process that enrols knows only its hash.
        let certified = CertifiedKey::new(vec![certificate, authority.clone()], Arc::clone(key));
        certified.keys_match().map_err(|error| unusable(&error))?;
        Ok(Self { certified: Arc::new(certified), validity })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?})", self.0.identity)
    }
}

/// Answers TLS's question which certificate to show.
#[derive(Debug)]
pub(crate) struct Resolver(Credentials);

impl Resolver {
    fn newest(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.0.lock().certified)
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.newest())
    }
}

impl ResolvesClientCert for Resolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.newest())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn unusable(error: &rustls::Error) -> Error {
    Error::Auth {
        problem: format!("this process's certificate, key and authority cannot be used: {error}"),
        hint: "join again with the job's join string".to_owned(),
    }
}

/// The name in errors of the holder of this process's own certificate.
pub(crate) const THIS_PROCESS: &str = "this process";
