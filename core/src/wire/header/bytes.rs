//! A header's bytes. Fields that a kind of header does not have are zero. The reader checks this, so that a header has only one form.

use super::{
    Body, Contribute, Contribution, Contributors, HEADER_BYTES, Header, Reject, Reply, Request, Service, Sum, Target,
    URGENCY_MAX, Withdraw,
};
use crate::codec;
use crate::error::{Error, Result};
use crate::types::{CodecSpec, DType, Encoding, Epoch, Op, PartId, Participants, Round, TensorKey, WorkerSet};
use crate::wire::{VERSION, check_version, limits};

mod participants;

const MAGIC: [u8; 4] = *b"GLNE";

/// The codes of the variants.
mod kind {
    pub(super) const CONTRIBUTE: u8 = 1;
    pub(super) const SUM: u8 = 2;
    pub(super) const REJECT: u8 = 3;
    pub(super) const WITHDRAW: u8 = 4;
}

/// The bits of the flags. Each kind has its own.
mod flag {
    /// Contribution: `check` holds the CRC-32C of the body. Sum: the CRC-32C follows the body.
    pub(super) const CHECKSUM: u8 = 1;
    /// Contribution: no body follows.
    pub(super) const NO_BODY: u8 = 2;
    /// Contribution: `check` holds how many bytes of the sum landed.
    pub(super) const RESUMED: u8 = 4;
    /// Sum: the rest of the contribution is still wanted.
    pub(super) const EARLY: u8 = 8;
    /// Sum: a set of contributors follows the header. Contribution and withdrawal: the participants follow the header.
    pub(super) const PARTIAL: u8 = 16;
}

/// Where each field lies.
mod at {
    pub(super) const VERSION: usize = 4;
    pub(super) const KIND: usize = 5;
    pub(super) const SERVICE: usize = 6;
    pub(super) const FLAGS: usize = 7;
    pub(super) const TERM: usize = 8;
    pub(super) const EPOCH: usize = 12;
    pub(super) const KEY: usize = 16;
    pub(super) const PART: usize = 24;
    pub(super) const ATTEMPT: usize = 28;
    pub(super) const URGENCY: usize = 30;
    pub(super) const ENCODING: usize = 31;
    pub(super) const ROUND: usize = 32;
    pub(super) const PART_BYTES: usize = 40;
    pub(super) const BODY_BYTES: usize = 44;
    pub(super) const FACTOR: usize = 48;
    pub(super) const DTYPE: usize = 56;
    pub(super) const OP: usize = 57;
    pub(super) const ROOT: usize = 58;
    pub(super) const SET_BYTES: usize = 56;
    pub(super) const CHECK: usize = 60;
}

impl Header {
    /// The header's bytes on the wire: 64, and after them the contributors of a partial sum, or the participants of a request.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Contribute(header) => header.encode(),
            Self::Withdraw(header) => header.encode(),
            Self::Sum(header) => header.encode(),
            Self::Reject(header) => header.encode().to_vec(),
        }
    }

    /// Reads a header that `peer` sent, and checks every field. `bytes` holds the bytes that [`HeaderReader`] asked for.
    ///
    /// # Errors
    /// [`Error::Incompatible`] for another version, [`Error::Protocol`] that names the field for anything else.
    pub fn decode(bytes: &[u8], peer: &str) -> Result<Self> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Err(cut_short(bytes, peer)) };
        let fields = Fields { bytes: head, peer };
        if head[..MAGIC.len()] != MAGIC {
            return Err(fields.bad("magic", format!("is {:02x?} instead of {MAGIC:02x?}", &head[..MAGIC.len()])));
        }
        check_version(head[at::VERSION], peer)?;
        let is_partial = head[at::FLAGS] & flag::PARTIAL != 0;
        match head[at::KIND] {
            kind::CONTRIBUTE => fields.contribute(fields.participants(is_partial, rest)?).map(Self::Contribute),
            kind::WITHDRAW => fields.withdraw(fields.participants(is_partial, rest)?).map(Self::Withdraw),
            kind::SUM => fields.sum(rest).map(Self::Sum),
            kind::REJECT => fields.nothing(rest).and_then(|()| fields.reject()).map(Self::Reject),
            code => Err(fields.bad("kind", format!("is {code}"))),
        }
    }
}

