//! The messages between processes, byte for byte. This module does not know sockets.
//!
//! All numbers are little-endian. There are two shapes of message.
//!
//! **Exchange.** One bidirectional stream carries one part of one round. One direction has a [`Header`] of 64 bytes and the contribution.
//! The other has a header and the sum (or an error).
//!
//! ```text
//!  byte 0          4   5    6       7     8       12      16              24      28      30   31   32
//!       ┌──────────┬───┬────┬───────┬─────┬───────┬───────┬───────────────┬───────┬───────┬────┬────┬────────────────┐
//!       │ "GLNE"   │ver│kind│service│flags│ term  │ epoch │ tensor key    │ part  │attempt│urg.│enc.│ round          │
//!       └──────────┴───┴────┴───────┴─────┴───────┴───────┴───────────────┴───────┴───────┴────┴────┴────────────────┘
//!       40           44           48                56      57   58      60          64
//!       ┌────────────┬────────────┬─────────────────┬───────┬────┬───────┬───────────┐
//!       │ part bytes │ body bytes │ factor (f64)    │ dtype │ op │ root  │ check     │  then the body
//!       └────────────┴────────────┴─────────────────┴───────┴────┴───────┴───────────┘
//! ```
//!
//! Fields that a kind of header does not have are zero:
//!
//! | field | 1 contribution | 4 withdrawal | 2 sum | 3 reject |
//! |---|---|---|---|---|
//! | flags | 1 checksum, 2 no body, 4 resumed, one at most; 16 participants | 16 participants | 1 checksum, 8 early, 16 partial | 0 |
//! | urgency | 0 to 7; higher goes first | 0 | 0 | 0 |
//! | encoding | of the body; 0 without one | 0 | of the body | 0 |
//! | part bytes | of the part | 0 | of the part | 0 |
//! | body bytes | of the contribution | of the error | of the sum | of the error |
//! | factor | weight of this worker | 0 | what the sum was divided by | 0 |
//! | dtype, op, root | of the reduction; root of a broadcast, else 0 | as in the contribution | bytes of the set, then zeros | 0 |
//! | check | CRC-32C of the body, or how many bytes of the sum landed | 0 | 0; the CRC-32C follows the body | 0 |
//! | body | the contribution | an encoded [`Error`](crate::Error) | the sum | an encoded error |
//!
//! The header of a contribution or a withdrawal for a tensor that is not of all workers, or whose sums have one receiver, is followed by its
//! [`Participants`](crate::types::Participants): `u16` bytes of the set of members (0 for all workers), `u16` rank of the receiver plus one
//! (0 for all members), the set. A worker that does not receive the sum gets a sum of 0 bytes, of a part of 0 bytes.
//!
//! A *partial* sum does not include all workers due. It has the set of the workers that it includes between the header and the body: see
//! [`WorkerSet`](crate::types::WorkerSet) for the bytes of the set, and [`HeaderReader`] to read a header in pieces. A withdrawal says that
//! a worker will not contribute to a round. Its answer is always a reject: the error that the other workers get, or the reason why the
//! server cannot accept the withdrawal.
//!
//! **Control.** A long-lived stream to the coordinator carries frames: `u32` length of the rest, `u8` version, `u8` kind, fields.
//! [`frame`] lists the kinds; `reject` says how an error is written.
//!
//! Bytes from a peer never cause a panic. They never set the size of an allocation before a check against [`limits`].

mod checksum;
pub mod codec;
pub mod frame;
pub mod header;
pub mod limits;
pub mod reject;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod samples;

pub use checksum::checksum;
pub use frame::Frame;
pub use header::{
    About, Body, Contribute, Contribution, Contributors, Header, HeaderReader, Reject, Reply, Request, Service, Sum,
    Target, URGENCY_MAX, Withdraw,
};

use crate::error::{Error, Result};

/// Appends the next piece of a reject or of a checksum. Pieces have any length.
pub fn append(what: &mut Vec<u8>, piece: &[u8]) {
    what.extend_from_slice(piece);
}

/// Version of both kinds of message. It changes whenever anything in them does. It has the same position in every version and is compared
/// first: a peer of another version is refused before any other data is read.
pub const VERSION: u8 = 8;

/// Checks that this process can understand `peer`, which uses version `theirs`.
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
