//! When a rank may order, obey and begin: one operation in host memory at a time, in the leader's order.
//!
//! Ranks meet chunk by chunk in shared memory. So none of them begins an operation there before it has ended the one before. A leader orders
//! nothing meanwhile, because what becomes ready meanwhile may be more urgent.

use super::words::Act;
use crate::types::{Defect, DeviceKind, planted};

/// What a rank has under way, as far as others wait for it.
#[derive(Debug)]
pub(super) struct Turns {
    /// Whether an operation in host memory was begun and has not ended.
    in_host: bool,
    /// How many of its own decisions the leader has not obeyed.
    unobeyed: usize,
    defect: Option<Defect>,
}

impl Turns {
    /// Nothing is under way. `defect` is a mistake to make on purpose, for the simulation.
    pub(super) fn new(defect: Option<Defect>) -> Self {
        Self { in_host: false, unobeyed: 0, defect }
    }

    /// Whether the rank may obey further decisions.
    pub(super) fn may_obey(&self) -> bool {
        !self.in_host
    }

    /// Whether the leader may decide.
    pub(super) fn may_lead(&self) -> bool {
        !self.in_host && self.unobeyed == 0
    }

    pub(super) fn decided(&mut self, decisions: usize) {
        self.unobeyed += decisions;
    }

    /// The rank obeys these decisions; they are its own only on the leader.
    pub(super) fn obeyed(&mut self, decisions: usize) {
        self.unobeyed = self.unobeyed.saturating_sub(decisions);
    }

    /// Whether the driver may carry out `act` now. If it may, the turn is taken.
    pub(super) fn begin<L>(&mut self, act: &Act<L>) -> bool {
        let takes_turn = match act {
            Act::Run { claim, .. } => claim.device == DeviceKind::Host,
            Act::Pass { .. } | Act::Tell { .. } => true,
            Act::End { .. } | Act::Return { .. } => false,
        };
        let may_begin = !(takes_turn && self.in_host);
        self.in_host |= takes_turn && !planted(self.defect, Defect::TurnsIgnored);
        may_begin
    }

    /// The operation in host memory has ended.
    pub(super) fn end(&mut self) {
        self.in_host = false;
    }
}
