//! Whether the workers of this machine reduce among themselves, and how they come to.

use std::sync::Arc;

use crate::collective::{Collective, HostCollective, HostOptions, LocalRank, device_road};
use crate::config::{Config, LocalReduce};
use crate::error::{Error, Result};
use crate::local::PrivateSocket;
use crate::mem::Copies;
use crate::pipeline::Topology;
use crate::runtime::Clock;
use crate::types::{DeviceKind, MachineId, Machines, View, Wiring, WorkerId};

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

/// The place of this worker among those of its machine, as the settings tell it.
///
/// # Errors
/// [`Error::Config`] if they do not say enough.
pub(super) fn wiring(config: &Config) -> Result<Wiring> {
    let unplaced = |knob: &str| Error::Config {
        knob: knob.to_owned(),
        problem: "counts workers by local_rank, which this one does not know".to_owned(),
        hint: format!("set local_rank, as launchers do, or leave {knob} out"),
    };
    let place = |knob: &str| config.local_rank.ok_or_else(|| unplaced(knob));
    let pcie_group = match config.pcie_switch_size {
        Some(devices) => place("pcie_switch_size")? / devices + 1,
        None => Wiring::default().pcie_group,
    };
    let holds = config.reduce_roots.is_empty() || config.reduce_roots.contains(&place("reduce_roots")?);
    Ok(Wiring { pcie_group, holds })
}

/// The job as the worker `rank` sees it, whose tensors may lie in memory of a `device`.
pub(super) fn topology(machines: &Machines, rank: WorkerId, device: DeviceKind) -> Topology {
    let several = |len: usize| u32::try_from(len).expect("bounded by MEMBERS_MAX");
    match machines.team(rank) {
        Some(team) => Topology {
            machines: several(machines.len()),
            local_ranks: several(team.len()),
            pcie_groups: several(machines.groups(rank)),
            local_collective: true,
            ..Topology::single(device)
        },
        // A job with servers pushes, however many workers it has: two stand for many.
        None => Topology::flat(2, device),
    }
}

/// The workers with which `rank` reduces, itself among them.
fn ranks(view: &View, machines: &Machines, rank: WorkerId) -> Vec<LocalRank> {
    let team = machines.team(rank).unwrap_or_default();
    let members = view.workers().filter(|member| team.contains(&WorkerId(member.index)));
    let local = members.map(|member| LocalRank {
        rank: WorkerId(member.index),
        incarnation: member.process.incarnation,
        name: member.name(),
        place: member.place(),
        door: member.process.socket_path.clone(),
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
    let machines = Machines::of(view);
    let ranks = ranks(view, &machines, rank);
    let absent = || Error::Internal { what: format!("{rank} is not among the workers of its machine") };
    let position = |worker: WorkerId| ranks.iter().position(|other| other.rank == worker);
    let me = position(rank).ok_or_else(absent)?;
    let group = machines.group(rank).unwrap_or_default().iter().filter_map(|worker| position(*worker)).collect();
    if config.pcie_switch_size.is_some_and(|size| (size as usize) < ranks.len()) && machines.groups(rank) == 1 {
        tracing::warn!("pcie_switch_size has no effect: it must be set on all workers of the machine");
    }
    let options = HostOptions {
        job: view.job.clone(),
        epoch: view.epoch,
        ranks,
        me,
        group,
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
    use crate::engine::executors::executor;
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
                let met: Vec<WorkerId> = ranks(&view, &machines, rank).into_iter().map(|local| local.rank).collect();
                assert_eq!(met, machines.team(rank).unwrap_or_default());
            }
        }
    }

    #[test]
    fn a_machine_of_several_pcie_groups_reduces_in_each_and_on_its_host() {
        let mut view = View::of_workers(&[(7, "a"), (7, "b"), (7, "c"), (7, "d"), (8, "e")]);
        let config =
            |local_rank| Config { local_rank: Some(local_rank), pcie_switch_size: Some(2), ..Config::default() };
        for (member, local_rank) in view.members.iter_mut().zip([0, 1, 2, 3, 0]) {
            member.process.wiring = wiring(&config(local_rank)).unwrap();
        }
        let machines = Machines::of(&view);
        let stages =
            |rank| Pipeline::for_role(&topology(&machines, WorkerId(rank), DeviceKind::Cuda), false).to_string();
        let grouped = "REDUCE -> COPYD2H -> PCIE_REDUCE -> PUSH -> PULL -> PCIE_BROADCAST -> COPYH2D -> BROADCAST";
        assert_eq!([0, 1, 2, 3].map(stages), [grouped; 4]);
        assert_eq!(stages(4), "COPYD2H -> PUSH -> PULL -> COPYH2D");
        assert_eq!(machines.group(WorkerId(2)), Some([2, 3].map(WorkerId).as_slice()));
    }

    #[test]
    fn whoever_counts_workers_of_a_machine_must_know_its_place() {
        let told = |text: &str| {
            let (name, value) = text.split_once('=').unwrap();
            let mut config = Config::default();
            match name {
                "pcie_switch_size" => config.pcie_switch_size = value.parse().ok(),
                _ => config.reduce_roots = vec![value.parse().unwrap()],
            }
            config
        };
        for text in ["pcie_switch_size=2", "reduce_roots=1"] {
            let error = wiring(&told(text)).unwrap_err().to_string();
            assert!(error.contains("local_rank") && error.contains(text.split('=').next().unwrap()), "{error}");
            assert!(wiring(&Config { local_rank: Some(1), ..told(text) }).is_ok());
        }
        let placed = |local_rank, text| wiring(&Config { local_rank: Some(local_rank), ..told(text) }).unwrap();
        assert_eq!([0, 1, 2, 5].map(|rank| placed(rank, "pcie_switch_size=2").pcie_group), [1, 1, 2, 3]);
        assert_eq!([0, 1].map(|rank| placed(rank, "reduce_roots=1").holds), [false, true]);
        assert_eq!(wiring(&Config::default()), Ok(Wiring::default()));
    }

    #[test]
    fn every_stage_of_every_worker_has_its_executor() {
        let jobs: [&[Place]; 4] = [
            &[(7, "a")],
            &[(7, "a"), (7, "b")],
            &[(7, "a"), (7, "b"), (7, "c"), (8, "d")],
            &[(7, "a"), (7, ""), (8, "c"), (8, "d")],
        ];
        for members in jobs {
            let machines = Machines::of(&View::of_workers(members));
            for (rank, device) in (0..)
                .map(WorkerId)
                .take(members.len())
                .flat_map(|rank| [(rank, DeviceKind::Host), (rank, DeviceKind::Cuda)])
            {
                let pipeline = Pipeline::for_role(&topology(&machines, rank, device), false);
                let missing: Vec<_> = pipeline.stages().iter().filter(|stage| executor(**stage).is_none()).collect();
                assert!(missing.is_empty(), "{missing:?} of {pipeline}, {members:?}, {rank}");
            }
        }
    }
}
