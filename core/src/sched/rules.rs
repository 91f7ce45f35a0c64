//! The rules of credit and gates for each stage.

use crate::pipeline::{Duty, Pipeline, Route, Stage};
use crate::types::DeviceKind;

/// The stage at which a task must draw credit, unless it holds some.
pub(super) fn needs_credit(stage: Stage) -> bool {
    matches!(stage, Stage::CopyD2H | Stage::Compress | Stage::Push)
}

/// The stage at whose end a task returns its credit.
pub(super) fn ends_credit(route: Route) -> Stage {
    match route.memory {
        DeviceKind::Cuda => Stage::CopyH2D,
        DeviceKind::Host if route.decompressed => Stage::Decompress,
        DeviceKind::Host if route.lands => Stage::Land,
        DeviceKind::Host => Stage::Pull,
    }
}

/// Whether a task holds memory of the engine, to send from or for its sum, from PUSH or before until it returns its credit.
pub(super) fn is_staged(route: Route) -> bool {
    ends_credit(route) != Stage::Pull
}

/// Whether a task waits before `stage` for the sum of the part's round before. A server keeps two rounds of a part alive, and the ranks of
/// a machine announce the rounds of a part in order.
pub(super) fn waits_for_the_round_before(stage: Stage) -> bool {
    matches!(stage, Stage::AllReduce | Stage::Reduce | Stage::CopyD2H | Stage::Compress | Stage::Push)
}

/// Whether `stage` waits while the task's server is not connected. A task that was staged earlier would only hold memory and wait. The PCIe
/// groups of one machine stage their sums too, and need no server: a lost connection, which is there for parameters, does not hold those up.
pub(super) fn goes_to_server(pipeline: &Pipeline, stage: Stage, route: Route) -> bool {
    exchanges(pipeline, route) && matches!(stage, Stage::CopyD2H | Stage::Compress | Stage::Push)
}

/// Whether this rank itself exchanges a task with the server, in a job whose sums need servers, or for a parameter. The connection of a rank
/// whose machine has another owner for the part does not matter.
pub(super) fn exchanges(pipeline: &Pipeline, route: Route) -> bool {
    is_client(route) || pipeline.pushes() && others_wait(route)
}

/// Whether other workers may wait at the server for what this rank contributes, in a job whose sums need servers.
pub(super) fn others_wait(route: Route) -> bool {
    matches!(route.duty, Duty::Owner | Duty::Alone | Duty::Giver)
}

/// Whether a task uses a parameter, which concerns nobody but its worker and a server.
pub(super) fn is_client(route: Route) -> bool {
    matches!(route.duty, Duty::Client { .. })
}
