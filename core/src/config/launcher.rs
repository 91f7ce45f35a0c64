//! The place of a worker in its job, and the launchers that can tell it.

use std::fmt;

/// The place of a worker in its job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// The source of these values.
    pub launcher: Launcher,
    /// From 0.
    pub rank: u32,
    /// Number of workers.
    pub size: u32,
    /// Rank among the workers of this host.
    pub local_rank: u32,
    /// Number of workers of this host.
    pub local_size: u32,
    /// Index of this host.
    pub node_rank: u32,
    /// Number of hosts.
    pub num_nodes: u32,
}

/// A family of variables, in the order in which they are looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launcher {
    /// `GRADLANE_RANK`, `GRADLANE_SIZE`, …
    Gradlane,
    /// `DMLC_WORKER_ID`, `DMLC_NUM_WORKER` and `BYTEPS_LOCAL_RANK`, `BYTEPS_LOCAL_SIZE`: BytePS and ps-lite.
    Dmlc,
    /// `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `GROUP_RANK`: torchrun and all launchers that imitate it.
    Torchrun,
    /// `TF_CONFIG`: TensorFlow, and the schedulers that write it.
    TfConfig,
    /// `OMPI_COMM_WORLD_*` of Open MPI, or `PMI_*` of MPICH and related launchers.
    Mpi,
    /// `SLURM_*` of a step that `srun` started.
    Slurm,
    /// None: a job of one process.
    Single,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gradlane => "GRADLANE_* variables",
            Self::Dmlc => "DMLC_* variables",
            Self::Torchrun => "torchrun",
            Self::TfConfig => "TF_CONFIG",
            Self::Mpi => "MPI",
            Self::Slurm => "Slurm",
            Self::Single => "single process",
        })
    }
}

impl Launch {
    /// The names of the knobs and their values.
    pub fn values(&self) -> [(&'static str, u32); 6] {
        [
            ("rank", self.rank),
            ("size", self.size),
            ("local_rank", self.local_rank),
            ("local_size", self.local_size),
            ("node_rank", self.node_rank),
            ("num_nodes", self.num_nodes),
        ]
    }

    /// The place of the worker of `rank`. `hosts` has the host of each rank.
    pub(super) fn among(launcher: Launcher, hosts: &[&str], rank: usize) -> Self {
        let count = |of: usize| u32::try_from(of).expect("nobody writes down so many hosts");
        let shared = |workers: &[&str]| count(workers.iter().filter(|host| **host == hosts[rank]).count());
        let distinct =
            |until: usize| count((0..until).filter(|index| !hosts[..*index].contains(&hosts[*index])).count());
        let first = hosts.iter().position(|host| *host == hosts[rank]).expect("its own host is among them");
        Self {
            launcher,
            rank: count(rank),
            size: count(hosts.len()),
            local_rank: shared(&hosts[..rank]),
            local_size: shared(hosts),
            node_rank: distinct(first),
            num_nodes: distinct(hosts.len()),
        }
    }
}
