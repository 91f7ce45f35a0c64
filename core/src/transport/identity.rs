//! Who is who: the job's certificate authority, the credentials of a process, and the identity that a peer's certificate proves.
//!
//! Every job has its own authority, which only the coordinator holds. A certificate names its holder in one URI,
//! `gradlane://<job>/<role>/<node id>`, and is good for 30 days; a process's [`NodeId`] is the hash of its public key and outlives it.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use data_encoding::HEXLOWER;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::error::{Error, Result};
use crate::types::join::JoinString;
use crate::types::{NodeId, Role};

/// The certificate authority of one job, with the secret that lets a process enrol. Held by the coordinator alone.
pub struct Authority {
    job: String,
    key: KeyPair,
    certificate: CertificateDer<'static>,
    secret: [u8; 16],
    lifetime: Duration,
}

impl Authority {
    /// A new authority for `job`, in memory only.
    ///
    /// # Errors
    /// [`Error::Config`] for a name with other characters than letters, digits, `.`, `_` and `-`.
    pub fn create(job: &str) -> Result<Self> {
        check_job(job)?;
        let key = KeyPair::generate().map_err(|error| failed("making the job's key", error))?;
        let certificate = certify_authority(job, &key)?;
        let mut secret = [0; 16];
        rand::fill(&mut secret).map_err(|error| failed("drawing the join secret", error))?;
        Ok(Self { job: job.to_owned(), key, certificate, secret, lifetime: LIFETIME })
    }

    /// A new authority for `job`, kept in `dir`, which only this user may read, in place of that of an earlier job. Nothing of the earlier
    /// one is good any more.
    ///
    /// # Errors
    /// [`Error::Io`] if the directory cannot be used, [`Error::Auth`] if others may read it.
    pub fn begin(dir: &Path, job: &str) -> Result<Self> {
        let authority = Self::create(job)?;
        private_dir(dir)?;
        Self::forget(dir)?;
        let [key, certificate, secret] = files(dir);
        // The secret is written last: its presence says that the others are whole.
        keep(&key, authority.key.serialized_der())?;
        keep(&certificate, &authority.certificate)?;
        keep(&secret, &authority.secret)?;
        Ok(authority)
    }

    /// The authority that an earlier start of the same job's coordinator left in `dir`; [`begin`](Self::begin) if it left none. The join
    /// string and the job's certificates stay good.
    ///
    /// # Errors
    /// As [`begin`](Self::begin); [`Error::Auth`] also if the files are damaged or of another job.
    pub fn resume(dir: &Path, job: &str) -> Result<Self> {
        check_job(job)?;
        private_dir(dir)?;
        let [key, certificate, secret] = files(dir);
        if !secret.exists() {
            return Self::begin(dir, job);
        }
        let read = |path: &Path| fs::read(path).map_err(|error| io(path, &error));
        let damaged = |what: &str| Error::Auth {
            problem: format!("{what} in {} is damaged or of another job", dir.display()),
            hint: "remove the directory to begin a new job; all its processes must join again".to_owned(),
        };
        let key = KeyPair::try_from(read(&key)?).map_err(|_| damaged("ca.key"))?;
        let certificate = CertificateDer::from(read(&certificate)?);
        let names_job = PeerIdentity::subject_is(&certificate, &authority_name(job));
        if !names_job || public_key_hash(&certificate)? != sha256(&key.subject_public_key_info()) {
            return Err(damaged("ca.der"));
        }
        let secret = read(&secret)?.try_into().map_err(|_| damaged("join.secret"))?;
        Ok(Self { job: job.to_owned(), key, certificate, secret, lifetime: LIFETIME })
    }

