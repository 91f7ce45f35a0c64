//! An answer that arrives at a worker: its header, then an error, or a sum and its checksum. Pure.
//!
//! A sum *lands* when its bytes are written to its destination in the caller's memory, its *place*.

use super::checks::{bad, check_crc, check_response};
use crate::error::Result;
use crate::mem::{Landing, Region, Returned};
use crate::transport::Answer;
use crate::wire::{self, HeaderReader, Reply, Request, Response, reject};

/// An answer under way.
///
/// ```text
///  Header ──a reject──► Reject, byte after byte ─────────────────────────────────────┐
///     └─────a sum─────► Announced ──place──► Landing, chunk after chunk, checksum ───┴──► finish
/// ```
/// The transport gives it bytes by [`take`](Self::take), at most as many as it [`wants`](Self::wants). An announced sum wants none before it
/// has its [`place`](Self::place). After the last byte the transport asks for the answer by [`finish`](Self::finish).
pub(in crate::transport) enum Arrival {
    /// Its header is being read.
    Header(HeaderReader),
    /// The server's error is being read.
    Reject { body: Vec<u8>, bytes: usize },
    /// The header was read. The sum lands once it has a place.
    Announced(Response),
    /// The sum lands. Its checksum follows.
    Landing { header: Response, landing: Landing, crc: u32, trailer: Vec<u8> },
}

impl Default for Arrival {
    fn default() -> Self {
        Self::Header(HeaderReader::default())
    }
}

impl Arrival {
    /// How many bytes it can take now. 0 if the answer is whole, or if it needs a place first.
    pub(in crate::transport) fn wants(&self) -> usize {
        match self {
            Self::Header(reader) => reader.missing(),
            Self::Reject { body, bytes } => bytes - body.len(),
            Self::Announced(_) => 0,
            Self::Landing { header, landing, trailer, .. } => match landing.bytes_left() {
                0 => header.trailer_bytes() - trailer.len(),
                left => left,
            },
        }
    }

    /// Takes the next bytes, at most as many as it wants.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if there are more bytes than it wants, or they cannot be decoded,
    /// [`Error::Incompatible`](crate::Error::Incompatible) if the server speaks another version.
    pub(in crate::transport) fn take(&mut self, bytes: &[u8], peer: &str) -> Result<()> {
        if bytes.len() > self.wants() {
            let field = if matches!(self, Self::Reject { .. }) { "reject" } else { "sum" };
            return Err(bad(peer, field, "has more bytes than its header announced"));
        }
        match self {
            Self::Header(reader) => {
                reader.take(bytes);
                if reader.missing() == 0 {
                    *self = match reader.finish(peer)?.into_reply(peer)? {
                        Reply::Response(header) => Self::Announced(header),
                        Reply::Reject(header) => {
                            let bytes = usize::try_from(header.error_bytes).expect("at most REJECT_BYTES_MAX");
                            Self::Reject { body: Vec::new(), bytes }
                        }
                    };
                }
            }
            Self::Reject { body, .. } => wire::append(body, bytes),
            Self::Announced(_) => {}
            Self::Landing { header, landing, crc, .. } if landing.bytes_left() > 0 => {
                landing.write(bytes);
                if header.has_checksum() {
                    // Computed here, because the bytes are still in the cache.
                    *crc = wire::checksum(*crc, bytes);
                }
            }
            Self::Landing { trailer, .. } => wire::append(trailer, bytes),
        }
        Ok(())
    }

    /// Whether the header was read, and is that of a sum.
    pub(in crate::transport) fn is_sum(&self) -> bool {
        matches!(self, Self::Announced(_) | Self::Landing { .. })
    }

    /// Whether a sum is announced that has no place yet.
    pub(in crate::transport) fn needs_place(&self) -> bool {
        matches!(self, Self::Announced(_))
    }

    /// The length of an announced sum that has no place yet.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::transport) fn announced_bytes(&self) -> Option<u64> {
        match self {
            Self::Announced(header) => Some(header.body_bytes()),
            Self::Header(_) | Self::Reject { .. } | Self::Landing { .. } => None,
        }
    }

    /// Whether the server has begun to answer and needs no more of the contribution.
    pub(in crate::transport) fn refuses_body(&self) -> bool {
        match self {
            Self::Header(_) => false,
            Self::Reject { .. } => true,
            Self::Announced(header) | Self::Landing { header, .. } => !header.is_early(),
        }
    }

    /// Whether an announced sum answers `push` and fits into `into`.
    pub(super) fn check(&self, push: &Request, into: &[Region], peer: &str) -> Result<()> {
        let Self::Announced(header) = self else { return Ok(()) };
        check_response(header, push, into.iter().map(Region::len).sum(), peer)
    }

    /// Gives an announced sum its place, whose length was checked. `proof` proves that no thread reads there any more.
    pub(in crate::transport) fn place(&mut self, into: Vec<Region>, proof: Returned) {
        if let Self::Announced(header) = self {
            let (header, landing) = (header.clone(), Landing::new(into, proof));
            *self = Self::Landing { header, landing, crc: 0, trailer: Vec::new() };
        }
    }

    /// Bytes of the sum that have landed.
    pub(in crate::transport) fn landed(&self) -> u64 {
        match self {
            Self::Landing { header, landing, .. } => header.body_bytes() - landing.bytes_left() as u64,
            Self::Header(_) | Self::Reject { .. } | Self::Announced(_) => 0,
        }
    }

    /// The answer, after its last byte. `checksum` is given by a transport that carries it in a message of its own.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if bytes are missing or cannot be decoded, [`Error::Checksum`](crate::Error::Checksum) if
    /// the sum is not the one that was sent.
    pub(in crate::transport) fn finish(&self, checksum: Option<u32>, peer: &str) -> Result<Answer> {
        let early = |field: &str, missing: u64| Err(bad(peer, field, format!("lacks its last {missing} bytes")));
        match self {
            Self::Header(reader) => {
                reader.finish(peer).and_then(|header| header.into_reply(peer)).and(early("header", self.wants() as u64))
            }
            Self::Reject { .. } if self.wants() > 0 => early("reject", self.wants() as u64),
            Self::Reject { body, .. } => Ok(Answer::Reject(reject::from_body(body, peer)?)),
            Self::Announced(header) => early("sum", header.body_bytes()),
            Self::Landing { header, landing, crc, trailer } => {
                if landing.bytes_left() > 0 || checksum.is_none() && self.wants() > 0 {
                    return early("sum", self.wants() as u64);
                }
                let trailer = || trailer.as_slice().try_into().map_or(0, u32::from_le_bytes);
                check_crc(header, checksum.unwrap_or_else(trailer), *crc, peer)?;
                Ok(Answer::Response(header.clone()))
            }
        }
    }
}
