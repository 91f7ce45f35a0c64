//! The other workers of this machine: whether they are reachable, and how this one meets them.

use std::sync::Arc;

use crate::collective::{Collective, HostCollective, HostOptions, LocalRank, Traffic, device_collective};
use crate::config::{Config, LocalReduce};
use crate::error::{Error, Result};
use crate::local::{PrivateSocket, Segment};
use crate::mem::{Copies, Doubt};
use crate::runtime::Clock;
use crate::types::{MachineId, Wiring, WorkerId};
use crate::wire::frame::Stall;
use crate::worker::Formation;

/// Opens the socket at which other workers of this machine reach this one; `None` if they must not or cannot reach it.
pub(super) fn listen(config: &Config, machine: MachineId, workers: u32) -> Option<PrivateSocket> {
    if config.local_reduce == LocalReduce::Off || machine == MachineId::UNKNOWN || workers == 1 {
        return None;
    }
    // If one worker has no socket, all of them push, which is slower but always possible.
    let refused =
        |error: &Error| tracing::warn!(%error, "the workers of this machine will not reduce among themselves");
    let listen = Segment::check_system().and_then(|()| PrivateSocket::listen(&std::env::temp_dir()));
    listen.inspect_err(refused).ok()
}

/// The place of this worker among those of its machine, from the settings.
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

/// What the engine hears of the work of its machine's workers.
pub(super) struct Books {
    /// Counts copies.
    pub(super) copies: Copies,
    /// Whether memory may still be written.
    pub(super) doubt: Doubt,
    /// Counts what goes between devices.
    pub(super) traffic: Traffic,
}

/// Meets the other workers of this machine.
///
/// # Errors
/// As [`HostCollective::join`].
pub(super) fn meet(
    config: &Config,
    formation: &Formation,
    socket: Option<PrivateSocket>,
    Books { copies, doubt, traffic }: Books,
    clock: Clock,
    on_stall: Box<dyn Fn(Stall) + Send>,
    failed: &dyn Fn() -> Option<Error>,
) -> Result<Arc<dyn Collective>> {
    let Formation { rank, view, machines, team, .. } = formation;
    let ranks = LocalRank::of_team(view, team);
    let absent = || Error::Internal { what: format!("{rank} is not among the workers of its machine") };
    let position = |worker: WorkerId| ranks.iter().position(|other| other.rank == worker);
    let me = position(*rank).ok_or_else(absent)?;
    let group = machines.group(*rank).unwrap_or_default().iter().filter_map(|worker| position(*worker)).collect();
    if config.pcie_switch_size.is_some_and(|size| (size as usize) < ranks.len()) && machines.groups(*rank) == 1 {
        tracing::warn!("pcie_switch_size has no effect: it must be set on all workers of the machine");
    }
    let options = HostOptions {
        job: view.job.clone(),
        epoch: view.epoch,
        ranks,
        me,
        group,
        listener: socket.filter(|_| me == 0),
        join_timeout: config.join_timeout,
        step_timeout: config.step_timeout,
        stall_warn: config.stall_warn,
        on_stall,
        oldest_every: config.oldest_every,
        copies,
        traffic,
        devices: device_collective(config),
        doubt,
        clock: Arc::new(move || clock.now()),
    };
    Ok(Arc::new(HostCollective::join(options, failed)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DeviceKind, View};

    #[test]
    fn a_worker_meets_the_workers_of_its_machine_by_rank() {
        let view = View::of_workers(&[(7, "a"), (8, "b"), (7, "c"), (8, ""), (7, "d")]);
        let met = |rank| {
            let formation = Formation::of(WorkerId(rank), view.clone(), DeviceKind::Host);
            let team = LocalRank::of_team(&formation.view, &formation.team);
            team.into_iter().map(|local| local.rank.0).collect::<Vec<_>>()
        };
        assert_eq!([0, 1, 2, 3].map(met), [vec![0, 2, 4], vec![], vec![0, 2, 4], vec![]]);
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
}