    /// Removes what [`begin`](Self::begin) keeps in `dir`: the job has ended, and its secret with it.
    ///
    /// # Errors
    /// [`Error::Io`] if something is left.
    pub fn forget(dir: &Path) -> Result<()> {
        // The secret goes first, because without it the others count for nothing.
        for path in files(dir).iter().rev() {
            match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(path, &error)),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Certificates issued from now on are good for `lifetime` instead of 30 days.
    #[must_use]
    pub fn with_lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// The job's name.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// What a process needs to join the job through the coordinator at `address`.
    pub fn join_string(&self, address: &str) -> JoinString {
        JoinString {
            address: address.to_owned(),
            ca_hash: sha256(&self.key.subject_public_key_info()),
            secret: self.secret,
        }
    }

    /// Makes a key and certifies it: for the coordinator itself, and for processes that it starts.
    ///
    /// # Errors
    /// [`Error::Internal`] if the cryptographic library fails.
    pub fn credentials(&self, role: Role) -> Result<Credentials> {
        let now = wall_clock();
        self.credentials_for(role, now - BACKDATED, now + self.lifetime)
    }

    pub(super) fn credentials_for(&self, role: Role, from: SystemTime, to: SystemTime) -> Result<Credentials> {
        let key = KeyPair::generate().map_err(|error| failed("making a key", error))?;
        let certificate = self.certify(&key, role, from, to)?;
        Credentials::new(key.serialize_der(), certificate, self.certificate.clone())
    }

    pub(super) fn secret(&self) -> &[u8; 16] {
        &self.secret
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Certifies the key of a signing request, whose signature proves that the requester has it. Nothing else of it is believed.
    pub(super) fn sign(&self, request: &[u8], role: Role, peer: &str) -> Result<CertificateDer<'static>> {
        let request = CertificateSigningRequestDer::from(request.to_vec());
        let request = CertificateSigningRequestParams::from_der(&request).map_err(|error| Error::Protocol {
            peer: peer.to_owned(),
            field: "signing request".to_owned(),
            problem: format!("is not valid: {error}"),
        })?;
        let now = wall_clock();
        self.certify(&request.public_key, role, now - BACKDATED, now + self.lifetime)
    }

    fn certify(
        &self,
        key: &impl PublicKeyData,
        role: Role,
        from: SystemTime,
        to: SystemTime,
    ) -> Result<CertificateDer<'static>> {
        let node = NodeId(sha256(&key.subject_public_key_info()));
        let uri = format!("gradlane://{}/{role}/{}", self.job, HEXLOWER.encode(&node.0));
        let mut params =
            CertificateParams::new([SERVER_NAME.to_owned()]).map_err(|error| failed("writing a certificate", error))?;
        params.subject_alt_names.push(SanType::URI(uri.try_into().expect("job names are ASCII")));
        params.distinguished_name = named(&format!("gradlane {role} {node}"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (from.into(), to.into());
        let issuer = Issuer::from_ca_cert_der(&self.certificate, &self.key)
            .map_err(|error| failed("reading the authority", error))?;
        let certificate = params.signed_by(key, &issuer).map_err(|error| failed("signing a certificate", error))?;
        Ok(certificate.der().clone())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.job)
    }
}

/// What a process proves its identity with. Clones share nothing secret with anybody else: keep them in the process.
#[derive(Clone)]
pub struct Credentials {
    key: Vec<u8>,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    identity: PeerIdentity,
}

impl Credentials {
    /// `key` is a PKCS #8 document and `certificate` that of the same key, issued by `authority`; all in DER.
    ///
    /// # Errors
    /// [`Error::Auth`] if the certificate does not name a member of a job.
    pub fn new(key: Vec<u8>, certificate: CertificateDer<'static>, authority: CertificateDer<'static>) -> Result<Self> {
        let identity = PeerIdentity::of(&certificate)?;
        Ok(Self { key, certificate, authority, identity })
    }

    /// This process's identity.
    pub fn node(&self) -> NodeId {
        self.identity.node
    }

    /// What it was certified as.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Own certificate first. The authority's own is sent as well: who enrols knows it only by its hash.
    pub(super) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone(), self.authority.clone()]
    }

    pub(super) fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?})", self.identity)
    }
}

/// What a certificate says of its holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerIdentity {
    /// The hash of its public key.
    pub node: NodeId,
    /// What it may do.
    pub role: Role,
    /// The job it belongs to.
    pub job: String,
}

impl PeerIdentity {
    /// Reads a certificate; that its authority signed it was checked by TLS.
    pub(in crate::transport) fn of(certificate: &CertificateDer<'_>) -> Result<Self> {
        let node = NodeId(public_key_hash(certificate)?);
        let named = uri_of(certificate).and_then(|uri| {
            let (job, role, id) = match uri.strip_prefix("gradlane://")?.split('/').collect::<Vec<_>>()[..] {
                [job, role, id] => (job, role, id),
                _ => return None,
            };
            let role = (1..=u8::MAX).map_while(Role::from_code).find(|known| known.to_string() == role)?;
            (id == HEXLOWER.encode(&node.0)).then(|| Self { node, role, job: job.to_owned() })
        });
        named.ok_or_else(|| Error::Auth {
            problem: "a certificate does not name a member of a job".to_owned(),
            hint: "use certificates that the job's coordinator issued".to_owned(),
        })
    }

    fn subject_is(certificate: &CertificateDer<'_>, name: &str) -> bool {
        X509Certificate::from_der(certificate)
            .is_ok_and(|(_, parsed)| parsed.subject().iter_common_name().any(|cn| cn.as_str() == Ok(name)))
    }
}

/// The hash of a certificate's public key (SPKI).
pub(super) fn public_key_hash(certificate: &CertificateDer<'_>) -> Result<[u8; 32]> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| Error::Auth {
        problem: "a certificate cannot be read".to_owned(),
        hint: "use certificates that the job's coordinator issued".to_owned(),
    })?;
    Ok(sha256(parsed.public_key().raw))
}

/// The wall clock, for certificates only.
pub(super) fn wall_clock() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "certificates are dated by the calendar")]
    SystemTime::now()
}

fn uri_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    })
}

