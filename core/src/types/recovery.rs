//! The sums of a server that was lost, and what workers have of them.

use super::{Epoch, PartId, Round};

/// A sum: a round of a part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SumId {
    /// The part.
    pub part: PartId,
    /// The round.
    pub round: Round,
}

/// What a worker has of the parts whose servers were lost, and what it still wants. Nothing of this changes before the recovery is over.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holdings {
    /// The view that says which servers were lost.
    pub epoch: Epoch,
    /// The latest sums that it has kept whole.
    pub has: Vec<SumId>,
    /// The latest sums of which it knows that they exist, and which went to another worker.
    pub knows: Vec<SumId>,
    /// The sums that it still waits for.
    pub wants: Vec<SumId>,
}
