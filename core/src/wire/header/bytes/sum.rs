//! The bytes of the dense sum's headers.

use super::fields::{Fields, at as front_at, front, put, u32_of, with_behind};
use super::participants;
use crate::error::Result;
use crate::types::{CodecSpec, DType, Op, Participants, Round, Wait, Waited, WorkerSet};
use crate::wire::header::{
    Body, Contribute, Contribution, Contributors, HEADER_BYTES, Header, Hold, Restore, Sum, Target, Withdraw,
};
use crate::wire::limits;

/// The codes of the variants.
pub(super) mod kind {
    pub(in crate::wire::header) const CONTRIBUTE: u8 = 1;
    pub(in crate::wire::header) const SUM: u8 = 2;
    pub(in crate::wire::header) const WITHDRAW: u8 = 3;
    pub(in crate::wire::header) const RESTORE: u8 = 4;
    pub(in crate::wire::header) const RESIDUAL: u8 = 5;
}

/// The bits of the flags. Each kind has its own.
pub(super) mod flag {
    /// Contribution, restored sum and residual: `check` holds the CRC-32C of the body. Sum: the CRC-32C follows the body.
    pub(in crate::wire::header) const CHECKSUM: u8 = 1;
    /// Contribution: no body follows.
    pub(in crate::wire::header) const NO_BODY: u8 = 2;
    /// Contribution: `check` holds how many bytes of the sum landed.
    pub(in crate::wire::header) const RESUMED: u8 = 4;
    /// Sum: the rest of the contribution is still wanted.
    pub(in crate::wire::header) const EARLY: u8 = 8;
    /// Contribution: the answer begins with the residual that the worker has given.
    pub(in crate::wire::header) const GIVEN: u8 = 8;
    /// Sum: a set of contributors ends the header. Other kinds: the participants do.
    pub(in crate::wire::header) const PARTIAL: u8 = 16;
    /// Contribution and sums: the codec has refused the elements, and they follow as they are.
    pub(in crate::wire::header) const REFUSED: u8 = 32;
    /// Contribution and residual: the residual before the answer is to be kept too.
    pub(in crate::wire::header) const HELD: u8 = 64;
    /// Contribution and residual, beside [`HELD`]: the sum of the round before was taken back.
    pub(in crate::wire::header) const TAKEN_BACK: u8 = 128;
}

/// Where each field lies.
pub(super) mod at {
    /// The first byte that belongs to the service.
    pub(in crate::wire::header) const FLAGS: usize = 34;
    pub(in crate::wire::header) const CODEC: usize = 35;
    /// Of all but a sum.
    pub(in crate::wire::header) const ROOT: usize = 36;
    /// Of a sum.
    pub(in crate::wire::header) const ATTEMPT: usize = 36;
    pub(in crate::wire::header) const DTYPE: usize = 38;
    pub(in crate::wire::header) const OP: usize = 39;
    pub(in crate::wire::header) const ROUND: usize = 40;
    /// Of a contribution, in the bytes of the round that are always zero: one byte each for device, queue and credit.
    pub(in crate::wire::header) const WAITED: usize = 45;
    pub(in crate::wire::header) const FACTOR: usize = 48;
    pub(in crate::wire::header) const PART_BYTES: usize = 56;
    pub(in crate::wire::header) const CHECK: usize = 60;
}

const _: () =
    assert!(limits::ROUND_MAX < 1 << (8 * (at::WAITED - at::ROUND)), "a round leaves its last bytes to others");

/// The most bytes behind the front of a header.
pub(super) const BEHIND_BYTES_MAX: usize = CodecSpec::WORDS_MAX * size_of::<u32>()
    + SET_PREFIX_BYTES
    + participants::PREFIX_BYTES
    + 2 * limits::MEMBERS_MAX / 8;

/// Bytes before the contributors of a restored sum, which say how many bytes these have.
const SET_PREFIX_BYTES: usize = size_of::<u16>();

