//! The steps of the part of a parameter.

use gradlane_core::types::{Average, DType, ExchangeId, KeyPart, Rule, Version, WorkerId};
use gradlane_core::wire::Value;

/// A step in the life of a part: `Receive`, then `Change`, `Keep` or `Forget`, for any number of exchanges at once, with `Answer`, `Merge`,
/// `Apply` and `Release` in between; `Drop`.
#[derive(Clone, PartialEq, Debug)]
pub enum ValueStep {
    /// Take the body of a change from what `exchange` brings, beside the value. There is a receipt when all of it came.
    Receive {
        /// What brings it.
        exchange: ExchangeId,
        /// What its header said.
        upload: ValueUpload,
    },
    /// Do the change whose body `exchange` brought whole.
    Change {
        /// What brought it.
        exchange: ExchangeId,
        /// The element type of the part.
        dtype: DType,
        /// The rule of the parameter.
        rule: Option<Rule>,
        /// How the value changes.
        change: Change,
        /// How a gradient is compensated first, and the version from which it was computed.
        compensation: Option<(f64, Version)>,
        /// By what the body is multiplied then.
        factor: f64,
        /// The global step, if the parameter has a clock: what the rule's schedule follows.
        global_step: Option<u64>,
        /// The learning rate, if an operator has changed it.
        rate: Option<f64>,
        /// The version of the value before, if that is kept for a compensation.
        keeps: Option<Version>,
        /// Of an addition to a key: what the handle of the server's user is told, if there is one.
        key: Option<KeyUse>,
    },
    /// Keep this version no more.
    Release {
        /// Which one.
        version: Version,
    },
    /// Keep the gradient that `exchange` brought whole until its round is over.
    Keep {
        /// What brought it.
        exchange: ExchangeId,
        /// The round of the clock.
        round: u64,
        /// Whose it is.
        worker: WorkerId,
    },
    /// A round is over: its gradient is the sum of these over `divisor`, in this order, if there are any. Drop all else that is kept of this
    /// round and of earlier ones.
    Merge {
        /// The round of the clock.
        round: u64,
        /// Whose gradients.
        gradients: Vec<WorkerId>,
        /// What their sum is divided by.
        divisor: f64,
        /// The element type of the part.
        dtype: DType,
        /// Whether to say the squares of the gradient.
        clips: bool,
    },
    /// Apply the rule to the gradient of a round, multiplied by `factor`.
    Apply {
        /// The round of the clock.
        round: u64,
        /// By what it is multiplied first.
        factor: f64,
        /// What the rule's schedule follows.
        global_step: u64,
        /// The element type of the part.
        dtype: DType,
        /// The rule of the parameter.
        rule: Rule,
        /// The learning rate, if an operator has changed it.
        rate: Option<f64>,
    },
    /// Drop what `exchange` has brought.
    Forget {
        /// What brought it.
        exchange: ExchangeId,
    },
    /// Send the answer, and the present value with it if the header has bytes for it.
    Answer {
        /// On which exchange.
        exchange: ExchangeId,
        /// The average that goes in place of the value.
        average: Option<Average>,
        /// Of a pull of a key: what the handle of the server's user is told, if there is one.
        key: Option<KeyUse>,
        /// Complete.
        header: Value,
    },
    /// Hand out the value as it is now, with what its rule keeps, for this order of the coordinator.
    Freeze {
        /// The number of the order.
        order: u64,
    },
    /// What was read for this order of the coordinator takes the place of the value.
    Restore {
        /// The number of the order.
        order: u64,
    },
    /// Forget what was read from a checkpoint.
    Unread,
    /// Free the memory. Blocks that are being sent stay alive until they are sent.
    Drop,
}

/// The body of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueUpload {
    /// Bytes of it, and of the part.
    pub bytes: u64,
    /// Bytes of a block of the part, but for its last; a multiple of eight, so that no element lies in two blocks. Equal for all uploads of
    /// a part.
    pub block_bytes: u64,
    /// CRC-32C of it, if the worker computed it.
    pub checksum: Option<u32>,
}

/// A worker's use of a part of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyUse {
    /// The worker.
    pub worker: WorkerId,
    /// The element type of the part.
    pub dtype: DType,
    /// The key, and which part of its value it is.
    pub key: KeyPart,
}

/// How a change makes the next value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The body is the value.
    Put,
    /// The body is added to the value, element by element: integers wrap, 16-bit floats are added in f32 and rounded once.
    Add,
    /// The body is a gradient, to which the rule of the parameter is applied.
    Step,
}
