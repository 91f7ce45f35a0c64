//! The twelve kinds of work that a part can need.

use std::fmt;

use crate::types::Goal;

/// One step of a part's life. Waiting is not a stage: a part waits at a gate before the stage that must not begin yet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Stage {
    /// Sums over the ranks of a machine and gives all of them the whole sum: REDUCE and BROADCAST at once, chunk by chunk. It is used if no
    /// stage is needed between the two.
    AllReduce,
    /// Sums over the ranks of a machine; each rank keeps what it owns.
    Reduce,
    /// Copies the contribution from the device to host memory.
    CopyD2H,
    /// Sums on the host the results of the PCIe groups of one machine.
    PcieReduce,
    /// Encodes the contribution as its tensor's codec says. Skipped if the device did so in COPYD2H.
    Compress,
    /// Sends the contribution to its server.
    Push,
    /// Receives the sum.
    Pull,
    /// Decodes the sum. Skipped if the device does so in COPYH2D.
    Decompress,
    /// Brings the sum from the host to one rank of every PCIe group of the machine.
    PcieBroadcast,
    /// Copies the sum back to the device.
    CopyH2D,
    /// Brings what each rank owns to the others, so that every rank of the machine has the whole sum.
    Broadcast,
    /// Copies the sum to its destination, now that all of it is there. Only a sum that must not overwrite its contribution before passes it.
    Land,
}

impl Stage {
    /// How many stages there are.
    pub const COUNT: usize = 12;

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
        Self::Land,
    ];

    /// The stages that the ranks of a machine do together, in one order.
    pub const COLLECTIVE: [Self; 5] =
        [Self::AllReduce, Self::Reduce, Self::PcieReduce, Self::PcieBroadcast, Self::Broadcast];

    /// Its position in [`Stage::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The stage in which the ranks of a machine have this goal.
    pub const fn of(goal: &Goal) -> Self {
        match goal {
            Goal::AllReduce | Goal::Deliver { .. } => Self::AllReduce,
            Goal::Reduce { .. } => Self::Reduce,
            Goal::Join { .. } => Self::PcieReduce,
            Goal::Share { .. } => Self::PcieBroadcast,
            Goal::Broadcast { .. } => Self::Broadcast,
        }
    }

    /// Whether it is one of [`Stage::COLLECTIVE`].
    pub fn is_collective(self) -> bool {
        Self::COLLECTIVE.contains(&self)
    }

    /// Whether it encodes or decodes.
    pub const fn is_coding(self) -> bool {
        matches!(self, Self::Compress | Self::Decompress)
    }

    /// Whether only device memory needs this stage.
    pub const fn is_staging(self) -> bool {
        matches!(self, Self::CopyD2H | Self::PcieReduce | Self::PcieBroadcast | Self::CopyH2D)
    }

    /// Whether it copies between a device and the host.
    pub const fn is_copy(self) -> bool {
        matches!(self, Self::CopyD2H | Self::CopyH2D)
    }

    /// Whether it is one half of the exchange with a server. A part that fails there may be repeated from PUSH.
    pub const fn is_exchange(self) -> bool {
        match self {
            Self::Push | Self::Pull => true,
            Self::AllReduce
            | Self::Reduce
            | Self::CopyD2H
            | Self::PcieReduce
            | Self::Compress
            | Self::Land
            | Self::Decompress
            | Self::PcieBroadcast
            | Self::CopyH2D
            | Self::Broadcast => false,
        }
    }

    /// Whether only the rank that exchanges a part for its machine passes it.
    pub const fn is_for_owner(self) -> bool {
        match self {
            Self::Compress | Self::Push | Self::Pull | Self::Decompress => true,
            Self::AllReduce
            | Self::Reduce
            | Self::CopyD2H
            | Self::PcieReduce
            | Self::PcieBroadcast
            | Self::CopyH2D
            | Self::Broadcast
            | Self::Land => false,
        }
    }

    /// Whether the contribution has not yet reached PUSH: the server knows nothing of a part that ends here.
    pub const fn precedes_push(self) -> bool {
        match self {
            Self::AllReduce | Self::Reduce | Self::CopyD2H | Self::PcieReduce | Self::Compress => true,
            Self::Push
            | Self::Pull
            | Self::Land
            | Self::Decompress
            | Self::PcieBroadcast
            | Self::CopyH2D
            | Self::Broadcast => false,
        }
    }

    /// Whether the sum has arrived: a part that ends here has finished its exchange.
    pub const fn follows_pull(self) -> bool {
        match self {
            Self::Land | Self::Decompress | Self::PcieBroadcast | Self::CopyH2D | Self::Broadcast => true,
            Self::AllReduce
            | Self::Reduce
            | Self::CopyD2H
            | Self::PcieReduce
            | Self::Compress
            | Self::Push
            | Self::Pull => false,
        }
    }

    /// Whether it is the first stage that the ranks of a machine do together with a part: no rank has promised the others anything yet.
    pub const fn opens_collective(self) -> bool {
        match self {
            Self::AllReduce | Self::Reduce => true,
            Self::CopyD2H
            | Self::PcieReduce
            | Self::Compress
            | Self::Push
            | Self::Pull
            | Self::Land
            | Self::Decompress
            | Self::PcieBroadcast
            | Self::CopyH2D
            | Self::Broadcast => false,
        }
    }

    /// Its name in messages and timelines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "ALL_REDUCE",
            Self::Reduce => "REDUCE",
            Self::CopyD2H => "COPYD2H",
            Self::PcieReduce => "PCIE_REDUCE",
            Self::Compress => "COMPRESS",
            Self::Push => "PUSH",
            Self::Pull => "PULL",
            Self::Land => "LAND",
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

    #[test]
    fn a_part_passes_the_stages_before_its_exchange_the_exchange_and_those_after() {
        for stage in Stage::ALL {
            let places = [stage.precedes_push(), stage.is_exchange(), stage.follows_pull()];
            assert_eq!(places.into_iter().filter(|is| *is).count(), 1, "{stage} is in one of the three");
            assert_eq!(stage.precedes_push(), stage < Stage::Push, "{stage}");
            assert_eq!(stage.follows_pull(), stage > Stage::Pull, "{stage}");
            assert!(!stage.opens_collective() || stage.is_collective() && stage.precedes_push(), "{stage}");
            assert!(!stage.is_exchange() || stage.is_for_owner(), "{stage}");
        }
    }
}
