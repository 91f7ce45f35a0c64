//! Finds the place of a worker from the variables that launchers set. The first family with a variable set decides. A family with only some
//! of its variables set is an error, because guessing the rest would give two processes one rank.

use super::launcher::{Launch, Launcher};
use super::tf_config::TfConfig;
use crate::error::{Error, Result};

impl Launch {
    /// The variables that tell a worker of a place in a job of another launcher than Gradlane's. A process that has none of them, and neither
    /// `GRADLANE_RANK` nor `GRADLANE_SIZE`, has no place.
    pub const OF_OTHERS: [&str; 12] = [
        DMLC[0],
        DMLC[1],
        DMLC[2],
        TORCHRUN[0],
        TORCHRUN[1],
        "TF_CONFIG",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
        "SLURM_PROCID",
        "SLURM_STEP_NODELIST",
    ];

    /// Finds the place of this worker. `env` gives the value of a variable.
    ///
    /// If a launcher does not say how many workers share a host, each worker is treated as the only one of its host.
    ///
    /// # Errors
    /// [`Error::Config`] naming the variable that is missing, is no number, or is beyond its count.
    pub fn detect(env: &impl Fn(&str) -> Option<String>) -> Result<Self> {
        let launch = if set(env, &GRADLANE) {
            gradlane(&Family { launcher: Launcher::Gradlane, env })
        } else if set(env, &DMLC) {
            dmlc(&Family { launcher: Launcher::Dmlc, env })
        } else if set(env, &TORCHRUN) {
            torchrun(&Family { launcher: Launcher::Torchrun, env })
        } else if let Some(described) = TfConfig::find(env)? {
            described.worker()
        } else if env("OMPI_COMM_WORLD_RANK").is_some() || env("OMPI_COMM_WORLD_SIZE").is_some() {
            open_mpi(&Family { launcher: Launcher::Mpi, env })
        } else if env("PMI_RANK").is_some() || env("PMI_SIZE").is_some() {
            pmi(&Family { launcher: Launcher::Mpi, env })
        } else if env("SLURM_PROCID").is_some() && env("SLURM_STEP_NODELIST").is_some() {
            // The script of a batch job also sees SLURM_PROCID=0 and SLURM_NTASKS, but it is one process, not a rank: only srun makes
            // steps.
            slurm(&Family { launcher: Launcher::Slurm, env })
        } else {
            Ok(place(Launcher::Single, 0, 1))
        }?;
        launch.check()?;
        Ok(launch)
    }

