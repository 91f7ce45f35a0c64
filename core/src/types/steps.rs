//! The steps of a job, and the boundaries between them at which its membership may change.

use super::WorkerSet;

/// What a worker says of its steps. Each report replaces the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepReport {
    /// How many steps it has begun. Until [`Self::change`] has passed, it begins no more than that change allows.
    pub begun: u64,
    /// The newest change that it has heard of; 0 if none.
    pub change: u64,
    /// Whether it waits at the boundary behind the last step that this change allows, and all its operations have ended.
    pub stands: bool,
    /// Whether it is in no step, and may not begin another: its loop has ended.
    pub rests: bool,
    /// Whether it wants to leave at a boundary.
    pub leaves: bool,
}

/// That all workers stood at the same boundary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passage {
    /// How many steps each of them had begun, and ended.
    pub step: u64,
    /// The workers of the job from there on.
    pub workers: WorkerSet,
    /// Whether the membership of the worker that is told ends here.
    pub leaves: bool,
    /// Whether the job forms again, with workers that have come. Then all leave, and those above join anew.
    pub forms_again: bool,
}
