//! What another team of this machine means for the tasks under way.
//!
//! | where a task is | what becomes of it |
//! |---|---|
//! | waits for REDUCE or ALL_REDUCE | begins again, with the new team |
//! | in an operation of the former team | as that ends: with its sum; or, if no rank has done it, it begins again |
//! | between, and the team would meet again for it | begins again if its contribution is kept ([`Route::aside`](crate::pipeline::Route)), at the end of the stage that it is in; else it fails: its sum has the contributions of another team |
//! | anywhere, without the team | goes on |
//!
//! A task begins again on all ranks that are left, or on none: each operation of the former team has ended on all of them or on none. A
//! round that was summed already is answered by its server as it is. What the ranks have in memory of a device does not begin again. If one
//! of them is lost there, all of them fail, and the job goes on with other machines.

use super::command::Command;
use super::machine::Worker;
use super::records::{Record, longest_body};
use crate::error::Error;
use crate::pipeline::{Duty, Stage};
use crate::sched::{Outcome, TaskId};
use crate::types::{Defect, DeviceKind, InCopies, Time, planted};

impl Worker {
    /// The number of the present team. It counts the teams of this machine's workers, of which this worker is one, from 1.
    pub fn team(&self) -> u32 {
        self.team.number()
    }

    /// Takes the notice that the driver is equipped for the team of this number: its ranks have met, if there are any.
    pub fn handle_equipped(&mut self, now: Time, team: u32) {
        self.team.met(team);
        self.scheduler.set_apart(now, self.team.is_apart());
        if !self.team.is_apart() {
            for (part, memory) in std::mem::take(&mut self.undeclined) {
                self.decline(&part, memory);
            }
        }
    }

    /// This worker belongs to another team. `halfway` are the tasks that the former one has reduced and would meet for again.
    pub(super) fn change_team(&mut self, now: Time, halfway: Vec<TaskId>) {
        self.scheduler.set_apart(now, self.team.is_apart());
        for task in halfway {
            self.leave_former_team(now, task);
        }
        for task in self.scheduler.waiting_to_meet() {
            self.begin_again(now, task);
        }
    }

    /// The former team has reduced a task and would meet for it again: it begins again, or fails.
    fn leave_former_team(&mut self, now: Time, task: TaskId) {
        let is_aside = self.scheduler.is_aside(task);
        if is_aside && planted(self.settings.scheduler.defect, Defect::ReducedWithTheLost) {
            return;
        }
        if is_aside && self.scheduler.is_wanted(task) {
            match self.scheduler.is_running(task) {
                true => self.record_mut(task).begins_again = true,
                false => self.begin_again(now, task),
            }
            return;
        }
        let Some(Record { part, memory, .. }) = self.tasks.get(task) else { return };
        if is_aside {
            // The others begin again, without this rank.
            let (part, memory) = (part.clone(), *memory);
            self.decline(&part, memory);
        }
        let error = self.broken_up(now, task);
        self.scheduler.break_up(now, task, &error);
    }

    /// Ends a stage of a task that is to begin again, and lets it do so; `false` if it goes on.
    pub(super) fn ends_to_begin_again(&mut self, now: Time, task: TaskId, outcome: &Outcome) -> bool {
        // Its exchange is open until PULL ends.
        let is_open = self.scheduler.stage(task) == Some(Stage::Push) && *outcome == Outcome::Done;
        let begins = self.record(task).begins_again && !is_open && self.scheduler.may_begin_again(task);
        if begins {
            self.begin_again(now, task);
        }
        begins
    }

    /// An operation of a former team, or of one that has parted, came back: no rank has done it.
    pub(super) fn handle_not_begun(&mut self, now: Time, task: TaskId, why: Error) {
        if let Some(team) = self.record_mut(task).met_by.take() {
            self.team.parted(team, now + self.settings.bounds.step);
            self.scheduler.set_apart(now, self.team.is_apart());
        }
        let fails = self.scheduler.is_aside(task) && planted(self.settings.scheduler.defect, Defect::UndoneFails);
        if self.scheduler.may_begin_again(task) && !fails {
            return self.begin_again(now, task);
        }
        // The present team may wait for it.
        let Record { part, memory, .. } = self.record(task);
        let (part, memory) = (part.clone(), *memory);
        self.decline(&part, memory);
        let error = self.with_name(task, why);
        if self.is_lost_with_a_rank(task) {
            self.end_with_its_machine(now, &error);
        }
        self.finish(now, task, Outcome::Failed(error));
    }

    /// Whether the result of an operation is no use any more: a former team made it, and the present one would have to go on with it.
    pub(super) fn is_of_former_team(&self, task: TaskId) -> bool {
        self.record(task).met_by.is_some_and(|team| team != self.team.number()) && self.scheduler.meets_again(task)
    }

    /// A task failed. If the ranks of its machine have lost one, this worker ends: what they do on devices does not begin again, so they are
    /// lost together, and the job goes on with other machines.
    pub(super) fn end_with_its_machine(&mut self, now: Time, error: &Error) {
        if self.settings.keeps && matches!(error, Error::PeerLost { .. }) {
            self.handle_failed(now, error.clone());
            self.commands.push_back(Command::BreakDown(error.clone()));
        }
    }

    /// Whether somebody waits for a sum on a device, which does not begin again without a rank that was lost in the middle of it.
    fn is_lost_with_a_rank(&self, task: TaskId) -> bool {
        self.scheduler.is_wanted(task) && self.record(task).memory == DeviceKind::Cuda
    }

    /// The error of a task that a former team has reduced. If it cannot begin again because a rank was lost, this worker ends.
    pub(super) fn broken_up(&mut self, now: Time, task: TaskId) -> Error {
        let Some(gone) = self.team.gone().filter(|_| self.settings.keeps && self.is_lost_with_a_rank(task)) else {
            return Error::Unavailable {
                what: format!("the sum of {}, {}", self.names(task).join(" + "), self.part(task).round),
                cause: "a worker of this machine left while it was under way".to_owned(),
            };
        };
        let cause = "the job goes on without it".to_owned();
        let error = Error::PeerLost { member: gone.name(), host: gone.place(), cause };
        self.end_with_its_machine(now, &error);
        error
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

    /// Lets a task begin again that its ranks have not done: it takes the way that it has in the present formation.
    pub(super) fn begin_again(&mut self, now: Time, task: TaskId) {
        self.start_over(task);
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

    /// Lets a task have nothing but its contribution.
    fn start_over(&mut self, task: TaskId) {
        let part = &self.record(task).part;
        let own =
            part.tickets.first().and_then(|id| self.submissions.get(id)).map(|submission| submission.terms.demand);
        if self.scheduler.is_aside(task) {
            self.residuals.start_over(part.layout.part);
            self.commands.push_back(Command::StartOver(task));
        }
        let record = self.record_mut(task);
        // Of a weighted mean, the weight may be that of all ranks.
        record.part.demand = own.unwrap_or(record.part.demand);
        (record.held, record.met_by, record.begins_again) = (None, None, false);
    }
}