    fn check(&self) -> Result<()> {
        for (what, index, count) in [
            ("rank", self.rank, self.size),
            ("local rank", self.local_rank, self.local_size),
            ("host index", self.node_rank, self.num_nodes),
        ] {
            if index >= count {
                return Err(Error::Config {
                    knob: format!("{what} of {}", self.launcher),
                    problem: format!("is {index} of {count}"),
                    hint: "indices count from 0".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// With this place on its host. All hosts are assumed to have the same number of workers, filled in order of rank.
    fn on_host(self, (local_rank, local_size): (u32, u32)) -> Self {
        // `check` refuses a local size of 0, so the values computed here from 0 do not matter.
        let divisor = local_size.max(1);
        let (node_rank, num_nodes) = (self.rank / divisor, self.size.div_ceil(divisor));
        Self { local_rank, local_size, node_rank, num_nodes, ..self }
    }
}

/// The content of `TF_CONFIG` for this process, whatever its role. `None` if variables are set that have precedence over it.
///
/// # Errors
/// As [`TfConfig::find`].
pub(super) fn described(env: &impl Fn(&str) -> Option<String>) -> Result<Option<TfConfig>> {
    if [&GRADLANE[..], &DMLC, &TORCHRUN].into_iter().any(|family| set(env, family)) {
        return Ok(None);
    }
    TfConfig::find(env)
}

/// If any of these is set, its family is present, completely or in part.
const GRADLANE: [&str; 2] = ["GRADLANE_RANK", "GRADLANE_SIZE"];
const DMLC: [&str; 3] = ["DMLC_WORKER_ID", "DMLC_NUM_WORKER", "DMLC_ROLE"];
const TORCHRUN: [&str; 2] = ["RANK", "WORLD_SIZE"];

fn set(env: &impl Fn(&str) -> Option<String>, family: &[&str]) -> bool {
    family.iter().any(|name| env(name).is_some())
}

/// The number of workers that ps-lite's variables give to a coordinator: `DMLC_NUM_WORKER` hosts of `BYTEPS_LOCAL_SIZE` workers. The
/// default is one worker per host.
///
/// # Errors
/// [`Error::Config`] naming the variable that is no number.
pub fn workers_of_dmlc(env: &impl Fn(&str) -> Option<String>) -> Result<Option<u32>> {
    let family = Family { launcher: Launcher::Dmlc, env };
    let Some(hosts) = family.optional("DMLC_NUM_WORKER")? else { return Ok(None) };
    let local_size = family.optional("BYTEPS_LOCAL_SIZE")?.unwrap_or(1);
    family.product(hosts, local_size).map(Some)
}

fn gradlane(family: &Family<'_, impl Fn(&str) -> Option<String>>) -> Result<Launch> {
    let launch = place(family.launcher, family.required("GRADLANE_RANK")?, family.required("GRADLANE_SIZE")?)
        .on_host(family.pair("GRADLANE_LOCAL_RANK", "GRADLANE_LOCAL_SIZE")?);
    let node_rank = family.optional("GRADLANE_NODE_RANK")?.unwrap_or(launch.node_rank);
    let num_nodes = family.optional("GRADLANE_NUM_NODES")?.unwrap_or(launch.num_nodes);
    Ok(Launch { node_rank, num_nodes, ..launch })
}

/// BytePS counts hosts: `DMLC_WORKER_ID` of `DMLC_NUM_WORKER`, each with `BYTEPS_LOCAL_SIZE` workers.
fn dmlc(family: &Family<'_, impl Fn(&str) -> Option<String>>) -> Result<Launch> {
    let (node_rank, num_nodes) = (family.required("DMLC_WORKER_ID")?, family.required("DMLC_NUM_WORKER")?);
    let (local_rank, local_size) = family.pair("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")?;
    let first = family.product(node_rank, local_size)?;
    let rank = match family.optional("BYTEPS_GLOBAL_RANK")? {
        Some(rank) => rank,
        None => first.checked_add(local_rank).ok_or_else(|| family.too_large())?,
    };
    let size = family.product(num_nodes, local_size)?;
    Ok(Launch { launcher: family.launcher, rank, size, local_rank, local_size, node_rank, num_nodes })
}

fn torchrun(family: &Family<'_, impl Fn(&str) -> Option<String>>) -> Result<Launch> {
    let launch = place(family.launcher, family.required("RANK")?, family.required("WORLD_SIZE")?)
        .on_host(family.pair("LOCAL_RANK", "LOCAL_WORLD_SIZE")?);
    let node_rank = family.optional("GROUP_RANK")?.unwrap_or(launch.node_rank);
    // Hosts may have different numbers of workers. Then the last host may lie beyond the number of hosts computed for equal ones.
    let num_nodes = family.optional("GROUP_WORLD_SIZE")?.unwrap_or(launch.num_nodes.max(node_rank.saturating_add(1)));
    Ok(Launch { node_rank, num_nodes, ..launch })
}

fn open_mpi(family: &Family<'_, impl Fn(&str) -> Option<String>>) -> Result<Launch> {
    let rank = family.required("OMPI_COMM_WORLD_RANK")?;
    let size = family.required("OMPI_COMM_WORLD_SIZE")?;
    let local = family.pair("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")?;
    Ok(place(family.launcher, rank, size).on_host(local))
}

fn pmi(family: &Family<'_, impl Fn(&str) -> Option<String>>) -> Result<Launch> {
    let (rank, size) = (family.required("PMI_RANK")?, family.required("PMI_SIZE")?);
    let local = family.pair("MPI_LOCALRANKID", "MPI_LOCALNRANKS")?;
    Ok(place(family.launcher, rank, size).on_host(local))
}

fn slurm(family: &Family<'_, impl Fn(&str) -> Option<String>>) -> Result<Launch> {
    // A step may have fewer tasks and hosts than its allocation.
    let size = match family.optional("SLURM_STEP_NUM_TASKS")? {
        Some(size) => size,
        None => family.required("SLURM_NTASKS")?,
    };
    let node_rank = family.required("SLURM_NODEID")?;
    let variable = if (family.env)("SLURM_STEP_TASKS_PER_NODE").is_some() {
        "SLURM_STEP_TASKS_PER_NODE"
    } else {
        "SLURM_TASKS_PER_NODE"
    };
    let tasks = (family.env)(variable).ok_or_else(|| family.missing(variable))?;
    let tasks = tasks_per_node(&tasks).ok_or_else(|| family.bad(variable, &tasks))?;
    let hosts: u64 = tasks.iter().map(|(_, hosts)| u64::from(*hosts)).sum();
    let mut before = 0;
    let local_size = tasks.iter().find_map(|(count, hosts)| {
        before += u64::from(*hosts);
        (u64::from(node_rank) < before).then_some(*count)
    });
    Ok(Launch {
        launcher: family.launcher,
        rank: family.required("SLURM_PROCID")?,
        size,
        local_rank: family.required("SLURM_LOCALID")?,
        local_size: local_size.unwrap_or(1),
        node_rank,
        num_nodes: u32::try_from(hosts).map_err(|_| family.too_large())?,
    })
}

/// Reads Slurm's `4(x2),3`: two hosts with four tasks, then one with three. Returns tasks and hosts of each run.
fn tasks_per_node(text: &str) -> Option<Vec<(u32, u32)>> {
    text.split(',')
        .map(|run| match run.trim().split_once("(x") {
            Some((tasks, hosts)) => Some((tasks.parse().ok()?, hosts.strip_suffix(')')?.parse().ok()?)),
            None => Some((run.trim().parse().ok()?, 1)),
        })
        .collect()
}

/// A worker that is the only one of its host.
fn place(launcher: Launcher, rank: u32, size: u32) -> Launch {
    Launch { launcher, rank, size, local_rank: 0, local_size: 1, node_rank: rank, num_nodes: size }
}

/// The variables of one launcher.
struct Family<'a, E> {
    launcher: Launcher,
    env: &'a E,
}

impl<E: Fn(&str) -> Option<String>> Family<'_, E> {
    fn optional(&self, name: &str) -> Result<Option<u32>> {
        let Some(text) = (self.env)(name) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| self.bad(name, &text))
    }

    fn required(&self, name: &str) -> Result<u32> {
        self.optional(name)?.ok_or_else(|| self.missing(name))
    }

    /// A local rank and its count. Both must be set, or neither: then this is the only worker of its host.
    fn pair(&self, rank: &str, size: &str) -> Result<(u32, u32)> {
        match (self.optional(rank)?, self.optional(size)?) {
            (Some(rank), Some(size)) => Ok((rank, size)),
            (None, None) => Ok((0, 1)),
            (Some(_), None) => Err(self.missing(size)),
            (None, Some(_)) => Err(self.missing(rank)),
        }
    }

    fn product(&self, hosts: u32, local_size: u32) -> Result<u32> {
        hosts.checked_mul(local_size).ok_or_else(|| self.too_large())
    }

    fn missing(&self, name: &str) -> Error {
        Error::Config {
            knob: name.to_owned(),
            problem: format!("is missing beside the other {}", self.variables()),
            hint: "set it, or give rank and size as arguments or as GRADLANE_RANK and GRADLANE_SIZE".to_owned(),
        }
    }

    fn bad(&self, name: &str, text: &str) -> Error {
        Error::Config {
            knob: name.to_owned(),
            problem: format!("{text:?} is no number of {}", self.launcher),
            hint: "check what sets it".to_owned(),
        }
    }

    fn too_large(&self) -> Error {
        Error::Config {
            knob: self.variables(),
            problem: "give more workers than there can be".to_owned(),
            hint: "check what sets them".to_owned(),
        }
    }

    fn variables(&self) -> String {
        match self.launcher {
            Launcher::Gradlane | Launcher::Dmlc => self.launcher.to_string(),
            Launcher::Torchrun | Launcher::TfConfig | Launcher::Mpi | Launcher::Slurm | Launcher::Single => {
                format!("variables of {}", self.launcher)
            }
        }
    }
}

#[cfg(test)]
mod tests;
