//! An answer that arrives at a worker: its header, then an error, or a sum and its checksum. Pure.
//!
//! A sum *lands* when its bytes are written to its destination in the caller's memory, its *place*.

use super::checks::{bad, check_crc, check_response};
use crate::error::Result;
use crate::mem::{Landing, Region, Returned};
use crate::transport::Answer;
use crate::types::{Defect, planted};
use crate::wire::{self, HeaderReader, Reply, Request, Response, reject};

/// An answer under way.
///
/// ```text
///  Header ──a reject──► Reject, byte after byte ─────────────────────────────────────┐
///     └─────a sum─────► Announced ──place──► Landing, chunk after chunk, checksum ───┴──► finish
/// ```
/// The transport gives it bytes by [`take`](Self::take), at most as many as it [`wants`](Self::wants). An announced sum wants none before it
/// has its [`place`](Self::place). After the last byte the transport asks for the answer by [`finish`](Self::finish).
#[derive(Default)]
pub struct Arrival {
    state: State,
    /// For the simulation.
    defect: Option<Defect>,
}

enum State {
    /// Its header is being read.
    Header(HeaderReader),
    /// The server's error is being read.
    Reject { body: Vec<u8>, bytes: usize },
    /// The header was read. The sum lands once it has a place.
    Announced(Response),
    /// The sum lands. Its checksum follows.
    Landing { header: Response, landing: Landing, crc: u32, trailer: Vec<u8> },
}

impl Default for State {
    fn default() -> Self {
        Self::Header(HeaderReader::default())
    }
}

impl Arrival {
    /// An announced sum whose header is known.
    pub(in crate::transport) fn announced(header: Response) -> Self {
        Self { state: State::Announced(header), defect: None }
    }

    /// Makes the mistake `defect`.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn planted(self, defect: Option<Defect>) -> Self {
        Self { defect, ..self }
    }

    /// How many bytes it can take now. 0 if the answer is whole, or if it needs a place first.
    pub fn wants(&self) -> usize {
        match &self.state {
            State::Header(reader) => reader.missing(),
            State::Reject { body, bytes } => bytes - body.len(),
            State::Announced(_) => 0,
            State::Landing { header, landing, trailer, .. } => match landing.bytes_left() {
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
    pub fn take(&mut self, bytes: &[u8], peer: &str) -> Result<()> {
        if planted(self.defect, Defect::LongAnswerTaken) && self.wants() == 0 {
            return Ok(());
        }
        if bytes.len() > self.wants() {
            let field = if matches!(self.state, State::Reject { .. }) { "reject" } else { "sum" };
            return Err(bad(peer, field, "has more bytes than its header announced"));
        }
        match &mut self.state {
            State::Header(reader) => {
                reader.take(bytes);
                if reader.missing() == 0 {
                    self.state = match reader.finish(peer)?.into_reply(peer)? {
                        Reply::Response(header) => State::Announced(header),
                        Reply::Reject(header) => {
                            let bytes = usize::try_from(header.error_bytes).expect("at most REJECT_BYTES_MAX");
                            State::Reject { body: Vec::new(), bytes }
                        }
                    };
                }
            }
            State::Reject { body, .. } => wire::append(body, bytes),
            State::Announced(_) => {}
            State::Landing { header, landing, crc, .. } if landing.bytes_left() > 0 => {
                landing.write(bytes);
                if header.has_checksum() {
                    // Computed here, because the bytes are still in the cache.
                    *crc = wire::checksum(*crc, bytes);
                }
            }
            State::Landing { trailer, .. } => wire::append(trailer, bytes),
        }
        Ok(())
    }

    /// Whether the header was read, and is that of a sum.
    pub fn is_sum(&self) -> bool {
        matches!(self.state, State::Announced(_) | State::Landing { .. })
    }

    /// Whether a sum is announced that has no place yet.
    pub fn needs_place(&self) -> bool {
        matches!(self.state, State::Announced(_))
    }

    /// The length of an announced sum that has no place yet.
    #[cfg(any(test, feature = "testing"))]
    pub fn announced_bytes(&self) -> Option<u64> {
        match &self.state {
            State::Announced(header) => Some(header.body_bytes()),
            State::Header(_) | State::Reject { .. } | State::Landing { .. } => None,
        }
    }

    /// Whether the server has begun to answer and needs no more of the contribution.
    pub fn refuses_body(&self) -> bool {
        match &self.state {
            State::Header(_) => false,
            State::Announced(_) | State::Landing { .. } if planted(self.defect, Defect::EarlySumEndsPush) => true,
            State::Reject { .. } => true,
            State::Announced(header) | State::Landing { header, .. } => !header.is_early(),
        }
    }

    /// Whether an announced sum answers `push` and fits into `into`.
    pub(super) fn check(&self, push: &Request, into: &[Region], peer: &str) -> Result<()> {
        let State::Announced(header) = &self.state else { return Ok(()) };
        check_response(header, push, into.iter().map(Region::len).sum(), peer)
    }

    /// Gives an announced sum its place, at the front of `into`, whose length was checked. `proof` proves that no thread reads there any more.
    pub fn place(&mut self, into: Vec<Region>, proof: Returned) {
        if let State::Announced(header) = &self.state {
            let (header, landing) = (header.clone(), Landing::new(into, header.body_bytes(), proof));
            self.state = State::Landing { header, landing, crc: 0, trailer: Vec::new() };
        }
    }

    /// Bytes of the sum that have landed.
    pub fn landed(&self) -> u64 {
        match &self.state {
            State::Landing { header, landing, .. } => header.body_bytes() - landing.bytes_left() as u64,
            State::Header(_) | State::Reject { .. } | State::Announced(_) => 0,
        }
    }

    /// The answer, after its last byte. `checksum` is given by a transport that carries it in a message of its own.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if bytes are missing or cannot be decoded, [`Error::Checksum`](crate::Error::Checksum) if
    /// the sum is not the one that was sent.
    pub fn finish(&self, checksum: Option<u32>, peer: &str) -> Result<Answer> {
        let early = |field: &str, missing: u64| Err(bad(peer, field, format!("lacks its last {missing} bytes")));
        match &self.state {
            State::Header(reader) => {
                reader.finish(peer).and_then(|header| header.into_reply(peer)).and(early("header", self.wants() as u64))
            }
            State::Reject { .. } if self.wants() > 0 => early("reject", self.wants() as u64),
            State::Reject { body, .. } => Ok(Answer::Reject(reject::from_body(body, peer)?)),
            State::Announced(header) => early("sum", header.body_bytes()),
            State::Landing { header, landing, crc, trailer } => {
                if landing.bytes_left() > 0 || checksum.is_none() && self.wants() > 0 {
                    return early("sum", self.wants() as u64);
                }
                let trailer = || trailer.as_slice().try_into().map_or(0, u32::from_le_bytes);
                if !planted(self.defect, Defect::AnswerNotChecked) {
                    check_crc(header, checksum.unwrap_or_else(trailer), *crc, peer)?;
                }
                Ok(Answer::Response(header.clone()))
            }
        }
    }
}
