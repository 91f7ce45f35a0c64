//! Whether the workers of this machine reduce among themselves, and how they come to.

use std::sync::Arc;

use super::Clock;
use crate::collective::{Collective, HostCollective, HostOptions, LocalRank, device_road};
use crate::config::{Config, LocalReduce};
use crate::error::{Error, Result};
use crate::local::PrivateSocket;
use crate::mem::Copies;
use crate::pipeline::{DeviceKind, Topology};
use crate::types::{MachineId, Machines, View, WorkerId};

/// Where other workers of this machine find this one; `None` where they shall not, or cannot.
pub(super) fn open_door(config: &Config, machine: MachineId, workers: u32) -> Option<PrivateSocket> {
    if config.local_reduce == LocalReduce::Off || machine == MachineId::UNKNOWN || workers == 1 {
        return None;
    }
    // A worker without a door makes all of them push, which is slower and always possible.
    let refused =
        |error: &Error| tracing::warn!(%error, "the workers of this machine will not reduce among themselves");
    PrivateSocket::listen(&std::env::temp_dir()).inspect_err(refused).ok()
}

/// The job as the worker `rank` sees it, whose tensors may lie in memory of a `device`.
pub(super) fn topology(machines: &Machines, rank: WorkerId, device: DeviceKind) -> Topology {
    let several = |len: usize| u32::try_from(len).expect("bounded by MEMBERS_MAX");
    match machines.team(rank) {
        Some(team) => Topology {
            machines: several(machines.len()),
            local_ranks: several(team.len()),
            local_collective: true,
            ..Topology::single(device)
        },
        // A job with servers pushes, however many workers it has: two stand for many.
        None => Topology::flat(2, device),
    }
}

/// The workers with which `rank` reduces, itself among them.
fn ranks(view: &View, rank: WorkerId) -> Vec<LocalRank> {
    let machines = Machines::of(view);
    let team = machines.team(rank).unwrap_or_default();
    let members = view.workers().filter(|member| team.contains(&WorkerId(member.index)));
    let local = members.map(|member| LocalRank {
        rank: WorkerId(member.index),
        incarnation: member.incarnation,
        name: member.name(),
        place: member.place(),
        door: member.door.clone(),
    });
    let mut ranks: Vec<LocalRank> = local.collect();
    ranks.sort_by_key(|local| local.rank);
    ranks
}

/// Meets the other workers of this machine.
///
/// # Errors
/// As [`HostCollective::join`].
pub(super) fn meet(
    config: &Config,
    view: &View,
    rank: WorkerId,
    door: Option<PrivateSocket>,
    copies: Copies,
    clock: Clock,
    failed: &dyn Fn() -> Option<Error>,
) -> Result<Arc<dyn Collective>> {
    let ranks = ranks(view, rank);
    let absent = || Error::Internal { what: format!("{rank} is not among the workers of its machine") };
    let me = ranks.iter().position(|other| other.rank == rank).ok_or_else(absent)?;
    let options = HostOptions {
        job: view.job.clone(),
        epoch: view.epoch,
        ranks,
        me,
        door: door.filter(|_| me == 0),
        join_timeout: config.join_timeout,
        step_timeout: config.step_timeout,
        oldest_every: config.oldest_every,
        copies,
        devices: device_road(config),
        clock: Arc::new(move || clock.now()),
    };
    Ok(Arc::new(HostCollective::join(options, failed)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Pipeline;
    use crate::types::view::Place;

    #[test]
    fn every_worker_passes_the_stages_of_its_machine() {
        let (push, tiers) = ("PUSH -> PULL", "REDUCE -> PUSH -> PULL -> BROADCAST");
        let (copied, copied_tiers) =
            ("COPYD2H -> PUSH -> PULL -> COPYH2D", "REDUCE -> COPYD2H -> PUSH -> PULL -> COPYH2D -> BROADCAST");
        let table: [(&[Place], &[&str]); 4] = [
            (&[(7, "a"), (7, "b")], &["ALL_REDUCE", "ALL_REDUCE"]),
            (&[(7, "a"), (7, "b"), (7, "c"), (8, "d")], &[tiers, tiers, tiers, push]),
            (&[(7, "a"), (7, ""), (8, "c"), (8, "d")], &[push, push, tiers, tiers]),
            (&[(7, "a"), (7, "")], &[push, push]),
        ];
        for (members, stages) in table {
            let view = View::of_workers(members);
            let machines = Machines::of(&view);
            for (rank, expected) in (0..).map(WorkerId).zip(stages) {
                for (device, copies) in [(DeviceKind::Host, false), (DeviceKind::Cuda, true)] {
                    let pipeline = Pipeline::for_role(&topology(&machines, rank, device), false);
                    let expected = match *expected {
                        stages if stages == push && copies => copied,
                        stages if stages == tiers && copies => copied_tiers,
                        stages => stages,
                    };
                    assert_eq!(pipeline.to_string(), expected, "{members:?}, {rank}");
                }
                let met: Vec<WorkerId> = ranks(&view, rank).into_iter().map(|local| local.rank).collect();
                assert_eq!(met, machines.team(rank).unwrap_or_default());
            }
        }
    }
}
