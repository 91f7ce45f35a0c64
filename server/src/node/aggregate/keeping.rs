//! How long a published sum is kept.
//!
//! Usually until every caller has come to the next round. A name may be used once, though, and then nobody comes. So a sum also goes when
//! nobody has read it for a step timeout. A worker that lost its answer asks again at once, and gives up before that time is over. Whoever
//! asks later hears that the sum is gone.

use std::collections::BTreeSet;

use gradlane_core::types::{Defect, Time, planted};

use super::aggregator::Aggregator;
use super::refusals::over;
use super::round::{RoundState, Slot};
use crate::node::command::{SlotId, Step};

impl Aggregator {
    /// A round begins: its sum will have to be looked at.
    pub(super) fn watch_sums(&mut self, now: Time) {
        let due = now + self.config.step_timeout / 2;
        self.look_at_sums.get_or_insert(due);
    }

    /// Frees the sums that nobody has read for a step timeout.
    pub(super) fn free_quiet_sums(&mut self, now: Time) {
        if self.look_at_sums.is_none_or(|due| due > now) {
            return;
        }
        let keep = self.config.step_timeout;
        let read: BTreeSet<SlotId> = self.exchanges.values().map(|exchange| exchange.slot).collect();
        let mut quiet = Vec::new();
        let mut is_watched = false;
        for slot in self.parts.values_mut().flat_map(|part| part.slots.iter_mut().flatten()) {
            let is_quiet = match slot.state {
                RoundState::Failed(_) => continue,
                RoundState::Open(_) | RoundState::Restarted => false,
                RoundState::Published(_) if read.contains(&slot.id) => {
                    slot.is_read();
                    false
                }
                RoundState::Published(_) => *slot.quiet_since.get_or_insert(now) + keep <= now,
            };
            if is_quiet && !planted(self.config.defect, Defect::QuietSumKept) {
                quiet.push(slot.id);
            } else {
                is_watched = true;
            }
        }
        for id in quiet {
            self.slot_mut(id).expect("found above").state = RoundState::Failed(over(id));
            self.step(id, Step::Drop);
            self.book(id);
        }
        self.look_at_sums = is_watched.then(|| now + keep / 2);
    }
}

impl Slot {
    /// Somebody reads the sum.
    pub(super) fn is_read(&mut self) {
        self.quiet_since = None;
    }
}
