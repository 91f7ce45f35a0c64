//! What the aggregator asks of its driver.

use gradlane_core::error::Error;
use gradlane_core::types::{DType, ExchangeId, Op, PartId, Round};
use gradlane_core::wire::Header;
use gradlane_core::wire::frame::Stall;

/// The accumulator, later the sum, of one round of one part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId {
    /// Which part.
    pub part: PartId,
    /// Which sum of it.
    pub round: Round,
}

/// What the driver must do.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Receive the body of the exchange into memory of this size.
    Land {
        /// The exchange.
        exchange: ExchangeId,
        /// Size of its body; not zero.
        bytes: u64,
    },
    /// Make the accumulator of a slot from the first body, and free the body.
    Start {
        /// A slot that is new to the driver.
        slot: SlotId,
        /// Whose body.
        exchange: ExchangeId,
        /// Size of the part.
        bytes: u64,
        /// Its element type.
        dtype: DType,
        /// How bodies are added.
        op: Op,
        /// Factor of this body in a weighted mean.
        weight: f64,
    },
    /// Add another body to the slot, and free the body.
    Add {
        /// The slot.
        slot: SlotId,
        /// Whose body.
        exchange: ExchangeId,
        /// Factor of this body in a weighted mean.
        weight: f64,
    },
    /// Divide, round once, and freeze the result.
    Publish {
        /// The slot.
        slot: SlotId,
        /// What the accumulator is divided by.
        divisor: f64,
    },
    /// Send the published sum.
    Answer {
        /// The slot, published before.
        slot: SlotId,
        /// To whom.
        exchange: ExchangeId,
        /// Complete but for the checksum.
        header: Header,
    },
    /// Send an error; the exchange has ended.
    Reject {
        /// To whom.
        exchange: ExchangeId,
        /// Echoes part and round.
        header: Header,
        /// Why.
        error: Error,
    },
    /// Free a landed body that is not needed. An unknown exchange is no mistake.
    Discard {
        /// Whose body.
        exchange: ExchangeId,
    },
    /// Free the memory of a slot. Answers under way keep what they send.
    Drop {
        /// The slot.
        slot: SlotId,
    },
    /// Tell the coordinator that a round waits.
    Stalled {
        /// Which, for whom, since when.
        stall: Stall,
    },
}
