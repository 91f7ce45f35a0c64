//! Enrolment by certificates of a site instead of the join string's secret.

use std::sync::Mutex;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
    string::Ia5String,
};

use super::super::tls::Authorities;
use super::*;
use crate::identity::{Site, SiteFiles};

const PEERS: [&str; 2] = ["spiffe://site/ns/training/*", "head.example"];
const WORKER: &str = "spiffe://site/ns/training/worker";

#[test]
fn a_certificate_of_the_site_with_a_name_on_the_list_makes_a_member() {
    let authority = SiteAuthority::new();
    let coordinator = Coordinator::at(&authority.site("head.example"));
    let mut links = Vec::new();
    for (name, role) in [(WORKER, Role::Worker), ("head.example", Role::Server)] {
        let site = authority.site(name);
        let mut join = coordinator.join();
        // It does not count, so it need not be handed out.
        join.secret = [0; 16];
        let credentials = Credentials::enroll_by(Some(&site), &join, role, SOON).unwrap();
        assert_eq!((credentials.identity().role, credentials.identity().job.as_str()), (role, "resnet"));
        let (link, events) = dial(&coordinator, &credentials);
        links.push(link);
        assert!(matches!(events.soon(), ControlEvent::Connected));
        assert!(matches!(coordinator.events.soon(), ControlIncoming::Up { node, .. } if node == credentials.node()));
    }
}

#[test]
fn a_join_string_alone_lets_nobody_in_where_the_site_has_certificates() {
    let authority = SiteAuthority::new();
    let coordinator = Coordinator::at(&authority.site("head.example"));
    let error = Credentials::enroll(&coordinator.join(), Role::Worker, SOON).unwrap_err();
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("tls_cert")), "{error}");
    // And the other way round.
    let coordinator = Coordinator::new("resnet");
    let error =
        Credentials::enroll_by(Some(&authority.site(WORKER)), &coordinator.join(), Role::Worker, SOON).unwrap_err();
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("tls_cert")), "{error}");
}

#[test]
fn other_names_and_other_authorities_are_refused_by_both_sides() {
    let (authority, other) = (SiteAuthority::new(), SiteAuthority::new());
    let coordinator = Coordinator::at(&authority.site("head.example"));
    let enrol = |site: Site, coordinator: &Coordinator| {
        Credentials::enroll_by(Some(&site), &coordinator.join(), Role::Worker, SOON).unwrap_err()
    };
    for name in
        ["spiffe://site/ns/web/frontend", "spiffe://site/ns/training", "spiffe://site/ns/training/", "web.example"]
    {
        let error = enrol(authority.site(name), &coordinator);
        assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("tls_peer")), "{name}: {error}");
    }
    // It trusts the right authority, and has its certificate from another one.
    let files = SiteFiles { authorities: authority.files(WORKER).authorities, ..other.files(WORKER) };
    assert!(matches!(enrol(site(files), &coordinator), Error::Auth { .. }));

    let impostor = Coordinator::at(&authority.site("spiffe://site/ns/training/x"));
    let strict = Site::new(&["head.example".to_owned()], load(authority.files(WORKER))).unwrap();
    let error = enrol(strict, &impostor);
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("tls_peer")), "{error}");
    let error = enrol(other.site(WORKER), &coordinator);
    assert!(matches!(&error, Error::Auth { problem, .. } if problem.starts_with("this process refused")), "{error}");
}

#[test]
fn a_coordinator_of_another_job_is_found_out_by_the_join_string() {
    let authority = SiteAuthority::new();
    let coordinator = Coordinator::at(&authority.site("head.example"));
    let join = crate::types::JoinString { ca_hash: [7; 32], ..coordinator.join() };
    let error = Credentials::enroll_by(Some(&authority.site(WORKER)), &join, Role::Worker, SOON).unwrap_err();
    assert!(error.to_string().contains("is not the authority of the join string"), "{error}");
}

#[test]
fn a_site_cannot_make_members_and_a_member_is_no_newcomer() {
    let authority = SiteAuthority::new();
    let coordinator = Coordinator::at(&authority.site("head.example"));
    let enrolled =
        Credentials::enroll_by(Some(&authority.site(WORKER)), &coordinator.join(), Role::Worker, SOON).unwrap();
    let authorities = Authorities::new(&enrolled, &authority.site("head.example")).unwrap();

    // The site certifies a key as a worker of the job, and its holder speaks the members' protocol.
    let key = KeyPair::generate().unwrap();
    let node = crate::identity::sha256(&rcgen::PublicKeyData::subject_public_key_info(&key));
    let uri = format!("gradlane://resnet/worker/{}", data_encoding::HEXLOWER.encode(&node));
    let forged = authority.certify(&key, &["spiffe://site/ns/training/worker", &uri]);
    let tls = member_by(vec![forged.der().clone()], &key);
    let error = raw(tls, coordinator.listener.address(), |_| async {}).soon().unwrap_err();
    assert!(
        matches!(&error, Error::Auth { problem, .. } if problem.contains("does not fit the protocol it chose")),
        "{error}"
    );

    // A member's own certificate is none of the site.
    let member = Some(Box::new(vec![enrolled.certificate()]) as Box<dyn std::any::Any>);
    let site_protocol = quinn::crypto::rustls::HandshakeData {
        protocol: Some(super::super::tls::ALPN_SITE.to_vec()),
        server_name: None,
    };
    assert!(matches!(authorities.judge(Some(Box::new(site_protocol)), member), Err(Error::Auth { .. })));
    assert!(matches!(authorities.judge(None, None), Err(Error::Auth { .. })), "nor is no certificate at all");
}

