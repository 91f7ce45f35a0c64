//! Whether the threads that carry out the worker's commands still work at a submission. A thread that waits for a handle asks this when the
//! handle is late.
//!
//! A submission has no deadline of its own, unless its caller gave one, because a large tensor on a slow link may take long. So movement
//! counts: of any task, or of the submission's own tasks.

use std::ops::Range;
use std::time::Duration;

use super::machine::Worker;
use super::records::Submission;
use crate::config::Bounds;
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
    /// Whether the engine works at `now` at the submissions with these ids, of which one handle tells the end. `elsewhere` is when something
    /// last moved that this machine does not see: in the reduction among the ranks of this host.
    pub fn liveness(&self, now: Time, ids: Range<u64>, elsewhere: Time) -> Liveness {
        // If none is left, their end was decided. Then the thread that had to tell the handle is stuck.
        let due = self.submissions.range(ids).map(|(_, submission)| self.due(now, submission, elsewhere)).min();
        match due.map_or(Duration::ZERO, |due| due.since(now)) {
            Duration::ZERO => Liveness::Stuck,
            ask_in => Liveness::Works { ask_in },
        }
    }

    /// Whether each contribution stays as it is until its sum is whole.
    pub fn keeps(&self) -> bool {
        self.settings.keeps
    }

    /// How long each wait lasts at most.
    pub fn bounds(&self) -> Bounds {
        self.settings.bounds
    }

    /// A device was seen that has other work to do before it comes to open submissions. Their time begins anew, because nobody but the
    /// program, which gave it that work, can say how long it takes.
    pub fn handle_device_behind(&mut self, now: Time) {
        self.device_behind = now;
    }

    /// When the engine must have ended a submission, unless something moves until then. While it waits for a coordinator that is out of
    /// contact, nothing need move.
    fn due(&self, now: Time, submission: &Submission, elsewhere: Time) -> Time {
        let Bounds { call, step, .. } = self.settings.bounds;
        let is_on_device = submission.tensors.as_slice().iter().any(|tensor| tensor.device.is_some());
        let behind = if is_on_device { self.device_behind } else { Time::ZERO };
        let own = submission.group.and_then(|group| self.scheduler.moved_of(group)).unwrap_or(submission.submitted);
        let own = own.max(behind);
        let anything = self.scheduler.moved().max(elsewhere).max(own);
        let due = (anything + call).min(own + call * OTHERS_MOVE);
        let due = due.max(self.patient_until().min(now + call));
        // A deadline of the caller ends everything but the step that an executor is in; see `Bounds::operation`.
        let late = call.saturating_sub(step);
        submission.deadline.map_or(due, |deadline| due.min(deadline.max(behind) + late))
    }
}

/// How many times longer a submission may rest while other tasks move. They may be more urgent, and the link may be slow.
const OTHERS_MOVE: u32 = 8;
