//! What a task carries: whose memory, who uses it now, and what of the engine's own it needs on the way.

use super::Memory;
use super::trace::Subject;
use crate::collective;
use crate::collective::order::Slot;
use crate::cuda::Mark;
use crate::mem::borrow::{Letter, Staging};
use crate::mem::{DeviceRegion, Ordinal, Region};
use crate::pipeline::registry::ReadyPart;
use crate::types::{DeviceKind, ExchangeId, Priority};

/// What a task moves.
pub(super) struct Payload {
    pub(super) part: ReadyPart,
    pub(super) cargo: Cargo,
    pub(super) hold: Hold,
    pub(super) priority: Priority,
    /// The stage that it is in shall end early.
    pub(super) abandoned: bool,
    /// Why this worker gives the round up, for the server: all that a task carries which tells it. It lives as long as the task, hence
    /// longer than its exchanges.
    pub(super) letter: Option<Letter>,
}

/// The memory of the part's tensors, run after run in piece order.
pub(super) enum Cargo {
    /// It is sent from where it lies, and the sum lands where it goes.
    Host { source: Vec<Region>, destination: Vec<Region> },
    /// It is staged on its way to the network and back.
    Device(OnDevice),
}

/// Memory of one device.
pub(super) struct OnDevice {
    pub(super) source: Runs,
    pub(super) destination: Runs,
    /// The contribution, and later the sum, between COPYD2H and COPYH2D.
    pub(super) staging: Option<Staging>,
}

/// Runs of a device's memory, and what comes before their use.
#[derive(Default)]
pub(super) struct Runs {
    pub(super) regions: Vec<DeviceRegion>,
    pub(super) after: Vec<Mark>,
}

/// Who may use the memory of a task now, and is asked to let go of it when nobody wants it any more. A copy is not asked: it ends soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    Nobody,
    Transport(ExchangeId),
    Collective(Slot),
}

impl Payload {
    /// That of a task which nobody executes yet.
    pub(super) const fn new(part: ReadyPart, cargo: Cargo, priority: Priority) -> Self {
        Self { part, cargo, hold: Hold::Nobody, priority, abandoned: false, letter: None }
    }

    /// What the timeline says of it.
    pub(super) fn subject(&self) -> Subject {
        let layout = &self.part.layout;
        Subject {
            part: layout.part,
            round: self.part.round,
            bytes: layout.bytes(),
            priority: self.priority,
            server: layout.server,
        }
    }
}

impl Cargo {
    /// That of a task which moves no tensor.
    pub(super) const fn nothing() -> Self {
        Self::Host { source: Vec::new(), destination: Vec::new() }
    }

    /// The cargo of a part whose tensors have this memory, source and destination, in piece order; `Err` with the positions of the first
    /// piece and of one that lies elsewhere.
    pub(super) fn load(pieces: Vec<(Memory, Memory)>) -> std::result::Result<Self, (usize, usize)> {
        let device = pieces.first().and_then(|(source, _)| source.device());
        if let Some(other) = pieces.iter().position(|(source, _)| source.device() != device) {
            return Err((0, other));
        }
        let (mut host, mut runs) = ((Vec::new(), Vec::new()), (Runs::default(), Runs::default()));
        for (from, to) in pieces {
            from.unload(&mut host.0, &mut runs.0);
            to.unload(&mut host.1, &mut runs.1);
        }
        Ok(match device {
            None => Self::Host { source: host.0, destination: host.1 },
            Some(_) => Self::Device(OnDevice { source: runs.0, destination: runs.1, staging: None }),
        })
    }

    /// What holds the tensors.
    pub(super) const fn kind(&self) -> DeviceKind {
        match self {
            Self::Host { .. } => DeviceKind::Host,
            Self::Device(_) => DeviceKind::Cuda,
        }
    }

    /// What is pushed.
    ///
    /// # Panics
    /// If it is a device's and was not staged.
    pub(super) fn contribution(&self) -> Vec<Region> {
        match self {
            Self::Host { source, .. } => again(source),
            Self::Device(there) => vec![there.staged()],
        }
    }

    /// Where the sum lands.
    ///
    /// # Panics
    /// If it is a device's and was not staged.
    pub(super) fn landing(&self) -> Vec<Region> {
        match self {
            Self::Host { destination, .. } => again(destination),
            Self::Device(there) => vec![there.staged()],
        }
    }

