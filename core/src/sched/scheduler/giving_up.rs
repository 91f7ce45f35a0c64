//! What becomes of a round that this worker will not contribute to: its server is told why, so that the others need not wait for it.
//!
//! The task that tells it is another one than the task that ended: nobody waits for it, it holds nobody's memory, and it passes PUSH and
//! PULL in the turn of the round it is about, with the gates, pauses and credit of any other. What is told too early would end rounds
//! before it as well.

use super::{Command, Scheduler, Timer};
use crate::error::Error;
use crate::pipeline::{Duty, Route, Stage};
use crate::sched::task::{Place, TaskSpec, Work};
use crate::sched::{Outcome, TaskId};
use crate::types::{Defect, Time, planted};

impl Scheduler {
    /// Has the server of a part told that this worker will not contribute to a round of which no task was submitted. The task that does
    /// it, which carries nothing but the reason; none where nobody waits for this worker.
    pub fn give_up_round(&mut self, now: Time, spec: TaskSpec) -> Option<TaskId> {
        let is_due =
            self.ended.is_none() && self.pipeline.pushes() && matches!(spec.route.duty, Duty::Owner | Duty::Alone);
        if !is_due || planted(self.config.defect, Defect::GivenUpInSilence) {
            return None;
        }
        // It moves no bytes that credit would have to count, and no other rank of this machine waits for it.
        let spec = TaskSpec { bytes: 0, route: Route::host(Duty::Alone), groups: Vec::new(), ..spec };
        let (part, round, until) = (spec.part, spec.round, now + self.config.give_up_patience);
        let word = Work { tells_until: Some(until), holds_round: true, ..Work::new(spec, self.submitted, now) };
        let id = TaskId(self.tasks.insert(word));
        self.submitted += 1;
        let waiting = self.rounds.entry(part).or_default();
        let tasks = &self.tasks;
        let is_later = |other: &TaskId| tasks.get(other.0).is_some_and(|other| other.spec.round >= round);
        let place = waiting.iter().position(is_later).unwrap_or(waiting.len());
        waiting.insert(place, id);
        self.timers.insert((until, Timer::GiveUp(id)));
        self.enter(now, id, Stage::Push, None);
        Some(id)
    }

    /// Has the server of a task that ends without a sum told so. `error` says why, unless the task's groups know.
    pub(super) fn give_up(&mut self, now: Time, of: TaskId, error: Option<&Error>) {
        let error = error.cloned().or_else(|| self.fate(of)).expect("it failed, or nobody wants it");
        let spec = self.tasks.get(of.0).expect("a task that ends exists").spec.clone();
        if let Some(task) = self.give_up_round(now, spec) {
            self.commands.push_back(Command::GiveUp { task, of, error });
        }
    }

    /// As `finish`, for a task that tells a server of a round that was given up.
    pub(super) fn finish_telling(&mut self, now: Time, id: TaskId, outcome: Outcome) {
        let work = self.tasks.get(id.0).expect("a running task exists");
        match outcome {
            Outcome::Done if work.stage == Stage::Push => self.enter(now, id, Stage::Pull, None),
            Outcome::Retry { error, .. } if !work.doomed => {
                self.give_credit_back(id);
                self.repeat(now, id, error, 0);
            }
            Outcome::Done | Outcome::Retry { .. } | Outcome::Failed(_) => {
                self.give_credit_back(id);
                self.forget_telling(id);
            }
        }
    }

    /// Nobody is to be told any more: the time for it has passed, or the job has ended.
    pub(super) fn stop_telling(&mut self, id: TaskId) {
        let work = self.tasks.get_mut(id.0).expect("it has a timer as long as it lives");
        if std::mem::replace(&mut work.doomed, true) {
            return;
        }
        match (work.place, work.stage) {
            (Place::Running, _) => self.commands.push_back(Command::Abandon(id)),
            // Its exchange is open: only the executor of PULL can close it.
            (Place::Queued(_), Stage::Pull) => {}
            (Place::Queued(_), _) => {
                self.unqueue(id);
                self.forget_telling(id);
            }
        }
    }

    /// All tasks that tell servers of rounds that were given up.
    pub(super) fn telling(&self) -> Vec<TaskId> {
        let tells = self.tasks.iter().filter(|(_, work)| work.tells_until.is_some());
        tells.map(|(id, _)| TaskId(id)).collect()
    }

    fn forget_telling(&mut self, id: TaskId) {
        let until = self.tasks.get(id.0).and_then(|work| work.tells_until).expect("it tells of a round");
        self.timers.remove(&(until, Timer::GiveUp(id)));
        self.vanish(id, false);
    }
}
