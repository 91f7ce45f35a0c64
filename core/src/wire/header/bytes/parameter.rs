//! The bytes of the headers of parameters.

use super::fields::{Fields, at as front_at, front, put, u32_of};
use crate::error::Result;
use crate::types::{Access, Version};
use crate::wire::header::{HEADER_BYTES, Header, Sent, Target, Use, Value};
use crate::wire::limits;

/// The codes of the variants.
mod kind {
    pub(super) const USE: u8 = 1;
    pub(super) const VALUE: u8 = 2;
}

/// The bits of the flags.
mod flag {
    /// Use: `check` holds the CRC-32C of the body, or where there is none, the value's is wanted. Value: the CRC-32C follows the body.
    pub(super) const CHECKSUM: u8 = 1;
    /// Use: no body follows.
    pub(super) const NO_BODY: u8 = 2;
}

/// Where each field lies.
mod at {
    pub(super) const FLAGS: usize = 34;
    pub(super) const ACCESS: usize = 35;
    pub(super) const DTYPE: usize = 36;
    pub(super) const RESERVED: usize = 37;
    pub(super) const ROUND: usize = 40;
    pub(super) const VERSION: usize = 48;
    pub(super) const PART_BYTES: usize = 56;
    pub(super) const CHECK: usize = 60;
}

impl Use {
    /// The header's bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (flags, check) = match self.sent {
            Sent::Whole { checksum: None } => (0, 0),
            Sent::Whole { checksum: Some(checksum) } => (flag::CHECKSUM, checksum),
            Sent::Nothing { checked: false } => (flag::NO_BODY, 0),
            Sent::Nothing { checked: true } => (flag::NO_BODY | flag::CHECKSUM, 0),
        };
        let mut bytes = front(self.about(), kind::USE, self.body_bytes());
        bytes[front_at::URGENCY] = self.urgency;
        bytes[at::FLAGS] = flags;
        bytes[at::ACCESS] = self.access.code();
        bytes[at::DTYPE] = self.dtype as u8;
        put(&mut bytes, at::ROUND, self.target.round.0.to_le_bytes());
        put(&mut bytes, at::PART_BYTES, u32_of(self.part_bytes).to_le_bytes());
        put(&mut bytes, at::CHECK, check.to_le_bytes());
        bytes
    }
}

impl Value {
    /// The header's bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = front(self.about(), kind::VALUE, self.part_bytes);
        bytes[at::FLAGS] = if self.checksum { flag::CHECKSUM } else { 0 };
        put(&mut bytes, at::ROUND, self.target.round.0.to_le_bytes());
        put(&mut bytes, at::VERSION, self.version.0.to_le_bytes());
        bytes
    }
}

/// Reads a header of this kind; `rest` is what follows its front.
pub(super) fn decode(fields: &Fields<'_>, kind: u8, rest: &[u8]) -> Result<Header> {
    fields.nothing(rest)?;
    match kind {
        kind::USE => fields.part_use().map(Header::Use),
        kind::VALUE => fields.value().map(Header::Value),
        code => Err(fields.bad("kind", format!("is {code}"))),
    }
}

impl Fields<'_> {
    fn part_use(&self) -> Result<Use> {
        self.zero(at::RESERVED..at::ROUND)?;
        self.zero(at::VERSION..at::PART_BYTES)?;
        let access = self.bytes[at::ACCESS];
        let access = Access::from_code(access).ok_or_else(|| self.bad("access", format!("is {access}")))?;
        let dtype = self.dtype(at::DTYPE)?;
        let part_bytes = self.part_bytes(at::PART_BYTES, dtype)?;
        let check = u32::from_le_bytes(self.array(at::CHECK));
        let sent = match self.bytes[at::FLAGS] {
            0 if check != 0 => return Err(self.bad("checksum", format!("is {check} and not announced"))),
            0 => Sent::Whole { checksum: None },
            flag::CHECKSUM => Sent::Whole { checksum: Some(check) },
            flags if flags & !flag::CHECKSUM == flag::NO_BODY => {
                self.zero(at::CHECK..HEADER_BYTES)?;
                Sent::Nothing { checked: flags & flag::CHECKSUM != 0 }
            }
            flags => return Err(self.bad("flags", format!("are {flags:#04x}"))),
        };
        if let (false, Sent::Whole { .. }) = (access.sends(), sent) {
            return Err(self.bad("flags", format!("announce a body for a {access}")));
        }
        let header = Use { target: self.target(at::ROUND)?, dtype, access, urgency: self.urgency()?, part_bytes, sent };
        let body_bytes = self.length("body length", front_at::BODY_BYTES, limits::PART_BYTES_MAX)?;
        if body_bytes != header.body_bytes() {
            return Err(self.bad("body length", format!("is {body_bytes} of a part of {part_bytes}")));
        }
        Ok(header)
    }

    fn value(&self) -> Result<Value> {
        self.zero(front_at::URGENCY..at::FLAGS)?;
        self.zero(at::ACCESS..at::ROUND)?;
        self.zero(at::PART_BYTES..HEADER_BYTES)?;
        let checksum = match self.bytes[at::FLAGS] {
            0 => false,
            flag::CHECKSUM => true,
            flags => return Err(self.bad("flags", format!("are {flags:#04x}"))),
        };
        let target: Target = self.target(at::ROUND)?;
        let version = Version(u64::from_le_bytes(self.array(at::VERSION)));
        if version.0 > limits::ROUND_MAX {
            return Err(self.bad("version", format!("is {}, above {}", version.0, limits::ROUND_MAX)));
        }
        let part_bytes = self.length("length", front_at::BODY_BYTES, limits::PART_BYTES_MAX)?;
        Ok(Value { target, version, part_bytes, checksum })
    }
}
