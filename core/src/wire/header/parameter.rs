//! The headers of parameters: a worker's use of a part, and the server's answer.

use super::about::{About, Service};
use super::sum::Target;
use crate::types::{Access, DType, Effect, KeyPart, Mode, Rule, Version};

/// A worker's use of a part of a parameter.
///
/// The round in its target counts this worker's uses of the tensor. A server does each of them once: it knows the latest that it did for each
/// worker, and answers a repeat of it without doing it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// What it is about.
    pub target: Target,
    /// The element type of the part.
    pub dtype: DType,
    /// What to do.
    pub access: Access,
    /// Which of two exchanges on one link goes first; higher is sooner. 0 to [`URGENCY_MAX`](super::URGENCY_MAX).
    pub urgency: u8,
    /// Bytes of the part.
    pub part_bytes: u64,
    /// The rule of the parameter, as the worker has declared it.
    pub rule: Option<Rule>,
    /// The mode of the parameter, as the worker has declared it.
    pub mode: Mode,
    /// Where the clock of the mode stands. In a mode with rounds: of a gradient, the round to which it belongs, otherwise the rounds that this
    /// worker has finished, whose changes a value must have. In other modes, the global step that this worker knows of. 0 without a clock.
    pub clock_at: u64,
    /// The version from which a change was computed: the latest one that this worker has read. 0 if it has read none.
    pub basis: Version,
    /// Of a key of a `KVWorker`: which part of its value. Only with an access that a [handle](Access::is_handled) may do.
    pub key: Option<KeyPart>,
    /// What follows.
    pub sent: Sent,
}

/// What follows the header of a [`Use`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The value, or the change, as long as the part.
    Whole {
        /// CRC-32C of it, if the worker computed it.
        checksum: Option<u32>,
    },
    /// Nothing: a pull, or the repeat of a change that is lost on the worker, because the answer has overwritten it. The server did that
    /// change, or nobody can.
    Nothing {
        /// Whether the worker wants the CRC-32C of the value.
        checked: bool,
    },
}

/// The answer to a [`Use`]. The value follows, if it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    /// What it is about.
    pub target: Target,
    /// What it has come to. With a value, its version is that of the value.
    pub effect: Effect,
    /// Bytes of the value; 0 if it was not asked for.
    pub part_bytes: u64,
    /// Whether the CRC-32C of the value follows it, as 4 bytes in little-endian order.
    pub checksum: bool,
}

impl Use {
    /// What a reject says of it.
    pub const fn about(&self) -> About {
        about(self.target)
    }

    /// Whether the value is to be followed by its CRC-32C: if the worker computed one, or asks for it.
    pub const fn is_checked(&self) -> bool {
        match self.sent {
            Sent::Whole { checksum } => checksum.is_some(),
            Sent::Nothing { checked } => checked,
        }
    }

    /// Bytes that follow the header on the stream.
    pub const fn body_bytes(&self) -> u64 {
        match self.sent {
            Sent::Whole { .. } => self.part_bytes,
            Sent::Nothing { .. } => 0,
        }
    }
}

impl Value {
    /// What it is about.
    pub const fn about(&self) -> About {
        about(self.target)
    }
}

const fn about(target: Target) -> About {
    About { service: Service::Parameter, epoch: target.epoch, part: target.part }
}
