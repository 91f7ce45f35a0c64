//! Who comes last to an operation, and since when the others wait for that rank alone.

use crate::types::{Ready, Slot, Time};

/// All ranks have come to an operation that takes their contributions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latest {
    /// The operation.
    pub slot: Slot,
    /// The rank that came last.
    pub rank: u32,
    /// When it came.
    pub ready: Ready,
    /// When the one before it came.
    pub alone_since: Time,
}

/// The two ranks that came last to an operation, so far.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Arrivals {
    last: Option<(u32, Ready)>,
    /// When the one before it came.
    before: Option<Time>,
}

impl Arrivals {
    /// A rank has come. The leader may hear of ranks in another order than that in which they came, because it does not always listen.
    pub(super) fn add(&mut self, rank: u32, ready: Ready) {
        match self.last {
            Some((_, last)) if ready.since < last.since => self.before = self.before.max(Some(ready.since)),
            before => {
                self.before = before.map(|(_, before)| before.since);
                self.last = Some((rank, ready));
            }
        }
    }

    /// The rank that came last to `slot`. `None` if there was no other.
    pub(super) fn latest(&self, slot: Slot) -> Option<Latest> {
        let ((rank, ready), alone_since) = self.last.zip(self.before)?;
        Some(Latest { slot, rank, ready, alone_since })
    }
}
