//! Warnings of submissions that do not move, one for all that wait for the same, and the end of those whose server answers nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::command::{Command, Held, Stuck};
use super::machine::Worker;
use super::records::Record;
use crate::pipeline::Stage;
use crate::sched::{StallReport, TaskId};
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
    /// Tensors that were found without progress for `stall_warn`, and whose submissions have not ended.
    pub fn stalled(&self) -> usize {
        self.stalls.stalled(&self.scheduler)
    }

    /// Fails what waits for a server that is connected, if the server answers nothing.
    pub(super) fn fail_if_stuck(&mut self, now: Time, server: ServerId) {
        let oldest = self.tasks.iter().filter_map(|(task, record)| self.asked(server, task, record)).min();
        let Some(error) = self.links.look(now, server, oldest) else { return };
        let is_due = |(task, record): &(TaskId, &Record)| {
            self.asked(server, *task, record).is_some_and(|asked| asked + self.settings.bounds.stuck <= now)
        };
        let due = self.tasks.iter().filter(is_due);
        let submissions: BTreeSet<u64> = due.flat_map(|(_, record)| record.part.tickets.iter().copied()).collect();
        self.fail_all(now, submissions, &error);
    }

    /// When the exchange of a task with `server` began that is open, if there is one.
    fn asked(&self, server: ServerId, task: TaskId, record: &Record) -> Option<Time> {
        let is_open = matches!(record.held, Some(Held::Exchange { .. })) && self.scheduler.server(task) == Some(server);
        record.asked.filter(|_| is_open)
    }

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
