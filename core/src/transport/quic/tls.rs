//! The settings of TLS: version 1.3, certificates on both sides, the job's authority as the only root, always a full handshake.
//!
//! Resumption is off, because it would skip the client's certificate. Early data is off, because it could be replayed. Neither would gain
//! much, because reconnecting is rare.

use std::any::Any;
use std::sync::Arc;

use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, CipherSuite, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use crate::error::{Error, Result};
use crate::identity::enrolment::Vouched;
use crate::identity::{Credentials, PeerIdentity, Site, public_key_hash};
use crate::transport::Peer;
use crate::types::Role;

/// The protocol of members: exchanges and control.
pub(super) const ALPN: &[u8] = b"gradlane/1";
/// The protocol by which a process becomes a member.
pub(super) const ALPN_ENROLL: &[u8] = b"gradlane-enroll/1";

/// The protocol by which a process with a certificate of the site becomes a member.
pub(super) const ALPN_SITE: &[u8] = b"gradlane-site/1";

/// The peers that a listener lets in.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) enum Admission<'a> {
    /// Members only: no handshake without a certificate of the job.
    Members,
    /// Also processes without a certificate, which may do nothing but enrol. [`peer_of`] tells them apart.
    MembersAndNewcomers,
    /// Also processes with a certificate of this site, which may do nothing but enrol. [`Authorities::judge`] tells them apart. A join string lets
    /// no process in then.
    MembersAndSite(&'a Site),
}

/// For connecting as a member.
pub(super) fn client(credentials: &Credentials) -> Result<Arc<QuicClientConfig>> {
    Ok(Arc::new(QuicClientConfig::try_from(client_config(credentials, ALPN)?).map_err(broken)?))
}

/// TLS for connecting as a member to speak `protocol`.
pub(in crate::transport) fn client_config(credentials: &Credentials, protocol: &[u8]) -> Result<rustls::ClientConfig> {
    let roots = roots(credentials)?;
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build().map_err(broken)?;
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(broken)?
        .with_webpki_verifier(verifier)
        .with_client_cert_resolver(credentials.resolver());
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// For connecting to enrol. The coordinator's certificate must come from the authority whose key has this hash.
pub(super) fn newcomer(ca_hash: [u8; 32]) -> Result<Arc<QuicClientConfig>> {
    without_certificate(ca_hash, ALPN_ENROLL)
}

/// For connecting to enrol with the certificate of a site.
pub(super) fn site_newcomer(site: &Site) -> Result<Arc<QuicClientConfig>> {
    let verifier = SiteCoordinator { site: site.clone(), provider: provider() };
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(broken)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(site.resolver());
    config.alpn_protocols = vec![ALPN_SITE.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(QuicClientConfig::try_from(config).map_err(broken)?))
}

pub(super) fn without_certificate(ca_hash: [u8; 32], protocol: &[u8]) -> Result<Arc<QuicClientConfig>> {
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(broken)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedAuthority { ca_hash, provider: provider() }))
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(QuicClientConfig::try_from(config).map_err(broken)?))
}

/// For listening.
pub(super) fn server(credentials: &Credentials, admission: Admission<'_>) -> Result<Arc<QuicServerConfig>> {
    let protocols: &[&[u8]] = match admission {
        Admission::Members => &[ALPN],
        Admission::MembersAndNewcomers => &[ALPN, ALPN_ENROLL],
        Admission::MembersAndSite(_) => &[ALPN, ALPN_SITE],
    };
    let config = server_config(credentials, admission, protocols)?;
    Ok(Arc::new(QuicServerConfig::try_from(config).map_err(broken)?))
}

/// TLS for listening to the peers of `admission` that use one of `protocols`.
pub(in crate::transport) fn server_config(
    credentials: &Credentials,
    admission: Admission<'_>,
    protocols: &[&[u8]],
) -> Result<rustls::ServerConfig> {
    let members = WebPkiClientVerifier::builder_with_provider(roots(credentials)?, provider());
    let verifier = match admission {
        Admission::Members => members.build().map_err(broken)?,
        Admission::MembersAndNewcomers => members.allow_unauthenticated().build().map_err(broken)?,
        Admission::MembersAndSite(site) => Arc::new(Authorities::new(credentials, site)?),
    };
    let certificates: Arc<dyn ResolvesServerCert> = match admission {
        Admission::Members | Admission::MembersAndNewcomers => credentials.resolver(),
        Admission::MembersAndSite(site) => Arc::new(ByProtocol { job: credentials.resolver(), site: site.clone() }),
    };
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(broken)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificates);
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

/// The peer of an established connection.
pub(super) enum PeerOf {
    /// A member of the job.
    Member(PeerIdentity),
    /// A process that wants to enrol.
    Newcomer(Vouched),
}

/// Identifies the peer of a connection by the protocol of its handshake and by its certificate. A peer that chose the protocol of members must
/// have shown a certificate, although the handshake itself does not require one.
///
/// # Errors
/// [`Error::Auth`] if a peer that chose the protocol of members has no certificate of a member.
pub(super) fn peer_of(handshake: Option<Box<dyn Any>>, identity: Option<Box<dyn Any>>) -> Result<PeerOf> {
    if protocol(handshake).as_deref() == Some(ALPN_ENROLL) {
        return Ok(PeerOf::Newcomer(Vouched::BySecret));
    }
    certified(identity).map(PeerOf::Member)
}

