//! The certificate files that a site gives to this process.

use std::path::Path;

use gradlane_core::config::Config;
use gradlane_core::identity::{Site, SiteFiles};
use gradlane_core::{Error, Result};

use crate::trusted_file::{self, Purpose};

/// The site's certificates, if the settings name them. Later changes of the files are followed.
///
/// # Errors
/// [`Error::Config`] if one of the settings is missing, or a file cannot be used; [`Error::Auth`] for files that others can write, and for a key
/// that others can read.
pub(crate) fn by_settings(config: &Config) -> Result<Option<Site>> {
    let paths = [("tls_cert", &config.tls_cert), ("tls_key", &config.tls_key), ("tls_ca", &config.tls_ca)];
    let (certificate, key, authorities) = match paths.map(|(_, path)| path.clone()) {
        [None, None, None] if config.tls_peer.is_empty() => return Ok(None),
        [Some(certificate), Some(key), Some(authorities)] => (certificate, key, authorities),
        _ => {
            let missing = paths.iter().find(|(_, path)| path.is_none()).map(|(name, _)| *name);
            return Err(Error::Config {
                knob: missing.expect("else all are there").to_owned(),
                problem: "is not set, but others of tls_cert, tls_key, tls_ca and tls_peer are".to_owned(),
                hint: "set all four, or none to enrol with the join string".to_owned(),
            });
        }
    };
    let load = move || {
        Ok(SiteFiles {
            certificate: read(&certificate, "tls_cert", PUBLIC)?,
            key: read(&key, "tls_key", SECRET)?,
            authorities: read(&authorities, "tls_ca", PUBLIC)?,
        })
    };
    Site::new(&config.tls_peer, Box::new(load)).map(Some)
}

fn read(path: &Path, knob: &str, purpose: Purpose) -> Result<String> {
    trusted_file::read(path, purpose)?.ok_or_else(|| missing(path, knob))
}

fn missing(path: &Path, knob: &str) -> Error {
    Error::Config {
        knob: knob.to_owned(),
        problem: format!("names {}, which is not there", path.display()),
        hint: "give the path of a file in PEM".to_owned(),
    }
}

/// Who writes it decides whom this process believes.
const PUBLIC: Purpose = Purpose {
    name: "certificate file",
    forbidden: 0o022,
    hint: "who writes it decides which processes are believed: let it belong to this user or to root, and chmod go-w",
    bytes_max: PEM_BYTES_MAX,
};
/// Readable to a group, as secrets that are mounted into containers often are.
const SECRET: Purpose = Purpose {
    name: "key file",
    forbidden: 0o026,
    hint: "who can read it can pose as this process: let it belong to this user or to root, and chmod 600",
    bytes_max: PEM_BYTES_MAX,
};
/// The bundle of a site may have hundreds of authorities.
const PEM_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn all_settings_are_there_or_none() {
        assert!(by_settings(&Config::default()).unwrap().is_none());
        let some = Config { tls_cert: Some("cert.pem".into()), tls_key: Some("key.pem".into()), ..Config::default() };
        let names_only = Config { tls_peer: vec!["a.example".to_owned()], ..Config::default() };
        for (config, knob) in [(some, "tls_ca"), (names_only, "tls_cert")] {
            let Err(Error::Config { knob: named, .. }) = by_settings(&config) else { panic!("{knob}") };
            assert_eq!(named, knob);
        }
    }

    #[test]
    fn a_key_that_others_can_read_and_files_that_others_can_write_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(dir.path().join(name));
        let config = Config {
            tls_cert: path("cert.pem"),
            tls_key: path("key.pem"),
            tls_ca: path("ca.pem"),
            tls_peer: vec!["a.example".to_owned()],
            ..Config::default()
        };
        let problem = || by_settings(&config).unwrap_err().to_string();
        assert!(problem().contains("cert.pem, which is not there"), "{}", problem());
        let write = |name: &str, mode| {
            let path = dir.path().join(name);
            fs::write(&path, "no PEM").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (name, mode) in [("cert.pem", 0o644), ("key.pem", 0o644), ("ca.pem", 0o666)] {
            write(name, mode);
        }
        assert!(problem().contains("key.pem can be read by others"), "{}", problem());
        write("key.pem", 0o600);
        assert!(problem().contains("ca.pem can be written by others"), "{}", problem());
        write("ca.pem", 0o644);
        assert!(problem().contains("tls_cert"), "they are read and hold nothing: {}", problem());
    }
}