impl Request {
    /// The header's bytes on the wire; [`Self::header_bytes`] says how many.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Contribute(header) => header.encode(),
            Self::Withdraw(header) => header.encode(),
        }
    }

    /// Bytes of the header on the wire.
    pub fn header_bytes(&self) -> usize {
        let participants = match self {
            Self::Contribute(header) => &header.participants,
            Self::Withdraw(header) => &header.participants,
        };
        HEADER_BYTES + participants::bytes(participants)
    }
}

/// A header and the participants of its request.
fn with_participants(mut head: [u8; HEADER_BYTES], participants: &Participants) -> Vec<u8> {
    let behind = participants::encode(participants);
    if !behind.is_empty() {
        head[at::FLAGS] |= flag::PARTIAL;
    }
    [&head[..], &behind].concat()
}

impl Contribute {
    fn encode(&self) -> Vec<u8> {
        let (flags, check) = match self.contribution {
            Contribution::Nothing => (flag::NO_BODY, 0),
            Contribution::First { checksum: None, .. } => (0, 0),
            Contribution::First { checksum: Some(checksum), .. } => (flag::CHECKSUM, checksum),
            Contribution::Resumed { landed, .. } => (flag::RESUMED, u32_of(landed)),
        };
        let mut bytes = fixed(kind::CONTRIBUTE, flags, &self.target);
        bytes[at::URGENCY] = self.urgency;
        write_reduction(&mut bytes, self.dtype, self.op);
        put(&mut bytes, at::PART_BYTES, u32_of(self.part_bytes).to_le_bytes());
        if let Some(body) = self.body() {
            write_body(&mut bytes, body);
        }
        put(&mut bytes, at::FACTOR, self.weight.to_le_bytes());
        put(&mut bytes, at::CHECK, check.to_le_bytes());
        with_participants(bytes, &self.participants)
    }
}

impl Withdraw {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = fixed(kind::WITHDRAW, 0, &self.target);
        write_reduction(&mut bytes, self.dtype, self.op);
        put(&mut bytes, at::BODY_BYTES, u32_of(self.error_bytes).to_le_bytes());
        with_participants(bytes, &self.participants)
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

impl Sum {
    /// The header's bytes on the wire; [`Self::header_bytes`] says how many.
    pub fn encode(&self) -> Vec<u8> {
        let mut flags = 0;
        for (is_set, bit) in [
            (self.checksum, flag::CHECKSUM),
            (self.early, flag::EARLY),
            (self.contributors != Contributors::Due, flag::PARTIAL),
        ] {
            flags |= if is_set { bit } else { 0 };
        }
        let set = self.contributors.as_bytes();
        let mut bytes = fixed(kind::SUM, flags, &self.target);
        put(&mut bytes, at::PART_BYTES, u32_of(self.part_bytes).to_le_bytes());
        write_body(&mut bytes, self.body);
        put(&mut bytes, at::FACTOR, self.divisor.to_le_bytes());
        put(&mut bytes, at::SET_BYTES, u16::try_from(set.len()).expect("at most 512 bytes").to_le_bytes());
        [&bytes, set].concat()
    }
}

impl Reject {
    /// The header's bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = fixed(kind::REJECT, 0, &self.target);
        put(&mut bytes, at::BODY_BYTES, u32_of(self.error_bytes).to_le_bytes());
        bytes
    }
}

/// Gathers the bytes of a header that arrives in pieces of any length.
#[derive(Debug, Default)]
pub struct HeaderReader(Vec<u8>);

