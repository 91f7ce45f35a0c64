//! The other workers of this machine: whether they are reachable, and how this one meets them.

use std::sync::Arc;

use crate::collective::{Collective, Hears, HostCollective, HostOptions, LocalRank, Traffic, device_collective};
use crate::config::{Config, LocalReduce, OnServerLoss};
use crate::error::{Error, Result};
use crate::local::PrivateSocket;
use crate::mem::{Copies, Doubt};
use crate::runtime::Clock;
use crate::types::{MachineId, NodeId, Wiring, WorkerId};
use crate::worker::Formation;

/// Opens the socket at which other workers of this machine reach this one; `None` if they must not or cannot reach it. `check` says
/// whether the system has the shared memory that they need.
pub(super) fn listen(
    config: &Config,
    machine: MachineId,
    workers: u32,
    check: impl FnOnce() -> Result<()>,
) -> Option<PrivateSocket> {
    let is_alone = workers == 1 && !config.takes_newcomers();
    if config.local_reduce == LocalReduce::Off || machine == MachineId::UNKNOWN || is_alone {
        return None;
    }
    // If one worker has no socket, all of them push, which is slower but always possible.
    let refused =
        |error: &Error| tracing::warn!(%error, "the workers of this machine will not reduce among themselves");
    let listen = check().and_then(|()| PrivateSocket::listen(&std::env::temp_dir()));
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

/// Whether a job with these settings goes on when a worker leaves. The coordinator's setting decides. Where this worker's differs, what waits
/// for one that leaves fails.
pub(super) fn goes_on(config: &Config) -> bool {
    config.on_worker_loss.goes_on()
}

/// Whether the job goes on without servers that are lost.
pub(super) fn outlives_servers(config: &Config) -> bool {
    config.on_server_loss == OnServerLoss::Continue
}

/// Records of the work of the workers of this machine, which the engine reads.
pub(super) struct Accounting {
    /// Counts copies.
    pub(super) copies: Copies,
    /// Whether memory may still be written.
    pub(super) doubt: Doubt,
    /// Counts what goes between devices.
    pub(super) traffic: Traffic,
}

/// The nodes and processes of the team of a formation, by position among its ranks.
pub(super) fn processes(formation: &Formation) -> Vec<(NodeId, u32)> {
    let of = |rank: &WorkerId| formation.view.workers().find(|member| member.index == rank.0);
    formation.team.iter().filter_map(of).map(|member| (member.node, member.process.pid)).collect()
}

/// Meets the other workers of this machine, for the first time or again. `failed` says why it should not be waited for, if it should not.
///
/// # Errors
/// As [`HostCollective::join`].
pub(super) fn meet(
    config: &Config,
    formation: &Formation,
    (socket, is_again): (Option<Arc<PrivateSocket>>, bool),
    Accounting { copies, doubt, traffic }: Accounting,
    clock: Clock,
    (hears, on_lost): (Hears, Box<dyn Fn(usize) + Send>),
    failed: &dyn Fn() -> Option<Error>,
) -> Result<Arc<dyn Collective>> {
    let Formation { rank, view, machines, team, .. } = formation;
    let ranks = LocalRank::of_team(view, team);
    let absent = || Error::Internal { what: format!("{rank} is not among the workers of its machine") };
    let position = |worker: WorkerId| ranks.iter().position(|other| other.rank == worker);
    let me = position(*rank).ok_or_else(absent)?;
    let group = machines.group(*rank).unwrap_or(&[*rank]).iter().filter_map(|worker| position(*worker)).collect();
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
        is_again,
        goes_on: goes_on(config),
        join_timeout: config.join_timeout,
        step_timeout: config.step_timeout,
        stall_warn: config.stall_warn,
        hears,
        on_lost,
        oldest_every: config.oldest_every,
        nan_check: config.nan_check,
        copies,
        traffic,
        devices: device_collective(config),
        doubt,
        clock: Arc::new(move || clock.shared(clock.now())),
    };
    Ok(Arc::new(HostCollective::join(options, failed)?))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::sync::{Mutex, PoisonError};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;
    use crate::types::{DeviceKind, View};

    #[test]
    fn where_no_memory_can_be_sealed_there_is_no_socket_and_a_warning_why() {
        let (config, machine) = (Config::default(), MachineId(7));
        let refused =
            || Err(Error::FailedPrecondition { what: "no seals here".to_owned(), hint: "leave it".to_owned() });
        let warnings = Arc::new(Warnings::default());
        let socket = tracing::subscriber::with_default(Arc::clone(&warnings), || listen(&config, machine, 2, refused));
        assert!(socket.is_none());
        let said = warnings.0.lock().unwrap().clone();
        assert!(said.len() == 1 && said[0].contains("no seals here") && said[0].contains("leave it"), "{said:?}");
        assert!(said[0].contains("will not reduce among themselves"), "{said:?}");
        assert!(listen(&config, machine, 2, || Ok(())).is_some_and(|socket| socket.path().exists()));
    }

    #[test]
    fn a_worker_that_must_not_be_reached_does_not_ask_what_the_system_has() {
        let (on, machine) = (Config::default(), MachineId(7));
        let off = Config { local_reduce: LocalReduce::Off, ..Config::default() };
        for (config, machine, workers) in [(&off, machine, 2), (&on, MachineId::UNKNOWN, 2), (&on, machine, 1)] {
            assert!(listen(config, machine, workers, || panic!("nobody needs to know")).is_none());
        }
    }

    /// The warnings of a thread, with their fields.
    #[derive(Default)]
    struct Warnings(Mutex<Vec<String>>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn event(&self, event: &Event<'_>) {
            let mut line = Line::default();
            event.record(&mut line);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[derive(Default)]
    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            write!(self.0, "{field}={value:?} ").expect("a string takes all");
        }
    }

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
