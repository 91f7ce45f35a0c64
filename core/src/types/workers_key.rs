//! A key that the coordinator and the workers of a job share.

use std::fmt;

/// The key under which workers authenticate bytes that pass through servers, so that servers cannot forge them. `Debug` masks it, and it has
/// no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkersKey(pub [u8; Self::BYTES]);

impl WorkersKey {
    /// How long it is: as long as what HMAC-SHA256 makes with it.
    pub const BYTES: usize = 32;
}

impl fmt::Debug for WorkersKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkersKey(****)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_bytes_are_not_shown() {
        assert_eq!(format!("{:?}", WorkersKey([42; 32])), "WorkersKey(****)");
    }
}
