//! Which workers reduce a part among themselves, and which of them exchanges it with its server. These are functions of the view alone, so
//! workers and servers agree without messages.
//!
//! The workers of a machine reduce together if there are several and if all of them are known to be present and willing. For each part one
//! of them, its *owner*, exchanges their result. The parts of a tensor are distributed among them in turn, so that all their links and
//! cores work. A worker that reduces alone owns all its parts itself.
//!
//! If the devices of a machine are in several PCIe groups, each group first reduces to one of its workers, the *holder* of the part in that
//! group. The owner is one of the holders. The groups take turns, and within each group its workers take turns.

use std::collections::BTreeMap;

use super::span::lcm;
use super::{DType, MachineId, Member, Op, PartId, Participants, View, WorkerId};
#[cfg(any(test, feature = "testing"))]
use super::{Epoch, Phase};

/// The workers of a job by machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machines {
    /// By rank.
    workers: Vec<WorkerId>,
    /// The workers that reduce among themselves; one team per machine.
    teams: Vec<Team>,
    /// The index in `teams` of a worker's team.
    team_of: BTreeMap<WorkerId, usize>,
}

/// The workers of a machine that reduce among themselves.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Team {
    /// By rank.
    ranks: Vec<WorkerId>,
    /// The same ranks by PCIe group. There is one group of all ranks if their devices need no grouping.
    groups: Vec<Group>,
    /// After so many parts, the holders of each group come again.
    round: u64,
}

/// The workers of a team whose devices are in one PCIe group.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    /// By rank.
    ranks: Vec<WorkerId>,
    /// The ranks that may hold parts, by rank; at least one.
    roots: Vec<WorkerId>,
}

impl Machines {
    /// How many workers of a machine may reduce among themselves. Sets of them use one bit for each.
    pub const RANKS_MAX: u32 = 64;

    /// The machines of `view`.
    pub fn of(view: &View) -> Self {
        let mut workers = Vec::new();
        let mut by_machine: BTreeMap<MachineId, Vec<&Member>> = BTreeMap::new();
        for member in view.workers() {
            workers.push(WorkerId(member.index));
            if member.process.machine != MachineId::UNKNOWN {
                by_machine.entry(member.process.machine).or_default().push(member);
            }
        }
        workers.sort_unstable();
        let several = |members: &Vec<&Member>| (2..=Self::RANKS_MAX as usize).contains(&members.len());
        let willing =
            |members: &Vec<&Member>| several(members) && members.iter().all(|one| one.process.socket_path().is_some());
        let teams: Vec<Team> = by_machine.into_values().filter(willing).map(Team::of).collect();
        let place =
            |(place, team): (usize, &Team)| team.ranks.iter().map(move |worker| (*worker, place)).collect::<Vec<_>>();
        let team_of = teams.iter().enumerate().flat_map(place).collect();
        Self { workers, teams, team_of }
    }

    /// Whether the sums of a job with these members need no server: all workers reduce together on one machine, or there is one worker and no
    /// server.
    pub fn need_no_server(view: &View) -> bool {
        let machines = Self::of(view);
        match machines.workers.as_slice() {
            [] => false,
            [_] => view.servers().next().is_none(),
            [first, ..] => machines.team(*first).is_some_and(|team| team.len() == machines.workers.len()),
        }
    }

    /// The workers that reduce with `worker`, including itself, by rank; `None` if it reduces alone.
    pub fn team(&self, worker: WorkerId) -> Option<&[WorkerId]> {
        self.team_with(worker).map(|team| team.ranks.as_slice())
    }

    /// The number of PCIe groups in the team of `worker`. It is 1 if all ranks of a machine reduce at once, and for a worker that reduces
    /// alone.
    pub fn groups(&self, worker: WorkerId) -> usize {
        self.team_with(worker).map_or(1, |team| team.groups.len())
    }

    /// The workers of the PCIe group of `worker`, including itself, by rank; `None` if it reduces alone.
    pub fn group(&self, worker: WorkerId) -> Option<&[WorkerId]> {
        self.team_with(worker).map(|team| team.group_of(worker).ranks.as_slice())
    }

    /// The number of machines that reduce among themselves, plus the number of workers that reduce alone.
    pub fn len(&self) -> usize {
        self.workers.len() - self.team_of.len() + self.teams.len()
    }

