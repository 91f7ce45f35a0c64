//! A part on its way through the stages.

use super::ids::{GroupId, TaskId};
use super::queue::Entry;
use super::waits::Waits;
use crate::error::Error;
use crate::metrics::WaitReason;
use crate::pipeline::{Route, Stage};
use crate::types::{PartId, Priority, Round, ServerId, Time, Waited};

/// What [`Scheduler::submit`](super::Scheduler::submit) needs to know about a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskSpec {
    /// The part.
    pub part: PartId,
    /// The server that sums it.
    pub server: ServerId,
    /// The bytes of its body, for the credit.
    pub bytes: u64,
    /// The round; rounds of one part are submitted in order.
    pub round: Round,
    /// Its priority.
    pub priority: Priority,
    /// Decides which stages it passes.
    pub route: Route,
    /// The submissions that it serves: at least one, and several for a part that small tensors share.
    pub groups: Vec<GroupId>,
}

/// One stage of one task, for an executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// The argument of [`Scheduler::finish`](super::Scheduler::finish).
    pub id: TaskId,
    /// The part.
    pub part: PartId,
    /// The server that sums it.
    pub server: ServerId,
    /// Its bytes in flight, as [`TaskSpec::bytes`].
    pub bytes: u64,
    /// The round.
    pub round: Round,
    /// How its exchange begins.
    pub attempt: Attempt,
    /// In PUSH, and in the first stage that the ranks of a machine do together: what it waited for until the first one.
    pub waited: Waited,
}

/// How the exchange of a task begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt {
    /// Push the contribution.
    First,
    /// Push it again: an earlier attempt failed, and the contribution is still intact.
    Again,
    /// Push the rest of it: earlier attempts landed `landed` bytes of the sum, possibly over the first bytes of the contribution.
    Resumed {
        /// Bytes of the sum that landed.
        landed: u64,
    },
}

/// How a stage of a task ended. The executor no longer holds memory of the task, with one exception: a PUSH that is `Done` leaves its
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
    /// The stage failed, and a repeat would not help.
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
    /// The time at which it came to `stage`.
    pub(super) since: Time,
    pub(super) purpose: Purpose,
    pub(super) tries: Tries,
    /// What it waited for until its first push.
    pub(super) waits: Waits,
    /// Whether later rounds of its part must wait for it.
    pub(super) holds_round: bool,
    /// Its index among the tasks that hold credit; `None` if it holds none.
    pub(super) credit_place: Option<usize>,
    /// Whether the ranks of its machine that began it are others now, so that nobody there waits for it.
    pub(super) is_broken_up: bool,
}

/// The purpose of a task, which decides how it continues.
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
    /// A group waits for its result.
    Wanted,
    /// No group waits for it any more. It ends as soon as its memory is free and no other rank of its machine waits for it.
    Unwanted,
    /// It goes to the stage at which the other ranks of its machine wait for the sum, and tells them why there is none.
    Explaining(Error),
    /// It tells its server that this worker withdraws from the round.
    Withdrawing {
        /// The deadline after which it ends, even if the server was not told.
        until: Time,
    },
    /// A withdrawal that is not sent any more. It ends as soon as its exchange is closed.
    Dropped,
}

impl Purpose {
    /// Whether it was to bring a sum for which no group waits any more.
    pub(super) const fn is_unwanted(&self) -> bool {
        match self {
            Self::Unwanted | Self::Explaining(_) => true,
            Self::Wanted | Self::Withdrawing { .. } | Self::Dropped => false,
        }
    }

    /// Whether it tells a server of a withdrawal, and brings no sum.
    pub(super) const fn is_withdrawal(&self) -> bool {
        match self {
            Self::Withdrawing { .. } | Self::Dropped => true,
            Self::Wanted | Self::Unwanted | Self::Explaining(_) => false,
        }
    }

    /// The failure that it explains to the other ranks.
    pub(super) const fn failure(&self) -> Option<&Error> {
        match self {
            Self::Explaining(error) => Some(error),
            Self::Wanted | Self::Unwanted | Self::Withdrawing { .. } | Self::Dropped => None,
        }
    }
}

/// The failed exchanges of a task so far.
#[derive(Debug, Default)]
pub(super) struct Tries {
    /// How many failed.
    pub(super) failures: u32,
    /// Why the last one did.
    pub(super) last_failure: Option<Error>,
    /// The most bytes of the sum that any of them has landed.
    pub(super) landed: u64,
    /// When the first of them failed.
    pub(super) since: Option<Time>,
    /// Since when the server refuses the part because it has no memory for it; absent if the last failure had another cause.
    pub(super) short_since: Option<Time>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the queue of its stage, with these gates.
    Queued(Gates),
    /// An executor runs it.
    Running,
}

/// The reasons for which a task waits before its stage. The module [`scheduler`](super::scheduler) says which stages have gates.
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
        self.reason().is_none()
    }

    /// What they wait for; `None` if they are open.
    pub(super) fn reason(self) -> Option<WaitReason> {
        match self {
            Self { round: true, .. } => Some(WaitReason::Order),
            Self { link: true, .. } | Self { pause: Some(_), .. } => Some(WaitReason::Link),
            Self { round: false, link: false, pause: None } => None,
        }
    }
}

impl Work {
    /// A new task, which has no place in a queue yet.
    pub(super) fn new(spec: TaskSpec, order: u64, now: Time) -> Self {
        Self {
            spec,
            order,
            stage: Stage::Push,
            place: Place::Running,
            since: now,
            purpose: Purpose::Wanted,
            tries: Tries::default(),
            waits: Waits::default(),
            holds_round: false,
            credit_place: None,
            is_broken_up: false,
        }
    }

    /// Whether it is on its way to its first push, so that what it waits for is noted.
    pub(super) fn comes_to_push(&self) -> bool {
        (self.stage == Stage::Push || self.stage.precedes_push()) && self.tries.failures == 0
    }

    /// Since when it waits for the end of its stage. Repeats are one wait: each of them comes to PUSH anew.
    pub(super) fn waits_since(&self) -> Time {
        self.tries.since.filter(|_| self.stage.is_exchange()).unwrap_or(self.since)
    }

    /// Whether it waits to repeat an exchange that failed.
    pub(super) fn is_paused(&self) -> bool {
        matches!(self.place, Place::Queued(Gates { pause: Some(_), .. }))
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

    /// Describes in messages where it is and what it waits for.
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
