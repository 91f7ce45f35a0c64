//! The description of itself that this process sends when it joins.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use super::setup::setup;
use crate::cluster::{ContactTerms, MemberConfig};
use crate::config::Config;
use crate::types::{Address, Incarnation, MachineId, Process, Reach, Role};

/// The membership settings of this process, for any rank. The caller fills in its own requests.
pub fn member(role: Role, config: &Config) -> MemberConfig {
    MemberConfig {
        process: Process {
            host: host(),
            pid: std::process::id(),
            machine: machine(config),
            ..Process::new(role, incarnation())
        },
        requested: None,
        workers: 0,
        servers: 0,
        coordinator: String::new(),
        heartbeat_interval: config.heartbeat_interval,
        silence_max: config.suspect_timeout,
        warn_after: config.stall_warn,
        join_timeout: config.join_timeout,
        control_lost_timeout: config.control_lost_timeout,
        contact: ContactTerms::of(config, config.bounds().call),
        replaced_timeout: config.dead_timeout * 2,
        redial_min: std::time::Duration::from_millis(50),
        redial_max: std::time::Duration::from_secs(2),
        setup: setup(config),
        defect: None,
    }
}

/// This host's name.
pub fn host() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

/// The machine on which this process runs: a hash of the name in the settings, or else of what the kernel tells.
fn machine(config: &Config) -> MachineId {
    let name = config.machine.clone().or_else(|| told_by_kernel(Path::new("/proc")).ok());
    name.map_or(MachineId::UNKNOWN, |name| MachineId(xxhash_rust::xxh3::xxh3_64(name.as_bytes())))
}

/// Why no other process can know that it is on the machine of this one, for people; `None` if it can.
pub fn why_machine_is_unknown(config: &Config) -> Option<String> {
    let missing = config.machine.is_none().then(|| told_by_kernel(Path::new("/proc")).err())??;
    Some(format!(
        "{} cannot be read, so that this process shares no memory with others of its machine, and its gradients go over the network; set \
         machine to the same name on all processes of this machine",
        missing.display()
    ))
}

/// What tells machines apart for the processes of one user: the boot, the namespaces of network and files, and the user. `proc` is where
/// `/proc` is.
///
/// # Errors
/// What cannot be read, as in gVisor.
pub fn told_by_kernel(proc: &Path) -> Result<String, PathBuf> {
    let link = |name: &str| {
        let path = proc.join(name);
        fs::read_link(&path).map_err(|_| path)
    };
    let path = proc.join("sys/kernel/random/boot_id");
    let boot = fs::read_to_string(&path).map_err(|_| path)?;
    let network = link("self/ns/net")?;
    // A container with its own files does not see the sockets of processes outside.
    let files = link("self/ns/mnt")?;
    let user = rustix::process::geteuid().as_raw();
    Ok(format!("{} {} {} {user}", boot.trim(), network.display(), files.display()))
}

/// A name of this process's monotonic clock: processes with the same name have the same clock. `None` if the kernel does not tell.
pub fn monotonic_clock() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // A time namespace moves the clock. A kernel that has none shows none.
    let namespace = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

/// Draws a random identity for this run of the process.
///
/// # Panics
/// If the operating system provides no randomness, because nothing secure is possible without it.
pub fn incarnation() -> Incarnation {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system provides randomness");
    Incarnation(u128::from_le_bytes(bytes))
}

/// The address under which others reach a socket bound to `bound`. Its host is the one that the user gives. Otherwise it is the bound host,
/// or, for a socket bound to every address, the address that this host uses to reach `towards`.
pub fn announced(bound: &str, advertise: Option<&str>, towards: &str) -> String {
    let (host, port) = bound.rsplit_once(':').expect("a bound address has a port");
    let any = matches!(host, "0.0.0.0" | "[::]");
    match advertise {
        Some(advertise) => format!("{advertise}:{port}"),
        None if any => format!("{}:{port}", route(towards).unwrap_or_else(|| loopback().to_owned())),
        None => bound.to_owned(),
    }
}

/// The address under which others reach what listens at `bound`. Only those for a network differ; see [`announced`].
pub fn announced_address(bound: &Address, advertise: Option<&str>, towards: &str) -> Address {
    match bound.scheme.reach() {
        Reach::Network => Address::new(bound.scheme, announced(&bound.at, advertise, towards)),
        Reach::Machine | Reach::Process => bound.clone(),
    }
}

/// The host part of this machine's loopback address, as in `host:port`: that of IPv4, or that of IPv6 where there is no other.
pub fn loopback() -> &'static str {
    let has = |host: &str| UdpSocket::bind((host, 0)).is_ok();
    if !has("127.0.0.1") && has("::1") { "[::1]" } else { "127.0.0.1" }
}

/// The local address of the route to `towards`. Connecting a UDP socket sends nothing.
fn route(towards: &str) -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect(towards).ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_bound_everywhere_is_announced_by_the_route_to_the_coordinator() {
        assert_eq!(announced("0.0.0.0:77", None, "127.0.0.1:9"), "127.0.0.1:77");
        assert_eq!(announced("10.1.2.3:77", None, "127.0.0.1:9"), "10.1.2.3:77");
        assert_eq!(announced("0.0.0.0:77", Some("node7"), "127.0.0.1:9"), "node7:77");
    }

    #[test]
    fn processes_of_one_machine_know_it_by_the_same_id() {
        let config = Config::default();
        assert_eq!(machine(&config), machine(&config));
        assert!(!cfg!(target_os = "linux") || machine(&config) != MachineId::UNKNOWN);
        let named = |name: &str| machine(&Config { machine: Some(name.to_owned()), ..Config::default() });
        assert_eq!(named("a"), named("a"));
        assert_ne!(named("a"), named("b"));
    }

    #[test]
    fn a_machine_of_which_the_kernel_tells_too_little_is_named_by_the_user() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(told_by_kernel(proc.path()), Err(proc.path().join("sys/kernel/random/boot_id")));
        fs::create_dir_all(proc.path().join("sys/kernel/random")).unwrap();
        fs::write(proc.path().join("sys/kernel/random/boot_id"), "boot\n").unwrap();
        assert_eq!(told_by_kernel(proc.path()), Err(proc.path().join("self/ns/net")));
        assert_eq!(why_machine_is_unknown(&Config { machine: Some("a".to_owned()), ..Config::default() }), None);
    }

    #[test]
    fn every_life_of_a_process_is_another_incarnation() {
        assert_ne!(incarnation(), incarnation());
    }
}
