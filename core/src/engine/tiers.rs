//! What this rank does for the others of its machine, in a job of several machines: whose parts it exchanges, and what it tells them.

use super::shared::{State, names};
use crate::error::Error;
use crate::pipeline::{Duty, ReadyPart, Stage};
use crate::sched::TaskId;
use crate::types::{DeviceKind, Op, WorkerId};

impl State {
    /// What this rank does about a part.
    pub(super) fn duty(&self, part: &ReadyPart) -> Duty {
        let (part, dtype) = (part.layout.part, part.layout.dtype);
        match self.machines.partners(dtype, self.rank) {
            None if self.scheduler.pipeline().contains(Stage::Reduce) => Duty::Alone,
            None => Duty::Owner,
            Some(_) if self.machines.owner(part, dtype, self.rank) == self.rank => Duty::Owner,
            // Where groups do not count, there is no holder but the owner.
            Some(_) if self.machines.holder(part, dtype, self.rank) == self.rank => Duty::Holder,
            Some(_) => Duty::Member,
        }
    }

    /// Who has what a task's ranks reduce: in memory of devices those of this rank's PCIe group, else those of the machine.
    pub(super) fn holder(&self, task: TaskId) -> WorkerId {
        match self.payloads[&task].cargo.kind() {
            DeviceKind::Host => self.owner(task),
            DeviceKind::Cuda => self.holder_with(task, self.rank),
        }
    }

    /// The holder with which the contribution of `worker` to the part of a task came; `None` if that is on another machine.
    pub(super) fn holder_of(&self, task: TaskId, worker: WorkerId) -> Option<WorkerId> {
        let is_here = self.machines.team(self.rank).is_some_and(|team| team.contains(&worker));
        is_here.then(|| self.holder_with(task, worker))
    }

    /// The holders of the part of a task on this machine.
    pub(super) fn holders(&self, task: TaskId) -> Vec<WorkerId> {
        let layout = &self.payloads[&task].part.layout;
        self.machines.holders(layout.part, layout.dtype, self.rank)
    }

    fn holder_with(&self, task: TaskId, worker: WorkerId) -> WorkerId {
        let layout = &self.payloads[&task].part.layout;
        self.machines.holder(layout.part, layout.dtype, worker)
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

    /// Whether this rank has something to stage of the part of a task: in a broadcast only the one whose group the root is of.
    pub(super) fn contributes(&self, task: TaskId) -> bool {
        match self.payloads[&task].part.op {
            Op::Broadcast { root } => self.holder_with(task, root) == self.rank,
            Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => true,
        }
    }

    /// Why this rank has nothing of a task that the others of its machine wait for, in their words; `None` if it has.
    pub(super) fn failure_for_all(&self, task: TaskId) -> Option<Error> {
        let error = self.scheduler.failure(task)?.clone();
        let is_ours = self.ended.is_some() || matches!(error, Error::Cancelled | Error::Timeout { .. });
        let Some(payload) = self.payloads.get(&task).filter(|_| is_ours) else { return Some(error) };
        let names = names(&self.registry, &payload.part).join(" + ");
        Some(error.of_one_who_gave_up(self.rank, names, payload.part.round))
    }
}
