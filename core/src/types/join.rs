//! The one string that a process needs to join a job.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;

use crate::error::{Error, Result};

/// The address of the coordinator, the identity that it must prove, and the secret with which a process may enrol.
///
/// The text form is `gradlane1.<host:port>.<base32 CA hash>.<base32 secret>`, in lower case and without padding. It is parsed from the
/// right, because hosts contain dots. `Display` shows the secret, because a coordinator prints this string for its workers. `Debug` masks
/// it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinString {
    /// `host:port` of the coordinator.
    pub address: String,
    /// The SHA-256 of the public key (SPKI) of the job's certificate authority.
    pub ca_hash: [u8; 32],
    /// Proves at enrolment that the process was invited. Never sent.
    pub secret: [u8; 16],
}

impl JoinString {
    /// The join string without its secret and most of its hash, for messages.
    pub fn masked(&self) -> String {
        format!("{PREFIX}.{}.{}….****", self.address, &base32(&self.ca_hash)[..6])
    }
}

impl fmt::Display for JoinString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}.{}.{}.{}", self.address, base32(&self.ca_hash), base32(&self.secret))
    }
}

impl fmt::Debug for JoinString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinString({})", self.masked())
    }
}

impl FromStr for JoinString {
    type Err = Error;

    /// # Errors
    /// [`Error::Auth`] naming the part that is wrong. The text itself is never in the error, because it holds a secret.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let mut parts = text.rsplitn(3, '.');
        let (Some(secret), Some(ca_hash), Some(front)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad("has fewer than four parts"));
        };
        let address = match front.split_once('.') {
            Some((PREFIX, address)) => address,
            Some((other, _)) if is_other_version(other) => {
                return Err(Error::Incompatible {
                    field: "version of the join string".to_owned(),
                    ours: PREFIX.to_owned(),
                    peer: "the coordinator that printed it".to_owned(),
                    theirs: other.to_owned(),
                });
            }
            Some(_) | None => return Err(bad("does not begin with gradlane1 and an address")),
        };
        check_address(address)?;
        Ok(Self { address: address.to_owned(), ca_hash: bytes(ca_hash, "CA hash")?, secret: bytes(secret, "secret")? })
    }
}

/// Every join string begins with it. The digit is the version of the format.
const PREFIX: &str = "gradlane1";

fn is_other_version(prefix: &str) -> bool {
    // Written as a version is: zeros in front would make a message of any length.
    let is_version = |text: &str| text.parse::<u32>().is_ok_and(|version| version.to_string() == text);
    prefix.strip_prefix("gradlane").is_some_and(is_version)
}

fn check_address(address: &str) -> Result<()> {
    let (host, port) = address.rsplit_once(':').ok_or_else(|| bad("has an address without a port"))?;
    if host.is_empty() {
        return Err(bad("has an address without a host"));
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        Ok(0) | Err(_) => Err(bad("has an address whose port is no number from 1 to 65535")),
    }
}

fn base32(bytes: &[u8]) -> String {
    BASE32_NOPAD.encode(bytes).to_ascii_lowercase()
}

fn bytes<const N: usize>(text: &str, part: &str) -> Result<[u8; N]> {
    let expected = BASE32_NOPAD.encode_len(N);
    if text.len() != expected {
        return Err(bad(format!("has a {part} of {} characters instead of {expected}", text.len())));
    }
    let decoded = BASE32_NOPAD.decode(text.to_ascii_uppercase().as_bytes());
    decoded
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| bad(format!("has a {part} that is not base32 (a to z, 2 to 7)")))
}

fn bad(problem: impl fmt::Display) -> Error {
    Error::Auth {
        problem: format!("the join string {problem}"),
        hint: "copy the whole string that the coordinator printed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "gradlane1.n1.cluster.example:7000.aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypq.mrswmz3infvgw3dnnzxxa4lsom";

    #[test]
    fn the_form_never_changes() {
        assert_eq!(join().to_string(), TEXT);
        assert_eq!(TEXT.parse(), Ok(join()));
        assert_eq!(format!(" {TEXT}\n").parse(), Ok(join()), "as read from a file");
    }

    #[test]
    fn debug_and_mask_hide_the_secret() {
        let secret = TEXT.rsplit('.').next().unwrap();
        for shown in [format!("{:?}", join()), join().masked()] {
            assert!(shown.contains("n1.cluster.example:7000") && !shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn each_wrong_part_is_named_and_the_secret_is_not_shown() {
        let (rest, secret) = TEXT.rsplit_once('.').unwrap();
        let (front, ca_hash) = rest.rsplit_once('.').unwrap();
        for (text, problem) in [
            (String::new(), "fewer than four parts"),
            (format!("{ca_hash}.{secret}"), "fewer than four parts"),
            (format!("swarm.n1:7000.{ca_hash}.{secret}"), "gradlane1"),
            (format!("gradlane1.{ca_hash}.{secret}"), "gradlane1"),
            (format!("gradlane{}1.n1:7000.{ca_hash}.{secret}", "0".repeat(500)), "gradlane1"),
            (format!("gradlane1.n1.{ca_hash}.{secret}"), "without a port"),
            (format!("gradlane1.:7000.{ca_hash}.{secret}"), "without a host"),
            (format!("gradlane1.n1:0.{ca_hash}.{secret}"), "port"),
            (format!("gradlane1.n1:70000.{ca_hash}.{secret}"), "port"),
            (format!("{front}.{}.{secret}", &ca_hash[1..]), "CA hash of 51 characters instead of 52"),
            (format!("{front}.{}.{secret}", ca_hash.replace('a', "1")), "CA hash that is not base32"),
            (format!("{rest}.{secret}a"), "secret of 27 characters instead of 26"),
            (format!("{rest}.{}", secret.replace('m', "é")), "secret"),
        ] {
            let error = text.parse::<JoinString>().unwrap_err();
            assert!(matches!(error, Error::Auth { .. }));
            assert!(error.to_string().contains(problem), "{text}: {error}");
            assert!(!error.to_string().contains(secret), "{error}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let error = TEXT.replace("gradlane1", "gradlane2").parse::<JoinString>().unwrap_err();
        assert!(matches!(error, Error::Incompatible { theirs, .. } if theirs == "gradlane2"));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_fails_but_never_panics(text in "(gradlane1\\.)?\\PC{0,40}\\.\\PC{0,54}\\.\\PC{0,28}") {
            if let Ok(join) = text.parse::<JoinString>() {
                prop_assert_eq!(join.to_string().parse(), Ok(join));
            }
        }

        #[test]
        fn every_join_string_round_trips(host in "[a-z0-9.-]{1,30}", port in 1..u16::MAX, ca_hash: [u8; 32], secret: [u8; 16]) {
            let join = JoinString { address: format!("{host}:{port}"), ca_hash, secret };
            prop_assert_eq!(join.to_string().parse(), Ok(join));
        }
    }

    fn join() -> JoinString {
        JoinString {
            address: "n1.cluster.example:7000".to_owned(),
            ca_hash: std::array::from_fn(|index| index as u8),
            secret: std::array::from_fn(|index| 100 + index as u8),
        }
    }
}
