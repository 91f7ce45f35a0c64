//! A job whose processes show certificates of their site instead of proving that they know a secret.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gradlane_core::Error;
use gradlane_core::config::Config;
use gradlane_core::types::JoinString;
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{config, worker};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::rounds;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};

matrix! {
    [over_shm, over_quic]:
        certificates_of_the_site_let_a_worker_in_and_the_join_string_does_not;
}

fn certificates_of_the_site_let_a_worker_in_and_the_join_string_does_not(over: Over) {
    let home = tempfile::tempdir().unwrap();
    let site = Authority::new();
    let settings = |name: &str| site.settings(over, &home.path().join(name), &format!("spiffe://site/{name}/process"));
    let head = settings("training");
    let embedded = Embedded::start(EmbeddedOptions { config: head.clone(), workers: 1, servers: 1 }).unwrap();
    let join = embedded.join_string();

    let error = worker(&config(over, &[]), join, None, 1).err().expect("the secret counts for nothing");
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("tls_cert")), "{error}");
    let error = worker(&settings("web"), join, None, 1).err().expect("of the site, but not of this job");
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("tls_peer")), "{error}");

    let without_secret = JoinString { secret: [0; 16], ..join.clone() };
    let engine = worker(&head, &without_secret, None, 1).unwrap();
    rounds::begin(&engine, "weight", 0, 1000).and_then(rounds::Reduction::check).unwrap();
}

/// The authority of a site.
struct Authority {
    key: KeyPair,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { key, certificate }
    }

    /// The settings of a process with files in `folder` and a certificate of this `name`.
    fn settings(&self, over: Over, folder: &Path, name: &str) -> Config {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let issuer = Issuer::from_ca_cert_der(self.certificate.der(), &self.key).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::create_dir(folder).unwrap();
        let write = |file: &str, content: String| {
            let path = folder.join(file);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path.display().to_string()
        };
        let [cert, key, ca] = [
            write("cert.pem", certificate.pem()),
            write("key.pem", key.serialize_pem()),
            write("ca.pem", self.certificate.pem()),
        ];
        let own = [("tls_cert", &*cert), ("tls_key", &key), ("tls_ca", &ca), ("tls_peer", "spiffe://site/training/*")];
        config(over, &own)
    }
}
