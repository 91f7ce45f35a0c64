//! What a stage means for credit and gates.

use crate::pipeline::{Route, Stage};
use crate::types::DeviceKind;

/// Where a task needs credit, unless it has some.
pub(super) fn needs_credit(stage: Stage) -> bool {
    matches!(stage, Stage::CopyD2H | Stage::Compress | Stage::Push)
}

/// Where a task gives its credit back when it is done.
pub(super) fn ends_credit(route: Route) -> Stage {
    match (route.memory, route.coded) {
        (DeviceKind::Host, false) => Stage::Pull,
        (DeviceKind::Host, true) => Stage::Decompress,
        (DeviceKind::Cuda, _) => Stage::CopyH2D,
    }
}

/// Whether what a task sends lies in memory of the engine's, which it holds from before PUSH to the end of its credit.
pub(super) fn is_staged(route: Route) -> bool {
    ends_credit(route) != Stage::Pull
}

/// A server keeps two rounds of a part alive, and ranks that reduce together announce the rounds of a part in order.
pub(super) fn waits_for_the_round_before(stage: Stage) -> bool {
    matches!(stage, Stage::AllReduce | Stage::Reduce | Stage::CopyD2H | Stage::Compress | Stage::Push)
}

/// What is staged for a server that is not connected would hold its memory and wait.
pub(super) fn goes_to_server(stage: Stage) -> bool {
    matches!(stage, Stage::CopyD2H | Stage::Compress | Stage::Push)
}
