//! What another team of this machine means for the tasks under way.
//!
//! | where a task is | what becomes of it |
//! |---|---|
//! | waits for REDUCE or ALL_REDUCE | begins again, with the new team |
//! | in an operation of the former team | as that ends: with its sum; or, if no rank has begun it, it begins again |
//! | between, and the team would meet again for it | fails: its sum has the contributions of another team |
//! | anywhere, without the team | goes on |

use super::machine::Worker;
use super::records::{Record, longest_body};
use crate::error::Error;
use crate::pipeline::Duty;
use crate::sched::{Outcome, TaskId};
use crate::types::{DeviceKind, InCopies, Time};

impl Worker {
    /// The number of the present team. It counts the teams of this machine's workers, of which this worker is one, from 1.
    pub fn team(&self) -> u32 {
        self.team.number()
    }

    /// Takes the notice that the driver is equipped for the team of this number: its ranks have met, if there are any.
    pub fn handle_equipped(&mut self, _now: Time, team: u32) {
        self.team.met(team);
        self.scheduler.set_apart(self.team.is_apart());
        if !self.team.is_apart() {
            for (part, memory) in std::mem::take(&mut self.undeclined) {
                self.decline(&part, memory);
            }
        }
    }

    /// This worker belongs to another team. `halfway` are the tasks that the former one has reduced and would meet for again.
    pub(super) fn change_team(&mut self, now: Time, halfway: Vec<TaskId>) {
        self.scheduler.set_apart(self.team.is_apart());
        for task in halfway {
            let error = self.with_name(task, self.broken_up(task));
            self.scheduler.break_up(now, task, &error);
        }
        for task in self.scheduler.waiting_to_meet() {
            self.begin_again(now, task);
        }
    }

    /// An operation of a former team, or of one that has parted, came back: no rank has begun it.
    pub(super) fn handle_not_begun(&mut self, now: Time, task: TaskId, why: Error) {
        if let Some(team) = self.record_mut(task).met_by.take() {
            self.team.parted(team, now + self.settings.bounds.step);
            self.scheduler.set_apart(self.team.is_apart());
        }
        if self.scheduler.may_begin_again(task) {
            return self.begin_again(now, task);
        }
        // The present team may wait for it.
        let Record { part, memory, .. } = self.record(task);
        let (part, memory) = (part.clone(), *memory);
        self.decline(&part, memory);
        let error = self.with_name(task, why);
        self.finish(now, task, Outcome::Failed(error));
    }

    /// Whether the result of an operation is no use any more: a former team made it, and the present one would have to go on with it.
    pub(super) fn is_of_former_team(&self, task: TaskId) -> bool {
        self.record(task).met_by.is_some_and(|team| team != self.team.number()) && !self.scheduler.is_last(task)
    }

    /// The error of a task that a former team has reduced.
    pub(super) fn broken_up(&self, task: TaskId) -> Error {
        Error::Unavailable {
            what: format!("the sum of {}, {}", self.names(task).join(" + "), self.part(task).round),
            cause: "a worker of this machine left while it was under way".to_owned(),
        }
    }

    /// Fails this worker if its team has been apart for too long and no view says who is left.
    pub(super) fn fail_if_apart(&mut self, now: Time) {
        if self.team.poll_timeout().is_some_and(|until| until <= now) {
            let cause = Error::Timeout {
                what: "the workers of this machine parted, because one left, and the coordinator does not say who is left \
                       (on_worker_loss must be the same everywhere)"
                    .to_owned(),
                waited: self.settings.bounds.step,
            };
            self.handle_failed(now, cause);
        }
    }

    /// Lets a task begin again that no rank has begun: it takes the way that it has in the present formation.
    fn begin_again(&mut self, now: Time, task: TaskId) {
        let Record { part, memory, .. } = self.record(task);
        let (memory, tickets) = (*memory, &part.tickets);
        let tensors = tickets.iter().filter_map(|id| self.submissions.get(id)).flat_map(|of| of.tensors.as_slice());
        let (in_copies, in_place) = tensors
            .fold((InCopies::EncodeAndDecode, false), |(in_copies, in_place), tensor| {
                (tensor.in_copies.min(in_copies), in_place | tensor.in_place)
            });
        let plan = self.plan(part, memory, in_copies, in_place);
        let body = longest_body(part, plan.coding);
        if plan.route.duty == Duty::Together && memory == DeviceKind::Cuda {
            let error = self.unreachable(&self.record(task).part);
            return self.scheduler.break_up(now, task, &error);
        }
        let record = self.record_mut(task);
        plan.note_in(record);
        record.body = body;
        self.scheduler.begin_again(now, task, plan.route, body.bytes);
    }
}
