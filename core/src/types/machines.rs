//! Which workers reduce a part among themselves, and which of them exchanges it with its server: functions of the view alone, so that
//! workers and servers agree without a word.
//!
//! The workers of a machine reduce together if there are several, all of them known to be there and willing. For each part one of them,
//! its *owner*, exchanges what they reduced; the parts of a tensor go round among them, so that all their links and cores work. Everybody
//! else owns all its parts itself.

use std::collections::BTreeMap;

use super::{DType, MachineId, Op, PartId, View, WorkerId};

/// The workers of a job by machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machines {
    /// By rank.
    workers: Vec<WorkerId>,
    /// Those that reduce among themselves, by rank, one list a machine.
    teams: Vec<Vec<WorkerId>>,
    /// Where in `teams` a worker is.
    team_of: BTreeMap<WorkerId, usize>,
}

impl Machines {
    /// How many workers of a machine may reduce among themselves: sets of them have a bit each.
    pub const RANKS_MAX: u32 = 64;

    /// The machines of `view`.
    pub fn of(view: &View) -> Self {
        let mut workers = Vec::new();
        let mut by_machine: BTreeMap<MachineId, Vec<(WorkerId, bool)>> = BTreeMap::new();
        for member in view.workers() {
            let (worker, willing) = (WorkerId(member.index), !member.door.is_empty());
            workers.push(worker);
            if member.machine != MachineId::UNKNOWN {
                by_machine.entry(member.machine).or_default().push((worker, willing));
            }
        }
        workers.sort_unstable();
        let several = |ranks: &Vec<(WorkerId, bool)>| (2..=Self::RANKS_MAX as usize).contains(&ranks.len());
        let willing = |ranks: &Vec<(WorkerId, bool)>| several(ranks) && ranks.iter().all(|(_, willing)| *willing);
        let team = |ranks: Vec<(WorkerId, bool)>| {
            let mut team: Vec<WorkerId> = ranks.into_iter().map(|(worker, _)| worker).collect();
            team.sort_unstable();
            team
        };
        let teams: Vec<Vec<WorkerId>> = by_machine.into_values().filter(willing).map(team).collect();
        let place = |(place, team): (usize, &Vec<WorkerId>)| {
            team.iter().map(move |worker| (*worker, place)).collect::<Vec<_>>()
        };
        let team_of = teams.iter().enumerate().flat_map(place).collect();
        Self { workers, teams, team_of }
    }

    /// The workers that `worker` reduces with, itself among them, by rank; `None` if it reduces with nobody.
    pub fn team(&self, worker: WorkerId) -> Option<&[WorkerId]> {
        self.team_of.get(&worker).map(|place| self.teams[*place].as_slice())
    }

    /// Machines that reduce among themselves, and workers that do not.
    pub fn len(&self) -> usize {
        self.workers.len() - self.team_of.len() + self.teams.len()
    }

    /// Whether there are no workers.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// The workers whose contribution to a part of this type comes with that of `worker`, itself among them, by rank; `None` if it comes
    /// alone.
    ///
    /// Half-precision floats (f16) come alone: the sum of one machine may leave their range, 65504, where that of all machines does not,
    /// and their mean all the more.
    pub fn partners(&self, dtype: DType, worker: WorkerId) -> Option<&[WorkerId]> {
        self.team(worker).filter(|_| dtype != DType::F16)
    }

    /// Who exchanges a part with its server for `worker`, which may be itself.
    pub fn owner(&self, part: PartId, dtype: DType, worker: WorkerId) -> WorkerId {
        self.partners(dtype, worker).map_or(worker, |team| owner_in(team, part))
    }

    /// Who exchanges a part with its server, by rank: of each machine one, and whoever comes alone.
    pub fn owners(&self, part: PartId, dtype: DType) -> Vec<WorkerId> {
        let is_owner = |worker: &WorkerId| self.owner(part, dtype, *worker) == *worker;
        self.workers.iter().copied().filter(is_owner).collect()
    }

    /// Whether `owner`, one of the [`owners`](Self::owners) of a part, sends a body: everybody, but in a broadcast only the one whose
    /// contribution the root's is part of.
    pub fn sends_body(&self, op: Op, part: PartId, dtype: DType, owner: WorkerId) -> bool {
        match op {
            Op::Broadcast { root } => self.owner(part, dtype, root) == owner,
            Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => true,
        }
    }
}

