//! Runs a user's command on every worker machine of a fabric, with a job of Gradlane around it.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;

use super::fabric::{Fabric, Machine, Place};
use super::job::{Job, place_in_torch};
use super::{Shape, tools};
use crate::measure;

/// Runs a command on every worker machine of a shaped network.
///
/// The command finds its place in RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (for torch.distributed) and in GRADLANE_* variables (for
/// gradlane.init). A coordinator and the servers are running when it starts. The exit code is 0 if all commands ended with 0, else that
/// of the first that failed.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    shape: Shape,
    /// Machines with a worker
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    workers: u8,
    /// Extra machines with a server; with fewer of them than workers there is also one beside every worker
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=32))]
    servers: u8,
    /// Seconds after which the command is killed
    #[arg(long, default_value_t = 3600)]
    timeout: u32,
    /// The command line
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs it, and returns the exit code.
///
/// # Errors
/// Why it could not be started.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, String> {
    let Arguments { shape, workers, servers, timeout, command: line } = arguments;
    tools::check(&[])?;
    let cluster = super::optimum::Cluster { workers: *workers, extras: *servers };
    let fabric = Fabric::build(workers + servers, shape.link())?;
    let job = Job::start(&fabric, cluster, &super::this_program()?, &shape.settings()?)?;
    let before = fabric.traffic()?;
    let mut outcome = Ok(0);
    let took =
        measure::time(|| outcome = run_all(&fabric, &job, cluster, line, Duration::from_secs((*timeout).into())));
    let seconds = took.as_secs_f64();
    eprintln!("{} for {seconds:.3} s; MB over each link, from and to its machine:", fabric.link());
    for (index, (after, before)) in fabric.traffic()?.into_iter().zip(before).enumerate() {
        let used = after.since(before);
        let part = |bytes: u64| {
            let share = bytes as f64 / seconds / shape.rate.bytes_per_second() * 100.0;
            format!("{:.1} ({share:.0} %)", bytes as f64 / 1e6)
        };
        let kind = if index < usize::from(*workers) { "worker" } else { "server" };
        eprintln!("  {kind} machine {index}: {}, {}", part(used.sent.bytes), part(used.received.bytes));
    }
    outcome
}

fn run_all(
    fabric: &Fabric,
    job: &Job,
    cluster: super::optimum::Cluster,
    line: &[OsString],
    timeout: Duration,
) -> Result<u8, String> {
    let (ended, endings) = channel();
    for rank in 0..cluster.workers {
        let mut command = fabric.command(Place::Machine(Machine(rank)), &line[0]);
        command.args(&line[1..]);
        job.place(&mut command, rank);
        place_in_torch(&mut command, cluster, rank);
        command.stdin(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", line[0].display()))?;
        let ended = ended.clone();
        // The fabric's end ends the child, and with it the thread.
        std::thread::spawn(move || drop(ended.send((rank, child.wait()))));
    }
    let mut patience = timeout;
    let mut first_failure = 0;
    for _ in 0..cluster.workers {
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

/// As a shell reports it.
fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// How long the survivors of a failure may take to end by themselves.
const GRACE: Duration = Duration::from_secs(5);
/// As of `timeout(1)`.
const TIMED_OUT: u8 = 124;
