//! What travels between processes, byte for byte; knows no sockets.
//!
//! All numbers are little-endian. There are two shapes of message.
//!
//! **Exchange.** One bidirectional stream carries one part of one round: a [`Header`] of 64 bytes and the contribution out, a header
//! and the sum (or an error) back.
//!
//! ```text
//!  byte 0          4   5    6      8       12      16              24      28    29   30    32
//!       ┌──────────┬───┬────┬──────┬───────┬───────┬───────────────┬───────┬─────┬────┬─────┬────────────────┐
//!       │ "GLNE"   │ver│kind│flags │ term  │ epoch │ tensor key    │ part  │dtype│ op │urg.0│ round          │
//!       └──────────┴───┴────┴──────┴───────┴───────┴───────────────┴───────┴─────┴────┴─────┴────────────────┘
//!       40               48                56         60          64
//!       ┌────────────────┬─────────────────┬──────────┬───────────┐
//!       │ body bytes     │ weight (f64)    │ argument │ CRC-32C   │  then the body
//!       └────────────────┴─────────────────┴──────────┴───────────┘
//! ```
//!
//! | field | push | sum | reject |
//! |---|---|---|---|
//! | weight | of this worker in a weighted mean, else 1 | what the sum was divided by | 0 |
//! | argument | root of a broadcast, else 0 | how many workers contributed | 0 |
//! | CRC-32C | of the body, with `CHECKSUM`; landed bytes with `RESUMED` | 0; the 4 bytes follow the body | 0 |
//! | body | the contribution; none from the receivers of a broadcast | the result | an encoded [`Error`](crate::Error) |
//! | urg. | which of two exchanges goes first, 0 to 7 | as in the push | as in the push |
//! | part bytes | the length of the part stands in `body bytes` even when no body follows: see [`Flags::NO_BODY`] | | |
//!
//! A worker that will not contribute to a round opens an exchange of the kind `GiveUp`: the fields of its push, no flags, and an encoded
//! error as the body. The answer is a reject in any case: what the others hear, or why the server cannot take it.
//!
//! **Control.** A long-lived stream to the coordinator carries frames: `u32` length of the rest, `u8` version, `u8` kind, fields.
//! [`frame`] lists the kinds; `reject` says how an error is written.
//!
//! Bytes from a peer never panic and never size an allocation before a check against [`limits`].

mod checksum;
pub mod codec;
pub mod frame;
pub mod header;
pub mod limits;
pub mod reject;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod samples;

pub use checksum::checksum;
pub use frame::Frame;
pub use header::{Flags, Header, HeaderKind, URGENCY_MAX};

use crate::error::{Error, Result};

/// Adds the next piece of a header, a reject or a checksum, which come in pieces of any length, behind the `filled` bytes that are there.
///
/// # Panics
/// If it does not fit: callers read no more than is missing.
pub fn gather(what: &mut [u8], filled: &mut usize, piece: &[u8]) {
    what[*filled..][..piece.len()].copy_from_slice(piece);
    *filled += piece.len();
}

/// As [`gather`], where it is not known how much will come.
pub fn append(what: &mut Vec<u8>, piece: &[u8]) {
    what.extend_from_slice(piece);
}

/// Version of both shapes; changes whenever anything in them does. It stands where every version has it, and is compared before anything
/// else is read: a peer of another version is refused before any data.
pub const VERSION: u8 = 4;

/// Whether `peer`, which speaks version `theirs`, can be understood.
///
/// # Errors
/// [`Error::Incompatible`] if not.
pub fn check_version(theirs: u8, peer: &str) -> Result<()> {
    if theirs == VERSION {
        return Ok(());
    }
    Err(Error::Incompatible {
        field: "protocol version".to_owned(),
        ours: VERSION.to_string(),
        peer: peer.to_owned(),
        theirs: theirs.to_string(),
    })
}
