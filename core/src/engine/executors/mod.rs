//! What each stage does with a task. An executor decides nothing: it translates a task into one call of a driver, and the driver's
//! report into one `Scheduler::finish`.

mod collective;
mod pull;
mod push;

use super::stage_loop::Executor;
use crate::pipeline::stage::Stage;

/// The executor of a stage, or `None` where this build has none: such a stage never stands in a host's pipeline.
pub(super) fn executor(stage: Stage) -> Option<Executor> {
    match stage {
        Stage::AllReduce => Some(collective::all_reduce),
        Stage::Reduce => Some(collective::reduce),
        Stage::Broadcast => Some(collective::broadcast),
        Stage::Push => Some(push::execute),
        Stage::Pull => Some(pull::execute),
        Stage::CopyD2H | Stage::PcieReduce | Stage::Compress | Stage::Decompress | Stage::CopyH2D => None,
    }
}
