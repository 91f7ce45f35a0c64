//! The eleven kinds of work that a part can need.

use std::fmt;

/// One step of a part's life. Waiting is not a stage; what a part waits for is a gate on the stage that must not begin yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Stage {
    /// Sums over the ranks of a machine and leaves all of them with the whole sum: REDUCE and BROADCAST at once, chunk by chunk,
    /// where nothing comes between them.
    AllReduce,
    /// Sums over the ranks of a machine; each rank is left with what it owns.
    Reduce,
    /// Copies the contribution from the device to host memory.
    CopyD2H,
    /// Sums on the host what the PCIe groups of one machine reduced on their own.
    PcieReduce,
    /// Makes the contribution smaller.
    Compress,
    /// Sends the contribution to its server.
    Push,
    /// Receives the sum.
    Pull,
    /// Undoes the compression of the sum.
    Decompress,
    /// Brings the sum on the host to one rank of every PCIe group of the machine.
    PcieBroadcast,
    /// Copies the sum back to the device.
    CopyH2D,
    /// Brings what each rank owns to the others, so that every rank of the machine has the whole sum.
    Broadcast,
}

impl Stage {
    /// How many stages there are.
    pub const COUNT: usize = 11;

    /// Every stage, in the order in which a part passes them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::AllReduce,
        Self::Reduce,
        Self::CopyD2H,
        Self::PcieReduce,
        Self::Compress,
        Self::Push,
        Self::Pull,
        Self::Decompress,
        Self::PcieBroadcast,
        Self::CopyH2D,
        Self::Broadcast,
    ];

    /// Those that the ranks of a machine do together, in one order.
    pub const COLLECTIVE: [Self; 5] =
        [Self::AllReduce, Self::Reduce, Self::PcieReduce, Self::PcieBroadcast, Self::Broadcast];

    /// Its position in [`Stage::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether it is one of [`Stage::COLLECTIVE`].
    pub fn is_collective(self) -> bool {
        Self::COLLECTIVE.contains(&self)
    }

    /// Whether it is one that only memory of devices needs.
    pub const fn is_staging(self) -> bool {
        matches!(self, Self::CopyD2H | Self::PcieReduce | Self::PcieBroadcast | Self::CopyH2D)
    }

    /// Whether it copies between a device and the host.
    pub const fn is_copy(self) -> bool {
        matches!(self, Self::CopyD2H | Self::CopyH2D)
    }

    /// What it is called in messages and timelines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "ALL_REDUCE",
            Self::Reduce => "REDUCE",
            Self::CopyD2H => "COPYD2H",
            Self::PcieReduce => "PCIE_REDUCE",
            Self::Compress => "COMPRESS",
            Self::Push => "PUSH",
            Self::Pull => "PULL",
            Self::Decompress => "DECOMPRESS",
            Self::PcieBroadcast => "PCIE_BROADCAST",
            Self::CopyH2D => "COPYH2D",
            Self::Broadcast => "BROADCAST",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_a_stage_is_its_position() {
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage.index(), index);
        }
    }
}
