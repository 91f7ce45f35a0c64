//! What a worker's log says of tensors that do not move.

use super::shared::State;
use crate::sched::StallReport;

impl State {
    /// Warns of a submission that does not move.
    pub(super) fn warn(&self, report: &StallReport) {
        let StallReport { name, round, waited, parts, .. } = report;
        let waited_s = waited.as_secs_f64();
        match report.at {
            Some((stage, _)) if stage.is_collective() => {
                tracing::warn!(%name, round = round.0, parts, waited_s, "a tensor waits for other workers of this machine");
            }
            Some((stage, server)) => {
                tracing::warn!(%name, round = round.0, %stage, %server, parts, waited_s, "a tensor does not move");
            }
            None => {
                let missing = self.groups.get(&report.group).map(|ticket| self.registry.waiting_for(*ticket));
                tracing::warn!(%name, round = round.0, ?missing, waited_s, "a tensor waits for others of its part to be submitted here");
            }
        }
    }
}
