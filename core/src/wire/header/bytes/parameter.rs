//! The bytes of the headers of parameters.

use super::fields::{Fields, at as front_at, front, put, u32_of, with_behind};
use crate::error::Result;
use crate::types::{Access, Rule, Version};
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

/// The most bytes behind the front of a header: those of a rule.
pub(super) const BEHIND_BYTES_MAX: usize = 1 + Rule::SETTINGS_MAX * size_of::<f64>();

impl Use {
    /// Bytes of the header on the wire.
    pub fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.rule.map_or(0, |rule| 1 + rule.settings().len() * size_of::<f64>())
    }

    /// The header's bytes on the wire. A rule follows the front: its code, and its settings.
    pub fn encode(&self) -> Vec<u8> {
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
        let rule =
            self.rule.map(|rule| [vec![rule.code()], rule.settings().flat_map(f64::to_le_bytes).collect()].concat());
        with_behind(bytes, &[&rule.unwrap_or_default()])
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
    match kind {
        kind::USE => fields.part_use(rest).map(Header::Use),
        kind::VALUE => fields.nothing(rest).and_then(|()| fields.value()).map(Header::Value),
        code => Err(fields.bad("kind", format!("is {code}"))),
    }
}

impl Fields<'_> {
    fn part_use(&self, rest: &[u8]) -> Result<Use> {
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
        let rule = self.rule(rest)?;
        if let Some(rule) = rule.filter(|rule| !rule.changes(dtype)) {
            return Err(self.bad("rule", format!("is {rule} of {dtype}")));
        }
        if let Some(rule) = rule.filter(|rule| !rule.fits(part_bytes / dtype.bytes())) {
            return Err(self.bad("rule", format!("is {rule} of {part_bytes} bytes of {dtype}")));
        }
        if access.steps() && rule.is_none() {
            return Err(self.bad("rule", format!("is missing for a {access}")));
        }
        if !access.has_average(rule) {
            return Err(self.bad("rule", format!("keeps no average for a {access}")));
        }
        let (target, urgency) = (self.target(at::ROUND)?, self.urgency()?);
        let header = Use { target, dtype, access, urgency, part_bytes, rule, sent };
        let body_bytes = self.length("body length", front_at::BODY_BYTES, limits::PART_BYTES_MAX)?;
        if body_bytes != header.body_bytes() {
            return Err(self.bad("body length", format!("is {body_bytes} of a part of {part_bytes}")));
        }
        Ok(header)
    }

    /// The rule behind a header, if there is one.
    fn rule(&self, rest: &[u8]) -> Result<Option<Rule>> {
        let Some((code, settings)) = rest.split_first() else { return Ok(None) };
        let (settings, odd) = settings.as_chunks();
        if !odd.is_empty() || settings.len() > Rule::SETTINGS_MAX {
            return Err(self.bad("rule", format!("has {} bytes", rest.len())));
        }
        let settings: Vec<f64> = settings.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        Rule::from_wire(*code, &settings).map(Some).map_err(|error| self.bad("rule", error.to_string()))
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
