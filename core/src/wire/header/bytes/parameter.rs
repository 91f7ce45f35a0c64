//! The bytes of the headers of parameters.

use std::num::NonZeroU64;

use super::fields::{Fields, at as front_at, front, put, u32_of, with_behind};
use crate::error::Result;
use crate::types::{
    Access, ClockKey, Compensation, DType, Effect, Fate, KeyPart, Merge, Mode, Pace, Quorum, Rule, Staleness, Version,
};
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
    /// Use: a mode follows the front.
    pub(super) const MODE: u8 = 4;
    /// Use: the place in the value of a key follows the front, after a mode.
    pub(super) const KEY: u8 = 8;
}

/// Where each field lies.
mod at {
    pub(super) const FLAGS: usize = 34;
    pub(super) const ACCESS: usize = 35;
    /// Of a value.
    pub(super) const FATE: usize = 35;
    pub(super) const DTYPE: usize = 36;
    pub(super) const RESERVED: usize = 37;
    pub(super) const ROUND: usize = 40;
    pub(super) const VERSION: usize = 48;
    pub(super) const PART_BYTES: usize = 56;
    /// Of a value.
    pub(super) const LAG: usize = 56;
    pub(super) const CHECK: usize = 60;
}

/// Bytes of a mode: its pace and the number of that, how gradients become one, what happens to stale changes and from which lag on, the key
/// of its clock, where that stands, and how gradients are compensated.
const MODE_BYTES: usize = 35;

/// Bytes of a place in the value of a key: the app, the key, and where the part begins.
const KEY_BYTES: usize = 24;

/// The most bytes behind the front of a header: those of a mode, a key and a rule.
pub(super) const BEHIND_BYTES_MAX: usize = MODE_BYTES + KEY_BYTES + 1 + Rule::SETTINGS_MAX * size_of::<f64>();

/// The codes of the fields of a mode.
mod mode_code {
    pub(super) const ASYNC: u8 = 1;
    pub(super) const SSP: u8 = 2;
    pub(super) const SYNC: u8 = 3;
    pub(super) const K_OF_N: u8 = 4;
    pub(super) const SUM: u8 = 1;
    pub(super) const DISCARD: u8 = 1;
    pub(super) const SCALE: u8 = 2;
}

impl Use {
    /// Bytes of the header on the wire.
    pub fn header_bytes(&self) -> usize {
        let mode = if self.mode == Mode::ASYNC { 0 } else { MODE_BYTES };
        let key = if self.key.is_some() { KEY_BYTES } else { 0 };
        HEADER_BYTES + mode + key + self.rule.map_or(0, |rule| 1 + rule.settings().len() * size_of::<f64>())
    }

    /// The header's bytes on the wire. A mode that is not the usual one follows the front, then a key, and then a rule: its code, and its
    /// settings.
    pub fn encode(&self) -> Vec<u8> {
        let (flags, check) = match self.sent {
            Sent::Whole { checksum: None } => (0, 0),
            Sent::Whole { checksum: Some(checksum) } => (flag::CHECKSUM, checksum),
            Sent::Nothing { checked: false } => (flag::NO_BODY, 0),
            Sent::Nothing { checked: true } => (flag::NO_BODY | flag::CHECKSUM, 0),
        };
        let mut bytes = front(self.about(), kind::USE, self.body_bytes());
        bytes[front_at::URGENCY] = self.urgency;
        let mode = (self.mode != Mode::ASYNC).then(|| mode_bytes(self.mode, self.clock_at));
        let key = self.key.map(|KeyPart { app, key, offset }| [app, key, offset].map(u64::to_le_bytes).concat());
        let behind = [(mode.is_some(), flag::MODE), (key.is_some(), flag::KEY)];
        bytes[at::FLAGS] = behind.iter().filter(|(is_there, _)| *is_there).fold(flags, |flags, (_, flag)| flags | flag);
        bytes[at::ACCESS] = self.access.code();
        bytes[at::DTYPE] = self.dtype as u8;
        put(&mut bytes, at::ROUND, self.target.round.0.to_le_bytes());
        put(&mut bytes, at::VERSION, self.basis.0.to_le_bytes());
        put(&mut bytes, at::PART_BYTES, u32_of(self.part_bytes).to_le_bytes());
        put(&mut bytes, at::CHECK, check.to_le_bytes());
        let rule =
            self.rule.map(|rule| [vec![rule.code()], rule.settings().flat_map(f64::to_le_bytes).collect()].concat());
        with_behind(bytes, &[&mode.unwrap_or_default(), &key.unwrap_or_default(), &rule.unwrap_or_default()])
    }
}

