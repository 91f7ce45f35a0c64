//! The steps of this worker, and the boundaries between them at which the membership of the job may change.

use std::time::Duration;

use super::driver::Engine;
use super::local_peers;
use crate::cluster::{Begin, Steps};
use crate::error::{Error, Result};
use crate::local::failpoint::{Failpoint, reach};
use crate::types::{HostPlace, Passage};

/// What [`Engine::begin_step`] says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The step has begun. If the workers of the job may be others than in the step before, this says who they are: all workers hear of it at
    /// the same step.
    Begun(Option<Passage>),
    /// This worker has left the job, as it wanted: the others go on without it.
    Left,
    /// All workers have left the job, and form it again with others that have come: this worker joins anew.
    FormsAgain(Passage),
}

impl Engine {
    /// How often the job had formed before this engine joined it: an elastic job forms again when workers come.
    pub fn formed_before(&self) -> u32 {
        self.shared.look(|state| state.worker.formation().map_or(0, |formation| formation.view.formed_before))
    }

    /// Where this worker is among those of its host.
    pub fn place(&self) -> Option<HostPlace> {
        let rank = self.rank();
        self.shared.look(|state| state.worker.formation().and_then(|formation| formation.view.place_of(rank)))
    }

    /// Begins a step of the training. Call it on every worker before each step, as often as on the others. It returns at once, unless the
    /// membership of the job is to change: then it waits at the boundary between two steps until every worker stands there and its operations
    /// have ended. With `on_worker_loss=wait` it also waits there until enough workers have come.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the others do not come to the boundary within the step timeout, or operations of this worker do not end;
    /// [`Error::FailedPrecondition`] if this worker wanted to leave and the job cannot go on without it, or if it has left;
    /// [`Error::QuorumLost`] if the workers were too few for `rejoin_timeout`; why the job ended else.
    pub fn begin_step(&self) -> Result<Step> {
        reach(Failpoint::StepBegins);
        let step = loop {
            if let Some(step) = self.begin_or_wait().transpose() {
                break step;
            }
        };
        step.inspect_err(|error| self.shared.flight.request_failed(error))
    }

    /// As [`begin_step`](Self::begin_step); `None` if it has waited, and no step has begun.
    fn begin_or_wait(&self) -> Result<Option<Step>> {
        if let Some(step) = self.try_to_begin(false)? {
            return Ok(Some(step));
        }
        let bounds = self.config.bounds();
        self.room.wait_until_empty(bounds.operation(None), &|| self.patience_left())?;
        if let Some(step) = self.try_to_begin(true)? {
            return Ok(Some(step));
        }
        self.wait_at_boundary(bounds.barrier(bounds.step))?;
        Ok(None)
    }

    /// As [`begin_step`](Self::begin_step); `None` where that would wait, and then no step has begun.
    ///
    /// # Errors
    /// As [`begin_step`](Self::begin_step).
    pub fn begin_step_at_once(&self) -> Result<Option<Step>> {
        self.try_to_begin(false).inspect_err(|error| self.shared.flight.request_failed(error))
    }

    fn try_to_begin(&self, is_settled: bool) -> Result<Option<Step>> {
        Ok(match self.shared.step(|steps| steps.begin(is_settled))? {
            Begin::Begun(passage) => Some(Step::Begun(passage)),
            Begin::Left => Some(Step::Left),
            Begin::FormsAgain(passage) => Some(Step::FormsAgain(passage)),
            Begin::Settle | Begin::Wait => None,
        })
    }

    /// Waits until the coordinator has said something, at most for `patience`; see [`wait_patiently`](Self::wait_patiently).
    fn wait_at_boundary(&self, patience: Duration) -> Result<()> {
        self.wait_patiently(patience, |left| self.shared.boundary.wait(left).then_some(())).map_err(|waited| {
            let what = "the boundary behind a step: waiting for the coordinator and the other workers".to_owned();
            Error::Timeout { what, waited }
        })
    }

    /// The loop over the steps has ended, so that no boundary waits for this worker. It may begin steps again later.
    pub fn end_steps(&self) {
        self.shared.step(Steps::rest);
    }

    /// Whether the others go on if this worker leaves.
    pub fn may_leave(&self) -> bool {
        local_peers::goes_on(&self.config)
    }

    /// Asks to leave the job at the next boundary between two steps: a later [`begin_step`](Self::begin_step) says that this worker has left.
    /// If that takes longer than `leave_grace`, the job goes on without this worker, which is then fenced.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if `on_worker_loss` is `abort`; why the job ended.
    pub fn ask_to_leave(&self) -> Result<()> {
        if !self.may_leave() {
            return Err(Error::FailedPrecondition {
                what: "a worker that leaves alone, which ends this job".to_owned(),
                hint: "set on_worker_loss=continue, or let all workers end".to_owned(),
            });
        }
        if let Some(error) = self.shared.look(|state| state.worker.ended().cloned()) {
            return Err(error);
        }
        self.shared.step(Steps::ask_to_leave);
        Ok(())
    }
}