impl Contribute {
    /// The header's bytes on the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (flags, check) = match self.contribution {
            Contribution::Nothing => (flag::NO_BODY, 0),
            Contribution::First { checksum: None, .. } => (0, 0),
            Contribution::First { checksum: Some(checksum), .. } => (flag::CHECKSUM, checksum),
            Contribution::Resumed { landed, .. } => (flag::RESUMED, u32_of(landed)),
        };
        let given = if self.is_given { flag::GIVEN } else { 0 };
        let flags = flags | hold_flags(self.hold) | given;
        let mut bytes = fixed(kind::CONTRIBUTE, flags, &self.target, self.body_bytes());
        bytes[front_at::URGENCY] = self.urgency;
        write_reduction(&mut bytes, self.dtype, self.op);
        let Waited { device, queue, credit } = self.waited;
        put(&mut bytes, at::WAITED, [device.code(), queue.code(), credit.code()]);
        put(&mut bytes, at::PART_BYTES, u32_of(self.part_bytes).to_le_bytes());
        put(&mut bytes, at::FACTOR, self.weight.to_le_bytes());
        put(&mut bytes, at::CHECK, check.to_le_bytes());
        with_participants(bytes, self.body(), &self.participants)
    }

    /// Bytes of the header on the wire.
    pub(super) fn header_bytes(&self) -> usize {
        let parameters = self.body().map_or(0, |body| body.codec.parameter_bytes());
        HEADER_BYTES + parameters + participants::bytes(&self.participants)
    }
}

impl Withdraw {
    /// The header's bytes on the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = fixed(kind::WITHDRAW, 0, &self.target, self.error_bytes);
        write_reduction(&mut bytes, self.dtype, self.op);
        with_participants(bytes, None, &self.participants)
    }

    /// Bytes of the header on the wire.
    pub(super) fn header_bytes(&self) -> usize {
        HEADER_BYTES + participants::bytes(&self.participants)
    }
}

impl Restore {
    /// The header's bytes on the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let flags = if self.checksum.is_some() { flag::CHECKSUM } else { 0 };
        let mut bytes = fixed(kind::RESTORE, flags, &self.target, self.body.bytes);
        write_reduction(&mut bytes, self.dtype, self.op);
        put(&mut bytes, at::PART_BYTES, u32_of(self.part_bytes).to_le_bytes());
        put(&mut bytes, at::FACTOR, self.divisor.to_le_bytes());
        put(&mut bytes, at::CHECK, self.checksum.unwrap_or_default().to_le_bytes());
        let participants = participants::encode(&self.participants);
        bytes[at::FLAGS] |= if participants.is_empty() { 0 } else { flag::PARTIAL };
        let parameters = write_form(&mut bytes, self.body);
        let set = self.contributors.as_bytes();
        let prefix = u16::try_from(set.len()).expect("at most 512 bytes").to_le_bytes();
        with_behind(bytes, &[&parameters, &prefix, set, &participants])
    }

    /// Bytes of the header on the wire.
    pub(super) fn header_bytes(&self) -> usize {
        let sets = SET_PREFIX_BYTES + self.contributors.as_bytes().len() + participants::bytes(&self.participants);
        HEADER_BYTES + self.body.codec.parameter_bytes() + sets
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
        let mut bytes = fixed(kind::SUM, flags, &self.target, self.body.bytes);
        put(&mut bytes, at::ATTEMPT, self.attempt.to_le_bytes());
        put(&mut bytes, at::PART_BYTES, u32_of(self.part_bytes).to_le_bytes());
        put(&mut bytes, at::FACTOR, self.divisor.to_le_bytes());
        let parameters = write_form(&mut bytes, self.body);
        with_behind(bytes, &[&parameters, self.contributors.as_bytes()])
    }

    /// Bytes of the header on the wire.
    pub fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.body.codec.parameter_bytes() + self.contributors.as_bytes().len()
    }
}

/// A header, the parameters of the codec of its body, and the participants of its request.
fn with_participants(mut head: [u8; HEADER_BYTES], body: Option<Body>, participants: &Participants) -> Vec<u8> {
    let participants = participants::encode(participants);
    if !participants.is_empty() {
        head[at::FLAGS] |= flag::PARTIAL;
    }
    let parameters = body.map_or_else(Vec::new, |body| write_form(&mut head, body));
    with_behind(head, &[&parameters, &participants])
}

