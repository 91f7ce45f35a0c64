//! The consequences of the end of a stage for its task.

use super::Scheduler;
use crate::error::Error;
use crate::pipeline::{Route, Stage};
use crate::sched::ids::TaskId;
use crate::sched::rules::{ends_credit, is_staged};
use crate::sched::task::Outcome;
use crate::types::{Defect, Time, planted};

impl Scheduler {
    /// Handles the end of a stage of a task for which a group waits.
    pub(super) fn finish_wanted(&mut self, now: Time, id: TaskId, outcome: Outcome) {
        let (stage, route) = self.whereabouts(id);
        let outcome = match outcome {
            Outcome::Retry { error, landed } if stage.is_exchange() => match self.starved(now, id, &error) {
                Some(error) => {
                    self.withdraw_from(now, id, Some(&error));
                    Outcome::Failed(error)
                }
                None => Outcome::Retry { error, landed },
            },
            other @ (Outcome::Done | Outcome::Retry { .. } | Outcome::Failed(_)) => other,
        };
        match outcome {
            Outcome::Done => {
                self.pass(now, id);
                match self.pipeline.after(stage, route) {
                    Some(next) => self.enter(now, id, next, None),
                    None => drop(self.vanish(now, id, true)),
                }
            }
            Outcome::Retry { error, landed } if stage.is_exchange() => {
                self.give_back_to_repeat(id);
                self.repeat(now, id, error, landed);
            }
            Outcome::Retry { error, .. } | Outcome::Failed(error) => {
                // After PUSH the server needs no withdrawal: it has reported itself that there will be no sum.
                if stage.precedes_push() {
                    self.withdraw_from(now, id, Some(&error));
                }
                // An operation of all ranks of the machine fails on all of them.
                if self.is_awaited(id) && !stage.is_collective() {
                    return self.tell(now, id, Some(error));
                }
                for group in self.vanish(now, id, false) {
                    self.fail_group(now, group, error.clone());
                }
            }
        }
    }

    /// Handles the end of a stage of a task for which no group waits any more.
    pub(super) fn finish_unwanted(&mut self, now: Time, id: TaskId, outcome: Outcome) {
        let (stage, route) = self.whereabouts(id);
        let explains = self.failure(id).is_some();
        let is_awaited = self.is_awaited(id);
        match outcome {
            // Its exchange is open, and ends when the answer or its loss is reported.
            Outcome::Done if stage == Stage::Push => self.enter(now, id, Stage::Pull, None),
            Outcome::Done => {
                self.pass(now, id);
                if stage.precedes_push() {
                    self.withdraw_from(now, id, None);
                }
                match self.pipeline.after(stage, route) {
                    // Here the task has the sum, or only goes on because the other ranks need it.
                    Some(next) if is_awaited && (self.pipeline.has_sum_after(stage) || next.is_collective()) => {
                        self.enter(now, id, next, None);
                    }
                    Some(_) if is_awaited => self.tell(now, id, None),
                    Some(_) | None => drop(self.vanish(now, id, false)),
                }
            }
            Outcome::Retry { .. } | Outcome::Failed(_) => {
                // A task that explains a failure has withdrawn already.
                if stage.is_exchange() || stage.precedes_push() && !explains {
                    self.withdraw_from(now, id, None);
                }
                if is_awaited && !stage.is_collective() {
                    self.tell(now, id, None);
                } else {
                    self.vanish(now, id, false);
                }
            }
        }
    }

    /// Before `until`, no task fails because its server has no memory: workers that are missing there may be lost, and nobody can say so.
    pub fn be_patient(&mut self, until: Time) {
        self.patient_until = until;
    }

    /// The error of a task whose server refuses it because of `error`, if the server has had no memory for it for a step timeout.
    fn starved(&self, now: Time, id: TaskId, error: &Error) -> Option<Error> {
        let Error::Exhausted { what, limit, hint } = error else { return None };
        let work = self.tasks.get(id.0)?;
        let waited = work.tries.short_since.map(|since| now.since(since))?;
        let names: Vec<&str> =
            work.spec.groups.iter().filter_map(|group| Some(&*self.groups.get(group.0)?.name)).collect();
        (waited >= self.config.step_timeout && self.patient_until <= now).then(|| Error::FailedPrecondition {
            what: format!(
                "tensor {} waited {:.1} s at {} for {what}, of which there are {limit}",
                names.join(" + "),
                waited.as_secs_f64(),
                work.spec.server
            ),
            hint: hint.clone(),
        })
    }

    /// Returns credit and opens the next round of the part, as the end of a stage allows.
    fn pass(&mut self, now: Time, id: TaskId) {
        let (stage, route) = self.whereabouts(id);
        if stage == ends_credit(route) {
            self.give_credit_back(id);
        }
        // What may begin again keeps its place among the rounds.
        if stage == Stage::Pull && !route.aside && !self.is_awaited(id) {
            self.leave_rounds(now, id);
        }
    }

    /// Returns the credit of a task that will push again. A staged task keeps its memory and its credit.
    fn give_back_to_repeat(&mut self, id: TaskId) {
        let (_, route) = self.whereabouts(id);
        match is_staged(route) {
            true => {}
            false if planted(self.config.defect, Defect::CreditLeaked) => drop(self.leave_holders(id)),
            false => self.give_credit_back(id),
        }
    }

    /// Whether other ranks of its machine wait for a task after its present stage.
    fn is_awaited(&self, id: TaskId) -> bool {
        self.tasks.get(id.0).is_some_and(|work| self.meeting_after(work).is_some())
    }

    pub(super) fn whereabouts(&self, id: TaskId) -> (Stage, Route) {
        let work = self.tasks.get(id.0).expect("a running task exists");
        (work.stage, work.spec.route)
    }
}
