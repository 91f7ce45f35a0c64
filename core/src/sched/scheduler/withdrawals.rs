//! Withdrawals: the server of a round to which this worker will not contribute is told why, so that the other workers need not wait for it.
//!
//! A worker that brings a sum to a server, because others lost theirs, does so by a task of the same kind ([`Scheduler::restore`]).
//!
//! A withdrawal is a task of its own, another one than the task that ended. Nobody waits for it and it holds no memory of a caller. It passes
//! PUSH and PULL in the turn of the round that it is about, because told too early it would end the rounds before as well. It has a queue of
//! its own before PUSH, which goes first and needs no credit: it moves next to no bytes, and other workers wait for it.

use super::{Command, Scheduler, Timer};
use crate::error::Error;
use crate::pipeline::{Duty, Route, Stage};
use crate::sched::rules::others_wait;
use crate::sched::task::{Place, Purpose, TaskSpec, Work};
use crate::sched::{Outcome, TaskId};
use crate::types::{Defect, Time, planted};

impl Scheduler {
    /// Withdraws from the round of a task whose PUSH runs and has not sent all. A task that comes to its end before PUSH withdraws by itself.
    pub fn withdraw_unsent(&mut self, now: Time, id: TaskId, error: &Error) {
        let is_wanted = |work: &Work| work.stage == Stage::Push && matches!(work.purpose, Purpose::Wanted);
        if self.tasks.get(id.0).is_some_and(is_wanted) {
            self.withdraw_from(now, id, Some(error));
        }
    }

    /// Withdraws from a round of which no task was submitted. The task that tells the server; none where nobody waits for this worker.
    pub fn withdraw(&mut self, now: Time, spec: TaskSpec) -> Option<TaskId> {
        let is_due = self.ended.is_none() && self.pipeline.pushes() && others_wait(spec.route);
        if !is_due || planted(self.config.defect, Defect::GivenUpInSilence) {
            return None;
        }
        Some(self.tell_server(now, spec))
    }

    /// Brings a sum of an earlier round to a server. The task that does it; none after the end. It is dropped if it has not ended after a step
    /// timeout, or by [`drop_withdrawal`](Self::drop_withdrawal).
    pub fn restore(&mut self, now: Time, spec: TaskSpec) -> Option<TaskId> {
        self.ended.is_none().then(|| self.tell_server(now, spec))
    }

    /// A task that passes PUSH and PULL before all others, and for which nobody waits.
    fn tell_server(&mut self, now: Time, spec: TaskSpec) -> TaskId {
        // It needs no credit: it moves next to no bytes, or others wait for them. No other rank of this machine waits for it.
        let spec = TaskSpec { bytes: 0, route: Route::host(Duty::Alone), groups: Vec::new(), ..spec };
        let (part, round, until) = (spec.part, spec.round, now + self.config.step_timeout);
        let purpose = Purpose::Withdrawing { until };
        let withdrawal = Work { purpose, holds_round: true, ..Work::new(spec, self.submitted, now) };
        let id = TaskId(self.tasks.insert(withdrawal));
        self.submitted += 1;
        let waiting = self.rounds.entry(part).or_default();
        let tasks = &self.tasks;
        let is_later = |other: &TaskId| tasks.get(other.0).is_some_and(|other| other.spec.round >= round);
        let place = waiting.iter().position(is_later).unwrap_or(waiting.len());
        waiting.insert(place, id);
        self.timers.insert((until, Timer::Withdrawal(id)));
        self.enter(now, id, Stage::Push, None);
        id
    }

    /// Withdraws from the round of a task that ends without a sum. `error` says why, unless the task's groups know.
    pub(super) fn withdraw_from(&mut self, now: Time, of: TaskId, error: Option<&Error>) {
        let error = error.cloned().or_else(|| self.fate(of)).expect("it failed, or nobody wants it");
        let spec = self.tasks.get(of.0).expect("a task that ends exists").spec.clone();
        if let Some(task) = self.withdraw(now, spec) {
            self.commands.push_back(Command::Withdraw { task, of, error });
        }
    }

    /// As `finish`, for a withdrawal.
    pub(super) fn finish_withdrawal(&mut self, now: Time, id: TaskId, outcome: Outcome) {
        let work = self.tasks.get(id.0).expect("a running task exists");
        match (outcome, &work.purpose) {
            (Outcome::Done, _) if work.stage == Stage::Push => self.enter(now, id, Stage::Pull, None),
            (Outcome::Retry { error, .. }, Purpose::Withdrawing { .. }) => self.repeat(now, id, error, 0),
            (Outcome::Done | Outcome::Retry { .. } | Outcome::Failed(_), _) => self.end_withdrawal(now, id),
        }
    }

    /// The server is not to be told any more: the time for it has passed, the job has ended, or it is another server.
    pub fn drop_withdrawal(&mut self, now: Time, id: TaskId) {
        let Some(work) = self.tasks.get_mut(id.0) else { return };
        let Purpose::Withdrawing { until } = work.purpose else { return };
        work.purpose = Purpose::Dropped;
        self.timers.remove(&(until, Timer::Withdrawal(id)));
        match work.place {
            Place::Running => self.commands.push_back(Command::Abandon(id)),
            Place::Queued(_) => {
                self.unqueue(id);
                self.end_withdrawal(now, id);
            }
        }
    }

    /// All withdrawals that are not told yet.
    pub(super) fn open_withdrawals(&self) -> Vec<TaskId> {
        let is_open = |work: &Work| matches!(work.purpose, Purpose::Withdrawing { .. });
        let open = self.tasks.iter().filter(|(_, work)| is_open(work));
        open.map(|(id, _)| TaskId(id)).collect()
    }

    fn end_withdrawal(&mut self, now: Time, id: TaskId) {
        if let Some(Purpose::Withdrawing { until }) = self.tasks.get(id.0).map(|work| &work.purpose) {
            self.timers.remove(&(*until, Timer::Withdrawal(id)));
        }
        self.vanish(now, id, false);
    }
}