/// The flags that say this of a residual.
pub(super) fn hold_flags(hold: Hold) -> u8 {
    match hold {
        Hold::No => 0,
        Hold::Before => flag::HELD,
        Hold::TakenBack => flag::HELD | flag::TAKEN_BACK,
    }
}

/// The fields that all kinds have.
pub(super) fn fixed(kind: u8, flags: u8, target: &Target, body_bytes: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = front(target.about(), kind, body_bytes);
    bytes[at::FLAGS] = flags;
    put(&mut bytes, at::ROUND, target.round.0.to_le_bytes());
    bytes
}

/// A root beyond 2^16 becomes 2^16 - 1. No worker has that rank either, because a job has at most [`limits::MEMBERS_MAX`] members.
fn write_reduction(bytes: &mut [u8; HEADER_BYTES], dtype: DType, op: Op) {
    bytes[at::DTYPE] = dtype as u8;
    bytes[at::OP] = op.code();
    put(bytes, at::ROOT, u16::try_from(op.argument()).unwrap_or(u16::MAX).to_le_bytes());
}

/// Writes how the body encodes the part. Returns the parameters of its codec, which follow the front.
fn write_form(bytes: &mut [u8; HEADER_BYTES], Body { codec, refused, .. }: Body) -> Vec<u8> {
    bytes[at::CODEC] = codec.code();
    bytes[at::FLAGS] |= if refused { flag::REFUSED } else { 0 };
    codec.words().flat_map(u32::to_le_bytes).collect()
}

/// Reads a header of this kind; `rest` is what follows its front.
pub(super) fn decode(fields: &Fields<'_>, kind: u8, rest: &[u8]) -> Result<Header> {
    match kind {
        kind::CONTRIBUTE => fields.contribute(rest).map(Header::Contribute),
        kind::WITHDRAW => fields.withdraw(rest).map(Header::Withdraw),
        kind::RESTORE => fields.restore(rest).map(Header::Restore),
        kind::SUM => fields.sum(rest).map(Header::Sum),
        code => Err(fields.bad("kind", format!("is {code}"))),
    }
}

