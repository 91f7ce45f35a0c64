//! The steps of a worker, as `engine::boundary` drives them.

use gradlane_core::cluster::{Begin, Steps, left_at};
use gradlane_core::error::{Error, Result};
use gradlane_core::types::Passage;

use super::super::checkers::Checker;
use super::super::world::{Context, Input, Who};
use super::WorkerProcess;

impl WorkerProcess {
    /// Gives the steps an input, and tells the coordinator what it must hear of it.
    pub(super) fn step<T>(&mut self, input: impl FnOnce(&mut Steps) -> T) -> T {
        let output = input(&mut self.steps);
        if let Some(report) = self.steps.next_report() {
            self.member.member.report_steps(report);
        }
        output
    }

    /// Begins a step. Returns whether the script goes on; else it tries again when something has happened, or has left.
    pub(super) fn begin_step(&mut self, context: &mut Context) -> bool {
        loop {
            let mut begun = self.step(|steps| steps.begin(false));
            if let Ok(Begin::Settle | Begin::Wait) = begun {
                if self.has_open_submissions() {
                    return false;
                }
                begun = self.step(|steps| steps.begin(true));
            }
            match begun {
                Ok(Begin::Begun(passage)) => {
                    context.witness.begins(self.me.who, passage.as_ref());
                    self.begun += 1;
                    self.may_be_asked(context);
                    return true;
                }
                Ok(Begin::Settle | Begin::Wait) => {
                    context.witness.waits_at_boundary(self.me.who);
                    return false;
                }
                Ok(end @ (Begin::Left | Begin::FormsAgain(_))) => {
                    context.witness.goes(self.me.who, matches!(end, Begin::FormsAgain(_)));
                    self.script.done = true;
                    return false;
                }
                Err(_) if self.worker.ended().is_some() => {
                    self.script.done = true;
                    return false;
                }
                Err(error) => context.witness.misses_boundary(self.me.who, &error),
            }
        }
    }

    /// It is in no step until it begins the next one.
    pub(super) fn rest(&mut self, context: &mut Context) {
        context.witness.rests(self.me.who);
        self.step(Steps::rest);
    }

    /// A supervisor asks it to leave within some step.
    fn may_be_asked(&self, context: &mut Context) {
        let Who::Worker(number) = self.me.who else { unreachable!("a worker has steps") };
        if let Some((step, after)) = context.plan.leavers.get(&number).copied()
            && step == self.begun
        {
            context.post(self.me, after, Input::AskToLeave);
        }
    }

    /// Somebody wants this worker to leave.
    pub(super) fn ask_to_leave(&mut self, context: &mut Context) {
        if !self.script.done && self.worker.ended().is_none() {
            context.witness.asked_to_leave(self.me.who);
            self.step(Steps::ask_to_leave);
        }
    }

    /// A change is under way.
    pub(super) fn hear_boundary(&mut self, context: &mut Context, change: u64, limit: Option<u64>) {
        if let Err(problem) = self.step(|steps| steps.handle_boundary(change, limit)) {
            let text = format!("{}: the limit of change {change} {problem}", self.me.who);
            context.witness.fail(context.now, Checker::Boundary, text);
        }
        self.wake(context);
    }

    /// A change is over.
    pub(super) fn hear_passed(&mut self, context: &mut Context, change: u64, outcome: Result<Passage>) {
        context.witness.hears_of_passage(self.me.who, change, &outcome);
        if let Ok(passage @ Passage { leaves: true, .. }) = &outcome {
            self.released = true;
            self.worker.handle_failed(context.now, left_at(passage));
        }
        self.step(|steps| steps.handle_passed(change, outcome));
        self.wake(context);
    }

    /// The job is over for this worker.
    pub(super) fn fail_steps(&mut self, cause: Error) {
        self.steps.fail(cause);
    }

    fn has_open_submissions(&self) -> bool {
        self.script.operations.values().any(|operation| operation.outcome.is_none())
            || self.script.uses.values().any(|used| used.outcome.is_none())
    }
}
