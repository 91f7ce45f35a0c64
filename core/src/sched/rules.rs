//! What a stage means for credit and gates.

use crate::pipeline::Stage;
use crate::types::DeviceKind;

/// Where a task needs credit, unless it has some.
pub(super) fn needs_credit(stage: Stage) -> bool {
    matches!(stage, Stage::CopyD2H | Stage::Push)
}

/// Where a task gives its credit back when it is done.
pub(super) fn ends_credit(memory: DeviceKind) -> Stage {
    match memory {
        DeviceKind::Host => Stage::Pull,
        DeviceKind::Cuda => Stage::CopyH2D,
    }
}

/// A server keeps two rounds of a part alive, and ranks that reduce together announce the rounds of a part in order.
pub(super) fn waits_for_the_round_before(stage: Stage) -> bool {
    matches!(stage, Stage::AllReduce | Stage::Reduce | Stage::CopyD2H | Stage::Push)
}

/// What is staged for a server that is not connected would hold its memory and wait.
pub(super) fn goes_to_server(stage: Stage) -> bool {
    matches!(stage, Stage::CopyD2H | Stage::Push)
}