/// The parts of one tensor go round; those of small tensors are spread by the hash of their names.
fn owner_in(team: &[WorkerId], part: PartId) -> WorkerId {
    let turn = (part.key.0 % team.len() as u64 + u64::from(part.index)) % team.len() as u64;
    team[usize::try_from(turn).expect("below RANKS_MAX")]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TensorKey;
    use crate::types::view::Place;

    #[test]
    fn the_workers_of_a_machine_reduce_together_if_they_are_several_and_all_willing() {
        let table: [(&[Place], &[&[u32]]); 6] = [
            (&[(7, "a"), (7, "b"), (7, "c")], &[&[0, 1, 2]]),
            (&[(7, "a"), (8, "b"), (7, "c"), (8, "d")], &[&[0, 2], &[1, 3]]),
            (&[(7, "a"), (7, "b"), (7, "c"), (8, "d")], &[&[0, 1, 2]]),
            (&[(7, "a"), (7, ""), (8, "c"), (8, "d")], &[&[2, 3]]),
            (&[(0, "a"), (0, "b")], &[]),
            (&[], &[]),
        ];
        for (members, teams) in table {
            let machines = machines(members);
            let found: Vec<Vec<u32>> =
                machines.teams.iter().map(|team| team.iter().map(|worker| worker.0).collect()).collect();
            assert_eq!(found, teams, "{members:?}");
            let together: usize = teams.iter().map(|team| team.len() - 1).sum();
            assert_eq!(machines.len(), members.len() - together, "{members:?}");
        }
        assert_eq!(machines(&[(7, "a"); 64]).len(), 1);
        assert_eq!(machines(&[(7, "a"); 65]).len(), 65, "more than there are bits");
    }

    #[test]
    fn every_part_has_one_owner_a_machine_and_each_rank_as_many_parts() {
        let machines = machines(&[(7, "a"), (7, "b"), (7, "c"), (8, "d"), (9, "e"), (9, "f")]);
        let mut owned = [0; 6];
        for index in 0..600 {
            let owners = machines.owners(part(index), DType::F32);
            let places: Vec<u32> = owners.iter().map(|owner| [0, 0, 0, 1, 2, 2][owner.0 as usize]).collect();
            assert_eq!(places, [0, 1, 2], "{owners:?}");
            for worker in 0..6 {
                let owner = machines.owner(part(index), DType::F32, WorkerId(worker));
                assert!(owners.contains(&owner) && machines.team(owner) == machines.team(WorkerId(worker)));
            }
            owners.iter().for_each(|owner| owned[owner.0 as usize] += 1);
        }
        assert_eq!(owned, [200, 200, 200, 600, 300, 300]);
    }

    #[test]
    fn floats_of_a_small_range_come_alone() {
        let machines = machines(&[(7, "a"), (7, "b"), (8, "c")]);
        assert_eq!(machines.owners(part(0), DType::F16), [0, 1, 2].map(WorkerId));
        assert_eq!(machines.partners(DType::F16, WorkerId(0)), None);
        assert_eq!(machines.partners(DType::BF16, WorkerId(0)), Some([0, 1].map(WorkerId).as_slice()));
    }

    #[test]
    fn the_owner_on_its_machine_sends_what_the_root_broadcasts() {
        let machines = machines(&[(7, "a"), (7, "b"), (8, "c"), (8, "d")]);
        for (index, root) in (0..8).flat_map(|index| (0..4).map(move |root| (index, WorkerId(root)))) {
            let owners = machines.owners(part(index), DType::F32);
            let sends =
                |owner: &&WorkerId| machines.sends_body(Op::Broadcast { root }, part(index), DType::F32, **owner);
            let senders: Vec<&WorkerId> = owners.iter().filter(sends).collect();
            assert_eq!(senders, [&machines.owner(part(index), DType::F32, root)]);
            assert!(owners.iter().all(|owner| machines.sends_body(Op::Sum, part(index), DType::F32, *owner)));
        }
    }

    fn part(index: u32) -> PartId {
        PartId { key: TensorKey::of("weight"), index }
    }

    fn machines(members: &[Place]) -> Machines {
        Machines::of(&View::of_workers(members))
    }
}
