//! Where the ranks of a job run and how they are connected. A pipeline is made from these facts only.

use std::fmt;

use crate::types::DeviceKind;

/// A job as one of its ranks sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Machines of the job that run workers; at least 1.
    pub machines: u32,
    /// Ranks on this machine; at least 1.
    pub local_ranks: u32,
    /// Number of groups of this machine's devices that each reduce separately, before the host adds their results; 1 if all devices reduce
    /// together.
    pub pcie_groups: u32,
    /// The kind of device that may hold this rank's tensors, besides host memory.
    pub device: DeviceKind,
    /// Whether the ranks of this machine can reduce among themselves. If not, each rank pushes its own contribution.
    pub local_collective: bool,
}

impl Topology {
    /// One process, alone.
    pub const fn single(device: DeviceKind) -> Self {
        Self { machines: 1, local_ranks: 1, pcie_groups: 1, device, local_collective: false }
    }

    /// `ranks` processes of which each pushes its own contribution. It does not matter where they run.
    pub const fn flat(ranks: u32, device: DeviceKind) -> Self {
        Self { machines: ranks, ..Self::single(device) }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machines, local_ranks, pcie_groups, device, local_collective } = self;
        write!(f, "{machines} machines, {local_ranks} local {device} ranks")?;
        if *pcie_groups > 1 {
            write!(f, " in {pcie_groups} PCIe groups")?;
        }
        match local_collective {
            true => f.write_str(" that reduce among themselves"),
            false => Ok(()),
        }
    }
}