    /// Whether there are no workers.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// The workers whose contribution to a part of this type comes together with that of `worker`, including itself, by rank; `None` if its
    /// contribution comes alone.
    ///
    /// Contributions in half precision (f16) come alone. The sum of one machine may leave their range, 65504, even if the sum of all
    /// machines does not. Their mean stays in range even more often.
    pub fn partners(&self, dtype: DType, worker: WorkerId) -> Option<&[WorkerId]> {
        self.team(worker).filter(|_| dtype != DType::F16)
    }

    /// The worker that exchanges a part with its server for `worker`; it may be `worker` itself.
    pub fn owner(&self, part: PartId, dtype: DType, worker: WorkerId) -> WorkerId {
        match self.team_with(worker) {
            Some(team) if dtype != DType::F16 => team.owner(part),
            Some(_) | None => worker,
        }
    }

    /// The worker that has the sum of a part over the PCIe group of `worker`. It may be `worker` itself.
    pub fn holder(&self, part: PartId, dtype: DType, worker: WorkerId) -> WorkerId {
        match self.team_with(worker) {
            Some(team) if dtype != DType::F16 => team.group_of(worker).holder(team.turn(part)),
            Some(_) | None => worker,
        }
    }

    /// The holders of a part on the machine of `worker`, by group.
    pub fn holders(&self, part: PartId, dtype: DType, worker: WorkerId) -> Vec<WorkerId> {
        match self.team_with(worker) {
            Some(team) if dtype != DType::F16 => team.holders(part).collect(),
            Some(team) => team.ranks.clone(),
            None => vec![worker],
        }
    }

    /// The workers that exchange a part with its server, by rank: one of each machine, and every worker that reduces alone.
    pub fn owners(&self, part: PartId, dtype: DType) -> Vec<WorkerId> {
        let is_owner = |worker: &WorkerId| self.owner(part, dtype, *worker) == *worker;
        self.workers.iter().copied().filter(is_owner).collect()
    }

    /// The only worker that sends a body of a part to its server; `None` if all that exchange the part do. In a broadcast it is the worker
    /// whose contribution includes the root's.
    pub fn only_sender(&self, op: Op, participants: &Participants, part: PartId, dtype: DType) -> Option<WorkerId> {
        match op {
            // Only the contributions of all workers of a machine come together.
            Op::Broadcast { root } if participants.is_everybody() => Some(self.owner(part, dtype, root)),
            Op::Broadcast { root } => Some(root),
            Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => None,
        }
    }

    /// Whether all `participants` of a tensor reduce with `worker`, which is one of them, on its machine. Then they need no server.
    pub fn are_together(&self, participants: &Participants, worker: WorkerId) -> bool {
        let Some(team) = self.team(worker) else { return false };
        match participants.members() {
            None => team.len() == self.workers.len(),
            Some(members) => members.iter().all(|member| team.contains(&member)),
        }
    }

    /// After so many parts of a tensor, the owners come again in the same order, on every machine and in every PCIe group. 1 if all workers
    /// reduce alone. If the machines differ so much that it would be more than [`RANKS_MAX`](Self::RANKS_MAX), that of the largest one.
    pub fn turns(&self) -> u64 {
        let common = self.teams.iter().fold(1, |turns, team| lcm(turns, team.turns()));
        match common <= u64::from(Self::RANKS_MAX) {
            true => common,
            false => self.teams.iter().map(Team::turns).max().unwrap_or(1),
        }
    }

    fn team_with(&self, worker: WorkerId) -> Option<&Team> {
        self.team_of.get(&worker).map(|place| &self.teams[*place])
    }
}

#[cfg(any(test, feature = "testing"))]
impl View {
    /// A view of a job that formed only once, with these members, and lost no server.
    pub fn plain(job: &str, epoch: Epoch, phase: Phase, members: Vec<Member>) -> Self {
        let (formed_before, formed_servers, formed_together, recovers) = (0, 0, false, false);
        let formed = Self {
            job: job.to_owned(),
            epoch,
            phase,
            formed_before,
            formed_servers,
            formed_together,
            recovers,
            members,
        };
        Self { formed_together: Machines::need_no_server(&formed), ..formed }
    }
}