#[test]
fn new_files_are_followed_and_damaged_ones_change_nothing() {
    let (authority, next) = (SiteAuthority::new(), SiteAuthority::new());
    let files = Arc::new(Mutex::new(Ok(authority.files(WORKER))));
    let read = Arc::clone(&files);
    let site = Site::new(&PEERS.map(str::to_owned), Box::new(move || read.lock().unwrap().clone())).unwrap();
    let began = wall_clock();
    let at = |seconds| site.certified_at(began + Duration::from_secs(seconds)).cert[0].clone();
    let first = at(0);
    let damaged = SiteFiles { key: next.files(WORKER).key, ..authority.files(WORKER) };
    for wrong in [Ok(damaged), Err(Error::Cancelled)] {
        *files.lock().unwrap() = wrong;
        assert_eq!(at(11), first, "the former one stays");
    }
    *files.lock().unwrap() = Ok(next.files(WORKER));
    assert_eq!(at(12), first, "they are not looked at for each handshake");
    let second = at(30);
    assert_ne!(second, first);
    assert_eq!(at(10), second, "the clock was set back, and the files are the same");
}

#[test]
fn a_list_of_names_that_would_match_too_much_is_refused() {
    let authority = SiteAuthority::new();
    let made = |peers: &[&str]| {
        let peers: Vec<String> = peers.iter().map(|&peer| peer.to_owned()).collect();
        Site::new(&peers, load(authority.files(WORKER)))
    };
    for wrong in [
        &[][..],
        &["*"],
        &["/*"],
        &["spiffe://*"],
        &["spiffe:///*"],
        &["train*"],
        &["*.example"],
        &["spiffe://s/*/x"],
        &["a/*"],
    ] {
        let error = made(wrong).unwrap_err();
        assert!(matches!(&error, Error::Config { knob, .. } if knob == "tls_peer"), "{wrong:?}: {error}");
    }
    made(&["spiffe://site/*", "head.example", "spiffe://site/exact"]).unwrap();
}

#[test]
fn files_that_cannot_be_used_are_named_and_their_content_is_not_shown() {
    let good = SiteAuthority::new().files(WORKER);
    let other = SiteAuthority::new().files(WORKER);
    for (files, knob) in [
        (SiteFiles { certificate: String::new(), ..good.clone() }, "tls_cert"),
        (SiteFiles { key: "secret words".to_owned(), ..good.clone() }, "tls_key"),
        (SiteFiles { key: other.key, ..good.clone() }, "tls_key"),
        (SiteFiles { authorities: "none".to_owned(), ..good }, "tls_ca"),
    ] {
        let error = Site::new(&PEERS.map(str::to_owned), load(files)).unwrap_err();
        assert!(matches!(&error, Error::Config { knob: named, .. } if named == knob), "{error}");
        assert!(!error.to_string().contains("secret words"), "{error}");
    }
}

struct SiteAuthority {
    key: KeyPair,
    certificate: rcgen::Certificate,
}

impl SiteAuthority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "site");
        let certificate = params.self_signed(&key).unwrap();
        Self { key, certificate }
    }

    fn certify(&self, key: &KeyPair, names: &[&str]) -> rcgen::Certificate {
        let mut params = CertificateParams::default();
        for name in names {
            let text = Ia5String::try_from(*name).unwrap();
            params.subject_alt_names.push(if name.contains("://") {
                SanType::URI(text)
            } else {
                SanType::DnsName(text)
            });
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.signed_by(key, &Issuer::from_ca_cert_der(self.certificate.der(), &self.key).unwrap()).unwrap()
    }

    fn files(&self, name: &str) -> SiteFiles {
        let key = KeyPair::generate().unwrap();
        SiteFiles {
            certificate: self.certify(&key, &[name]).pem(),
            key: key.serialize_pem(),
            authorities: self.certificate.pem(),
        }
    }

    fn site(&self, name: &str) -> Site {
        site(self.files(name))
    }
}

fn site(files: SiteFiles) -> Site {
    Site::new(&PEERS.map(str::to_owned), load(files)).unwrap()
}

fn load(files: SiteFiles) -> crate::identity::Load {
    Box::new(move || Ok(files.clone()))
}

/// TLS that shows `chain` as a member would, and believes every server.
fn member_by(chain: Vec<rustls::pki_types::CertificateDer<'static>>, key: &KeyPair) -> Arc<QuicClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Credulous(provider)))
        .with_client_auth_cert(chain, key.into())
        .unwrap();
    config.alpn_protocols = vec![tls::ALPN.to_vec()];
    Arc::new(QuicClientConfig::try_from(config).unwrap())
}

#[derive(Debug)]
struct Credulous(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> std::result::Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> std::result::Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        unreachable!("only TLS 1.3 is spoken")
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> std::result::Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
