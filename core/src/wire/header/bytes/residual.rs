//! The bytes of the header about the residual of answers.

use super::fields::{Fields, at as front_at, put, u32_of, with_behind};
use super::participants;
use super::sum::{at, fixed, flag, hold_flags, kind};
use crate::error::Result;
use crate::types::DType;
use crate::wire::header::{AnswerResidual, HEADER_BYTES, Hold, ResidualAction};

impl AnswerResidual {
    /// The header's bytes on the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (flags, check) = match self.action {
            ResidualAction::Read(hold) => (hold_flags(hold), 0),
            ResidualAction::Give { checksum } => (flag::CHECKSUM, checksum),
        };
        let mut bytes = fixed(kind::RESIDUAL, flags, &self.target, self.body_bytes());
        bytes[at::CODEC] = self.codec.code();
        put(&mut bytes, at::PART_BYTES, u32_of(self.part_bytes).to_le_bytes());
        put(&mut bytes, at::CHECK, check.to_le_bytes());
        let participants = participants::encode(&self.participants);
        bytes[at::FLAGS] |= if participants.is_empty() { 0 } else { flag::PARTIAL };
        let parameters: Vec<u8> = self.codec.words().flat_map(u32::to_le_bytes).collect();
        with_behind(bytes, &[&parameters, &participants])
    }

    /// Bytes of the header on the wire.
    pub(super) fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.codec.parameter_bytes() + participants::bytes(&self.participants)
    }
}

impl Fields<'_> {
    /// Reads such a header; `rest` is what follows its front.
    pub(super) fn residual(&self, rest: &[u8]) -> Result<AnswerResidual> {
        self.no_flags_but(flag::CHECKSUM | flag::PARTIAL | flag::HELD | flag::TAKEN_BACK)?;
        self.zero(front_at::URGENCY..at::FLAGS)?;
        self.zero(at::ROOT..at::ROUND)?;
        self.zero(at::FACTOR..at::PART_BYTES)?;
        // An f32 for each element.
        let part_bytes = self.part_bytes(at::PART_BYTES, DType::F32)?;
        let (codec, rest) = self.codec(rest)?;
        if !codec.has_answer_feedback() {
            return Err(self.bad("codec", format!("is {codec}, whose answers leave no residual")));
        }
        let hold = self.hold()?;
        let check = u32::from_le_bytes(self.array(at::CHECK));
        let action = match self.bytes[at::FLAGS] & flag::CHECKSUM {
            0 => {
                self.zero(at::CHECK..HEADER_BYTES)?;
                ResidualAction::Read(hold)
            }
            _ if hold > Hold::No => return Err(self.bad("flags", "give a residual and hold one".to_owned())),
            _ => ResidualAction::Give { checksum: check },
        };
        let header = AnswerResidual {
            target: self.target(at::ROUND)?,
            participants: self.participants(rest)?,
            codec,
            part_bytes,
            action,
        };
        let bytes = u64::from(u32::from_le_bytes(self.array(front_at::BODY_BYTES)));
        if bytes != header.body_bytes() {
            return Err(self.bad("body length", format!("is {bytes} instead of {}", header.body_bytes())));
        }
        Ok(header)
    }
}