    /// What the ranks of a machine reduce.
    pub(super) fn memory(&self) -> collective::Memory {
        match self {
            Self::Host { source, destination } => {
                collective::Memory::Host { source: again(source), destination: again(destination) }
            }
            Self::Device(OnDevice { source, destination, .. }) => {
                let after = source.after.iter().chain(&destination.after).cloned().collect();
                let (source, destination) = (source.regions_again(), destination.regions_again());
                collective::Memory::Device(collective::DeviceMemory { source, destination, after })
            }
        }
    }

    /// What the PCIe groups of a machine reduce on its host: nothing where this rank holds nothing of it.
    pub(super) fn staged_memory(&self) -> collective::Memory {
        let staged = || match self {
            Self::Device(OnDevice { staging: Some(staging), .. }) => vec![staging.region()],
            Self::Device(OnDevice { staging: None, .. }) | Self::Host { .. } => Vec::new(),
        };
        collective::Memory::Host { source: staged(), destination: staged() }
    }

    /// Gives back what it was staged in, if it was.
    pub(super) fn unstage(&mut self) {
        if let Self::Device(there) = self {
            there.staging = None;
        }
    }

    /// From now on the contribution lies where the result goes.
    pub(super) fn contribute_result(&mut self) {
        match self {
            Self::Host { source, destination } => *source = again(destination),
            Self::Device(OnDevice { source, destination, .. }) => *source = destination.again(),
        }
    }

    /// Which device a task in COPYD2H or COPYH2D is about.
    pub(super) fn device(&self) -> Ordinal {
        match self {
            Self::Device(there) => there.source.regions.first().expect("a part has a piece").device(),
            Self::Host { .. } => unreachable!("tasks in host memory pass no copies"),
        }
    }

    /// That of a task in COPYD2H or COPYH2D.
    pub(super) fn on_device(&mut self) -> &mut OnDevice {
        match self {
            Self::Device(there) => there,
            Self::Host { .. } => unreachable!("tasks in host memory pass no copies"),
        }
    }
}

impl OnDevice {
    /// The staged bytes.
    ///
    /// # Panics
    /// If there are none.
    pub(super) fn staged(&self) -> Region {
        self.staging.as_ref().expect("staged from COPYD2H to COPYH2D").region()
    }
}

impl Runs {
    /// The same once more, for another stage.
    pub(super) fn again(&self) -> Self {
        Self { regions: self.regions_again(), after: self.after.clone() }
    }

    fn regions_again(&self) -> Vec<DeviceRegion> {
        self.regions.iter().map(DeviceRegion::again).collect()
    }
}

impl Memory {
    fn unload(self, host: &mut Vec<Region>, runs: &mut Runs) {
        match self {
            Self::Host(region) => host.push(region),
            Self::Device { region, after } => {
                runs.regions.push(region);
                runs.after.push(after);
            }
        }
    }
}

/// The same regions for another stage.
fn again(regions: &[Region]) -> Vec<Region> {
    regions.iter().map(Region::again).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_in_one_place() {
        let there = |ordinal: u16, address: u64| {
            let memory =
                || Memory::Device { region: DeviceRegion::new(Ordinal(ordinal), address, 8), after: Mark::Reached };
            (memory(), memory())
        };
        let mut bytes = [0_u8; 8];
        let here = crate::mem::borrow::region_of(&mut bytes);
        let Ok(cargo) = Cargo::load(vec![there(1, 64), there(1, 256)]) else { panic!("one device") };
        assert_eq!(cargo.kind(), DeviceKind::Cuda);
        let Cargo::Device(on) = &cargo else { panic!("on a device") };
        assert_eq!((on.source.regions.len(), on.destination.after.len()), (2, 2));
        assert_eq!(Cargo::load(vec![there(1, 64), there(1, 128), there(0, 64)]).err(), Some((0, 2)));
        assert_eq!(Cargo::load(vec![there(1, 64), (here.again().into(), here.again().into())]).err(), Some((0, 1)));
        assert_eq!(
            Cargo::load(vec![(here.again().into(), here.again().into())]).map(|cargo| cargo.kind()),
            Ok(DeviceKind::Host)
        );
    }
}
