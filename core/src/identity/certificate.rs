//! Reads certificates: the role and job of the holder, and the hash of the key, which is the holder's identity.

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::error::{Error, Result};
use crate::types::{NodeId, Role};

/// The identity of a process, as its certificate states it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerIdentity {
    /// The hash of its public key.
    pub node: NodeId,
    /// Its role in the job.
    pub role: Role,
    /// The job it belongs to.
    pub job: String,
}

impl PeerIdentity {
    /// Reads a certificate. TLS has checked that the job's authority signed it.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self> {
        let node = NodeId(public_key_hash(certificate)?);
        let named = uri_of(certificate).and_then(|uri| {
            let (job, role, id) = match uri.strip_prefix("gradlane://")?.split('/').collect::<Vec<_>>()[..] {
                [job, role, id] => (job, role, id),
                _ => return None,
            };
            let role = Role::named(role)?;
            (id == HEXLOWER.encode(&node.0)).then(|| Self { node, role, job: job.to_owned() })
        });
        named.ok_or_else(|| Error::Auth {
            problem: "a certificate does not name a member of a job".to_owned(),
            hint: "use certificates that the job's coordinator issued".to_owned(),
        })
    }

    /// Checks that the process was certified for the role in which it acts here.
    ///
    /// # Errors
    /// [`Error::Auth`] if its certificate is for another role.
    pub fn must_be(&self, role: Role) -> Result<()> {
        if self.role == role {
            return Ok(());
        }
        Err(Error::Auth {
            problem: format!("node {} acts as a {role}, but its certificate is that of a {}", self.node, self.role),
            hint: format!("enrol it as a {role}, with a join string for that role"),
        })
    }

    pub(crate) fn subject_is(certificate: &CertificateDer<'_>, name: &str) -> bool {
        X509Certificate::from_der(certificate)
            .is_ok_and(|(_, parsed)| parsed.subject().iter_common_name().any(|cn| cn.as_str() == Ok(name)))
    }
}

/// The hash of a certificate's public key (SPKI).
pub(crate) fn public_key_hash(certificate: &CertificateDer<'_>) -> Result<[u8; 32]> {
    Ok(sha256(&public_key(certificate)?))
}

/// A certificate's public key (SPKI, in DER).
pub(super) fn public_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| unreadable())?;
    Ok(parsed.public_key().raw.to_owned())
}

/// The error for bytes that are no certificate.
pub(super) fn unreadable() -> Error {
    Error::Auth {
        problem: "a certificate cannot be read".to_owned(),
        hint: "use certificates that the job's coordinator issued".to_owned(),
    }
}

/// The DNS names and URIs of a certificate; none if it cannot be read.
pub(super) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::URI(name) | GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(name).collect()
}

fn uri_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    })
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// A DNS name that every certificate has, so that TLS's check of the server's name passes. The identity of a server is its [`NodeId`].
pub(crate) const SERVER_NAME: &str = "gradlane";