impl Team {
    fn of(mut members: Vec<&Member>) -> Self {
        members.sort_unstable_by_key(|member| member.index);
        let is_told = members.iter().all(|member| member.process.wiring.pcie_group > 0);
        let mut by_group: BTreeMap<u32, Vec<&Member>> = BTreeMap::new();
        for member in &members {
            by_group.entry(if is_told { member.process.wiring.pcie_group } else { 0 }).or_default().push(member);
        }
        let groups: Vec<Group> = by_group.into_values().map(|members| Group::of(&members)).collect();
        let round = groups.iter().fold(1, |round, group| lcm(round, group.roots.len() as u64));
        Self { ranks: members.into_iter().map(worker).collect(), groups, round }
    }

    fn group_of(&self, worker: WorkerId) -> &Group {
        let of = |group: &&Group| group.ranks.contains(&worker);
        self.groups.iter().find(of).expect("every worker of a team is of one of its groups")
    }

    /// As [`Machines::turns`], of this team alone.
    fn turns(&self) -> u64 {
        self.round * self.groups.len() as u64
    }

    /// The turn of a part. The parts of one tensor are distributed in turn. The parts of small tensors are spread by the hash of their
    /// names.
    fn turn(&self, part: PartId) -> u64 {
        part.key.0 % self.turns() + u64::from(part.index)
    }

    /// The holders of a part, by group.
    fn holders(&self, part: PartId) -> impl Iterator<Item = WorkerId> {
        let turn = self.turn(part);
        self.groups.iter().map(move |group| group.holder(turn))
    }

    /// A group has the owners of a whole round, so that the holders of each group follow each other.
    fn owner(&self, part: PartId) -> WorkerId {
        let turn = self.turn(part);
        let group = turn / self.round % self.groups.len() as u64;
        self.groups[usize::try_from(group).expect("below RANKS_MAX")].holder(turn)
    }
}

impl Group {
    fn of(members: &[&Member]) -> Self {
        let ranks: Vec<WorkerId> = members.iter().copied().map(worker).collect();
        let roots: Vec<WorkerId> =
            members.iter().filter(|member| member.process.wiring.holds).map(|member| worker(member)).collect();
        // If no member of the group has `holds` set, all of them may hold parts.
        Self { roots: if roots.is_empty() { ranks.clone() } else { roots }, ranks }
    }

    fn holder(&self, turn: u64) -> WorkerId {
        self.roots[usize::try_from(turn % self.roots.len() as u64).expect("below RANKS_MAX")]
    }
}