fn mode_bytes(mode: Mode, clock_at: u64) -> Vec<u8> {
    let Mode { pace, staleness, compensation, clock } = mode;
    let (code, number, merge) = match pace {
        Pace::Async => (mode_code::ASYNC, 0, 0),
        Pace::Ssp { bound } => (mode_code::SSP, bound, 0),
        Pace::Rounds { quorum, merge } => {
            let merge = if merge == Merge::Sum { mode_code::SUM } else { 0 };
            match quorum {
                Quorum::All => (mode_code::SYNC, 0, merge),
                Quorum::First(k) => (mode_code::K_OF_N, k, merge),
            }
        }
    };
    let (beyond, max) = match staleness {
        Staleness::Any => (0, 0),
        Staleness::Discard { max } => (mode_code::DISCARD, max),
        Staleness::Scale { max } => (mode_code::SCALE, max),
    };
    // No name has the key 0.
    let clock = clock.map_or(0, |clock| clock.0);
    let numbers = [number.to_le_bytes(), max.to_le_bytes()].concat();
    let last = [clock, clock_at, compensation.bits()].map(u64::to_le_bytes).concat();
    [&[code, merge, beyond], &numbers[..], &last].concat()
}

impl Value {
    /// The header's bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = front(self.about(), kind::VALUE, self.part_bytes);
        bytes[at::FLAGS] = if self.checksum { flag::CHECKSUM } else { 0 };
        put(&mut bytes, at::ROUND, self.target.round.0.to_le_bytes());
        bytes[at::FATE] = self.effect.fate.code();
        put(&mut bytes, at::VERSION, self.effect.version.0.to_le_bytes());
        put(&mut bytes, at::LAG, self.effect.lag.to_le_bytes());
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
        let basis = self.version()?;
        let access = self.bytes[at::ACCESS];
        let access = Access::from_code(access).ok_or_else(|| self.bad("access", format!("is {access}")))?;
        let dtype = self.dtype(at::DTYPE)?;
        let part_bytes = self.part_bytes(at::PART_BYTES, dtype)?;
        let check = u32::from_le_bytes(self.array(at::CHECK));
        let sent = match self.bytes[at::FLAGS] & !(flag::MODE | flag::KEY) {
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
        let (mode, rest) = match rest.split_first_chunk::<MODE_BYTES>() {
            _ if self.bytes[at::FLAGS] & flag::MODE == 0 => ((Mode::ASYNC, 0), rest),
            Some((mode, rest)) => (self.mode(mode)?, rest),
            None => return Err(self.bad("mode", format!("has {} bytes", rest.len()))),
        };
        let (mode, clock_at) = mode;
        let (key, rest) = match rest.split_first_chunk::<KEY_BYTES>() {
            _ if self.bytes[at::FLAGS] & flag::KEY == 0 => (None, rest),
            Some((key, rest)) => (Some(self.key_part(key, access, dtype, part_bytes)?), rest),
            None => return Err(self.bad("key", format!("has {} bytes", rest.len()))),
        };
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
        if matches!(mode.staleness, Staleness::Scale { .. }) && !dtype.is_float() {
            return Err(self.bad("mode", format!("is {mode} of {dtype}")));
        }
        if mode.rounds().is_some() && access.steps() && (access.receives() || clock_at == 0) {
            return Err(self.bad("access", format!("is a {access} in mode {mode}, in round {clock_at}")));
        }
        let (target, urgency) = (self.target(at::ROUND)?, self.urgency()?);
        let header = Use { target, dtype, access, urgency, part_bytes, rule, mode, clock_at, basis, key, sent };
        let body_bytes = self.length("body length", front_at::BODY_BYTES, limits::PART_BYTES_MAX)?;
        if body_bytes != header.body_bytes() {
            return Err(self.bad("body length", format!("is {body_bytes} of a part of {part_bytes}")));
        }
        Ok(header)
    }

