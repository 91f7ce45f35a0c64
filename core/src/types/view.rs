//! The membership of a job, as decided by the coordinator. Every member holds a copy; only the coordinator makes a new one.

use super::{Epoch, MachineId, NodeId, Process, Role, Round, ServerId, WorkerId, WorkerSet};
use crate::error::Error;

#[cfg(test)]
use super::{Address, Incarnation, Scheme};

/// A process with its place in the job.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// The facts that it announced about itself.
    pub process: Process,
    /// Its identity, from its certificate.
    pub node: NodeId,
    /// Rank of a worker, or index of a server. The member keeps the number as long as it is a member.
    pub index: u32,
    /// The first round of each part that a worker contributes to: 0 for those that formed the job.
    pub first_round: Round,
}

impl Member {
    /// `worker 2` or `server 0`.
    pub fn name(&self) -> String {
        format!("{} {}", self.process.role, self.index)
    }

    /// `host (pid 77)`.
    pub fn place(&self) -> String {
        self.process.place()
    }

    /// The two: `worker 2 on host (pid 77)`.
    pub fn described(&self) -> String {
        format!("{} on {}", self.name(), self.place())
    }
}

/// Where a worker is among those of its host, and its host among the hosts of the job's workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostPlace {
    /// Its number on its host, from 0.
    pub local_rank: u32,
    /// How many workers its host has.
    pub local_size: u32,
    /// The number of its host, from 0.
    pub node_rank: u32,
    /// How many hosts have workers.
    pub num_nodes: u32,
}

/// The state of the whole job.
#[derive(Clone, PartialEq, Debug)]
pub enum Phase {
    /// Not all members have joined yet.
    Forming,
    /// All members have joined.
    Running,
    /// All workers left in an orderly way.
    Ended,
    /// All workers left behind the same step, and form the job again with those that have come. Members join anew.
    FormsAgain,
    /// A server was lost with what it kept. The members that are left form the job again, and go back to a checkpoint. Every call that waits
    /// gets this cause, and members join anew.
    Restores(Error),
    /// The job failed; every call that waits gets this cause.
    Aborted(Error),
}

impl Phase {
    /// Whether the members join anew, because the job forms again.
    pub fn forms_again(&self) -> bool {
        match self {
            Self::FormsAgain | Self::Restores(_) => true,
            Self::Forming | Self::Running | Self::Ended | Self::Aborted(_) => false,
        }
    }
}

/// A membership.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// The job's name.
    pub job: String,
    /// Which membership.
    pub epoch: Epoch,
    /// How far it is.
    pub phase: Phase,
    /// How often the job had formed before: it forms again when workers come.
    pub formed_before: u32,
    /// How many servers it formed with. It has fewer if some were lost.
    pub formed_servers: u32,
    /// Whether it formed on one machine whose workers reduce among themselves, so that its sums need no server; see
    /// [`Machines::need_no_server`](super::Machines::need_no_server). They stay so, and those of other jobs stay on servers, however few workers
    /// are left: workers hear of a loss at different times, and must not take different ways meanwhile.
    pub formed_together: bool,
    /// Whether sums of servers that were lost are being recovered. Meanwhile no part of theirs is exchanged.
    pub recovers: bool,
    /// Workers by rank, then servers by index.
    pub members: Vec<Member>,
}

