//! The job's certificate authority.
//!
//! Every job has its own authority, which only the coordinator holds. A certificate names its holder in one URI,
//! `gradlane://<job>/<role>/<node id>`, and is good for a day. A process's [`NodeId`] is the hash of its public key: key and id stay when the
//! certificate is renewed.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use aws_lc_rs::{hmac, rand};
use data_encoding::HEXLOWER;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SubjectPublicKeyInfo,
};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};

use super::certificate::{PeerIdentity, SERVER_NAME, public_key, public_key_hash, sha256};
use super::credentials::Credentials;
use super::invitation::{self, Invitations};
use super::validity::{BACKDATED, Validity, wall_clock};
use crate::error::{Error, Result};
use crate::local::private_file::{self, IfOpen};
use crate::types::join::JoinString;
use crate::types::{NodeId, Role, WorkersKey};

/// The certificate authority of one job, and the secret that lets a process enrol. Only the coordinator has it.
pub struct Authority {
    job: String,
    key: KeyPair,
    certificate: CertificateDer<'static>,
    pub(super) secret: [u8; 16],
    lifetime: Duration,
    /// The directory that holds the authority's files and those of its invitations, if it is kept.
    pub(super) dir: Option<PathBuf>,
    /// Locked while the secret of a newcomer is looked up.
    pub(super) invitations: Mutex<Invitations>,
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
        Ok(Self::of(job, key, certificate, draw()?, None))
    }

    /// A new authority for `job`, kept in `dir`, which only this user may read. It replaces the authority of an earlier job there, whose secrets
    /// and certificates are not good any more.
    ///
    /// # Errors
    /// [`Error::Io`] if the directory cannot be used, [`Error::Auth`] if others may read it or it belongs to another user.
    pub fn begin(dir: &Path, job: &str) -> Result<Self> {
        let authority = Self { dir: Some(dir.to_owned()), ..Self::create(job)? };
        private_file::directory(dir, IfOpen::Refuse)?;
        Self::forget(dir)?;
        let [_, certificate, secret] = files(dir);
        // The secret is written last, so that its presence says that the other files are whole.
        let kept = private_file::write_in(dir, IfOpen::Refuse, KEY, authority.key.serialized_der())
            .and_then(|()| private_file::write(&certificate, &authority.certificate))
            .and_then(|()| private_file::write(&secret, authority.secret));
        match kept {
            Ok(()) => Ok(authority),
            Err(error) => {
                // A file that was cut short by a full disk would look damaged to the next coordinator.
                let _ = Self::forget(dir);
                Err(error)
            }
        }
    }

    /// The authority that an earlier start of the same job's coordinator left in `dir`. The join string and the job's certificates stay good.
    /// [`begin`](Self::begin)s a new one if there is none.
    ///
    /// # Errors
    /// As [`begin`](Self::begin); [`Error::Auth`] also if the files are damaged or belong to another job.
    pub fn resume(dir: &Path, job: &str) -> Result<Self> {
        match Self::load(dir, job)? {
            Some(authority) => Ok(authority),
            None => Self::begin(dir, job),
        }
    }

    /// Whether an authority is kept in `dir`, because the end of its job was not seen.
    pub fn is_kept(dir: &Path) -> bool {
        files(dir)[2].exists()
    }

    /// The authority that is kept in `dir`.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub(super) fn load(dir: &Path, job: &str) -> Result<Option<Self>> {
        check_job(job)?;
        private_file::directory(dir, IfOpen::Refuse)?;
        if !Self::is_kept(dir) {
            return Ok(None);
        }
        let [key, certificate, secret] = files(dir);
        let read = |path: &Path| fs::read(path).map_err(|error| io(path, &error));
        let damaged = |what: &str| Error::Auth {
            problem: format!("{what} in {} is damaged or belongs to another job", dir.display()),
            hint: "remove the directory to begin a new job; all its processes must join again".to_owned(),
        };
        let key = KeyPair::try_from(read(&key)?).map_err(|_| damaged("ca.key"))?;
        let certificate = CertificateDer::from(read(&certificate)?);
        let names_job = PeerIdentity::subject_is(&certificate, &authority_name(job));
        if !names_job || public_key_hash(&certificate)? != sha256(&key.subject_public_key_info()) {
            return Err(damaged("ca.der"));
        }
        let secret = read(&secret)?.try_into().map_err(|_| damaged("join.secret"))?;
        Ok(Some(Self::of(job, key, certificate, secret, Some(dir.to_owned()))))
    }

    fn of(
        job: &str,
        key: KeyPair,
        certificate: CertificateDer<'static>,
        secret: [u8; 16],
        dir: Option<PathBuf>,
    ) -> Self {
        Self { job: job.to_owned(), key, certificate, secret, lifetime: LIFETIME, dir, invitations: Mutex::default() }
    }

    /// The key that all workers of this job share. It is derived from the authority's own key, so a coordinator that resumes the job has the same
    /// one.
    pub fn workers_key(&self) -> WorkersKey {
        WorkersKey(self.derive(b"gradlane 1: key of the workers"))
    }

    /// The key of the stateless resets of this job's coordinator (RFC 9000, section 10.3). A coordinator that was killed and resumes its job has
    /// the same key. So its members learn at once that their connections are gone.
    pub(crate) fn reset_key(&self) -> [u8; 32] {
        self.derive(b"gradlane 1: stateless reset")
    }

    /// What lets an operator of the user in who leads the job. Only that user can read the file in which the coordinator keeps it.
    pub fn operators_string(&self, address: &str) -> JoinString {
        JoinString { secret: self.operators_secret(), ..self.join_string(address) }
    }

    /// The secret of [`operators_string`](Self::operators_string).
    pub(super) fn operators_secret(&self) -> [u8; 16] {
        let derived = self.derive(b"gradlane 1: secret of the operators");
        *derived.first_chunk().expect("32 bytes")
    }

    /// Derives a key for `purpose`. To a process without the authority's key, HMAC-SHA256 is a pseudorandom function of `purpose`.
    fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.key.serialized_der());
        hmac::sign(&key, purpose).as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Removes the files of [`begin`](Self::begin) from `dir`, because the job has ended.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be removed.
    pub fn forget(dir: &Path) -> Result<()> {
        invitation::forget(dir)?;
        // The secret goes first, because the other files are of no use without it.
        for path in files(dir).iter().rev() {
            match fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(path, &error)),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Certificates issued from now on are good for `lifetime` instead of a day.
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
        self.credentials_for(role, self.new_validity())
    }

    pub(crate) fn credentials_for(&self, role: Role, validity: Validity) -> Result<Credentials> {
        let key = KeyPair::generate().map_err(|error| failed("making a key", error))?;
        let certificate = self.certify(&key, role, validity)?;
        Credentials::new(key.serialize_der(), certificate, self.certificate.clone())
    }

    /// The next certificate of the holder of `certificate`, which has proven that it has the key. Role and job stay. The caller decides who may
    /// ask. It does not matter whether the job admits newcomers.
    ///
    /// # Errors
    /// [`Error::Auth`] if `certificate` is not one of this job.
    pub(crate) fn renew(&self, certificate: &CertificateDer<'_>) -> Result<CertificateDer<'static>> {
        let holder = PeerIdentity::of(certificate)?;
        if holder.job != self.job {
            return Err(Error::Auth {
                problem: format!("a certificate of job {} cannot be renewed by job {}", holder.job, self.job),
                hint: "join the job with its join string".to_owned(),
            });
        }
        let key = SubjectPublicKeyInfo::from_der(&public_key(certificate)?)
            .map_err(|error| failed("reading a certified key", error))?;
        self.certify(&key, holder.role, self.new_validity())
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    fn new_validity(&self) -> Validity {
        Validity::begin(wall_clock(), self.lifetime)
    }

    /// Certifies the key of a signing request. Its signature proves that the requester has the key. Its other fields are ignored.
    pub(crate) fn sign(&self, request: &[u8], role: Role, peer: &str) -> Result<CertificateDer<'static>> {
        let request = CertificateSigningRequestDer::from(request.to_vec());
        let request = CertificateSigningRequestParams::from_der(&request).map_err(|error| Error::Protocol {
            peer: peer.to_owned(),
            field: "signing request".to_owned(),
            problem: format!("is not valid: {error}"),
        })?;
        self.certify(&request.public_key, role, self.new_validity())
    }

    fn certify(&self, key: &impl PublicKeyData, role: Role, validity: Validity) -> Result<CertificateDer<'static>> {
        let node = NodeId(sha256(&key.subject_public_key_info()));
        let uri = format!("gradlane://{}/{role}/{}", self.job, HEXLOWER.encode(&node.0));
        let mut params =
            CertificateParams::new([SERVER_NAME.to_owned()]).map_err(|error| failed("writing a certificate", error))?;
        params.subject_alt_names.push(SanType::URI(uri.try_into().expect("job names are ASCII")));
        params.distinguished_name = named(&format!("gradlane {role} {node}"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (validity.from.into(), validity.to.into());
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
    [KEY, "ca.der", "join.secret"].map(|name| dir.join(name))
}

/// The file of an authority's key.
const KEY: &str = "ca.key";

/// Draws a join secret.
pub(super) fn draw() -> Result<[u8; 16]> {
    let mut secret = [0; 16];
    rand::fill(&mut secret).map_err(|error| failed("drawing a join secret", error))?;
    Ok(secret)
}

fn io(path: &Path, error: &std::io::Error) -> Error {
    Error::Io { what: path.display().to_string(), cause: error.to_string() }
}

fn failed(what: &str, error: impl fmt::Display) -> Error {
    Error::Internal { what: format!("{what}: {error}") }
}

/// Lifetime of a process's certificate. It is renewed while the process is connected, so a stolen key is soon of no use.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of an authority's certificate: longer than any job.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const JOB_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_certificate_names_role_job_and_key() {
        let authority = Authority::create("resnet-50").unwrap();
        let worker = authority.credentials(Role::Worker).unwrap();
        let identity = PeerIdentity::of(&worker.certificate()).unwrap();
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