fn certify_authority(job: &str, key: &KeyPair) -> Result<CertificateDer<'static>> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name = named(&authority_name(job));
    let now = wall_clock();
    (params.not_before, params.not_after) = ((now - BACKDATED).into(), (now + AUTHORITY_LIFETIME).into());
    let certificate = params.self_signed(key).map_err(|error| failed("signing the job's certificate", error))?;
    Ok(certificate.der().clone())
}

fn authority_name(job: &str) -> String {
    format!("gradlane job {job}")
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn check_job(job: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if (1..=JOB_BYTES_MAX).contains(&job.len()) && job.chars().all(good) {
        return Ok(());
    }
    Err(Error::Config {
        knob: "job".to_owned(),
        problem: format!("{job:?} cannot name a job"),
        hint: format!("use 1 to {JOB_BYTES_MAX} letters, digits, `.`, `_` or `-`"),
    })
}

/// The files of an authority: key, certificate and join secret.
fn files(dir: &Path) -> [PathBuf; 3] {
    ["ca.key", "ca.der", "join.secret"].map(|name| dir.join(name))
}

/// Makes `dir` unless it exists, and checks that only this user can look into it.
fn private_dir(dir: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| io(dir, &error))?;
    let mode = fs::metadata(dir).map_err(|error| io(dir, &error))?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let problem = format!("{} is open to others (mode {:o})", dir.display(), mode & 0o777);
    Err(Error::Auth { problem, hint: format!("chmod 700 {}", dir.display()) })
}

/// Writes a file that only this user may read.
fn keep(path: &Path, bytes: &[u8]) -> Result<()> {
    let open = || OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let write = |mut file: File| file.write_all(bytes).and_then(|()| file.sync_all());
    open().and_then(write).map_err(|error| io(path, &error))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn io(path: &Path, error: &std::io::Error) -> Error {
    Error::Io { what: path.display().to_string(), cause: error.to_string() }
}

fn failed(what: &str, error: impl fmt::Display) -> Error {
    Error::Internal { what: format!("{what}: {error}") }
}

/// In every certificate, so that TLS's check of the server's name passes: who a server is, is its [`NodeId`].
pub(in crate::transport) const SERVER_NAME: &str = "gradlane";
/// Of a process's certificate. As long as the longest trainings last: certificates are not renewed, and a process that must dial anew
/// after the end of its own would be locked out of a job that still runs. What a shorter time would protect from, a stolen key, ends with
/// the job in any case, because every job has its own authority.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Of an authority: longer than any job.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Certificates begin this much earlier, for hosts whose clock is behind.
const BACKDATED: Duration = Duration::from_secs(3600);
const JOB_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_names_role_job_and_key() {
        let authority = Authority::create("resnet-50").unwrap();
        let worker = authority.credentials(Role::Worker).unwrap();
        let identity = PeerIdentity::of(&worker.certificate).unwrap();
        assert_eq!((identity.role, identity.job.as_str(), identity.node), (Role::Worker, "resnet-50", worker.node()));
        assert_ne!(authority.credentials(Role::Worker).unwrap().node(), worker.node(), "a key of its own");
    }

    #[test]
    fn an_authority_that_is_resumed_is_the_one_that_began_in_a_private_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs/resnet");
        let first = Authority::resume(&path, "resnet").unwrap();
        let again = Authority::resume(&path, "resnet").unwrap();
        assert_eq!(first.join_string("a:1"), again.join_string("a:1"));
        assert_eq!(first.certificate, again.certificate);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(path.join("ca.key")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn nothing_of_an_authority_is_left_in_the_next_one_or_after_its_job() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resnet");
        let [first, second] = [(); 2].map(|()| Authority::begin(&path, "resnet").unwrap());
        let [one, other] = [&first, &second].map(|authority| authority.join_string("a:1"));
        assert!(one.secret != other.secret && one.ca_hash != other.ca_hash);
        assert_eq!(Authority::resume(&path, "resnet").unwrap().join_string("a:1"), other);
        Authority::forget(&path).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        assert_ne!(Authority::resume(&path, "resnet").unwrap().join_string("a:1"), other);
    }

    #[test]
    fn a_directory_open_to_others_or_of_another_job_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resnet");
        Authority::begin(&path, "resnet").unwrap();
        assert!(Authority::resume(&path, "bert").unwrap_err().to_string().contains("another job"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        for outcome in [Authority::begin(&path, "resnet"), Authority::resume(&path, "resnet")] {
            assert!(outcome.unwrap_err().to_string().contains("open to others"));
        }
    }

    #[test]
    fn a_job_name_has_no_surprises() {
        for name in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(Authority::create(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_foreign_certificate_names_nobody() {
        let authority = Authority::create("resnet").unwrap();
        assert!(PeerIdentity::of(&authority.certificate).is_err());
        assert!(PeerIdentity::of(&CertificateDer::from(vec![1, 2, 3])).is_err());
    }
}