    /// The place in the value of a key, behind a header.
    fn key_part(&self, bytes: &[u8; KEY_BYTES], access: Access, dtype: DType, part_bytes: u64) -> Result<KeyPart> {
        if !access.is_handled() {
            return Err(self.bad("key", format!("comes with a {access}")));
        }
        let (numbers, _) = bytes.as_chunks::<8>();
        let [app, key, offset] = [0, 1, 2].map(|index| u64::from_le_bytes(numbers[index]));
        if !offset.is_multiple_of(dtype.bytes()) || offset.checked_add(part_bytes).is_none() {
            return Err(self.bad("key", format!("begins at {offset}")));
        }
        Ok(KeyPart { app, key, offset })
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

    /// The mode behind a header, and where its clock stands.
    fn mode(&self, bytes: &[u8; MODE_BYTES]) -> Result<(Mode, u64)> {
        let bad = |problem: String| self.bad("mode", problem);
        let number = |from: usize| u32::from_le_bytes(bytes[from..from + 4].try_into().expect("four bytes"));
        let long = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        let merge = match bytes[1] {
            0 => Merge::Mean,
            mode_code::SUM => Merge::Sum,
            code => return Err(bad(format!("merges by {code}"))),
        };
        let pace = match (bytes[0], number(3)) {
            (mode_code::ASYNC, 0) => Pace::Async,
            (mode_code::SSP, bound) => Pace::Ssp { bound },
            (mode_code::SYNC, 0) => Pace::Rounds { quorum: Quorum::All, merge },
            (mode_code::K_OF_N, k) => Pace::Rounds { quorum: Quorum::First(k), merge },
            (code, number) => return Err(bad(format!("is {code} of {number}"))),
        };
        let staleness = match (bytes[2], number(7)) {
            (0, 0) => Staleness::Any,
            (mode_code::DISCARD, max) => Staleness::Discard { max },
            (mode_code::SCALE, max) => Staleness::Scale { max },
            (code, max) => return Err(bad(format!("does {code} from {max} on"))),
        };
        let (clock, clock_at, kappa) = (long(11), long(19), long(27));
        let compensation =
            Compensation::from_bits(kappa).ok_or_else(|| bad(format!("compensates by {}", f64::from_bits(kappa))))?;
        let clock = NonZeroU64::new(clock).map(|key| ClockKey(key.get()));
        let mode = Mode { pace, staleness, compensation, clock };
        let mode = mode.check().map_err(|error| bad(error.to_string()))?;
        // Each mode has one form, and what has no clock does not follow one.
        if mode_bytes(mode, clock_at) != bytes || mode == Mode::ASYNC {
            return Err(bad("is not written as it is".to_owned()));
        }
        if clock_at > limits::ROUND_MAX || (mode.clock.is_none() && clock_at != 0) {
            return Err(bad(format!("stands at {clock_at}")));
        }
        Ok((mode, clock_at))
    }

    /// The version of a value, or that from which a change was computed.
    fn version(&self) -> Result<Version> {
        let version = Version(u64::from_le_bytes(self.array(at::VERSION)));
        match version.0 > limits::ROUND_MAX {
            true => Err(self.bad("version", format!("is {}, above {}", version.0, limits::ROUND_MAX))),
            false => Ok(version),
        }
    }

    fn value(&self) -> Result<Value> {
        self.zero(front_at::URGENCY..at::FLAGS)?;
        self.zero(at::DTYPE..at::ROUND)?;
        self.zero(at::CHECK..HEADER_BYTES)?;
        let fate = self.bytes[at::FATE];
        let fate = Fate::from_code(fate).ok_or_else(|| self.bad("fate", format!("is {fate}")))?;
        let checksum = match self.bytes[at::FLAGS] {
            0 => false,
            flag::CHECKSUM => true,
            flags => return Err(self.bad("flags", format!("are {flags:#04x}"))),
        };
        let target: Target = self.target(at::ROUND)?;
        let effect = Effect { version: self.version()?, fate, lag: u32::from_le_bytes(self.array(at::LAG)) };
        let part_bytes = self.length("length", front_at::BODY_BYTES, limits::PART_BYTES_MAX)?;
        Ok(Value { target, effect, part_bytes, checksum })
    }
}
