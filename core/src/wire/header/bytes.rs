//! A header's bytes. Fields that a kind of header does not have are zero. The reader checks this, so that a header has only one form.
//!
//! [`fields`] has what all services share, [`sum`] the rest of the dense sum's headers, [`residual`] the one about
//! residuals, [`parameter`] that of parameters, [`table`] that of tables.

use super::{About, HEADER_BYTES, Header, Reject, Reply, Request, Response, Service};
use crate::error::{Error, Result};
use crate::types::{Epoch, PartId, TensorKey};
use crate::wire::{VERSION, check_version};

mod fields;
mod parameter;
mod participants;
mod residual;
mod sum;
mod table;

use fields::{Fields, HEADER_BYTES_MAX, MAGIC, REJECT, at, front};

const _: () = assert!(HEADER_BYTES + sum::BEHIND_BYTES_MAX <= HEADER_BYTES_MAX);
const _: () = assert!(HEADER_BYTES + parameter::BEHIND_BYTES_MAX <= HEADER_BYTES_MAX);
const _: () = assert!(HEADER_BYTES + table::BEHIND_BYTES_MAX <= HEADER_BYTES_MAX);

impl Header {
    /// The header's bytes on the wire: 64, and what follows them in some headers.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Contribute(header) => header.encode(),
            Self::Withdraw(header) => header.encode(),
            Self::Restore(header) => header.encode(),
            Self::AnswerResidual(header) => header.encode(),
            Self::Sum(header) => header.encode(),
            Self::Use(header) => header.encode(),
            Self::Value(header) => header.encode().to_vec(),
            Self::Rows(header) => header.encode(),
            Self::RowsAnswer(header) => header.encode().to_vec(),
            Self::Reject(header) => header.encode().to_vec(),
            Self::Unknown(about) => unknown(*about).to_vec(),
        }
    }

    /// Reads a header that `peer` sent, and checks every field. `bytes` holds the bytes that [`HeaderReader`] asked for. Of a service that
    /// this version does not have, nothing is checked but the version.
    ///
    /// # Errors
    /// [`Error::Incompatible`] for another version, [`Error::Protocol`] that names the field for anything else.
    pub fn decode(bytes: &[u8], peer: &str) -> Result<Self> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return cut_short(bytes, peer) };
        let fields = Fields { bytes: head, peer };
        if head[..MAGIC.len()] != MAGIC {
            return Err(fields.bad("magic", format!("is {:02x?} instead of {MAGIC:02x?}", &head[..MAGIC.len()])));
        }
        check_version(head[at::VERSION], peer)?;
        let service = Service::from_code(head[at::SERVICE]);
        match (service, head[at::KIND]) {
            (Service::Unknown(_), REJECT) => {
                let reject = fields.header_bytes(rest).and_then(|()| fields.reject(rest));
                Ok(reject.map_or_else(|_| Self::Unknown(fields.about()), Self::Reject))
            }
            (Service::Unknown(_), _) => Ok(Self::Unknown(fields.about())),
            (Service::DenseSum | Service::Parameter | Service::Table, REJECT) => {
                fields.header_bytes(rest)?;
                fields.reject(rest).map(Self::Reject)
            }
            (Service::Parameter, kind) => {
                fields.header_bytes(rest)?;
                parameter::decode(&fields, kind, rest)
            }
            (Service::Table, kind) => {
                fields.header_bytes(rest)?;
                table::decode(&fields, kind, rest)
            }
            (Service::DenseSum, sum::kind::RESIDUAL) => {
                fields.header_bytes(rest)?;
                fields.residual(rest).map(Self::AnswerResidual)
            }
            (Service::DenseSum, kind) => {
                fields.header_bytes(rest)?;
                sum::decode(&fields, kind, rest)
            }
        }
    }
}