impl View {
    /// The workers, by rank.
    pub fn workers(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.process.role == Role::Worker)
    }

    /// The servers, by index.
    pub fn servers(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.process.role == Role::Server)
    }

    /// Whether all members run on one machine, so that no sum crosses a network. A machine that is unknown may be any.
    pub fn is_on_one_machine(&self) -> bool {
        let mut machines = self.members.iter().map(|member| member.process.machine);
        machines.next().is_some_and(|first| first != MachineId::UNKNOWN && machines.all(|machine| machine == first))
    }

    /// Whether servers were lost, whose parts have other servers now.
    pub fn has_lost_servers(&self) -> bool {
        (self.servers().count() as u64) < u64::from(self.formed_servers)
    }

    /// The workers that must contribute to a round of a part.
    ///
    /// # Panics
    /// If a rank is not below [`WorkerSet::WORKERS_MAX`]; a view that was read from the wire has none.
    pub fn due(&self, round: Round) -> WorkerSet {
        self.workers().filter(|member| member.first_round <= round).map(|member| WorkerId(member.index)).collect()
    }

    /// The rank of the worker with this identity.
    pub fn worker_of(&self, node: NodeId) -> Option<WorkerId> {
        self.workers().find(|member| member.node == node).map(|member| WorkerId(member.index))
    }

    /// Where this worker is among the workers of its host, and its host among the hosts. Workers of a host are counted by rank, and hosts by
    /// their first worker.
    pub fn place_of(&self, rank: WorkerId) -> Option<HostPlace> {
        let host = &self.workers().find(|member| member.index == rank.0)?.process.host;
        let mut hosts: Vec<&str> = Vec::new();
        for member in self.workers() {
            if !hosts.contains(&&*member.process.host) {
                hosts.push(&member.process.host);
            }
        }
        let here = || self.workers().filter(|member| member.process.host == *host);
        let count = |count: usize| u32::try_from(count).expect("at most MEMBERS_MAX");
        Some(HostPlace {
            local_rank: count(here().take_while(|member| member.index != rank.0).count()),
            local_size: count(here().count()),
            node_rank: count(hosts.iter().take_while(|other| **other != host.as_str()).count()),
            num_nodes: count(hosts.len()),
        })
    }

    /// The server with this index.
    pub fn server(&self, server: ServerId) -> Option<&Member> {
        self.servers().find(|member| member.index == server.0)
    }
}

/// A worker's machine and the path of its socket; empty for none.
#[cfg(test)]
pub(crate) type Place = (u64, &'static str);

#[cfg(test)]
impl View {
    /// A running job of workers at these places.
    pub(crate) fn of_workers(places: &[Place]) -> Self {
        let member = |(index, (machine, socket_path)): (u32, &Place)| Member {
            process: Process {
                host: "here".to_owned(),
                pid: 1,
                machine: MachineId(*machine),
                addresses: (!socket_path.is_empty())
                    .then(|| Address::new(Scheme::Shm, *socket_path))
                    .into_iter()
                    .collect(),
                ..Process::new(Role::Worker, Incarnation(index.into()))
            },
            node: NodeId([0; 32]),
            index,
            first_round: Round(0),
        };
        let members = (0..).zip(places).map(member).collect();
        Self::plain("job", Epoch::default(), Phase::Running, members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_due_from_the_workers_that_had_begun_by_then() {
        let mut view = View::of_workers(&[(1, ""), (1, ""), (2, "")]);
        view.members[1].first_round = Round(7);
        let due = |round| view.due(Round(round)).iter().map(|worker| worker.0).collect::<Vec<_>>();
        assert_eq!([due(0), due(6), due(7)], [vec![0, 2], vec![0, 2], vec![0, 1, 2]]);
    }

    #[test]
    fn places_are_counted_by_rank_and_hosts_by_their_first_worker() {
        let mut view = View::of_workers(&[(1, ""), (1, ""), (1, ""), (1, "")]);
        for (member, host) in view.members.iter_mut().zip(["b", "a", "b", "a"]) {
            member.process.host = host.to_owned();
        }
        let place = |rank| {
            let HostPlace { local_rank, local_size, node_rank, num_nodes } = view.place_of(WorkerId(rank)).unwrap();
            [local_rank, local_size, node_rank, num_nodes]
        };
        assert_eq!([0, 1, 2, 3].map(place), [[0, 2, 0, 2], [0, 2, 1, 2], [1, 2, 0, 2], [1, 2, 1, 2]]);
        assert_eq!(view.place_of(WorkerId(4)), None);
    }

    #[test]
    fn members_of_an_unknown_machine_are_on_no_machine_together() {
        let unknown = MachineId::UNKNOWN.0;
        let on_one = |machines: &[u64]| {
            View::of_workers(&machines.iter().map(|machine| (*machine, "")).collect::<Vec<_>>()).is_on_one_machine()
        };
        assert!(on_one(&[5]) && on_one(&[5, 5]));
        assert!(!on_one(&[5, 6]) && !on_one(&[unknown, unknown]) && !on_one(&[5, unknown]));
    }

    #[test]
    fn a_round_is_not_due_from_a_worker_that_was_lost_and_others_keep_their_ranks() {
        let mut view = View::of_workers(&[(1, ""), (1, ""), (2, "")]);
        view.members.remove(1);
        assert_eq!(view.due(Round(3)), [0, 2].map(WorkerId).into_iter().collect());
    }
}
