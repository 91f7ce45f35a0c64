//! Warnings of submissions that do not move: one for all that wait for the same.

use std::collections::BTreeMap;

use super::command::{Command, Stuck};
use super::machine::Worker;
use crate::pipeline::Stage;
use crate::sched::StallReport;
use crate::types::{ServerId, Time};

/// What a submission waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Wait {
    /// A server that does not answer.
    Unreachable(ServerId),
    /// A server that refuses it for now.
    Refused(ServerId),
    /// The end of a stage.
    Stage(Stage),
    /// Tensors that share a part with it.
    Companions,
}

impl Worker {
    /// Warns of the submissions in `reports`.
    pub(super) fn warn_of(&mut self, now: Time, reports: Vec<StallReport>) {
        let mut stuck: BTreeMap<Wait, Stuck> = BTreeMap::new();
        for report in reports {
            let unreachable = report.at.and_then(|(_, server)| self.links.unreachable(now, server));
            let wait = match report.at {
                Some((stage, _)) if stage.is_collective() => Wait::Stage(stage),
                Some((_, server)) if unreachable.is_some() => Wait::Unreachable(server),
                Some((_, server)) if report.cause.is_some() => Wait::Refused(server),
                Some((stage, _)) => Wait::Stage(stage),
                None => Wait::Companions,
            };
            if self.is_told(now, wait, &report) {
                continue;
            }
            if let Some(known) = stuck.get_mut(&wait) {
                known.others += 1;
                continue;
            }
            let missing = match (wait, self.groups.get(report.group)) {
                (Wait::Companions, Some(submission)) => self.registry.waiting_for(*submission),
                _ => Vec::new(),
            };
            stuck.insert(wait, Stuck { report, missing, unreachable, others: 0 });
        }
        self.commands.extend(stuck.into_values().map(|stuck| Command::Warn(Box::new(stuck))));
    }

    /// Whether the coordinator says why a submission waits: it waits for other workers, and their servers or ranks report that. This worker
    /// warns as well if nothing is heard of that for another interval.
    fn is_told(&self, now: Time, wait: Wait, report: &StallReport) -> bool {
        let waits_for_others = match wait {
            Wait::Stage(stage) => stage == Stage::Pull || stage.is_collective(),
            Wait::Unreachable(_) | Wait::Refused(_) | Wait::Companions => false,
        };
        let interval = self.settings.stall_warn;
        let is_fresh = self.notices.came_within(now, interval * 2);
        waits_for_others && (is_fresh || report.waited < interval * 2)
    }
}
