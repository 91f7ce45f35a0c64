//! Which requests the coordinator accepts at which time, and the state of the job in numbers.

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Member, Role, Time, View, WorkerId};
use gradlane_core::wire::frame::{Forming, Health, Hold, MemberStatus, Names, Status};

use super::registry::Registry;
use super::roster::{Identity, Roster, Seat};
use super::stage::Stage;

/// The rank of a member, if it may declare tensors and wait at barriers now.
///
/// # Errors
/// Why it may not.
pub(super) fn asking_worker(stage: &Stage, roster: &Roster, identity: Identity) -> Result<WorkerId> {
    let refused =
        |what: &str, hint: &str| Err(Error::FailedPrecondition { what: what.to_owned(), hint: hint.to_owned() });
    match stage {
        Stage::Forming { .. } => refused("the job has not formed yet", "wait for the running view"),
        Stage::Running if identity.role != Role::Worker => {
            refused("only workers declare and wait", "send the request from a worker")
        }
        Stage::Running => {
            let seat = roster.seat(identity).expect("the connection of a member that lost its seat is closed");
            match seat.health {
                Health::Alive | Health::Suspect => Ok(WorkerId(seat.member.index)),
                Health::Dead | Health::Left => {
                    refused("this worker left the job", "send requests before the worker leaves")
                }
            }
        }
        Stage::Closing { outcome, .. } | Stage::Finished { outcome } => Err(over(outcome)),
    }
}

/// Whether processes that are no members yet may enrol.
///
/// # Errors
/// Why not.
pub(super) fn newcomers(stage: &Stage, roster: &Roster) -> Result<()> {
    match stage {
        Stage::Forming { .. } => Ok(()),
        Stage::Running => Err(roster.refuse_newcomers()),
        Stage::Closing { outcome, .. } | Stage::Finished { outcome } => Err(over(outcome)),
    }
}

/// Whether a process whose connection speaks for this member gets its next certificate. That enrolment is closed does not matter.
///
/// # Errors
/// Why not: it is given up or has left, or the job is over.
pub(super) fn renewal(stage: &Stage, roster: &Roster, identity: Identity) -> Result<()> {
    match stage {
        Stage::Forming { .. } | Stage::Running => {}
        Stage::Closing { outcome, .. } | Stage::Finished { outcome } => return Err(over(outcome)),
    }
    match roster.seat(identity).map(|seat| seat.health) {
        Some(Health::Alive | Health::Suspect) => Ok(()),
        Some(Health::Dead | Health::Left) | None => Err(Error::FailedPrecondition {
            what: "this process is no member of the job any more".to_owned(),
            hint: "its certificate ends with it".to_owned(),
        }),
    }
}

/// The answer to every request after the end.
pub(super) fn over(outcome: &Result<()>) -> Error {
    match outcome {
        Ok(()) => Error::FailedPrecondition { what: "the job ended".to_owned(), hint: "start a new one".to_owned() },
        Err(cause) => cause.clone(),
    }
}

/// Who has come and who has not, for this member. Only one member gets the lists, the worker that came first, or else the server: all members
/// ask, and each would say the same.
pub(super) fn forming(roster: &Roster, asks: Identity) -> Forming {
    let first = roster.seats().min_by_key(|seat| (seat.member.process.role, seat.arrival));
    if first.is_none_or(|first| first.identity() != asks) {
        return Forming::default();
    }
    let (missing, members) = (roster.missing(), roster.in_order());
    let (absent, present) = (missing.len(), members.len());
    let described = members.iter().map(|(member, _)| member.described());
    Forming {
        speaks: true,
        missing: Names::first(missing.into_iter(), absent),
        joined: Names::first(described, present),
    }
}

/// The membership, the health of each member, the loads of the servers, and whether the workers `hold`; without the tensors that wait.
pub(super) fn status(
    now: Time,
    view: View,
    roster: &Roster,
    registry: Option<&Registry>,
    hold: Option<Hold>,
) -> Status {
    let placement = registry.map(Registry::placement);
    let member = |(member, seat): (Member, &Seat)| {
        let servers = placement.filter(|_| member.process.role == Role::Server);
        let load = servers.and_then(|placement| placement.loads().get(member.index as usize));
        MemberStatus {
            health: seat.health,
            silent: now.since(seat.heard),
            progress: seat.progress,
            placed_bytes: load.map_or(0, |load| load.bytes),
            placed_parts: load.map_or(0, |load| load.parts),
        }
    };
    let members = roster.in_order().into_iter().map(member).collect();
    let imbalance = placement.map_or(1.0, |placement| placement.imbalance());
    Status { view, members, imbalance_milli: (imbalance * 1000.0).round() as u64, hold, waits: Box::default() }
}