impl Request {
    /// The header's bytes on the wire; [`Self::header_bytes`] says how many.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Contribute(header) => header.encode(),
            Self::Withdraw(header) => header.encode(),
            Self::Restore(header) => header.encode(),
            Self::AnswerResidual(header) => header.encode(),
            Self::Use(header) => header.encode(),
            Self::Rows(header) => header.encode(),
            Self::Unknown(about) => unknown(*about).to_vec(),
        }
    }

    /// Bytes of the header on the wire.
    pub fn header_bytes(&self) -> usize {
        match self {
            Self::Contribute(header) => header.header_bytes(),
            Self::Withdraw(header) => header.header_bytes(),
            Self::Restore(header) => header.header_bytes(),
            Self::AnswerResidual(header) => header.header_bytes(),
            Self::Use(header) => header.header_bytes(),
            Self::Rows(header) => header.header_bytes(),
            Self::Unknown(_) => HEADER_BYTES,
        }
    }
}

impl Response {
    /// The header's bytes on the wire; [`Self::header_bytes`] says how many.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Sum(header) => header.encode(),
            Self::Value(header) => header.encode().to_vec(),
            Self::Rows(header) => header.encode().to_vec(),
        }
    }

    /// Bytes of the header on the wire.
    pub fn header_bytes(&self) -> usize {
        match self {
            Self::Sum(header) => header.header_bytes(),
            Self::Value(_) | Self::Rows(_) => HEADER_BYTES,
        }
    }
}

impl Reply {
    /// The header's bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Response(header) => header.encode(),
            Self::Reject(header) => header.encode().to_vec(),
        }
    }
}

impl Reject {
    /// The header's bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        front(self.about, REJECT, self.error_bytes)
    }
}

/// The header of a request for a service that this version does not have: it can say no more than what it is about.
fn unknown(about: About) -> [u8; HEADER_BYTES] {
    front(about, u8::MAX, 0)
}

/// Gathers the bytes of a header that arrives in pieces of any length.
#[derive(Debug, Default)]
pub struct HeaderReader(Vec<u8>);

impl HeaderReader {
    /// How many bytes to read next. No more than these belong to the header. 0 once the header is complete.
    pub fn missing(&self) -> usize {
        let Some((head, rest)) = self.0.split_first_chunk::<HEADER_BYTES>() else { return HEADER_BYTES - self.0.len() };
        bytes_behind(head).saturating_sub(rest.len())
    }

    /// Takes the next piece.
    ///
    /// # Panics
    /// If it is longer than [`Self::missing`].
    pub fn take(&mut self, piece: &[u8]) {
        assert!(piece.len() <= self.missing(), "{} bytes where {} are missing", piece.len(), self.missing());
        self.0.extend_from_slice(piece);
    }

    /// The header, or what is wrong with the bytes that `peer` sent until its stream ended.
    ///
    /// # Errors
    /// As [`Header::decode`].
    pub fn finish(&self, peer: &str) -> Result<Header> {
        Header::decode(&self.0, peer)
    }
}

/// Bytes that belong to a header after its front; 0 for a header that cannot be read anyway.
fn bytes_behind(head: &[u8; HEADER_BYTES]) -> usize {
    if head[..MAGIC.len()] != MAGIC || head[at::VERSION] != VERSION {
        return 0;
    }
    let all = usize::from(u16::from_le_bytes([head[at::HEADER_BYTES], head[at::HEADER_BYTES + 1]]));
    if all <= HEADER_BYTES_MAX { all.saturating_sub(HEADER_BYTES) } else { 0 }
}

/// What a header means that ended after these bytes. In another version, where headers were shorter, it may be complete; and nothing is
/// known of the headers of a service that this version does not have.
fn cut_short(bytes: &[u8], peer: &str) -> Result<Header> {
    if let Some((magic, [version, rest @ ..])) = bytes.split_first_chunk::<{ MAGIC.len() }>()
        && *magic == MAGIC
    {
        check_version(*version, peer)?;
        if let Some(service @ Service::Unknown(_)) = rest.first().map(|code| Service::from_code(*code)) {
            let part = PartId { key: TensorKey(0), index: 0 };
            return Ok(Header::Unknown(About { service, epoch: Epoch::default(), part }));
        }
    }
    let problem = format!("ends after {} bytes", bytes.len());
    Err(Error::Protocol { peer: peer.to_owned(), field: "header".to_owned(), problem })
}

#[cfg(test)]
mod tests;
