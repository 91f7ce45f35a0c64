//! Runs a user's command on every worker machine of a fabric, beside a running coordinator and servers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;

use super::fabric::{Fabric, Machine, Place};
use super::optimum::Cluster;
use super::shape::Shape;
use super::{place, tools};
use crate::job;
use crate::measure;

/// Runs a command on every worker machine of a shaped network.
///
/// The command finds its place in RANK, WORLD_SIZE, MASTER_ADDR and so on (for torch.distributed) and in GRADLANE_* variables (for
/// gradlane.init). A coordinator and the servers are running when it starts. The exit code is 0 if all commands ended with 0, else the code
/// of the first command that failed.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    shape: Shape,
    /// Machines with a worker.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    workers: u8,
    /// Extra machines with a server; with fewer of them than workers there is also a server beside every worker.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=32))]
    servers: u8,
    /// Seconds after which the command is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    timeout: u32,
    /// The command line.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the command, and returns the exit code.
///
/// # Errors
/// Why it could not be started.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, String> {
    let Arguments { shape, workers, servers, timeout, command: line } = arguments;
    tools::check(&[])?;
    let cluster = Cluster { workers: *workers, extras: *servers };
    let fabric = Fabric::build(cluster.machines(), shape.link())?;
    let settings = shape.settings()?;
    let mut helpers = Vec::new();
    let join = job::start_helpers(&place::job(&fabric, cluster, &settings, START), &mut helpers)?;
    let before = fabric.traffic()?;
    let command = |rank: u8| {
        let mut command = fabric.command(Place::Machine(Machine(rank)), &line[0]);
        command.args(&line[1..]).stdin(Stdio::null());
        tell(&mut command, cluster, rank, &join, &settings);
        command
    };
    let mut outcome = Ok(0);
    let took = measure::time(|| outcome = run_all(cluster.workers, command, Duration::from_secs((*timeout).into())));
    let seconds = took.as_secs_f64();
    eprintln!("{} for {seconds:.3} s; MB over each link, from and to its machine:", fabric.link());
    for (index, (after, before)) in fabric.traffic()?.into_iter().zip(before).enumerate() {
        let used = after.since(before);
        let part = |bytes: u64| {
            let share = bytes as f64 / seconds / fabric.link().rate.bytes_per_second() * 100.0;
            format!("{:.1} ({share:.0} %)", bytes as f64 / 1e6)
        };
        let kind = if index < usize::from(*workers) { "worker" } else { "server" };
        eprintln!("  {kind} machine {index}: {}, {}", part(used.sent.bytes), part(used.received.bytes));
    }
    outcome
}

/// Sets the variables of a worker as a launcher with one process per machine does.
fn tell(command: &mut Command, cluster: Cluster, rank: u8, join: &str, settings: &BTreeMap<String, String>) {
    let (rank, size) = (rank.to_string(), cluster.workers.to_string());
    let servers = cluster.servers().to_string();
    let place = [
        ("role", "worker"),
        ("join", join),
        ("rank", &rank),
        ("size", &size),
        ("local_rank", "0"),
        ("local_size", "1"),
        ("node_rank", &rank),
        ("num_nodes", &size),
        ("servers", &servers),
    ];
    let settings = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in settings.chain(place) {
        command.env(format!("GRADLANE_{}", name.to_ascii_uppercase()), value);
    }
    command.envs([("RANK", &rank), ("WORLD_SIZE", &size), ("GROUP_RANK", &rank)]);
    command.envs([("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"), ("MASTER_PORT", "29500")]);
    command.env("MASTER_ADDR", Machine(0).address().to_string()).env("GLOO_SOCKET_IFNAME", "eth0");
}

fn run_all(workers: u8, command: impl Fn(u8) -> Command, timeout: Duration) -> Result<u8, String> {
    let (ended, endings) = channel();
    for rank in 0..workers {
        let mut command = command(rank);
        let mut child = command.spawn().map_err(|error| format!("worker {rank} does not start: {error}"))?;
        let ended = ended.clone();
        // The child ends with the fabric, and this thread ends with the child.
        std::thread::spawn(move || drop(ended.send((rank, child.wait()))));
    }
    let mut patience = timeout;
    let mut first_failure = 0;
    for _ in 0..workers {
        let Ok((rank, status)) = endings.recv_timeout(patience) else {
            eprintln!("a worker is still running after {patience:?}: it is killed");
            return Ok(if first_failure == 0 { TIMED_OUT } else { first_failure });
        };
        let code = exit_code(status.map_err(|error| error.to_string())?);
        if code != 0 && first_failure == 0 {
            eprintln!("worker {rank} failed with exit code {code}");
            first_failure = code;
            patience = GRACE;
        }
    }
    Ok(first_failure)
}

/// The exit code as a shell reports it.
fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// How long coordinator and servers may take to start.
const START: Duration = Duration::from_secs(30);
/// How long the other commands may take to end by themselves after one has failed.
const GRACE: Duration = Duration::from_secs(5);
/// The exit code of `timeout(1)`.
const TIMED_OUT: u8 = 124;
