//! A job of Gradlane on a fabric: its coordinator on the bridge, its servers on their machines, and what its workers must be told.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::fabric::{Fabric, Machine, Place};
use super::optimum::Cluster;
use super::process::Process;

/// A coordinator and its servers. Dropping it kills them.
pub(crate) struct Job {
    cluster: Cluster,
    join: String,
    settings: Vec<(String, String)>,
    _members: Vec<Process>,
}

impl Job {
    /// Starts the coordinator, then all servers: one on every extra machine, and where there are fewer of those than workers one beside
    /// every worker. `program` is the command line that starts this program again.
    ///
    /// # Errors
    /// Which process did not start.
    pub(crate) fn start(
        fabric: &Fabric,
        cluster: Cluster,
        program: &[OsString],
        settings: &[(String, String)],
    ) -> Result<Self, String> {
        let command = |place: Place, role: &str, settings: &[(String, String)]| {
            let mut command = fabric.command(place, &program[0]);
            command.args(&program[1..]).args(["role", role]);
            variables(&mut command, settings);
            set(&mut command, "bind", &format!("{}:0", place.address()));
            command
        };
        let mut coordinator = command(Place::Bridge, "coordinator", settings);
        set(&mut coordinator, "job", &format!("net-{}", std::process::id()));
        set(&mut coordinator, "state_dir", "");
        set(&mut coordinator, "size", &cluster.workers.to_string());
        set(&mut coordinator, "servers", &cluster.servers().to_string());
        let mut coordinator = Process::start("the coordinator", coordinator)?;
        let announced = coordinator.line(START)?;
        let join = announced.strip_prefix("GRADLANE_JOIN=").ok_or_else(|| format!("a join string: {announced}"))?;

        let mut members = vec![coordinator];
        for (index, machine) in server_machines(cluster).into_iter().enumerate() {
            let mut server = command(Place::Machine(machine), "server", settings);
            set(&mut server, "join", join);
            set(&mut server, "server_index", &index.to_string());
            members.push(Process::start(&format!("server {index}"), server)?);
        }
        Ok(Self { cluster, join: join.to_owned(), settings: settings.to_vec(), _members: members })
    }

    /// Tells a worker its place, in the environment, as a launcher that starts one process a machine would.
    pub(crate) fn place(&self, command: &mut Command, rank: u8) {
        let (rank, size) = (rank.to_string(), self.cluster.workers.to_string());
        variables(command, &self.settings);
        let place = [
            ("role", "worker"),
            ("join", &self.join),
            ("rank", &rank),
            ("size", &size),
            ("local_rank", "0"),
            ("local_size", "1"),
            ("node_rank", &rank),
            ("num_nodes", &size),
            ("servers", &self.cluster.servers().to_string()),
        ];
        place.into_iter().for_each(|(name, value)| set(command, name, value));
    }
}

/// Tells a process of `torch.distributed` its place, in the environment.
pub(crate) fn place_in_torch(command: &mut Command, cluster: Cluster, rank: u8) {
    let (rank, size) = (rank.to_string(), cluster.workers.to_string());
    command.envs([("RANK", &rank), ("WORLD_SIZE", &size), ("GROUP_RANK", &rank)]);
    command.envs([("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"), ("MASTER_PORT", "29500")]);
    command.env("MASTER_ADDR", Machine(0).address().to_string()).env("GLOO_SOCKET_IFNAME", "eth0");
}

/// The machines that run a server, by the server's index: the extra ones, whose machines come after the workers', first.
fn server_machines(cluster: Cluster) -> Vec<Machine> {
    let extras = (cluster.workers..cluster.workers + cluster.extras).map(Machine);
    let beside = (0..if cluster.is_colocated() { cluster.workers } else { 0 }).map(Machine);
    extras.chain(beside).collect()
}

fn variables(command: &mut Command, settings: &[(String, String)]) {
    command.stdin(Stdio::null());
    settings.iter().for_each(|(name, value)| set(command, name, value));
}

fn set(command: &mut Command, name: &str, value: &str) {
    command.env(format!("GRADLANE_{}", name.to_ascii_uppercase()), value);
}

/// How long a process may take until it says that it is there.
const START: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_on_the_extra_machines_and_with_too_few_of_those_beside_the_workers_too() {
        let machines = |workers, extras| {
            server_machines(Cluster { workers, extras }).into_iter().map(|Machine(index)| index).collect::<Vec<_>>()
        };
        assert_eq!(machines(2, 2), [2, 3]);
        assert_eq!(machines(2, 1), [2, 0, 1]);
        assert_eq!(machines(2, 0), [0, 1]);
    }
}
