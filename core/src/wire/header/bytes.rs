//! A header's bytes. Fields that a kind of header does not have are zero. The reader checks this, so that a header has only one form.
//!
//! This file has what all services share; [`sum`] has the rest of the dense sum's headers.

use super::{About, HEADER_BYTES, Header, Reject, Reply, Request, Service, URGENCY_MAX};
use crate::error::{Error, Result};
use crate::types::{Epoch, PartId, TensorKey};
use crate::wire::{VERSION, check_version, limits};

mod participants;
mod sum;

const MAGIC: [u8; 4] = *b"GLNE";

/// The most bytes of a header: its front, the parameters of a codec, and a set of all workers that a job may have.
const HEADER_BYTES_MAX: usize = 1024;

const _: () = assert!(HEADER_BYTES + sum::BEHIND_BYTES_MAX <= HEADER_BYTES_MAX);

/// The code of a reject, in every service. The other codes belong to the service.
const REJECT: u8 = 0;

/// Where each field lies that all services have.
mod at {
    pub(super) const VERSION: usize = 4;
    pub(super) const SERVICE: usize = 5;
    pub(super) const HEADER_BYTES: usize = 6;
    pub(super) const TERM: usize = 8;
    pub(super) const EPOCH: usize = 12;
    pub(super) const KEY: usize = 16;
    pub(super) const PART: usize = 24;
    pub(super) const BODY_BYTES: usize = 28;
    pub(super) const KIND: usize = 32;
    pub(super) const URGENCY: usize = 33;
    /// From here on the bytes belong to the service.
    pub(super) const OWN: usize = 34;
}

impl Header {
    /// The header's bytes on the wire: 64, and what follows them in some headers.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Contribute(header) => header.encode(),
            Self::Withdraw(header) => header.encode(),
            Self::Sum(header) => header.encode(),
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
            (Service::DenseSum, REJECT) => {
                fields.header_bytes(rest)?;
                fields.reject(rest).map(Self::Reject)
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
            Self::Unknown(about) => unknown(*about).to_vec(),
        }
    }

    /// Bytes of the header on the wire.
    pub fn header_bytes(&self) -> usize {
        match self {
            Self::Contribute(header) => header.header_bytes(),
            Self::Withdraw(header) => header.header_bytes(),
            Self::Unknown(_) => HEADER_BYTES,
        }
    }
}

impl Reply {
    /// The header's bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Sum(header) => header.encode(),
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

/// The front of a header without the fields of its service.
fn front(about: About, kind: u8, body_bytes: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    put(&mut bytes, 0, MAGIC);
    put(&mut bytes, at::VERSION, [VERSION, about.service.code()]);
    put(&mut bytes, at::HEADER_BYTES, u16::try_from(HEADER_BYTES).expect("64").to_le_bytes());
    put(&mut bytes, at::TERM, about.epoch.term.to_le_bytes());
    put(&mut bytes, at::EPOCH, about.epoch.number.to_le_bytes());
    put(&mut bytes, at::KEY, about.part.key.0.to_le_bytes());
    put(&mut bytes, at::PART, about.part.index.to_le_bytes());
    put(&mut bytes, at::BODY_BYTES, u32_of(body_bytes).to_le_bytes());
    bytes[at::KIND] = kind;
    bytes
}

/// A front and what follows it.
fn with_behind(mut head: [u8; HEADER_BYTES], behind: &[&[u8]]) -> Vec<u8> {
    let all = HEADER_BYTES + behind.iter().map(|part| part.len()).sum::<usize>();
    put(&mut head, at::HEADER_BYTES, u16::try_from(all).expect("at most HEADER_BYTES_MAX").to_le_bytes());
    let mut bytes = Vec::with_capacity(all);
    bytes.extend_from_slice(&head);
    behind.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn put<const N: usize>(bytes: &mut [u8; HEADER_BYTES], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn u32_of(bytes: u64) -> u32 {
    u32::try_from(bytes).expect("parts and errors have limits far below 4 GiB")
}

/// The fields of a header that a peer sent.
struct Fields<'a> {
    bytes: &'a [u8; HEADER_BYTES],
    peer: &'a str,
}

impl Fields<'_> {
    /// What every header says. Any bytes mean something here.
    fn about(&self) -> About {
        About {
            service: Service::from_code(self.bytes[at::SERVICE]),
            epoch: Epoch {
                term: u32::from_le_bytes(self.array(at::TERM)),
                number: u32::from_le_bytes(self.array(at::EPOCH)),
            },
            part: PartId {
                key: TensorKey(u64::from_le_bytes(self.array(at::KEY))),
                index: u32::from_le_bytes(self.array(at::PART)),
            },
        }
    }

    /// Refuses a header of another length than it says.
    fn header_bytes(&self, rest: &[u8]) -> Result<()> {
        let (said, came) = (usize::from(u16::from_le_bytes(self.array(at::HEADER_BYTES))), HEADER_BYTES + rest.len());
        if said == came {
            return Ok(());
        }
        if (came + 1..=HEADER_BYTES_MAX).contains(&said) {
            return Err(self.bad("header", format!("ends after {came} bytes of {said}")));
        }
        Err(self.bad("header length", format!("is {said}")))
    }

    fn reject(&self, rest: &[u8]) -> Result<Reject> {
        self.nothing(rest)?;
        self.zero(at::URGENCY..HEADER_BYTES)?;
        Ok(Reject { about: self.about(), error_bytes: self.error_bytes()? })
    }

    /// Refuses bytes after a header that has no more than its front.
    fn nothing(&self, rest: &[u8]) -> Result<()> {
        if rest.is_empty() {
            return Ok(());
        }
        Err(self.bad("header", format!("is followed by {} bytes that belong to nothing", rest.len())))
    }

    fn urgency(&self) -> Result<u8> {
        match self.bytes[at::URGENCY] {
            urgency @ 0..=URGENCY_MAX => Ok(urgency),
            urgency => Err(self.bad("urgency", format!("is {urgency}, above {URGENCY_MAX}"))),
        }
    }

    fn error_bytes(&self) -> Result<u64> {
        self.length("length", at::BODY_BYTES, limits::REJECT_BYTES_MAX)
    }

    fn length(&self, field: &str, at: usize, limit: u64) -> Result<u64> {
        let length = u64::from(u32::from_le_bytes(self.array(at)));
        if length > limit {
            return Err(self.bad(field, format!("is {length}, above {limit}")));
        }
        Ok(length)
    }

    fn zero(&self, range: std::ops::Range<usize>) -> Result<()> {
        match self.bytes[range.clone()].iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(index) => {
                let at = range.start + index;
                Err(self.bad("reserved byte", format!("{at} is {}", self.bytes[at])))
            }
        }
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes[at..at + N].try_into().expect("N bytes")
    }

    fn bad(&self, field: &str, problem: String) -> Error {
        Error::Protocol { peer: self.peer.to_owned(), field: field.to_owned(), problem }
    }
}

#[cfg(test)]
mod tests;
