//! Whether the workers of this machine reduce among themselves, and how they come to.

use std::sync::Arc;

use super::Clock;
use crate::collective::{Collective, HostCollective, HostOptions, LocalRank};
use crate::config::{Config, LocalReduce};
use crate::error::{Error, Result};
use crate::local::PrivateSocket;
use crate::mem::Copies;
use crate::pipeline::{DeviceKind, Topology};
use crate::sched::order::Order;
use crate::types::{MachineId, View, WorkerId};

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

/// The workers of `view`, if all of them are on one machine and can reach each other there; the same answer on each of them.
pub(super) fn workers(view: &View) -> Option<Vec<LocalRank>> {
    let first = view.workers().next()?;
    let ranks: Vec<LocalRank> = view
        .workers()
        .filter(|member| member.machine.is_shared_with(first.machine) && !member.door.is_empty())
        .map(|member| LocalRank {
            rank: WorkerId(member.index),
            incarnation: member.incarnation,
            name: member.name(),
            place: member.place(),
            door: member.door.clone(),
        })
        .collect();
    let all = ranks.len() == view.workers().count();
    (all && (2..=Order::RANKS_MAX as usize).contains(&ranks.len())).then_some(ranks)
}

/// The job of `view` as its workers see it.
pub(super) fn topology(view: &View) -> Topology {
    match workers(view) {
        Some(ranks) => Topology {
            machines: 1,
            local_ranks: u32::try_from(ranks.len()).expect("at most RANKS_MAX"),
            local_collective: true,
            ..Topology::single(DeviceKind::Host)
        },
        // A job with servers pushes, however many workers it has: two stand for many.
        None => Topology::flat(2, DeviceKind::Host),
    }
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
    let ranks = workers(view).unwrap_or_default();
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
        clock: Arc::new(move || clock.now()),
    };
    Ok(Arc::new(HostCollective::join(options, failed)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Epoch, Incarnation, Member, NodeId, Phase, Role};

    #[test]
    fn workers_reduce_among_themselves_if_all_are_on_one_machine_and_willing() {
        let table: [(&[(u64, &str)], bool); 6] = [
            (&[(7, "a"), (7, "b"), (7, "c")], true),
            (&[(7, "a"), (7, "b"), (8, "c")], false),
            (&[(7, "a"), (7, ""), (7, "c")], false),
            (&[(0, "a"), (0, "b")], false),
            (&[(7, "a")], false),
            (&[], false),
        ];
        for (members, together) in table {
            let view = view(members);
            assert_eq!(workers(&view).is_some(), together, "{members:?}");
            assert_eq!(topology(&view).local_collective, together, "{members:?}");
        }
        assert!(workers(&view(&[(7, "a"); 64])).is_some());
        assert!(workers(&view(&[(7, "a"); 65])).is_none(), "more than there are bits");
    }

    fn view(members: &[(u64, &str)]) -> View {
        let member = |(index, (machine, door)): (u32, &(u64, &str))| Member {
            role: Role::Worker,
            index,
            node: NodeId([0; 32]),
            incarnation: Incarnation(index.into()),
            host: "here".to_owned(),
            pid: 1,
            address: String::new(),
            machine: MachineId(*machine),
            door: (*door).to_owned(),
        };
        let members = (0..).zip(members).map(member).collect();
        View { job: "job".to_owned(), epoch: Epoch::default(), phase: Phase::Running, members }
    }
}
