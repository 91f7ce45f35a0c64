//! What one worker derives from a view. The whole value is replaced at each epoch.

use std::collections::BTreeMap;

use crate::pipeline::{Pipeline, Topology};
use crate::types::{
    Claim, DeviceKind, Epoch, Machines, Member, Participants, Peer, Reach, Round, ServerId, View, WorkerId, WorkerSet,
};

/// The job as this worker sees it in one epoch.
#[derive(Clone, PartialEq, Debug)]
pub struct Formation {
    /// This worker.
    pub rank: WorkerId,
    /// The membership.
    pub view: View,
    /// Which workers reduce together.
    pub machines: Machines,
    /// The stages that the parts of this worker pass.
    pub pipeline: Pipeline,
    /// The workers of this machine that reduce together, including this one, by rank. Empty if this worker reduces with nobody.
    pub team: Vec<WorkerId>,
    /// The servers, with the addresses that this worker may try.
    pub servers: BTreeMap<ServerId, Peer>,
}

impl Formation {
    /// The formation of worker `rank` in `view`. Its tensors may lie in the memory of a `device`. A worker that is left alone where no servers
    /// sum reduces with itself.
    pub fn of(rank: WorkerId, view: View, device: DeviceKind) -> Self {
        let machines = Machines::of(&view);
        let pushes = !view.formed_together;
        let pipeline = Pipeline::for_role(&topology(&machines, rank, device, pushes));
        let servers = servers(rank, &view);
        let mut team = machines.team(rank).unwrap_or_default().to_vec();
        if !pushes && team.is_empty() {
            team = vec![rank];
        }
        Self { rank, view, machines, pipeline, team, servers }
    }

    /// The membership epoch for outgoing headers.
    pub fn epoch(&self) -> Epoch {
        self.view.epoch
    }

    /// The positions of `participants` among the workers of this machine that reduce together, as in [`Claim::members`].
    pub fn members_here(&self, participants: &Participants) -> u64 {
        if participants.members().is_none() {
            return Claim::ALL_RANKS;
        }
        let is_member = |(_, worker): &(usize, &WorkerId)| participants.contains(**worker);
        self.team.iter().enumerate().filter(is_member).fold(0, |members, (position, _)| members | 1 << position)
    }

    /// The participants from which a round is due.
    pub fn due_workers(&self, participants: &Participants, round: Round) -> WorkerSet {
        let workers = self.view.workers().filter(|member| member.first_round <= round);
        workers.map(|member| WorkerId(member.index)).filter(|worker| participants.contains(*worker)).collect()
    }

    /// One more than the highest rank. That is more than there are workers if some have left.
    pub fn ranks(&self) -> u32 {
        self.view.workers().map(|member| member.index + 1).max().unwrap_or(0)
    }

    /// How many workers the job has.
    pub fn workers(&self) -> u32 {
        u32::try_from(self.view.workers().count()).expect("bounded by MEMBERS_MAX")
    }
}

/// The job as the worker `rank` sees it. `pushes` says whether its sums go to servers.
fn topology(machines: &Machines, rank: WorkerId, device: DeviceKind, pushes: bool) -> Topology {
    let several = |len: usize| u32::try_from(len).expect("bounded by MEMBERS_MAX");
    let others = if pushes { 2 } else { 1 };
    match machines.team(rank) {
        Some(team) => Topology {
            machines: several(machines.len()).max(others),
            local_ranks: several(team.len()),
            pcie_groups: several(machines.groups(rank)),
            local_collective: true,
            ..Topology::single(device)
        },
        None if !pushes => Topology { local_collective: true, ..Topology::single(device) },
        // A job with servers pushes, whatever its number of workers. Two stands for many here.
        None => Topology::flat(2, device),
    }
}

/// The servers, with the addresses that this worker may try.
fn servers(rank: WorkerId, view: &View) -> BTreeMap<ServerId, Peer> {
    let here = view.workers().find(|worker| worker.index == rank.0).map(|worker| worker.process.machine);
    let server = |member: &Member| {
        let is_near = here.is_some_and(|here| here.is_shared_with(member.process.machine));
        let mut addresses = member.process.addresses.clone();
        addresses.retain(|address| is_near || address.scheme.reach() != Reach::Machine);
        Peer { addresses, node: member.node, name: member.name() }
    };
    view.servers().map(|member| (ServerId(member.index), server(member))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Wiring;
    use crate::types::view::Place;

    #[test]
    fn every_worker_passes_the_stages_of_its_machine() {
        let push = "[COMPRESS] -> PUSH -> PULL -> [DECOMPRESS]";
        let tiers = &format!("REDUCE -> {push} -> BROADCAST");
        let copied = &format!("COPYD2H -> {push} -> COPYH2D");
        let copied_tiers = &format!("REDUCE -> {copied} -> BROADCAST");
        let table: [(&[Place], &[&str]); 5] = [
            (&[(7, "a"), (7, "b")], &["ALL_REDUCE", "ALL_REDUCE"]),
            (&[(7, "a"), (7, "b"), (7, "c"), (8, "d")], &[tiers, tiers, tiers, push]),
            (&[(7, "a"), (7, ""), (8, "c"), (8, "d")], &[push, push, tiers, tiers]),
            (&[(7, "a"), (7, "")], &[push, push]),
            (&[(7, "a")], &["ALL_REDUCE"]),
        ];
        for (members, stages) in table {
            for (rank, expected) in (0..).map(WorkerId).zip(stages) {
                for (device, copies) in [(DeviceKind::Host, false), (DeviceKind::Cuda, true)] {
                    let formation = Formation::of(rank, View::of_workers(members), device);
                    let expected = match *expected {
                        stages if stages == push && copies => copied,
                        stages if stages == tiers && copies => copied_tiers,
                        stages => stages,
                    };
                    assert_eq!(formation.pipeline.to_string(), expected, "{members:?}, {rank}");
                }
            }
        }
    }

    #[test]
    fn a_machine_of_several_pcie_groups_reduces_in_each_and_on_its_host() {
        let mut view = View::of_workers(&[(7, "a"), (7, "b"), (7, "c"), (7, "d"), (8, "e")]);
        for (member, pcie_group) in view.members.iter_mut().zip([1, 1, 2, 2, 1]) {
            member.process.wiring = Wiring { pcie_group, holds: true };
        }
        let formation = |rank| Formation::of(WorkerId(rank), view.clone(), DeviceKind::Cuda);
        let stages = |rank| formation(rank).pipeline.to_string();
        let push = "[COMPRESS] -> PUSH -> PULL -> [DECOMPRESS]";
        let grouped = format!("REDUCE -> COPYD2H -> PCIE_REDUCE -> {push} -> PCIE_BROADCAST -> COPYH2D -> BROADCAST");
        assert_eq!([0, 1, 2, 3].map(stages), [(); 4].map(|()| grouped.clone()));
        assert_eq!(stages(4), format!("COPYD2H -> {push} -> COPYH2D"));
        assert_eq!(formation(0).machines.group(WorkerId(2)), Some([2, 3].map(WorkerId).as_slice()));
        assert_eq!((formation(1).team.len(), formation(4).team.len()), (4, 0));
    }
}