impl Fields<'_> {
    fn is_partial(&self) -> bool {
        self.bytes[at::FLAGS] & flag::PARTIAL != 0
    }

    fn is_refused(&self) -> bool {
        self.bytes[at::FLAGS] & flag::REFUSED != 0
    }

    pub(super) fn participants(&self, rest: &[u8]) -> Result<Participants> {
        if self.is_partial() {
            return participants::decode(rest).map_err(|problem| self.bad("participants", problem));
        }
        self.nothing(rest).map(|()| Participants::ALL)
    }

    fn contribute(&self, rest: &[u8]) -> Result<Contribute> {
        let (dtype, op) = self.reduction()?;
        let part_bytes = self.part_bytes(at::PART_BYTES, dtype)?;
        let check = u32::from_le_bytes(self.array(at::CHECK));
        let hold = self.hold()?;
        let is_given = self.bytes[at::FLAGS] & flag::GIVEN != 0;
        if is_given && hold == Hold::TakenBack {
            return Err(self.bad("flags", "give a residual and take one back".to_owned()));
        }
        let others = flag::PARTIAL | flag::REFUSED | flag::HELD | flag::TAKEN_BACK | flag::GIVEN;
        let (contribution, rest) = match self.bytes[at::FLAGS] & !others {
            flag::NO_BODY if !self.is_refused() && hold == Hold::No && !is_given => {
                self.zero(at::CODEC..at::ROOT)?;
                self.zero(front_at::BODY_BYTES..front_at::KIND)?;
                self.zero(at::CHECK..HEADER_BYTES)?;
                (Contribution::Nothing, rest)
            }
            flags @ (0 | flag::CHECKSUM | flag::RESUMED) => {
                // Whether the part has such a body says the server, which refuses this exchange and keeps the link.
                let (body, rest) = self.body(rest)?;
                if !body.codec.encodes(dtype) {
                    return Err(self.bad("codec", format!("is {} of {dtype}", body.codec)));
                }
                if (hold > Hold::No || is_given) && !body.codec.has_answer_feedback() {
                    return Err(self.bad("flags", format!("hold a residual, which answers of {} have not", body.codec)));
                }
                let contribution = match flags {
                    flag::CHECKSUM => Contribution::First { body, checksum: Some(check) },
                    flag::RESUMED if u64::from(check) > body.bytes => {
                        return Err(self.bad("landed bytes", format!("are {check} of {}", body.bytes)));
                    }
                    flag::RESUMED => Contribution::Resumed { body, landed: u64::from(check) },
                    _ => {
                        self.zero(at::CHECK..HEADER_BYTES)?;
                        Contribution::First { body, checksum: None }
                    }
                };
                (contribution, rest)
            }
            flags => return Err(self.bad("flags", format!("are {flags:#04x}"))),
        };
        Ok(Contribute {
            target: self.target_of_contribution(),
            dtype,
            op,
            participants: self.participants(rest)?,
            weight: self.factor("weight")?,
            urgency: self.urgency()?,
            waited: self.waited(),
            part_bytes,
            hold,
            is_given,
            contribution,
        })
    }

    /// Its round has the bytes before [`at::WAITED`]. Any of them are one.
    fn target_of_contribution(&self) -> Target {
        let mut round = [0; size_of::<u64>()];
        let bytes = &self.bytes[at::ROUND..at::WAITED];
        round[..bytes.len()].copy_from_slice(bytes);
        let about = self.about();
        Target { epoch: about.epoch, part: about.part, round: Round(u64::from_le_bytes(round)) }
    }

    /// Any bytes mean something here.
    fn waited(&self) -> Waited {
        let [device, queue, credit] = self.array(at::WAITED).map(Wait::from_code);
        Waited { device, queue, credit }
    }

    pub(super) fn hold(&self) -> Result<Hold> {
        match self.bytes[at::FLAGS] & (flag::HELD | flag::TAKEN_BACK) {
            0 => Ok(Hold::No),
            flag::HELD => Ok(Hold::Before),
            flag::TAKEN_BACK => Err(self.bad("flags", "take back what is not held".to_owned())),
            _ => Ok(Hold::TakenBack),
        }
    }

    fn withdraw(&self, rest: &[u8]) -> Result<Withdraw> {
        self.no_flags_but(flag::PARTIAL)?;
        self.zero(front_at::URGENCY..at::FLAGS)?;
        self.zero(at::CODEC..at::ROOT)?;
        self.zero(at::FACTOR..HEADER_BYTES)?;
        let (dtype, op) = self.reduction()?;
        let participants = self.participants(rest)?;
        Ok(Withdraw { target: self.target(at::ROUND)?, dtype, op, participants, error_bytes: self.error_bytes()? })
    }

    fn restore(&self, rest: &[u8]) -> Result<Restore> {
        self.no_flags_but(flag::CHECKSUM | flag::PARTIAL | flag::REFUSED)?;
        self.zero(front_at::URGENCY..at::FLAGS)?;
        let (dtype, op) = self.reduction()?;
        let part_bytes = self.part_bytes(at::PART_BYTES, dtype)?;
        let (body, rest) = self.body(rest)?;
        if !body.codec.encodes(dtype) {
            return Err(self.bad("codec", format!("is {} of {dtype}", body.codec)));
        }
        let (prefix, rest) = rest
            .split_first_chunk::<SET_PREFIX_BYTES>()
            .ok_or_else(|| self.bad("contributors", format!("are no set in {} bytes", rest.len())))?;
        let bytes = usize::from(u16::from_le_bytes(*prefix));
        let (set, rest) = rest
            .split_at_checked(bytes)
            .ok_or_else(|| self.bad("contributors", format!("are a set of {bytes} bytes in {}", rest.len())))?;
        let contributors = WorkerSet::from_bytes(set)
            .ok_or_else(|| self.bad("contributors", format!("are no set in {bytes} bytes")))?;
        let checksum = match self.bytes[at::FLAGS] & flag::CHECKSUM {
            0 => {
                self.zero(at::CHECK..HEADER_BYTES)?;
                None
            }
            _ => Some(u32::from_le_bytes(self.array(at::CHECK))),
        };
        Ok(Restore {
            target: self.target(at::ROUND)?,
            dtype,
            op,
            participants: self.participants(rest)?,
            part_bytes,
            body,
            checksum,
            divisor: self.factor("divisor")?,
            contributors,
        })
    }

    fn sum(&self, rest: &[u8]) -> Result<Sum> {
        self.no_flags_but(flag::CHECKSUM | flag::EARLY | flag::PARTIAL | flag::REFUSED)?;
        let flags = self.bytes[at::FLAGS];
        self.zero(front_at::URGENCY..at::FLAGS)?;
        self.zero(at::DTYPE..at::ROUND)?;
        self.zero(at::CHECK..HEADER_BYTES)?;
        let (body, set) = self.body(rest)?;
        let workers = || WorkerSet::from_bytes(set);
        let contributors = match self.is_partial() {
            true => Contributors::Only(
                workers().ok_or_else(|| self.bad("contributors", format!("are no set in {} bytes", set.len())))?,
            ),
            false => {
                self.nothing(set)?;
                Contributors::Due
            }
        };
        let part_bytes = self.length("length", at::PART_BYTES, limits::PART_BYTES_MAX)?;
        if body.encoding().is_plain() && body.bytes != part_bytes {
            return Err(self.bad("body length", format!("is {} of a part of {part_bytes}", body.bytes)));
        }
        Ok(Sum {
            target: self.target(at::ROUND)?,
            attempt: u16::from_le_bytes(self.array(at::ATTEMPT)),
            part_bytes,
            body,
            divisor: self.factor("divisor")?,
            contributors,
            early: flags & flag::EARLY != 0,
            checksum: flags & flag::CHECKSUM != 0,
        })
    }

    fn reduction(&self) -> Result<(DType, Op)> {
        let op = self.bytes[at::OP];
        let root = u16::from_le_bytes(self.array(at::ROOT));
        let dtype = self.dtype(at::DTYPE)?;
        let op = Op::from_code(op, u32::from(root)).ok_or_else(|| self.bad("op", format!("is {op}")))?;
        if op.argument() != u32::from(root) {
            return Err(self.bad("root", format!("is {root} of a {op}")));
        }
        op.check(dtype).map_err(|_| self.bad("op", format!("is {op} of {dtype}")))?;
        Ok((dtype, op))
    }

    /// The codec of the body, whose parameters begin `rest`; and what follows them.
    pub(super) fn codec<'rest>(&self, rest: &'rest [u8]) -> Result<(CodecSpec, &'rest [u8])> {
        let code = self.bytes[at::CODEC];
        let bytes = CodecSpec::parameter_bytes_of(code).map_err(|error| self.bad("codec", error.to_string()))?;
        let (parameters, rest) = rest
            .split_at_checked(bytes)
            .ok_or_else(|| self.bad("codec", format!("is {code} with parameters of {} bytes", rest.len())))?;
        let words = parameters.as_chunks().0;
        let parameters: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let spec = CodecSpec::from_wire(code, &parameters);
        Ok((spec.map_err(|error| self.bad("codec", error.to_string()))?, rest))
    }

    /// What the header says of the body, whose parameters begin `rest`; and what follows them.
    fn body<'rest>(&self, rest: &'rest [u8]) -> Result<(Body, &'rest [u8])> {
        let (codec, rest) = self.codec(rest)?;
        if self.is_refused() && !codec.varies() {
            return Err(self.bad("flags", format!("say that {codec} refused the elements, which it never does")));
        }
        let bytes = self.length("body length", front_at::BODY_BYTES, limits::BODY_BYTES_MAX)?;
        Ok((Body { bytes, codec, refused: self.is_refused() }, rest))
    }

    fn factor(&self, field: &str) -> Result<f64> {
        let factor = f64::from_le_bytes(self.array(at::FACTOR));
        if !factor.is_finite() || factor < 0.0 {
            return Err(self.bad(field, format!("is {factor}")));
        }
        Ok(factor)
    }

    pub(super) fn no_flags_but(&self, allowed: u8) -> Result<()> {
        match self.bytes[at::FLAGS] & !allowed {
            0 => Ok(()),
            flags => Err(self.bad("flags", format!("are {flags:#04x}"))),
        }
    }
}
