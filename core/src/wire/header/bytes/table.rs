//! The bytes of the headers of tables.

use super::fields::{Fields, at as front_at, front, put, u32_of, with_behind};
use crate::error::Result;
use crate::types::{RowAction, Shards, TableSpec, Version};
use crate::wire::header::{HEADER_BYTES, Header, Rows, RowsAnswer};
use crate::wire::limits;

/// The codes of the variants.
mod kind {
    pub(super) const ROWS: u8 = 1;
    pub(super) const ANSWER: u8 = 2;
}

/// The bit of the flags: rows: `check` holds the CRC-32C of the body, and that of the answer is wanted. Answer: the CRC-32C follows the body.
const CHECKSUM: u8 = 1;

/// Where each field lies.
mod at {
    pub(super) const FLAGS: usize = 34;
    pub(super) const ACTION: usize = 35;
    pub(super) const FIRST_SHARD: usize = 36;
    pub(super) const SHARDS: usize = 38;
    pub(super) const ROUND: usize = 40;
    /// Of a use.
    pub(super) const STEP: usize = 48;
    /// Of an answer.
    pub(super) const VERSION: usize = 48;
    pub(super) const IDS: usize = 56;
    pub(super) const CHECK: usize = 60;
}

/// The most bytes behind the front of a header: the text of a table.
pub(super) const BEHIND_BYTES_MAX: usize = TableSpec::TEXT_BYTES_MAX;

impl Rows {
    /// Bytes of the header on the wire.
    pub fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.spec.to_string().len()
    }

    /// The header's bytes on the wire. The text of the table follows the front.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = front(self.about(), kind::ROWS, self.body_bytes());
        bytes[front_at::URGENCY] = self.urgency;
        bytes[at::FLAGS] = if self.checksum.is_some() { CHECKSUM } else { 0 };
        bytes[at::ACTION] = self.action.code();
        let Shards { first, count } = self.shards;
        put(&mut bytes, at::FIRST_SHARD, u16_of(first).to_le_bytes());
        put(&mut bytes, at::SHARDS, u16_of(count).to_le_bytes());
        put(&mut bytes, at::ROUND, self.target.round.0.to_le_bytes());
        put(&mut bytes, at::STEP, self.step.to_le_bytes());
        put(&mut bytes, at::IDS, u32_of(self.ids).to_le_bytes());
        put(&mut bytes, at::CHECK, self.checksum.unwrap_or_default().to_le_bytes());
        with_behind(bytes, &[self.spec.to_string().as_bytes()])
    }
}

impl RowsAnswer {
    /// The header's bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = front(self.about(), kind::ANSWER, self.body_bytes);
        bytes[at::FLAGS] = if self.checksum { CHECKSUM } else { 0 };
        put(&mut bytes, at::ROUND, self.target.round.0.to_le_bytes());
        put(&mut bytes, at::VERSION, self.version.0.to_le_bytes());
        bytes
    }
}

/// Reads a header of this kind; `rest` is what follows its front.
pub(super) fn decode(fields: &Fields<'_>, kind: u8, rest: &[u8]) -> Result<Header> {
    match kind {
        kind::ROWS => fields.rows(rest).map(Header::Rows),
        kind::ANSWER => fields.nothing(rest).and_then(|()| fields.rows_answer()).map(Header::RowsAnswer),
        code => Err(fields.bad("kind", format!("is {code}"))),
    }
}

impl Fields<'_> {
    fn rows(&self, rest: &[u8]) -> Result<Rows> {
        let spec = self.table(rest)?;
        let action = self.bytes[at::ACTION];
        let action = RowAction::from_code(action).ok_or_else(|| self.bad("action", format!("is {action}")))?;
        let [first, count] = [at::FIRST_SHARD, at::SHARDS].map(|at| u32::from(u16::from_le_bytes(self.array(at))));
        if count == 0 || first + count > TableSpec::SHARDS {
            return Err(self.bad("shards", format!("are {count} from {first} on")));
        }
        let ids = self.length("ids", at::IDS, TableSpec::IDS_MAX)?;
        if ids > 0 && !action.has_ids() && !action.scans() {
            return Err(self.bad("ids", format!("are {ids} for a {action}")));
        }
        if action.scans() && ids < RowAction::page_bytes_min(&spec) {
            return Err(self.bad("page length", format!("is {ids}, which holds no row")));
        }
        let check = u32::from_le_bytes(self.array(at::CHECK));
        let checksum = match self.bytes[at::FLAGS] {
            0 if check != 0 => return Err(self.bad("checksum", format!("is {check} and not announced"))),
            0 => None,
            CHECKSUM => Some(check),
            flags => return Err(self.bad("flags", format!("are {flags:#04x}"))),
        };
        let step = u64::from_le_bytes(self.array(at::STEP));
        if step > Rows::STEP_MAX {
            return Err(self.bad("step", format!("is {step}, above {}", Rows::STEP_MAX)));
        }
        let (target, urgency, shards) = (self.target(at::ROUND)?, self.urgency()?, Shards { first, count });
        let header = Rows { target, action, urgency, spec, shards, step, ids, checksum };
        let body_bytes = self.length("body length", front_at::BODY_BYTES, limits::PART_BYTES_MAX)?;
        if body_bytes != header.body_bytes() {
            return Err(self.bad("body length", format!("is {body_bytes} of a {action} of {ids} ids")));
        }
        if header.answer_bytes() > limits::PART_BYTES_MAX {
            return Err(self.bad("ids", format!("are {ids} of {} elements, which no answer holds", spec.dim)));
        }
        Ok(header)
    }

    /// The table behind a header. It has one form.
    fn table(&self, rest: &[u8]) -> Result<TableSpec> {
        let text = str::from_utf8(rest).ok().filter(|text| text.len() <= TableSpec::TEXT_BYTES_MAX);
        let text = text.ok_or_else(|| self.bad("table", format!("is no text of up to {BEHIND_BYTES_MAX} bytes")))?;
        let spec: TableSpec = text.parse().map_err(|error| self.bad("table", format!("{error}")))?;
        if spec.to_string() != text {
            return Err(self.bad("table", format!("is {text} in place of {spec}")));
        }
        Ok(spec)
    }

    fn rows_answer(&self) -> Result<RowsAnswer> {
        self.zero(front_at::URGENCY..at::FLAGS)?;
        self.zero(at::ACTION..at::ROUND)?;
        self.zero(at::IDS..HEADER_BYTES)?;
        let checksum = match self.bytes[at::FLAGS] {
            0 => false,
            CHECKSUM => true,
            flags => return Err(self.bad("flags", format!("are {flags:#04x}"))),
        };
        let body_bytes = self.length("length", front_at::BODY_BYTES, limits::PART_BYTES_MAX)?;
        let version = u64::from_le_bytes(self.array(at::VERSION));
        if version > limits::ROUND_MAX {
            return Err(self.bad("version", format!("is {version}, above {}", limits::ROUND_MAX)));
        }
        let version = Version(version);
        Ok(RowsAnswer { target: self.target(at::ROUND)?, version, body_bytes, checksum })
    }
}

fn u16_of(shards: u32) -> u16 {
    u16::try_from(shards).expect("a table has few shards")
}
