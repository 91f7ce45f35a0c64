//! The facts that a process announces about itself when it joins a job.

use super::{Address, Incarnation, MachineId, Role, Scheme, printable};

/// One process in one of its roles, as it announces itself.
///
/// The same value travels from the process's settings through its [`Join`](crate::wire::frame::Join) into the
/// [`Member`](super::Member) of the view. To add a fact, add a field here and to its codec, `impl Field for Process`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Worker or server.
    pub role: Role,
    /// Which life of the process.
    pub incarnation: Incarnation,
    /// Host name, for messages and for the order of ranks.
    pub host: String,
    /// Process id, for messages and for the order of ranks.
    pub pid: u32,
    /// Where a server accepts exchanges, and where a worker meets the other ranks of its machine. A server has one at least.
    pub addresses: Vec<Address>,
    /// The machine it runs on.
    pub machine: MachineId,
    /// How a worker's device is connected to the other devices of its machine.
    pub wiring: Wiring,
}

/// How the device of a worker is connected to those of the other workers of its machine, and what it may do for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wiring {
    /// Its PCIe group, from 1. The devices of one group reduce among themselves first. 0 if no group is known, or nothing lies between
    /// devices.
    pub pcie_group: u32,
    /// Whether it may hold the results of other workers' reductions, and exchange them for those workers.
    pub holds: bool,
}

impl Process {
    /// A process with no other facts known: no host, no addresses, an unknown machine.
    pub fn new(role: Role, incarnation: Incarnation) -> Self {
        Self {
            role,
            incarnation,
            host: String::new(),
            pid: 0,
            addresses: Vec::new(),
            machine: MachineId::UNKNOWN,
            wiring: Wiring::default(),
        }
    }

    /// Whether it is the process with this number on this host.
    pub fn is(&self, host: &str, pid: u32) -> bool {
        self.pid == pid && self.host == host
    }

    /// The path of the socket at which processes of its machine reach it, if there is one.
    pub fn socket_path(&self) -> Option<&str> {
        Address::of(&self.addresses, Scheme::Shm)
    }

    /// `host (pid 77)`.
    pub fn place(&self) -> String {
        format!("{} (pid {})", printable(&self.host), self.pid)
    }
}

impl Default for Wiring {
    fn default() -> Self {
        Self { pcie_group: 0, holds: true }
    }
}