fn worker(member: &Member) -> WorkerId {
    WorkerId(member.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::view::Place;
    use crate::types::{TensorKey, Wiring};

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
                machines.teams.iter().map(|team| team.ranks.iter().map(|worker| worker.0).collect()).collect();
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
    fn after_the_turns_the_owners_come_again_on_every_machine() {
        let table: [(&[Place], u64); 4] = [
            (&[(7, "a"), (8, "b")], 1),
            (&[(7, "a"), (7, "b"), (8, "c"), (8, "d")], 2),
            (&[(7, "a"), (7, "b"), (8, "c"), (8, "d"), (8, "e")], 6),
            (&[(7, "a"), (7, "b"), (7, "c"), (8, "d")], 3),
        ];
        for (members, turns) in table {
            assert_eq!(machines(members).turns(), turns, "{members:?}");
        }
        // Two groups of two: their turns come in between.
        assert_eq!(wired(&[1, 1, 2, 2], &[]).turns(), 4);
        let many: Vec<Place> = [(7, 8), (8, 9), (9, 5)]
            .into_iter()
            .flat_map(|(machine, ranks)| (0..ranks).map(move |_| (machine, "a")))
            .collect();
        assert_eq!(machines(&many).turns(), 9, "360 would be too many");
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
            let sender =
                |op, participants: &Participants| machines.only_sender(op, participants, part(index), DType::F32);
            let broadcast = Op::Broadcast { root };
            assert_eq!(sender(broadcast, &Participants::ALL), Some(machines.owner(part(index), DType::F32, root)));
            assert!(owners.contains(&sender(broadcast, &Participants::ALL).unwrap()));
            assert_eq!(sender(broadcast, &Participants::ALL.with_receiver(WorkerId(1))), Some(root));
            assert_eq!(sender(Op::Sum, &Participants::ALL), None);
        }
    }

    #[test]
    fn participants_are_together_if_one_team_has_them_all() {
        let machines = machines(&[(7, "a"), (7, "b"), (8, "c"), (8, "d"), (9, "e")]);
        let set = |ranks: &[u32]| Participants::of(ranks.iter().copied().map(WorkerId).collect());
        for (participants, worker, expected) in [
            (set(&[0, 1]), 0, true),
            (set(&[0]), 0, true),
            (set(&[3, 2]).with_receiver(WorkerId(2)), 3, true),
            (set(&[0, 2]), 0, false),
            (set(&[4]), 4, false),
            (Participants::ALL, 0, false),
        ] {
            assert_eq!(machines.are_together(&participants, WorkerId(worker)), expected, "{participants}");
        }
        let one = Machines::of(&View::of_workers(&[(7, "a"), (7, "b")]));
        assert!(one.are_together(&Participants::ALL, WorkerId(1)));
    }

    #[test]
    fn every_group_has_a_holder_of_a_part_and_the_owner_is_one_of_them() {
        // Two groups of two and one of three, on a machine of seven.
        let machines = wired(&[1, 1, 2, 2, 3, 3, 3], &[]);
        let (mut held, mut owned) = ([0; 7], [0; 7]);
        for index in 0..4200 {
            let holders = machines.holders(part(index), DType::F32, WorkerId(0));
            let groups: Vec<usize> = holders.iter().map(|holder| [0, 0, 1, 1, 2, 2, 2][holder.0 as usize]).collect();
            assert_eq!(groups, [0, 1, 2], "{holders:?}");
            for worker in (0..7).map(WorkerId) {
                let holder = machines.holder(part(index), DType::F32, worker);
                assert!(holders.contains(&holder) && machines.group(holder) == machines.group(worker));
            }
            let owners = machines.owners(part(index), DType::F32);
            assert!(owners.len() == 1 && holders.contains(&owners[0]), "{owners:?} of {holders:?}");
            holders.iter().for_each(|holder| held[holder.0 as usize] += 1);
            owned[owners[0].0 as usize] += 1;
        }
        // The start of the turns depends on the name, so each rank may get a few parts more or less.
        let nearly = |found: [u32; 7], expected: [u32; 7]| {
            found.iter().zip(expected).all(|(found, expected)| found.abs_diff(expected) <= 3)
        };
        assert!(nearly(held, [2100, 2100, 2100, 2100, 1400, 1400, 1400]), "{held:?}");
        assert!(nearly(owned, [700, 700, 700, 700, 467, 467, 467]), "{owned:?}");
        assert_eq!(machines.holders(part(0), DType::F16, WorkerId(3)), (0..7).map(WorkerId).collect::<Vec<_>>());
    }

    #[test]
    fn groups_count_if_all_of_the_machine_tell_theirs() {
        for (wiring, groups) in [([1, 1, 2, 2], 2), ([7, 7, 7, 7], 1), ([1, 2, 3, 0], 1), ([4, 3, 2, 1], 4)] {
            assert_eq!(wired(&wiring, &[]).groups(WorkerId(2)), groups, "{wiring:?}");
        }
        assert_eq!(machines(&[(7, "a"), (8, "b")]).groups(WorkerId(0)), 1);
    }

    #[test]
    fn only_roots_hold_parts_where_a_group_has_any() {
        let holders = |machines: &Machines| {
            let all = (0..100).flat_map(|index| machines.holders(part(index), DType::F32, WorkerId(0)));
            all.map(|holder| holder.0).collect::<std::collections::BTreeSet<u32>>()
        };
        assert_eq!(holders(&wired(&[0; 4], &[1, 2])), [0, 3].into());
        assert_eq!(holders(&wired(&[1, 1, 2, 2], &[1, 2, 3])), [0, 2, 3].into(), "the second group has none");
    }

    fn part(index: u32) -> PartId {
        PartId { key: TensorKey::of("weight"), index }
    }

    fn machines(members: &[Place]) -> Machines {
        Machines::of(&View::of_workers(members))
    }
    /// A machine whose workers are in these PCIe groups. The workers in `others` are not roots.
    fn wired(groups: &[u32], others: &[usize]) -> Machines {
        let mut view = View::of_workers(&vec![(7, "socket"); groups.len()]);
        for (position, (member, group)) in view.members.iter_mut().zip(groups).enumerate() {
            member.process.wiring = Wiring { pcie_group: *group, holds: !others.contains(&position) };
        }
        Machines::of(&view)
    }
}
