//! The membership of a job as the coordinator decided it. Everybody holds a copy; only the coordinator makes a new one.

use std::fmt;

use super::{Epoch, Incarnation, MachineId, NodeId, ServerId, WorkerId};
use crate::error::Error;

/// What a process does in a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// Contributes gradients and receives sums.
    Worker = 1,
    /// Adds.
    Server = 2,
    /// Decides membership, declarations and placement (the *scheduler* of ps-lite and BytePS).
    Coordinator = 3,
}

impl Role {
    /// The role with this wire code.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Worker, Self::Server, Self::Coordinator].into_iter().find(|role| *role as u8 == code)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Server => "server",
            Self::Coordinator => "coordinator",
        })
    }
}

/// One life of one process of the job.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// Worker or server.
    pub role: Role,
    /// Rank of a worker, index of a server.
    pub index: u32,
    /// Its identity, from its certificate.
    pub node: NodeId,
    /// Which life of the process.
    pub incarnation: Incarnation,
    /// Host name, as announced.
    pub host: String,
    /// Process id, as announced.
    pub pid: u32,
    /// Where a server accepts exchanges, `host:port`; empty for a worker.
    pub address: String,
    /// The machine it runs on.
    pub machine: MachineId,
    /// Path of the socket at which processes of its machine reach it; empty for none.
    pub door: String,
    /// A worker's place among those of its machine.
    pub wiring: Wiring,
}

/// How the device of a worker is joined to those of the other workers of its machine, and what it may do for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wiring {
    /// Its PCIe group, from 1; those of one group reduce among themselves first. 0 if nothing is known, or nothing lies between devices.
    pub pcie_group: u32,
    /// Whether it may hold what others reduce, and exchange it for them.
    pub holds: bool,
}

impl Default for Wiring {
    fn default() -> Self {
        Self { pcie_group: 0, holds: true }
    }
}

impl Member {
    /// `worker 2` or `server 0`.
    pub fn name(&self) -> String {
        format!("{} {}", self.role, self.index)
    }

    /// `host (pid 77)`.
    pub fn place(&self) -> String {
        format!("{} (pid {})", self.host, self.pid)
    }
}

/// The state of the whole job.
#[derive(Clone, PartialEq, Debug)]
pub enum Phase {
    /// Members are still missing.
    Forming,
    /// Everybody is there.
    Running,
    /// All workers left in order.
    Ended,
    /// The job failed; everybody who waits gets this cause.
    Aborted(Error),
}

/// A membership.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// The job's name.
    pub job: String,
    /// Which membership.
    pub epoch: Epoch,
    /// Forming, running, ended or aborted.
    pub phase: Phase,
    /// Workers by rank, then servers by index.
    pub members: Vec<Member>,
}

impl View {
    /// The workers, by rank.
    pub fn workers(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.role == Role::Worker)
    }

    /// The servers, by index.
    pub fn servers(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.role == Role::Server)
    }

    /// The rank of the worker with this identity.
    pub fn worker_of(&self, node: NodeId) -> Option<WorkerId> {
        self.workers().find(|member| member.node == node).map(|member| WorkerId(member.index))
    }

    /// The server with this index.
    pub fn server(&self, server: ServerId) -> Option<&Member> {
        self.servers().find(|member| member.index == server.0)
    }
}

/// A worker's machine and door.
#[cfg(test)]
pub(crate) type Place = (u64, &'static str);

#[cfg(test)]
impl View {
    /// A running job of workers at these places.
    pub(crate) fn of_workers(places: &[Place]) -> Self {
        let member = |(index, (machine, door)): (u32, &Place)| Member {
            role: Role::Worker,
            index,
            node: NodeId([0; 32]),
            incarnation: Incarnation(index.into()),
            host: "here".to_owned(),
            pid: 1,
            address: String::new(),
            machine: MachineId(*machine),
            door: (*door).to_owned(),
            wiring: Wiring::default(),
        };
        let members = (0..).zip(places).map(member).collect();
        Self { job: "job".to_owned(), epoch: Epoch::default(), phase: Phase::Running, members }
    }
}
