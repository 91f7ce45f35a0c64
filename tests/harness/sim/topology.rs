//! From a seed to the machines of a job: how many ranks each has, what holds tensors there, and what joins its devices.

use std::fmt;

use gradlane_core::types::{DeviceKind, MachineId, Wiring};

use crate::random::Random;

/// Where the workers of a job run.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    /// The machine of each worker process.
    machines: Vec<u32>,
    /// The workers of each machine.
    teams: Vec<Vec<u32>>,
    /// What may hold tensors, besides host memory.
    pub(super) device: DeviceKind,
    /// How many devices of a machine are of one PCIe group, if that was told.
    switch_size: Option<u32>,
    /// Whether each worker process may hold parts for others.
    holds: Vec<bool>,
}

/// The most workers of a job: as many as have a digit of their own in the oracle's numbers.
const WORKERS_MAX: usize = 8;

/// Weights of the ranks of a machine, by their number. The weights of a machine add up to a power of two, and so do those of two devices
/// of one PCIe group, so that the mean of each has an exact value in every type.
const WEIGHTS: [&[&[u64]]; 3] = [
    &[&[1, 1], &[1, 3], &[3, 1], &[2, 2], &[0, 2]],
    &[&[1, 1, 2], &[2, 0, 2], &[0, 2, 2], &[1, 1, 0]],
    &[&[1, 1, 1, 1], &[1, 3, 2, 2], &[2, 0, 1, 1], &[3, 1, 1, 3], &[0, 2, 0, 2]],
];

impl Topology {
    /// Draws a topology; with `apart`, of so many machines, of which all but one have one worker each.
    pub(super) fn draw(random: &mut Random, apart: Option<usize>) -> Self {
        let sizes: Vec<usize> = match (apart, random.below(100)) {
            (Some(workers), 0..70) => vec![1; workers],
            // One machine has company, and the others have none.
            (Some(workers), _) => [2].into_iter().chain(std::iter::repeat_n(1, workers - 1)).collect(),
            // Every worker is alone on its machine.
            (None, 0..40) => vec![1; random.pick(&[1, 2, 2, 2, 3, 3, 3, 4, 5, 8])],
            (None, 40..55) => vec![random.pick(&[2, 2, 3, 4])],
            (None, _) => {
                let mut sizes: Vec<usize> =
                    (0..random.pick(&[2, 2, 2, 3])).map(|_| random.pick(&[1, 2, 2, 3, 4])).collect();
                sizes[0] = sizes[0].max(2);
                sizes
            }
        };
        let mut this = Self::of_sizes(random, sizes);
        if apart.is_some() {
            this.outlive_workers();
        }
        this
    }

    /// Draws a topology of machines with so many workers each.
    pub(super) fn of_sizes(random: &mut Random, sizes: Vec<usize>) -> Self {
        let several = (0..).zip(sizes).flat_map(|(machine, ranks)| std::iter::repeat_n(machine, ranks));
        let mut machines: Vec<u32> = several.take(WORKERS_MAX).collect();
        random.shuffle(&mut machines);
        let has_devices = random.chance(40);
        let mut teams = vec![Vec::new(); machines.len()];
        (0..).zip(&machines).for_each(|(worker, machine)| teams[*machine as usize].push(worker));
        let mut this = Self {
            holds: vec![true; machines.len()],
            machines,
            teams,
            device: if has_devices { DeviceKind::Cuda } else { DeviceKind::Host },
            switch_size: None,
        };
        if has_devices && this.has_teams() {
            this.switch_size = random.pick(&[None, Some(1), Some(2), Some(2)]);
            if random.chance(20) {
                this.holds.iter_mut().for_each(|holds| *holds = random.chance(60));
            }
        }
        this
    }

    /// Lets machines of several workers reduce in host memory alone: if they do so on devices, the machine of a lost worker is lost with it.
    pub(super) fn outlive_workers(&mut self) {
        if self.has_teams() {
            (self.device, self.switch_size) = (DeviceKind::Host, None);
            self.holds.fill(true);
        }
    }

    /// How many workers there are.
    pub(super) fn workers(&self) -> u32 {
        self.machines.len() as u32
    }

    /// Whether some machine has several ranks.
    pub(super) fn has_teams(&self) -> bool {
        self.teams.iter().any(|team| team.len() > 1)
    }

    /// Whether all workers share a machine and are several: then they need no server.
    pub(super) fn is_one_machine(&self) -> bool {
        self.team(0).len() > 1 && self.team(0).len() == self.machines.len()
    }

    /// The workers on the machine of one, itself among them.
    pub(super) fn team(&self, worker: u32) -> &[u32] {
        &self.teams[self.machines[worker as usize] as usize]
    }

    /// The other workers on the machine of one.
    pub(super) fn neighbours(&self, worker: u32) -> Vec<u32> {
        self.team(worker).iter().copied().filter(|other| *other != worker).collect()
    }

    /// The machine of a worker.
    pub(super) fn machine(&self, worker: u32) -> MachineId {
        MachineId(1 + u64::from(self.machines[worker as usize]))
    }

    /// The machine of a server: that of a worker.
    pub(super) fn server_machine(&self, server: u32) -> MachineId {
        self.machine(server % self.machines.len() as u32)
    }

    /// How the device of a worker is joined to the others of its machine.
    pub(super) fn wiring(&self, worker: u32) -> Wiring {
        let holds = self.holds[worker as usize];
        match self.switch_size {
            Some(size) => Wiring { pcie_group: self.place(worker) as u32 / size + 1, holds },
            None => Wiring { holds, ..Wiring::default() },
        }
    }

    /// The weight of a worker on a machine of several, as `draw` chooses it for all of the machine; `None` if it is alone.
    pub(super) fn weight(&self, worker: u32, draw: u64) -> Option<u64> {
        let of_machine = WEIGHTS.get(self.team(worker).len().checked_sub(2)?)?;
        let draw = draw >> (4 * self.machines[worker as usize]);
        Some(of_machine[draw as usize % of_machine.len()][self.place(worker)])
    }

    /// The place of a worker on its machine.
    fn place(&self, worker: u32) -> usize {
        self.team(worker).iter().position(|other| *other == worker).expect("it is of its own team")
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machines, device, switch_size, .. } = self;
        write!(f, "{machines:?} ({device}")?;
        match switch_size {
            Some(size) => write!(f, ", PCIe groups of {size})"),
            None => f.write_str(")"),
        }
    }
}
