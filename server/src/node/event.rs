//! What comes of the steps that a [store](super::store) carries out, and of the bytes that it receives.

use gradlane_core::transport::Outgoing;
use gradlane_core::types::{ExchangeId, PartId};

use crate::checkpoint::FrozenPart;
use crate::node::command::{Missing, Receipt, Route, Served};

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
    /// Uses of a part of a table wait until other workers have pushed. Said for each use that begins to wait, and when the workers change.
    Waits(Waits),
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

/// For which workers the uses wait that wait at a part of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits {
    /// The part.
    pub part: PartId,
    /// The exchange of the use that begins to wait, if one does.
    pub held: Option<ExchangeId>,
    /// The workers for which all of these uses wait; nobody if no use waits any more.
    pub missing: Missing,
    /// Grows from one event of a part to the next, because threads may deliver them in another order.
    pub change: u64,
}
