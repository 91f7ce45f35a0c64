//! Where the ranks of a job run and what joins them; the only facts from which a pipeline is made.

use std::fmt;

use crate::types::DeviceKind;

/// A job as one of its ranks sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Machines of the job that run workers; at least 1.
    pub machines: u32,
    /// Ranks on this machine; at least 1.
    pub local_ranks: u32,
    /// Groups of this machine's devices that reduce each for itself before the host adds what they have; 1 where all reduce together.
    pub pcie_groups: u32,
    /// What may hold this rank's tensors, besides host memory.
    pub device: DeviceKind,
    /// Whether the ranks of this machine can reduce among themselves. If not, each pushes for itself.
    pub local_collective: bool,
}

impl Topology {
    /// One process, alone.
    pub const fn single(device: DeviceKind) -> Self {
        Self { machines: 1, local_ranks: 1, pcie_groups: 1, device, local_collective: false }
    }

    /// `ranks` processes that push each for itself, wherever they run.
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
