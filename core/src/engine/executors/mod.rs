//! What each stage does with a task. An executor decides nothing: it translates a task into one call of a driver, and the driver's
//! report into one `Scheduler::finish`.

mod collective;
mod copy;
mod pull;
mod push;

use super::stage_loop::Executor;
use crate::error::Error;
use crate::pipeline::stage::Stage;
use crate::sched::Outcome;

/// The executor of a stage, or `None` where this build has none: such a stage stands in no pipeline.
pub(super) fn executor(stage: Stage) -> Option<Executor> {
    match stage {
        Stage::AllReduce => Some(collective::all_reduce),
        Stage::Reduce => Some(collective::reduce),
        Stage::PcieReduce => Some(collective::pcie_reduce),
        Stage::PcieBroadcast => Some(collective::pcie_broadcast),
        Stage::Broadcast => Some(collective::broadcast),
        Stage::Push => Some(push::execute),
        Stage::Pull => Some(pull::execute),
        Stage::CopyD2H => Some(copy::to_host),
        Stage::CopyH2D => Some(copy::to_device),
        Stage::Compress | Stage::Decompress => None,
    }
}

/// What becomes of a task whose exchange broke off after so many bytes of the sum had landed.
fn broken_off(error: Error, landed: u64) -> Outcome {
    match error {
        // Nobody wants it any more, or another version is at the other end, which does not pass by waiting.
        Error::Cancelled | Error::Incompatible { .. } => Outcome::Failed(error),
        error => Outcome::Retry { error, landed },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_new_connection_may_cure_is_tried_again() {
        let [field, ours, peer, theirs] = ["protocol version", "2", "server 0", "1"].map(str::to_owned);
        for lasting in [Error::Cancelled, Error::Incompatible { field, ours, peer, theirs }] {
            assert_eq!(broken_off(lasting.clone(), 7), Outcome::Failed(lasting));
        }
        let error = Error::Unavailable { what: "server 0".to_owned(), cause: "it restarted".to_owned() };
        assert_eq!(broken_off(error.clone(), 7), Outcome::Retry { error, landed: 7 });
    }
}
