//! The reader of requests, for fuzzing. Not for users.

use std::net::{IpAddr, Ipv4Addr};

use super::hosts::Hosts;
use super::request::{HEAD_BYTES_MAX, Reading, Verdict, read};

/// Reads a request as it arrives, in pieces of `piece` bytes. Its verdict must come at the limit of the head at the latest, and must not
/// depend on the pieces, unless a longer piece shows an error earlier in the text that a shorter one did not reach.
///
/// # Panics
/// If that does not hold.
pub fn request(bytes: &[u8], piece: usize) {
    let hosts = Hosts::new(["n7", "10.0.0.9"]);
    let asked = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let bytes = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let at_once = read(bytes, &hosts, asked);
    assert!(bytes.len() < HEAD_BYTES_MAX || at_once != Reading::More, "a head without an end");
    let ends = (1..=bytes.len()).filter(|end| end % piece.max(1) == 0 || *end == bytes.len());
    let mut verdicts = ends.map(|end| read(&bytes[..end], &hosts, asked)).filter(|reading| *reading != Reading::More);
    let first = verdicts.next().unwrap_or(Reading::More);
    let answered = |reading| matches!(reading, Reading::Whole(Verdict { outcome: Ok(_), .. }));
    assert_eq!(answered(first), answered(at_once), "{first:?} in pieces of {piece}, {at_once:?} at once");
}
