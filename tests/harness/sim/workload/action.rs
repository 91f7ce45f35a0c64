//! What a worker does, step by step.

use std::time::Duration;

use gradlane_core::cluster::Patience;
use gradlane_core::types::Access;

use super::Asking;

/// One thing that a worker does.
#[derive(Clone, Debug)]
pub(in crate::sim) enum Action {
    /// Declares tensors and waits for the answer.
    Declare { tensors: Vec<usize>, fuse: bool },
    /// Submits the next round of a tensor.
    Submit { tensor: usize, round: u64, timeout: Option<Duration> },
    /// Submits the next rounds of several tensors as one batch.
    SubmitAll { members: Vec<(usize, u64)>, timeout: Option<Duration> },
    /// Gives a submission up.
    Cancel { tensor: usize, round: u64 },
    /// Waits for all submissions up to this round.
    Await { round: u64 },
    /// Uses the names of these tensors no more.
    Undeclare { tensors: Vec<usize> },
    /// Uses the names of all parameters no more.
    UndeclareParameters,
    /// Uses a parameter.
    Use { parameter: usize, access: Access, timeout: Option<Duration> },
    /// Gives the latest use of a parameter up.
    CancelUse { parameter: usize },
    /// Waits for all uses.
    AwaitUses,
    /// Begins a round of the clock, for which it does so many actions. It leaves them out if others have closed the round already.
    BeginRound { round: u64, actions: usize },
    /// Finishes the round, and waits for its end.
    Tick,
    /// Ticks the clock no more.
    LeaveClock,
    /// Asks the store, and does not wait for the answer.
    Ask { asking: Asking, patience: Patience },
    /// Begins a step, and waits at the boundary before it if workers leave or were lost.
    Step,
    /// Is in no step until it begins the next one.
    Rest,
    /// Waits at a barrier.
    Barrier { name: String, patience: Patience },
    /// Computes.
    Think(Duration),
}
