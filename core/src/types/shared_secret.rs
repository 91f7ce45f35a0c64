//! A secret that all processes of a job are given before it starts.

use std::fmt;
use std::str::FromStr;

/// A secret that a site gives to all hosts of a job. `Debug` masks it, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedSecret(String);

impl SharedSecret {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for SharedSecret {
    type Err = String;

    /// Spaces and line ends around it do not count, because files end with one.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence. The text itself is not in it.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() < BYTES_MIN {
            return Err(format!("has {} bytes, fewer than {BYTES_MIN}: short secrets can be guessed", text.len()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(****)")
    }
}

/// 128 bits, if they are random.
const BYTES_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_secret_is_refused_and_none_is_shown() {
        let error = " 123456789012345\n".parse::<SharedSecret>().unwrap_err();
        assert!(error.contains("has 15 bytes") && !error.contains("12345678"), "{error}");
        let secret: SharedSecret = "1234567890123456\n".parse().unwrap();
        assert_eq!(secret.as_bytes(), b"1234567890123456");
        assert!(!format!("{secret:?}").contains('1'));
    }
}
