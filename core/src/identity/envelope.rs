//! Encrypts a join string that travels over a channel which others can read and write. Both ends know a shared secret.
//!
//! The key is HKDF-SHA256 of the secret, with the job's name as salt. The cipher is AES-256-GCM. A process without the secret can neither read
//! the join string nor replace it or the authority in it. A join string that was sealed for one job cannot be opened for another.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use data_encoding::BASE64URL_NOPAD;

use crate::error::{Error, Result};
use crate::types::{JoinString, SharedSecret};

/// Whether `text` was made by [`seal`].
pub fn is_sealed(text: &str) -> bool {
    text.trim().starts_with(PREFIX)
}

/// The join string of `job`, encrypted with `secret`.
///
/// # Errors
/// [`Error::Internal`] if the cryptographic library fails.
pub fn seal(secret: &SharedSecret, job: &str, join: &JoinString) -> Result<String> {
    let internal = |_| Error::Internal { what: "sealing a join string".to_owned() };
    let mut sealed = join.to_string().into_bytes();
    let nonce = key(secret, job)?.seal_in_place_append_tag(Aad::from(PREFIX), &mut sealed).map_err(internal)?;
    Ok(format!("{PREFIX}{}", BASE64URL_NOPAD.encode(&[&nonce.as_ref()[..], &sealed].concat())))
}

/// The join string that was sealed for `job` with `secret`.
///
/// # Errors
/// [`Error::Auth`] if it was sealed with another secret or for another job, was changed, or was not sealed at all.
pub fn open(secret: &SharedSecret, job: &str, text: &str) -> Result<JoinString> {
    let refused = |problem: &str, hint: &str| Error::Auth { problem: problem.to_owned(), hint: hint.to_owned() };
    let Some(text) = text.trim().strip_prefix(PREFIX) else {
        return Err(refused(
            "the join string is not sealed, though this process has a shared secret",
            "give rank 0 the same GRADLANE_SECRET or GRADLANE_SECRET_FILE",
        ));
    };
    let opened = || {
        let mut bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let plain = key(secret, job).ok()?.open_in_place(nonce, Aad::from(PREFIX), sealed).ok()?;
        Some(std::str::from_utf8(plain).ok()?.to_owned())
    };
    let opened = opened().ok_or_else(|| {
        refused(
            "the sealed join string cannot be opened: it was sealed with another secret or for another job, or somebody changed it",
            "give all processes the same GRADLANE_SECRET or GRADLANE_SECRET_FILE, and the same job",
        )
    })?;
    opened.parse()
}

fn key(secret: &SharedSecret, job: &str) -> Result<RandomizedNonceKey> {
    let mut key = [0; 32];
    let derived = Salt::new(HKDF_SHA256, job.as_bytes()).extract(secret.as_bytes());
    derived
        .expand(&[b"gradlane join string"], HKDF_SHA256)
        .and_then(|derived| derived.fill(&mut key))
        .and_then(|()| RandomizedNonceKey::new(&AES_256_GCM, &key))
        .map_err(|_| Error::Internal { what: "deriving a key".to_owned() })
}

const PREFIX: &str = "gradlane-sealed1.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_join_string_is_opened_with_the_secret_alone() {
        let (secret, other) = (secret("correct horse battery"), secret("wrong horse battery"));
        let text = seal(&secret, "night", &join()).unwrap();
        assert!(is_sealed(&text) && !is_sealed(&join().to_string()));
        assert_eq!(open(&secret, "night", &format!(" {text}\n")), Ok(join()));
        for shown in [join().to_string(), "10.0.0.7".to_owned()] {
            assert!(!text.contains(&shown), "{text}");
        }
        for outcome in [open(&other, "night", &text), open(&secret, "day", &text)] {
            assert!(matches!(outcome, Err(Error::Auth { .. })));
        }
        assert_ne!(seal(&secret, "night", &join()).unwrap(), text, "another nonce each time");
    }

    #[test]
    fn a_text_that_was_changed_anywhere_cannot_be_opened() {
        let secret = secret("correct horse battery");
        let text = seal(&secret, "night", &join()).unwrap();
        for at in PREFIX.len()..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(matches!(open(&secret, "night", &changed), Err(Error::Auth { .. })), "{at}");
        }
        for cut in ["", PREFIX, &text[..PREFIX.len() + 8], &text[..text.len() - 1]] {
            assert!(matches!(open(&secret, "night", cut), Err(Error::Auth { .. })), "{cut:?}");
        }
    }

    #[test]
    fn a_process_with_a_secret_believes_nothing_that_is_not_sealed() {
        let error = open(&secret("correct horse battery"), "night", &join().to_string()).unwrap_err();
        assert!(error.to_string().contains("not sealed"), "{error}");
    }

    fn secret(text: &str) -> SharedSecret {
        text.parse().unwrap()
    }

    fn join() -> JoinString {
        JoinString { address: "10.0.0.7:7000".to_owned(), ca_hash: [1; 32], secret: [2; 16] }
    }
}
