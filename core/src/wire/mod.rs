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

/// Version of both shapes. A peer of another version is refused before any data.
pub const VERSION: u8 = 1;
