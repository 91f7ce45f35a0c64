//! The messages between processes, byte for byte. This module does not know sockets.
//!
//! All numbers are little-endian. There are two shapes of message.
//!
//! **Exchange.** One bidirectional stream carries one part of one round. One direction has a [`Header`] and the contribution. The other has
//! a header and the sum (or an error). The first 34 bytes of a header have the same fields in every service; the rest belongs to the service.
//! A header has 64 bytes at least, and at most 1,024.
//!
//! ```text
//!  byte 0          4   5       6         8       12      16              24      28         32   33       34
//!       ┌──────────┬───┬───────┬─────────┬───────┬───────┬───────────────┬───────┬──────────┬────┬────────┬───────────┐
//!       │ "GLNE"   │ver│service│header   │ term  │ epoch │ tensor key    │ part  │ body     │kind│urgency │ service's │
//!       │          │   │       │bytes    │       │       │               │       │ bytes    │    │        │ own       │
//!       └──────────┴───┴───────┴─────────┴───────┴───────┴───────────────┴───────┴──────────┴────┴────────┴───────────┘
//! ```
//! A server that does not have the service refuses the exchange, whatever the other bytes are, and keeps the link. Kind 0 is a reject in every
//! service: an encoded [`Error`](crate::Error) follows. Its other fields are zero.
//!
//! The dense sum is service 1. Its own fields, and what may follow the first 64 bytes:
//!
//! ```text
//!       34    35    36                      38    39 40      48      56           60      64
//!       ┌─────┬─────┬───────────────────────┬─────┬──┬───────┬───────┬────────────┬───────┐
//!       │flags│codec│root, or attempt       │dtype│op│ round │ factor│ part bytes │ check │  parameters, set, then the body
//!       └─────┴─────┴───────────────────────┴─────┴──┴───────┴───────┴────────────┴───────┘
//! ```
//! Fields that a kind of header does not have are zero:
//!
//! | field | 1 contribution | 3 withdrawal | 2 sum |
//! |---|---|---|---|
//! | body bytes | of the contribution | of the error | of the sum |
//! | urgency | 0 to 7; higher goes first | 0 | 0 |
//! | flags | 1 checksum, 2 no body, 4 resumed, one at most; 8 given, 16 participants, 32 refused, 64 held, 128 taken back | 16 participants | 1 checksum, 8 early, 16 partial, 32 refused |
//! | codec | of the part in this reduction, plus 128 with error feedback; 0 without a body | 0 | as in the contribution |
//! | root, or attempt | root of a broadcast, else 0 | as in the contribution | how often the round was started again |
//! | dtype, op | of the reduction | of the reduction | 0 |
//! | factor (f64) | weight of this worker | 0 | what the sum was divided by |
//! | part bytes | of the part | 0 | of the part |
//! | check | CRC-32C of the body, or how many bytes of the sum landed | 0 | 0; the CRC-32C follows the body |
//! | parameters | of the codec, `u32` each | none | of the codec |
//! | body | the contribution | an encoded error | the sum |
//!
//! A body that is *refused* is not encoded: its codec has refused the elements, and they travel in their own type. Only codecs of bodies that
//! vary in length refuse elements.
//!
//! The header of a contribution or a withdrawal for a tensor that is not of all workers, or whose sums have one receiver, ends with its
//! [`Participants`](crate::types::Participants): `u16` bytes of the set of members (0 for all workers), `u16` rank of the receiver plus one
//! (0 for all members), the set. A worker that does not receive the sum gets a sum of 0 bytes, of a part of 0 bytes.
//!
//! Kind 4 restores a sum: see [`Restore`]. Kind 5 reads or gives the residual of the answers: see [`AnswerResidual`]. Its codec, its part
//! bytes, its parameters and its participants are those of a contribution. With flag 1 it gives, `check` is the CRC-32C of its body, and the
//! body has an f32 for each element. Without, it reads, and flags 64 and 128 say what the next contribution would say.
//!
//! A *partial* sum does not include all workers due. Its header ends with the set of the workers that it includes: see
//! [`WorkerSet`](crate::types::WorkerSet) for the bytes of the set, and [`HeaderReader`] to read a header in pieces. A withdrawal says that
//! a worker will not contribute to a round. Its answer is always a reject: the error that the other workers get, or the reason why the
//! server cannot accept the withdrawal.
//!
//! Parameters are service 2. Their own fields; nothing follows the first 64 bytes but the body:
//!
//! ```text
//!       34    35     36    37        40      48        56           60      64
//!       ┌─────┬──────┬─────┬─────────┬───────┬─────────┬────────────┬───────┐
//!       │flags│access│dtype│ 0  0  0 │ round │ version │ part bytes │ check │  the body
//!       └─────┴──────┴─────┴─────────┴───────┴─────────┴────────────┴───────┘
//! ```
//! | field | 1 use | 2 value |
//! |---|---|---|
//! | body bytes | of the value or the change; 0 without one | of the value; 0 if it was not asked for |
//! | urgency | 0 to 7; higher goes first | 0 |
//! | flags | 1 checksum, or without a body that the value's is wanted; 2 no body | 1 checksum |
//! | access, dtype | of the use, of the part | 0 |
//! | round | counts the worker's uses of the tensor | as in the use |
//! | version | 0 | that the change made, or that was read |
//! | part bytes | of the part | 0 |
//! | check | CRC-32C of the body, if flagged | 0; the CRC-32C follows the body |
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
pub mod scan;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod samples;

pub use checksum::checksum;
pub use frame::Frame;
pub use header::{
    About, AnswerResidual, Body, Contribute, Contribution, Contributors, Header, HeaderReader, Hold, Reject, Reply,
    Request, ResidualAction, Response, Restore, Rows, RowsAnswer, Sent, Service, Sum, Target, URGENCY_MAX, Use, Value,
    Withdraw,
};

use crate::error::{Error, Result};

/// Appends the next piece of a reject or of a checksum. Pieces have any length.
pub fn append(what: &mut Vec<u8>, piece: &[u8]) {
    what.extend_from_slice(piece);
}

/// Version of both kinds of message. It changes whenever anything in them does. It has the same position in every version and is compared
/// first: a peer of another version is refused before any other data is read.
pub const VERSION: u8 = 28;

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
