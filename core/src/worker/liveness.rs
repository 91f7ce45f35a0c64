//! Whether the threads that carry out the worker's commands still work at a submission. A thread that waits for a handle asks this when the
//! handle is late.
//!
//! A submission has no deadline of its own, unless its caller gave one, because a large tensor on a slow link may take long. So movement
//! counts: of any task, or of the submission's own tasks.

use std::ops::Range;
use std::time::Duration;

use super::machine::Worker;
use super::records::Submission;
use crate::types::Time;

/// The answer to a thread that waits for a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Liveness {
    /// The engine may still end the submission. Ask again after this time.
    Works {
        /// Not zero.
        ask_in: Duration,
    },
    /// The engine should have ended the submission, and has not.
    Stuck,
}

impl Worker {
    /// Whether the engine works at `now` at the submissions with these ids, of which one handle tells the end.
    pub fn liveness(&self, now: Time, ids: Range<u64>) -> Liveness {
        // If none is left, their end was decided. Then the thread that had to tell the handle is stuck.
        let due = self.submissions.range(ids).map(|(_, submission)| self.due(submission)).min();
        match due.map_or(Duration::ZERO, |due| due.since(now)) {
            Duration::ZERO => Liveness::Stuck,
            ask_in => Liveness::Works { ask_in },
        }
    }

    /// How long any call waits at most for an engine that does nothing.
    pub fn answer_bound(&self) -> Duration {
        self.settings.stuck
    }

    /// When the engine must have ended a submission, unless something moves until then.
    fn due(&self, submission: &Submission) -> Time {
        let bound = self.settings.stuck;
        let own = submission.group.and_then(|group| self.scheduler.moved_of(group)).unwrap_or(submission.submitted);
        let anything = self.scheduler.moved().max(own);
        let due = (anything + bound).min(own + bound * OTHERS_MOVE);
        // A deadline of the caller ends everything but the step that an executor is in.
        let late = bound.saturating_sub(self.settings.scheduler.step_timeout);
        submission.deadline.map_or(due, |deadline| due.min(deadline + late))
    }
}

/// How many times longer a submission may rest while other tasks move. They may be more urgent, and the link may be slow.
const OTHERS_MOVE: u32 = 8;
