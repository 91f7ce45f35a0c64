//! How the join string travels where others can read: sealed with the secret that all hosts of a job were given.

use std::path::Path;

use gradlane_core::config::Config;
use gradlane_core::identity::envelope;
use gradlane_core::types::{JoinString, SharedSecret};
use gradlane_core::{Error, Result};

use crate::trusted_file::{self, LINES_BYTES_MAX, Purpose};

/// The secret of this process's settings, if they give one.
///
/// # Errors
/// [`Error::Config`] for a file that is missing or holds less than 16 bytes, [`Error::Auth`] for one that others can read or write.
pub fn secret(config: &Config) -> Result<Option<SharedSecret>> {
    match (&config.secret, &config.secret_file) {
        (Some(secret), _) => Ok(Some(secret.clone())),
        (None, Some(path)) => read(path).map(Some),
        (None, None) => Ok(None),
    }
}

/// What rank 0 gives to the other processes of `job` on a way that is neither encrypted nor authenticated. Without a secret that is the join
/// string itself; for a job on several `hosts` a warning says so.
///
/// # Errors
/// As [`secret`].
pub fn wrap(config: &Config, job: &str, join: &JoinString, hosts: u32) -> Result<String> {
    match secret(config)? {
        Some(secret) => envelope::seal(&secret, job, join),
        None => {
            // With certificates of the site the join string lets nobody in.
            if hosts > 1 && config.tls_cert.is_none() {
                tracing::warn!("{EXPOSED}");
            }
            Ok(join.to_string())
        }
    }
}

/// The join string of `job` that [`wrap`] has made.
///
/// # Errors
/// As [`secret`]; [`Error::Auth`] if it was made with another secret, or only one side has one.
pub fn unwrap(config: &Config, job: &str, text: &str) -> Result<JoinString> {
    match secret(config)? {
        Some(secret) => envelope::open(&secret, job, text),
        None if envelope::is_sealed(text) => Err(Error::Auth {
            problem: "rank 0 has sealed the join string with a secret, which this process does not have".to_owned(),
            hint: "give all processes the same GRADLANE_SECRET or GRADLANE_SECRET_FILE".to_owned(),
        }),
        None => text.parse(),
    }
}

fn read(path: &Path) -> Result<SharedSecret> {
    let wrong = |problem: String| Error::Config {
        knob: "secret_file".to_owned(),
        problem: format!("names {}, which {problem}", path.display()),
        hint: "make a secret with `openssl rand -hex 32`, and copy it to all hosts".to_owned(),
    };
    let content = trusted_file::read(path, SECRET_FILE)?.ok_or_else(|| wrong("is not there".to_owned()))?;
    content.parse().map_err(wrong)
}

/// Readable to a group, as secrets that are mounted into containers often are.
const SECRET_FILE: Purpose = Purpose {
    name: "secret file",
    forbidden: 0o026,
    hint: "everybody who can read it can join the job: let it belong to this user or to root, and chmod 600",
    bytes_max: LINES_BYTES_MAX,
};

const EXPOSED: &str = "the join string travels unencrypted through torchrun's store: whoever reaches MASTER_PORT while the job forms can \
                       read it and join the job; give all hosts one GRADLANE_SECRET_FILE, or keep that port to the hosts of the job";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn with_a_secret_the_join_string_does_not_travel_in_clear() {
        let [text, file] = ["secret", "secret_file"].map(config);
        for (config, other) in [(&text.0, &file.0), (&file.0, &text.0)] {
            let wrapped = wrap(config, "night", &join(), 2).unwrap();
            assert!(!wrapped.contains("10.0.0.7"), "{wrapped}");
            assert_eq!(unwrap(other, "night", &wrapped), Ok(join()));
            let error = unwrap(&Config::default(), "night", &wrapped).unwrap_err();
            assert!(error.to_string().contains("GRADLANE_SECRET"), "{error}");
            let error = unwrap(config, "night", &join().to_string()).unwrap_err();
            assert!(matches!(error, Error::Auth { .. }), "nobody can make it believe what is not sealed: {error}");
        }
    }

    #[test]
    fn without_one_there_is_a_warning_if_the_job_has_several_hosts() {
        for (hosts, config, warnings) in
            [(1, Config::default(), 0), (2, Config::default(), 1), (2, config("secret").0, 0)]
        {
            let log = Log::default();
            let subscriber = {
                let log = log.clone();
                tracing_subscriber::fmt().with_writer(move || log.clone()).finish()
            };
            let wrapped =
                tracing::subscriber::with_default(subscriber, || wrap(&config, "night", &join(), hosts)).unwrap();
            assert_eq!(unwrap(&config, "night", &wrapped), Ok(join()));
            let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            assert_eq!(said.matches("MASTER_PORT").count(), warnings, "{said}");
            assert!(!said.contains(&join().to_string()), "{said}");
        }
    }

    #[test]
    fn a_secret_that_is_short_missing_or_open_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let config = Config { secret_file: Some(path.clone()), ..Config::default() };
        let said = || secret(&config).unwrap_err().to_string();
        assert!(said().contains("is not there"), "{}", said());
        fs::write(&path, "short\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(said().contains("has 5 bytes") && !said().contains("short\n"), "{}", said());
        fs::write(&path, SECRET).unwrap();
        assert_eq!(secret(&config).unwrap(), Some(SECRET.parse().unwrap()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(said().contains("read by others"), "{}", said());
        let arguments = [("secret".to_owned(), "123456789012345".to_owned())].into();
        let error = Config::load(&arguments, [], None).unwrap_err().to_string();
        assert!(error.contains("has 15 bytes") && !error.contains("1234"), "{error}");
    }

    /// Settings with the secret, and what keeps its file.
    fn config(knob: &str) -> (Config, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, format!("{SECRET}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let value = if knob == "secret" { SECRET.to_owned() } else { path.display().to_string() };
        let variable = (format!("GRADLANE_{}", knob.to_uppercase()), value);
        (Config::load(&Default::default(), [variable], None).unwrap().0, dir)
    }

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn join() -> JoinString {
        JoinString { address: "10.0.0.7:7000".to_owned(), ca_hash: [1; 32], secret: [2; 16] }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
