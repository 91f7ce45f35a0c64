//! The headers of the dense sum: contributions, withdrawals and sums.

use super::about::{About, Service};
use crate::codec::{self, Malformed};
use crate::types::{CodecSpec, DType, Epoch, Op, PartId, Participants, Round, Waited, WorkerSet};

/// Which sum an exchange is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The membership in which the sender believes.
    pub epoch: Epoch,
    /// Which part of which tensor.
    pub part: PartId,
    /// Which sum of that part.
    pub round: Round,
}

/// A worker's contribution to a round, or its question for the sum.
#[derive(Clone, PartialEq, Debug)]
pub struct Contribute {
    /// What it is about.
    pub target: Target,
    /// The element type of the part.
    pub dtype: DType,
    /// How the part is reduced.
    pub op: Op,
    /// The workers from which the round is due, and those that get the sum; as its tensor was declared.
    pub participants: Participants,
    /// This worker's weight in a weighted mean; 1 for the other reductions.
    pub weight: f64,
    /// Which of two exchanges on one link goes first; higher is sooner. 0 to [`URGENCY_MAX`].
    pub urgency: u8,
    /// What the part waited for between its submission and this push, for the metrics of the server. Nothing is decided by it.
    pub waited: Waited,
    /// Bytes of the part in its own element type, whatever the encoding of the body.
    pub part_bytes: u64,
    /// Whether this worker may take the sum back, and whether it has taken back the sum of the round before.
    pub hold: Hold,
    /// Whether the answer begins with the residual that this worker has [given](super::AnswerResidual). All contributions to a round must say
    /// the same.
    pub is_given: bool,
    /// What follows.
    pub contribution: Contribution,
}

/// What a contribution says of the residual of its part's answers, if the codec has one. A server does the least of what all contributions to
/// a round say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Hold {
    /// The worker uses the sum.
    #[default]
    No,
    /// The worker may take the sum back later: keep the residual before the answer too.
    Before,
    /// As before. And the worker has not used the sum of the round before this one: begin with the residual before the answer of that round.
    TakenBack,
}

/// What follows the header of a [`Contribute`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contribution {
    /// No body: the worker only asks for the sum, as the receivers of a broadcast do.
    Nothing,
    /// The contribution, unchanged since the worker submitted it.
    First {
        /// What follows.
        body: Body,
        /// CRC-32C of the body, if the worker computed it.
        checksum: Option<u32>,
    },
    /// A repeat, after a part of the sum overwrote the contribution. It has no checksum, because its front is overwritten.
    Resumed {
        /// What follows.
        body: Body,
        /// Bytes of the sum that landed. This many bytes at the front of the body are worthless.
        landed: u64,
    },
}

/// Bytes that follow a header, and how they encode a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Body {
    /// The number of bytes.
    pub bytes: u64,
    /// The codec of the part in this reduction, the same in all contributions and in the sum.
    pub codec: CodecSpec,
    /// Whether the codec has refused the elements. Then the bytes are the elements in their own type.
    pub refused: bool,
}

/// A worker will not contribute to a round. An encoded error with the reason follows.
#[derive(Clone, PartialEq, Debug)]
pub struct Withdraw {
    /// What it is about.
    pub target: Target,
    /// The element type of the part that the worker would have sent.
    pub dtype: DType,
    /// How the part would have been reduced. If the server hears of the round for the first time, it learns from this which workers owe a
    /// body.
    pub op: Op,
    /// As in [`Contribute::participants`].
    pub participants: Participants,
    /// Bytes of the error.
    pub error_bytes: u64,
}

/// A worker brings a sum that it has and whose server was lost, for the workers that do not have it. The sum follows. It is answered by a
/// [`Sum`] of no bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Restore {
    /// What it is about.
    pub target: Target,
    /// The element type of the part.
    pub dtype: DType,
    /// How the part was reduced.
    pub op: Op,
    /// As in [`Contribute::participants`].
    pub participants: Participants,
    /// Bytes of the part in its own element type, whatever the encoding of the body.
    pub part_bytes: u64,
    /// What follows.
    pub body: Body,
    /// CRC-32C of the body, if the worker computed it.
    pub checksum: Option<u32>,
    /// As in [`Sum::divisor`].
    pub divisor: f64,
    /// Which workers are in the sum.
    pub contributors: WorkerSet,
}

/// The sum of a round. A participant that does not receive the sum gets one of no bytes, as soon as the sum exists.
#[derive(Clone, PartialEq, Debug)]
pub struct Sum {
    /// What it is about.
    pub target: Target,
    /// How often the round of this part was started again because a contributor died; 0 if a death ends the job. A request does not say it,
    /// because its epoch tells the attempts apart.
    pub attempt: u16,
    /// Bytes of the part in its own element type, whatever the encoding of the body; 0 if the sum goes to another worker.
    pub part_bytes: u64,
    /// What follows.
    pub body: Body,
    /// The divisor of the sum; 1 if the reduction does not divide.
    pub divisor: f64,
    /// Which workers are in it.
    pub contributors: Contributors,
    /// Whether the server still wants the rest of the contribution, because it has not received all of it.
    pub early: bool,
    /// Whether the CRC-32C of the body follows the body, as 4 bytes in little-endian order.
    pub checksum: bool,
}

/// Which workers are in a sum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contributors {
    /// Each worker that the view of the header's epoch makes due for the round: all participants, or the root of a broadcast.
    Due,
    /// These only. The set follows the 64 bytes of the header; it may be empty.
    Only(WorkerSet),
}

impl Target {
    /// What a reject says of it.
    pub const fn about(self) -> About {
        About { service: Service::DenseSum, epoch: self.epoch, part: self.part }
    }
}

impl Contribute {
    /// Bytes that follow the header on the stream.
    pub fn body_bytes(&self) -> u64 {
        self.body().map_or(0, |body| body.bytes)
    }

    /// What follows the header, if anything does.
    pub fn body(&self) -> Option<Body> {
        match self.contribution {
            Contribution::Nothing => None,
            Contribution::First { body, .. } | Contribution::Resumed { body, .. } => Some(body),
        }
    }
}

impl Body {
    /// Elements in the part's own type.
    pub const fn plain(bytes: u64) -> Self {
        Self { bytes, codec: CodecSpec::PLAIN, refused: false }
    }

    /// What makes its bytes of elements: the codec, unless it has refused them.
    pub fn encoding(&self) -> CodecSpec {
        if self.refused { CodecSpec::PLAIN } else { self.codec }
    }

    /// Whether such a body of a part of `part_bytes` bytes of `dtype` can have its number of bytes.
    ///
    /// # Errors
    /// [`Malformed`] with both numbers.
    ///
    /// # Panics
    /// If the codec does not encode that type.
    pub fn check(&self, dtype: DType, part_bytes: u64) -> Result<(), Malformed> {
        codec::body_bytes(self.encoding(), dtype, part_bytes).check(self.bytes)
    }
}

impl Contributors {
    /// What follows the fixed 64 bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Due => &[],
            Self::Only(workers) => workers.as_bytes(),
        }
    }
}
