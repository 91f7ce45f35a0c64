//! The header by which a worker reads or gives the residual of a part's answers.

use super::sum::{Hold, Target};
use crate::types::{CodecSpec, Participants};

/// A worker reads what the answers of a part have lost, or gives what they are to go on with, an f32 for each element. It is answered by a
/// [`Sum`](super::Sum): of a read with the residual, of a gift without a body.
#[derive(Clone, PartialEq, Debug)]
pub struct AnswerResidual {
    /// What it is about. The round is the next one of the worker.
    pub target: Target,
    /// As in [`Contribute::participants`](super::Contribute::participants).
    pub participants: Participants,
    /// The codec of the part, whose answers have error feedback.
    pub codec: CodecSpec,
    /// Bytes of the part, and of its residual.
    pub part_bytes: u64,
    /// What to do.
    pub action: ResidualAction,
}

/// A use of the residual of a part's answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResidualAction {
    /// Send what the answer of the round would begin with, if all workers contributed to it as this one: what they say of the residual.
    Read(Hold),
    /// The body is what the answer of the round is to begin with. Its CRC-32C tells whether all workers give the same.
    Give {
        /// Of the body.
        checksum: u32,
    },
}

impl AnswerResidual {
    /// Bytes that follow the header on the stream.
    pub fn body_bytes(&self) -> u64 {
        match self.action {
            ResidualAction::Read(_) => 0,
            ResidualAction::Give { .. } => self.part_bytes,
        }
    }
}
