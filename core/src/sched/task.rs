//! A part on its way through the stages.

use super::ids::{GroupId, TaskId};
use super::queue::Entry;
use crate::error::Error;
use crate::pipeline::{Route, Stage};
use crate::types::{PartId, Priority, Round, ServerId, Time};

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskSpec {
    /// Which part.
    pub part: PartId,
    /// Who sums it.
    pub server: ServerId,
    /// Its bytes in flight, for the credit: those of its body.
    pub bytes: u64,
    /// Which sum of the part; rounds of one part are submitted in order.
    pub round: Round,
    /// How urgent it is.
    pub priority: Priority,
    /// Which of the stages it passes.
    pub route: Route,
    /// The submissions that it serves; several for a part that small tensors share, never none.
    pub groups: Vec<GroupId>,
}

/// One stage of one task, to be executed now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// To be given back with [`Scheduler::finish`](super::Scheduler::finish).
    pub id: TaskId,
    /// Which part.
    pub part: PartId,
    /// Who sums it.
    pub server: ServerId,
    /// Its bytes in flight, as [`TaskSpec::bytes`].
    pub bytes: u64,
    /// Which sum.
    pub round: Round,
    /// How its exchange begins.
    pub attempt: Attempt,
}

/// How the exchange of a task begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// Push the contribution.
    First,
    /// Push it again: an earlier attempt failed, and the contribution is still whole.
    Again,
    /// Push what is left of it: earlier attempts landed so many bytes of the sum, possibly on top of the contribution's first ones.
    Resumed {
        /// Bytes of the sum that landed.
        landed: u64,
    },
}

/// How a stage of a task ended. By then the executor holds nothing of the task's memory, except that a PUSH which is `Done` leaves its
/// exchange open for PULL.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// The next stage may begin.
    Done,
    /// The exchange failed and may be repeated from PUSH. From any other stage than PUSH and PULL it counts as `Failed`.
    Retry {
        /// The cause.
        error: Error,
        /// Bytes of the sum that were written.
        landed: u64,
    },
    /// There is no sense in repeating it.
    Failed(Error),
}

/// The scheduler's record of a task.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) spec: TaskSpec,
    /// Rises with each submission; equal priorities go in this order.
    pub(super) order: u64,
    pub(super) stage: Stage,
    pub(super) place: Place,
    /// When it came to `stage`.
    pub(super) since: Time,
    pub(super) purpose: Purpose,
    pub(super) tries: Tries,
    /// Whether later rounds of its part must wait for it.
    pub(super) holds_round: bool,
    /// Where it stands among the tasks that hold credit; `None` if it holds none.
    pub(super) credit_place: Option<usize>,
}

/// Why a task goes on.
///
/// ```text
/// Wanted ──all its groups failed──────────────────────────► Unwanted
///    │                                                         │
///    └──failed──► Explaining ◄──the other ranks wait for it────┘
///
/// Withdrawing ──its time has passed, or the job ended──► Dropped
/// ```
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Purpose {
    /// A group wants its result.
    Wanted,
    /// No group wants it any more. It ends as soon as its memory is free and the other ranks of its machine do not wait for it.
    Unwanted,
    /// It goes to where the other ranks of its machine wait for the sum, and tells them why there is none.
    Explaining(Error),
    /// It tells its server that this worker withdraws from the round, at the latest until then.
    Withdrawing {
        /// When it ends in any case.
        until: Time,
    },
    /// A withdrawal that is not to be told any more. It ends as soon as its exchange is closed.
    Dropped,
}

impl Purpose {
    /// Whether it is to bring back a sum, and no group waits for it any more.
    pub(super) const fn is_unwanted(&self) -> bool {
        match self {
            Self::Unwanted | Self::Explaining(_) => true,
            Self::Wanted | Self::Withdrawing { .. } | Self::Dropped => false,
        }
    }

    /// Whether it tells a server of a withdrawal, and brings back nothing.
    pub(super) const fn is_withdrawal(&self) -> bool {
        match self {
            Self::Withdrawing { .. } | Self::Dropped => true,
            Self::Wanted | Self::Unwanted | Self::Explaining(_) => false,
        }
    }

    /// What it explains.
    pub(super) const fn failure(&self) -> Option<&Error> {
        match self {
            Self::Explaining(error) => Some(error),
            Self::Wanted | Self::Unwanted | Self::Withdrawing { .. } | Self::Dropped => None,
        }
    }
}

/// What became of the exchanges of a task so far.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// How many failed.
    pub(super) failures: u32,
    /// Why the last one did.
    pub(super) last_failure: Option<Error>,
    /// Bytes of the sum that they have landed, at most.
    pub(super) landed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the queue of its stage, behind these gates.
    Queued(Gates),
    /// At an executor.
    Running,
}

/// What keeps a task from its stage; see the module [`scheduler`](super::scheduler) for which stages have gates.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Gates {
    /// The sum of an earlier round of the part has not arrived.
    pub(super) round: bool,
    /// The server is not connected.
    pub(super) link: bool,
    /// The pause before a repeat lasts until then.
    pub(super) pause: Option<Time>,
}

impl Gates {
    pub(super) fn open(self) -> bool {
        !self.round && !self.link && self.pause.is_none()
    }
}

impl Work {
    /// A task that has been nowhere yet, at its executor as it were.
    pub(super) fn new(spec: TaskSpec, order: u64, now: Time) -> Self {
        Self {
            spec,
            order,
            stage: Stage::Push,
            place: Place::Running,
            since: now,
            purpose: Purpose::Wanted,
            tries: Tries::default(),
            holds_round: false,
            credit_place: None,
        }
    }

    pub(super) fn entry(&self, id: TaskId) -> Entry {
        Entry { task: id, priority: self.spec.priority, order: self.order, bytes: self.spec.bytes }
    }

    pub(super) fn attempt(&self) -> Attempt {
        match (self.tries.failures, self.tries.landed) {
            (0, _) => Attempt::First,
            (_, 0) => Attempt::Again,
            (_, landed) => Attempt::Resumed { landed },
        }
    }

    /// Where it is and what it waits for, for messages.
    pub(super) fn stand(&self) -> String {
        let Self { stage, spec, .. } = self;
        let mut text = match self.place {
            Place::Running => format!("in {stage}"),
            Place::Queued(Gates { link: true, .. }) => format!("waiting for {stage}, {} is not connected", spec.server),
            Place::Queued(Gates { pause: Some(_), .. }) => format!("waiting to repeat {stage}"),
            Place::Queued(Gates { round: true, .. }) => format!("waiting for {stage} until the round before is summed"),
            Place::Queued(Gates { round: false, link: false, pause: None }) => format!("waiting for {stage}"),
        };
        if stage.is_exchange() && self.place == Place::Running {
            text.push_str(&format!(" with {}", spec.server));
        }
        if let Some(error) = &self.tries.last_failure {
            text.push_str(&format!(", attempt {} failed with: {error}", self.tries.failures));
        }
        text
    }
}
