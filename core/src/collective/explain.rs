//! Turns failures of the order, and of other ranks, into the errors that callers get.

use std::time::Duration;

use super::order::{Claim, Failure, Slot};
use super::ranks::{Breakage, LocalRank};
use crate::error::{Claim as Saying, Error};
use crate::types::{Goal, Op, WorkerId};

/// The error of an operation that failed, for its caller.
pub(super) fn explain(ranks: &[LocalRank], (part, place): Slot, failure: Failure, waited: Duration) -> Error {
    let round = Goal::round(place);
    let worker = |rank: u32| ranks[rank as usize].rank;
    let stalled = |missing: u64, waited: Duration, detail: String| Error::Stalled {
        tensor: part.key.into(),
        round,
        missing: named(ranks, missing),
        waited,
        notice: Box::default(),
        detail: detail.into(),
    };
    match failure {
        Failure::Mismatch { first, ours, second, theirs } => {
            let (field, mine, other) = disagreement(&ours, &theirs);
            let saying = |worker: WorkerId, value| Saying { worker, value };
            Error::Mismatch {
                tensor: part.key.into(),
                field: field.to_owned(),
                first: saying(worker(first), mine),
                second: saying(worker(second), other),
            }
        }
        Failure::GaveUp { rank } => {
            let detail = format!("{} gave this round up", worker(rank));
            stalled(1 << rank, waited, detail)
        }
        Failure::WentOn { rank } => {
            let detail = format!("{} gave this round up and went on to a later one", worker(rank));
            stalled(1 << rank, waited, detail)
        }
        Failure::Overdue { missing, waited } => {
            stalled(missing, waited, "their processes run on this machine, and did not submit it".to_owned())
        }
        Failure::Left { missing } => stalled(missing, waited, "left the job before".to_owned()),
    }
}

/// The error of an operation to which the rank at this position contributed a NaN or an infinity.
pub(super) fn not_finite(ranks: &[LocalRank], (part, place): Slot, rank: usize) -> Error {
    Error::NotFinite { tensor: part.key.into(), round: Goal::round(place), from: ranks[rank].rank.to_string() }
}

/// The ranks of a set that has one bit for each of `ranks`.
pub(super) fn named(ranks: &[LocalRank], bits: u64) -> Vec<WorkerId> {
    (0..).zip(ranks).filter(|(bit, _)| bits & (1 << bit) != 0).map(|(_, of)| of.rank).collect()
}

/// The error for all operations once the ranks cannot work together any more.
pub(super) fn broken(ranks: &[LocalRank], breakage: Breakage) -> Error {
    let lost = |rank: usize, cause: &str| Error::PeerLost {
        member: ranks[rank].name.clone(),
        host: ranks[rank].place.clone(),
        cause: cause.to_owned(),
    };
    match breakage {
        Breakage::Lost(rank) => lost(rank, "its process ended"),
        Breakage::Stuck(rank) => lost(rank, "its process lives and does nothing any more"),
        Breakage::Failed(rank) => lost(rank, "its devices failed; its own error says how"),
        Breakage::Confused(rank) => Error::Protocol {
            peer: ranks[rank].name.clone(),
            field: "shared memory".to_owned(),
            problem: "has no meaning".to_owned(),
        },
    }
}

/// The place of a device among those of a worker.
fn ordinal(device_index: u8) -> &'static str {
    ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"][usize::from(device_index)]
}

/// The field in which two claims differ, and its value in each.
fn disagreement(ours: &Claim, theirs: &Claim) -> (&'static str, String, String) {
    if ours.dtype != theirs.dtype {
        ("dtype", ours.dtype.to_string(), theirs.dtype.to_string())
    } else if ours.bytes != theirs.bytes {
        ("length", format!("{} bytes", ours.bytes), format!("{} bytes", theirs.bytes))
    } else if ours.device != theirs.device {
        ("device", ours.device.to_string(), theirs.device.to_string())
    } else if ours.device_index != theirs.device_index {
        let used = |device_index: u8| format!("{} {} that it used", ours.device, ordinal(device_index));
        ("device", used(ours.device_index), used(theirs.device_index))
    } else if ours.members != theirs.members {
        let count = |claim: &Claim| match claim.members {
            Claim::ALL_RANKS => "all ranks of the machine".to_owned(),
            members => format!("{} ranks of the machine", members.count_ones()),
        };
        ("participants", count(ours), count(theirs))
    } else {
        let op = |op: Op| op.to_string();
        ("op", op(ours.op), op(theirs.op))
    }
}