fn protocol(handshake: Option<Box<dyn Any>>) -> Option<Vec<u8>> {
    handshake.and_then(|data| data.downcast::<HandshakeData>().ok()).and_then(|data| data.protocol)
}

/// The two authorities whose certificates a coordinator accepts: that of the job from members, those of a site from newcomers.
///
/// TLS checks a certificate before it knows the protocol, so it lets certificates of both pass. [`judge`](Self::judge) then checks against the
/// one authority that counts for the protocol. Without that, a site could issue a certificate that names its holder a member of the job.
#[derive(Debug)]
pub(super) struct Authorities {
    job: Arc<dyn ClientCertVerifier>,
    site: Site,
}

impl Authorities {
    pub(super) fn new(credentials: &Credentials, site: &Site) -> Result<Self> {
        let job = WebPkiClientVerifier::builder_with_provider(roots(credentials)?, provider()).build();
        Ok(Self { job: job.map_err(broken)?, site: site.clone() })
    }

    /// Identifies the peer of an established connection.
    ///
    /// # Errors
    /// [`Error::Auth`] if the peer's certificate is not good for the protocol that it chose.
    pub(super) fn judge(&self, handshake: Option<Box<dyn Any>>, identity: Option<Box<dyn Any>>) -> Result<PeerOf> {
        let chain = identity.and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
        let chain = chain.filter(|chain| !chain.is_empty()).ok_or_else(no_certificate)?;
        let (own, others) = chain.split_first().expect("it is not empty");
        let refused = |error: rustls::Error| Error::Auth {
            problem: format!("the process showed a certificate that does not fit the protocol it chose: {error}"),
            hint:
                "use the certificate of the site to enrol, and the one that the coordinator issued for everything else"
                    .to_owned(),
        };
        if protocol(handshake).as_deref() == Some(ALPN_SITE) {
            self.site.verify_client(own, others, UnixTime::now()).map_err(refused)?;
            return Ok(PeerOf::Newcomer(Vouched::BySite));
        }
        self.job.verify_client_cert(own, others, UnixTime::now()).map_err(refused)?;
        PeerIdentity::of(own).map(PeerOf::Member)
    }
}

impl ClientCertVerifier for Authorities {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        match self.job.verify_client_cert(end_entity, intermediates, now) {
            // Not issued by the job's authority, so the site's verdict is the one to report.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => self.site.verify_client(end_entity, intermediates, now).map(|()| ClientCertVerified::assertion()),
            outcome => outcome,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.job.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.job.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.job.supported_verify_schemes()
    }
}

/// Chooses the certificate that the coordinator shows: that of the site to newcomers, and that of the job to members.
#[derive(Debug)]
struct ByProtocol {
    job: Arc<dyn ResolvesServerCert>,
    site: Site,
}

impl ResolvesServerCert for ByProtocol {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let wants_to_enrol = hello.alpn().is_some_and(|mut protocols| protocols.any(|one| one == ALPN_SITE));
        if wants_to_enrol { Some(self.site.certified()) } else { self.job.resolve(hello) }
    }
}

/// Accepts a coordinator by its certificate of the site.
#[derive(Debug)]
struct SiteCoordinator {
    site: Site,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for SiteCoordinator {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        // The setting `tls_peer` says which names count. A certificate of SPIFFE names no host.
        self.site.verify_server(end_entity, intermediates, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The identity in the certificate that a peer has shown.
pub(super) fn certified(identity: Option<Box<dyn Any>>) -> Result<PeerIdentity> {
    PeerIdentity::of(&certificate(identity)?)
}

/// The certificate that a peer has shown.
pub(super) fn certificate(identity: Option<Box<dyn Any>>) -> Result<CertificateDer<'static>> {
    let chain = identity.and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
    match chain.as_deref().and_then(|chain| chain.first()) {
        Some(certificate) => Ok(certificate.clone()),
        None => Err(no_certificate()),
    }
}

fn no_certificate() -> Error {
    Error::Auth {
        problem: "the process showed no certificate".to_owned(),
        hint: "start it with the job's join string".to_owned(),
    }
}

/// Checks that `found`, which answers at `address`, is the server that `peer` names.
pub(super) fn check_server(found: Result<PeerOf>, address: &str, peer: &Peer) -> Result<()> {
    let found = match found? {
        PeerOf::Member(identity) if identity.node == peer.node => return identity.must_be(Role::Server),
        PeerOf::Member(identity) => format!("{} {}", identity.role, identity.node),
        PeerOf::Newcomer(_) => "a process that is no member".to_owned(),
    };
    Err(Error::Auth {
        problem: format!("at {address} answers {found} instead of {}, {}", peer.name, peer.node),
        hint: "another process took its address, or it was restarted: wait for the next membership".to_owned(),
    })
}

/// Accepts a server whose chain holds the authority with the known key, and is otherwise valid under it.
#[derive(Debug)]
struct PinnedAuthority {
    ca_hash: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let pinned = intermediates.iter().find(|certificate| public_key_hash(certificate) == Ok(self.ca_hash));
        let authority = pinned.ok_or(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_server_cert(end_entity, &[], server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// AES-128-GCM first: it is the fastest on every processor with AES instructions, and 128 bits are enough for gradients.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

fn roots(credentials: &Credentials) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    roots.add(credentials.authority().clone()).map_err(broken)?;
    Ok(Arc::new(roots))
}

fn broken(error: impl std::fmt::Display) -> Error {
    Error::Auth {
        problem: format!("this process's certificate, key and authority cannot be used: {error}"),
        hint: "join again with the job's join string".to_owned(),
    }
}
