//! Workers that are owed whole sums.
//!
//! Once a sum is whole, it waits for its readers alone. A worker *reads* while answers reach it whole: on a slow link one answer may wait
//! for many others, so any of them counts. A worker that is owed sums and takes none for a step timeout is *slow*, and it is given up.
//!
//! A worker asks for a round only when it has the sum of the round before. So an answer of two rounds before is of no use to it, even if
//! nobody has acknowledged it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::types::{ExchangeId, Round, Time, WorkerId, WorkerSet};

use crate::node::command::SlotId;

/// Every worker that is owed a whole sum.
#[derive(Default, Debug)]
pub(super) struct Readers(BTreeMap<WorkerId, Reader>);

/// What one worker is owed.
#[derive(Default, Debug)]
struct Reader {
    owed: BTreeSet<(SlotId, ExchangeId)>,
    /// Since when no answer is seen to reach it. Absent if one did since the last look.
    idle_since: Option<Time>,
}

/// A worker that takes no sums.
#[derive(Debug)]
pub(super) struct Slow {
    pub(super) worker: WorkerId,
    pub(super) owed: BTreeSet<(SlotId, ExchangeId)>,
    /// How long it has taken none.
    pub(super) waited: Duration,
}

impl Readers {
    /// A sum is whole, and `exchange` brings it to `worker`.
    pub(super) fn owe(&mut self, worker: WorkerId, slot: SlotId, exchange: ExchangeId) {
        self.0.entry(worker).or_default().owed.insert((slot, exchange));
    }

    /// The exchange has ended; `was_taken` if its answer reached the worker whole.
    pub(super) fn end(&mut self, worker: WorkerId, slot: SlotId, exchange: ExchangeId, was_taken: bool) {
        let Some(reader) = self.0.get_mut(&worker) else { return };
        if reader.owed.remove(&(slot, exchange)) && was_taken {
            reader.idle_since = None;
        }
        if reader.owed.is_empty() {
            self.0.remove(&worker);
        }
    }

    /// The exchanges that bring `worker` sums of two rounds before `next` or more, of the same part.
    pub(super) fn useless(&self, worker: WorkerId, next: SlotId) -> Vec<ExchangeId> {
        let (Some(reader), Some(before)) = (self.0.get(&worker), next.round.0.checked_sub(1)) else {
            return Vec::new();
        };
        let from = |round| (SlotId { round: Round(round), ..next }, ExchangeId(0));
        reader.owed.range(from(0)..from(before)).map(|(_, exchange)| *exchange).collect()
    }

    /// Looks at all of them. Removes and returns those that have taken nothing for `patience`.
    pub(super) fn look(&mut self, now: Time, patience: Duration) -> Vec<Slow> {
        let mut slow = Vec::new();
        for (worker, reader) in &mut self.0 {
            let since = *reader.idle_since.get_or_insert(now);
            if since + patience <= now {
                let owed = std::mem::take(&mut reader.owed);
                slow.push(Slow { worker: *worker, owed, waited: now.since(since) });
            }
        }
        self.0.retain(|_, reader| !reader.owed.is_empty());
        slow
    }

    /// The membership has changed: other workers are none of this one. What was owed to them may be in the hands of another process.
    pub(super) fn keep(&mut self, workers: &WorkerSet) {
        self.0.retain(|worker, _| workers.contains(*worker));
    }

    /// Whether nobody is owed a sum.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
