//! The fields of a header that all services have, and how fields are written and read.

use crate::error::{Error, Result};
use crate::types::{DType, Epoch, PartId, Round, TensorKey};
use crate::wire::header::about::{About, Service};
use crate::wire::header::{HEADER_BYTES, Reject, Target, URGENCY_MAX};
use crate::wire::{VERSION, limits};

pub(super) const MAGIC: [u8; 4] = *b"GLNE";

/// The most bytes of a header: its front, the parameters of a codec, and two sets of all workers that a job may have.
pub(super) const HEADER_BYTES_MAX: usize = 2048;

/// The code of a reject, in every service. The other codes belong to the service.
pub(super) const REJECT: u8 = 0;

/// Where each field lies that all services have.
pub(super) mod at {
    pub(in crate::wire::header) const VERSION: usize = 4;
    pub(in crate::wire::header) const SERVICE: usize = 5;
    pub(in crate::wire::header) const HEADER_BYTES: usize = 6;
    pub(in crate::wire::header) const TERM: usize = 8;
    pub(in crate::wire::header) const EPOCH: usize = 12;
    pub(in crate::wire::header) const KEY: usize = 16;
    pub(in crate::wire::header) const PART: usize = 24;
    pub(in crate::wire::header) const BODY_BYTES: usize = 28;
    pub(in crate::wire::header) const KIND: usize = 32;
    pub(in crate::wire::header) const URGENCY: usize = 33;
    // From 34 on the bytes belong to the service.
}

/// The front of a header without the fields of its service.
pub(super) fn front(about: About, kind: u8, body_bytes: u64) -> [u8; HEADER_BYTES] {
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
pub(super) fn with_behind(mut head: [u8; HEADER_BYTES], behind: &[&[u8]]) -> Vec<u8> {
    let all = HEADER_BYTES + behind.iter().map(|part| part.len()).sum::<usize>();
    put(&mut head, at::HEADER_BYTES, u16::try_from(all).expect("at most HEADER_BYTES_MAX").to_le_bytes());
    let mut bytes = Vec::with_capacity(all);
    bytes.extend_from_slice(&head);
    behind.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

pub(super) fn put<const N: usize>(bytes: &mut [u8; HEADER_BYTES], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

pub(super) fn u32_of(bytes: u64) -> u32 {
    u32::try_from(bytes).expect("parts and errors have limits far below 4 GiB")
}

/// The fields of a header that a peer sent.
pub(super) struct Fields<'a> {
    pub(super) bytes: &'a [u8; HEADER_BYTES],
    pub(super) peer: &'a str,
}

impl Fields<'_> {
    /// What every header says. Any bytes mean something here.
    pub(super) fn about(&self) -> About {
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

    /// Which round of which part, in services that count rounds.
    pub(super) fn target(&self, round_at: usize) -> Result<Target> {
        let round = u64::from_le_bytes(self.array(round_at));
        if round > limits::ROUND_MAX {
            return Err(self.bad("round", format!("is {round}, above {}", limits::ROUND_MAX)));
        }
        let about = self.about();
        Ok(Target { epoch: about.epoch, part: about.part, round: Round(round) })
    }

    /// Refuses a header of another length than it says.
    pub(super) fn header_bytes(&self, rest: &[u8]) -> Result<()> {
        let (said, came) = (usize::from(u16::from_le_bytes(self.array(at::HEADER_BYTES))), HEADER_BYTES + rest.len());
        if said == came {
            return Ok(());
        }
        if (came + 1..=HEADER_BYTES_MAX).contains(&said) {
            return Err(self.bad("header", format!("ends after {came} bytes of {said}")));
        }
        Err(self.bad("header length", format!("is {said}")))
    }

    pub(super) fn reject(&self, rest: &[u8]) -> Result<Reject> {
        self.nothing(rest)?;
        self.zero(at::URGENCY..HEADER_BYTES)?;
        Ok(Reject { about: self.about(), error_bytes: self.error_bytes()? })
    }

    /// Refuses bytes after a header that has no more than its front.
    pub(super) fn nothing(&self, rest: &[u8]) -> Result<()> {
        if rest.is_empty() {
            return Ok(());
        }
        Err(self.bad("header", format!("is followed by {} bytes that belong to nothing", rest.len())))
    }

    pub(super) fn urgency(&self) -> Result<u8> {
        match self.bytes[at::URGENCY] {
            urgency @ 0..=URGENCY_MAX => Ok(urgency),
            urgency => Err(self.bad("urgency", format!("is {urgency}, above {URGENCY_MAX}"))),
        }
    }

    pub(super) fn error_bytes(&self) -> Result<u64> {
        self.length("length", at::BODY_BYTES, limits::REJECT_BYTES_MAX)
    }

    pub(super) fn length(&self, field: &str, at: usize, limit: u64) -> Result<u64> {
        let length = u64::from(u32::from_le_bytes(self.array(at)));
        if length > limit {
            return Err(self.bad(field, format!("is {length}, above {limit}")));
        }
        Ok(length)
    }

    /// The element type at this place.
    pub(super) fn dtype(&self, at: usize) -> Result<DType> {
        let code = self.bytes[at];
        DType::from_code(code).ok_or_else(|| self.bad("dtype", format!("is {code}")))
    }

    /// The length, at this place, of a part of whole elements.
    pub(super) fn part_bytes(&self, at: usize, dtype: DType) -> Result<u64> {
        let bytes = self.length("length", at, limits::PART_BYTES_MAX)?;
        if !bytes.is_multiple_of(dtype.bytes()) {
            return Err(self.bad("length", format!("is {bytes}, no multiple of {} bytes", dtype.bytes())));
        }
        Ok(bytes)
    }

    pub(super) fn zero(&self, range: std::ops::Range<usize>) -> Result<()> {
        match self.bytes[range.clone()].iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(index) => {
                let at = range.start + index;
                Err(self.bad("reserved byte", format!("{at} is {}", self.bytes[at])))
            }
        }
    }

    pub(super) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes[at..at + N].try_into().expect("N bytes")
    }

    pub(super) fn bad(&self, field: &str, problem: String) -> Error {
        Error::Protocol { peer: self.peer.to_owned(), field: field.to_owned(), problem }
    }
}
