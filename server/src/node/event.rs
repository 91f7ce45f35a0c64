//! What comes of the steps that a [store](super::store) carries out, and of the bytes that it receives.

use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, PartId};

use crate::checkpoint::FrozenPart;
use crate::node::command::{Receipt, Route, Served};

/// A result of a step or of received bytes.
#[derive(Debug)]
pub enum Event {
    /// Send this. Events come in the order of sending.
    Send(Outgoing),
    /// Report the receipt of a body to the node.
    Receipt {
        /// Where its bytes went.
        route: Route,
        /// The exchange that brought its latest bytes.
        exchange: ExchangeId,
        /// The receipt.
        receipt: Receipt,
    },
    /// A part was frozen for an order of the coordinator.
    Frozen {
        /// The number of the order.
        order: u64,
        /// The part.
        part: PartId,
        /// Its state. `None` if a defect has lost it.
        frozen: Option<FrozenPart>,
    },
    /// Report to the node that a use of a table is over.
    Served(Served),
    /// Report the squares of a round's gradient to the node.
    Squares {
        /// The part.
        part: PartId,
        /// The round of its clock.
        round: u64,
        /// The sum of the squares of its elements.
        sum: f64,
    },
}