impl HeaderReader {
    /// How many bytes to read next. No more than these belong to the header. 0 once the header is complete.
    pub fn missing(&self) -> usize {
        let Some((head, rest)) = self.0.split_first_chunk::<HEADER_BYTES>() else { return HEADER_BYTES - self.0.len() };
        following_bytes(head, rest).saturating_sub(rest.len())
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

/// Bytes that belong to a header after its first 64, of which `rest` has come; 0 for a header that cannot be read anyway.
fn following_bytes(head: &[u8; HEADER_BYTES], rest: &[u8]) -> usize {
    let is_partial = head[at::FLAGS] & flag::PARTIAL != 0;
    if head[..MAGIC.len()] != MAGIC || head[at::VERSION] != VERSION || !is_partial {
        return 0;
    }
    let at_most = |bytes: [u8; 2]| Some(usize::from(u16::from_le_bytes(bytes))).filter(|bytes| *bytes <= SET_BYTES_MAX);
    match head[at::KIND] {
        kind::SUM => at_most([head[at::SET_BYTES], head[at::SET_BYTES + 1]]).unwrap_or(0),
        // The length of the set stands at their beginning.
        kind::CONTRIBUTE | kind::WITHDRAW => match rest.split_first_chunk::<{ participants::PREFIX_BYTES }>() {
            Some(([low, high, ..], _)) => participants::PREFIX_BYTES + at_most([*low, *high]).unwrap_or(0),
            None => participants::PREFIX_BYTES,
        },
        _ => 0,
    }
}

/// Bytes of a set of all workers that a job may have.
const SET_BYTES_MAX: usize = limits::MEMBERS_MAX / 8;

/// The error for a header that ended after these bytes. In another version, where headers were shorter, it may be complete.
fn cut_short(bytes: &[u8], peer: &str) -> Error {
    if let [magic @ .., version] = bytes.get(..=MAGIC.len()).unwrap_or_default()
        && *magic == MAGIC
        && let Err(other_version) = check_version(*version, peer)
    {
        return other_version;
    }
    let problem = format!("ends after {} bytes", bytes.len());
    Error::Protocol { peer: peer.to_owned(), field: "header".to_owned(), problem }
}

/// The fields that all kinds have.
fn fixed(kind: u8, flags: u8, target: &Target) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    put(&mut bytes, 0, MAGIC);
    put(&mut bytes, at::VERSION, [VERSION, kind, target.service.code(), flags]);
    put(&mut bytes, at::TERM, target.epoch.term.to_le_bytes());
    put(&mut bytes, at::EPOCH, target.epoch.number.to_le_bytes());
    put(&mut bytes, at::KEY, target.part.key.0.to_le_bytes());
    put(&mut bytes, at::PART, target.part.index.to_le_bytes());
    put(&mut bytes, at::ATTEMPT, target.attempt.to_le_bytes());
    put(&mut bytes, at::ROUND, target.round.0.to_le_bytes());
    bytes
}

/// A root beyond 2^16 becomes 2^16 - 1. No worker has that rank either, because a job has at most [`limits::MEMBERS_MAX`] members.
fn write_reduction(bytes: &mut [u8; HEADER_BYTES], dtype: DType, op: Op) {
    bytes[at::DTYPE] = dtype as u8;
    bytes[at::OP] = op.code();
    put(bytes, at::ROOT, u16::try_from(op.argument()).unwrap_or(u16::MAX).to_le_bytes());
}

fn write_body(bytes: &mut [u8; HEADER_BYTES], body: Body) {
    put(bytes, at::BODY_BYTES, u32_of(body.bytes).to_le_bytes());
    bytes[at::ENCODING] = body.codec.encoding() as u8;
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
    /// Refuses bytes after a header that has no more than its first 64.
    fn nothing(&self, rest: &[u8]) -> Result<()> {
        if rest.is_empty() {
            return Ok(());
        }
        Err(self.bad("header", format!("is followed by {} bytes that belong to nothing", rest.len())))
    }

    fn participants(&self, are_there: bool, rest: &[u8]) -> Result<Participants> {
        if are_there {
            return participants::decode(rest).map_err(|problem| self.bad("participants", problem));
        }
        self.nothing(rest).map(|()| Participants::ALL)
    }

    fn contribute(&self, participants: Participants) -> Result<Contribute> {
        let (dtype, op) = self.reduction()?;
        let part_bytes = self.part_bytes()?;
        if !part_bytes.is_multiple_of(dtype.bytes()) {
            return Err(self.bad("length", format!("is {part_bytes}, no multiple of {} bytes", dtype.bytes())));
        }
        let checksum = u32::from_le_bytes(self.array(at::CHECK));
        let body = || {
            let body = self.body(part_bytes)?;
            if !body.codec.encodes(dtype) {
                return Err(self.bad("encoding", format!("is {} of {dtype}", body.codec)));
            }
            let due = codec::body_bytes(body.codec, dtype, part_bytes);
            due.check(body.bytes).map_err(|malformed| self.bad("body length", malformed.to_string()))?;
            Ok(body)
        };
        let contribution = match self.bytes[at::FLAGS] & !flag::PARTIAL {
            0 => {
                self.zero(at::CHECK..HEADER_BYTES)?;
                Contribution::First { body: body()?, checksum: None }
            }
            flag::CHECKSUM => Contribution::First { body: body()?, checksum: Some(checksum) },
            flag::RESUMED => {
                let body = body()?;
                if u64::from(checksum) > body.bytes {
                    return Err(self.bad("landed bytes", format!("are {checksum} of {}", body.bytes)));
                }
                Contribution::Resumed { body, landed: u64::from(checksum) }
            }
            flag::NO_BODY => {
                self.zero(at::ENCODING..at::ROUND)?;
                self.zero(at::BODY_BYTES..at::FACTOR)?;
                self.zero(at::CHECK..HEADER_BYTES)?;
                Contribution::Nothing
            }
            flags => return Err(self.bad("flags", format!("are {flags:#04x}"))),
        };
        let urgency = self.bytes[at::URGENCY];
        if urgency > URGENCY_MAX {
            return Err(self.bad("urgency", format!("is {urgency}, above {URGENCY_MAX}")));
        }
        let weight = self.factor("weight")?;
        let target = self.target()?;
        Ok(Contribute { target, dtype, op, participants, weight, urgency, part_bytes, contribution })
    }

    fn withdraw(&self, participants: Participants) -> Result<Withdraw> {
        self.no_flags_but(flag::PARTIAL)?;
        self.zero(at::URGENCY..at::ROUND)?;
        self.zero(at::PART_BYTES..at::BODY_BYTES)?;
        self.zero(at::FACTOR..at::DTYPE)?;
        self.zero(at::CHECK..HEADER_BYTES)?;
        let (dtype, op) = self.reduction()?;
        Ok(Withdraw { target: self.target()?, dtype, op, participants, error_bytes: self.error_bytes()? })
    }

    fn sum(&self, set: &[u8]) -> Result<Sum> {
        let flags = self.bytes[at::FLAGS];
        if flags & !(flag::CHECKSUM | flag::EARLY | flag::PARTIAL) != 0 {
            return Err(self.bad("flags", format!("are {flags:#04x}")));
        }
        self.zero(at::URGENCY..at::ENCODING)?;
        self.zero(at::SET_BYTES + 2..HEADER_BYTES)?;
        let announced = u16::from_le_bytes(self.array(at::SET_BYTES));
        let workers = WorkerSet::from_bytes(set).filter(|_| usize::from(announced) == set.len());
        let workers = workers.ok_or_else(|| self.bad("contributors", format!("are no set in {announced} bytes")))?;
        let contributors = match flags & flag::PARTIAL != 0 {
            true => Contributors::Only(workers),
            false if set.is_empty() => Contributors::Due,
            false => return Err(self.bad("contributors", "are some where all are announced".to_owned())),
        };
        let part_bytes = self.part_bytes()?;
        let body = self.body(part_bytes)?;
        if body.codec == CodecSpec::PLAIN && body.bytes != part_bytes {
            return Err(self.bad("body length", format!("is {} of a part of {part_bytes}", body.bytes)));
        }
        Ok(Sum {
            target: self.target()?,
            part_bytes,
            body,
            divisor: self.factor("divisor")?,
            contributors,
            early: flags & flag::EARLY != 0,
            checksum: flags & flag::CHECKSUM != 0,
        })
    }

    fn reject(&self) -> Result<Reject> {
        self.no_flags_but(0)?;
        self.zero(at::URGENCY..at::ROUND)?;
        self.zero(at::PART_BYTES..at::BODY_BYTES)?;
        self.zero(at::FACTOR..HEADER_BYTES)?;
        Ok(Reject { target: self.target()?, error_bytes: self.error_bytes()? })
    }

    fn target(&self) -> Result<Target> {
        let round = u64::from_le_bytes(self.array(at::ROUND));
        if round > limits::ROUND_MAX {
            return Err(self.bad("round", format!("is {round}, above {}", limits::ROUND_MAX)));
        }
        Ok(Target {
            service: Service::from_code(self.bytes[at::SERVICE]),
            epoch: Epoch {
                term: u32::from_le_bytes(self.array(at::TERM)),
                number: u32::from_le_bytes(self.array(at::EPOCH)),
            },
            part: PartId {
                key: TensorKey(u64::from_le_bytes(self.array(at::KEY))),
                index: u32::from_le_bytes(self.array(at::PART)),
            },
            round: Round(round),
            attempt: u16::from_le_bytes(self.array(at::ATTEMPT)),
        })
    }

    fn reduction(&self) -> Result<(DType, Op)> {
        let (dtype, op) = (self.bytes[at::DTYPE], self.bytes[at::OP]);
        let root = u16::from_le_bytes(self.array(at::ROOT));
        let dtype = DType::from_code(dtype).ok_or_else(|| self.bad("dtype", format!("is {dtype}")))?;
        let op = Op::from_code(op, u32::from(root)).ok_or_else(|| self.bad("op", format!("is {op}")))?;
        if op.argument() != u32::from(root) {
            return Err(self.bad("root", format!("is {root} of a {op}")));
        }
        op.check(dtype).map_err(|_| self.bad("op", format!("is {op} of {dtype}")))?;
        Ok((dtype, op))
    }

    fn part_bytes(&self) -> Result<u64> {
        self.length("length", at::PART_BYTES, limits::PART_BYTES_MAX)
    }

    /// The body that follows, in a known encoding. No encoding makes a body longer than its part.
    fn body(&self, part_bytes: u64) -> Result<Body> {
        let code = self.bytes[at::ENCODING];
        let encoding = Encoding::from_code(code).ok_or_else(|| self.bad("encoding", format!("is {code}")))?;
        let codec = CodecSpec::of(encoding);
        Ok(Body { bytes: self.length("body length", at::BODY_BYTES, part_bytes)?, codec })
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

    fn factor(&self, field: &str) -> Result<f64> {
        let factor = f64::from_le_bytes(self.array(at::FACTOR));
        if !factor.is_finite() || factor < 0.0 {
            return Err(self.bad(field, format!("is {factor}")));
        }
        Ok(factor)
    }

    fn no_flags_but(&self, allowed: u8) -> Result<()> {
        match self.bytes[at::FLAGS] & !allowed {
            0 => Ok(()),
            flags => Err(self.bad("flags", format!("are {flags:#04x} where an error follows"))),
        }
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
