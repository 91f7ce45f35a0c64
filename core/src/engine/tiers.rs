//! What this rank does for the others of its machine, in a job of several machines: whose parts it exchanges, and what it tells them.

use super::shared::{State, names};
use crate::error::Error;
use crate::pipeline::{Duty, ReadyPart, Stage};
use crate::sched::TaskId;
use crate::types::WorkerId;

impl State {
    /// What this rank does about a part.
    pub(super) fn duty(&self, part: &ReadyPart) -> Duty {
        let (part, dtype) = (part.layout.part, part.layout.dtype);
        match self.machines.partners(dtype, self.rank) {
            None if self.scheduler.pipeline().contains(Stage::Reduce) => Duty::Alone,
            None => Duty::Owner,
            Some(_) if self.machines.owner(part, dtype, self.rank) == self.rank => Duty::Owner,
            Some(_) => Duty::Member,
        }
    }

    /// Who exchanges the part of a task for this machine, or for this rank alone.
    pub(super) fn owner(&self, task: TaskId) -> WorkerId {
        let layout = &self.payloads[&task].part.layout;
        self.machines.owner(layout.part, layout.dtype, self.rank)
    }

    /// Whether this rank sends a body for the part of a task.
    pub(super) fn sends_body(&self, task: TaskId) -> bool {
        let ReadyPart { layout, op, .. } = &self.payloads[&task].part;
        self.machines.sends_body(*op, layout.part, layout.dtype, self.rank)
    }

    /// Why there is no sum of a task that this rank owns, in the words of the others of its machine; `None` if there is one.
    pub(super) fn failure_for_all(&self, task: TaskId) -> Option<Error> {
        let error = self.scheduler.failure(task)?.clone();
        let is_ours = self.ended.is_some() || matches!(error, Error::Cancelled | Error::Timeout { .. });
        let Some(payload) = self.payloads.get(&task).filter(|_| is_ours) else { return Some(error) };
        let names = names(&self.registry, &payload.part).join(" + ");
        Some(error.of_one_who_gave_up(self.rank, names, payload.part.round))
    }
}
