//! Judges a machine: one finding per subject, with the command to type if something should change.

use gradlane_core::config::units::print_bytes;

use super::finding::{Finding, Level};
use super::machine::{Expectations, Machine, StateDir};
use crate::os;

/// All findings, from the processor outwards.
pub(super) fn findings(machine: &Machine, expectations: &Expectations) -> Vec<Finding> {
    let mut findings = vec![sums(machine)];
    findings.extend(encryption(machine));
    findings.push(cores(machine));
    findings.push(memory(machine));
    findings.extend(identity(machine));
    let wanted = expectations.socket_buffer_bytes;
    findings.extend(buffer("udp receive buffer", "net.core.rmem_max", machine.receive_buffer_max, wanted));
    findings.extend(buffer("udp send buffer", "net.core.wmem_max", machine.send_buffer_max, wanted));
    findings.extend(offload(machine));
    findings.extend(interfaces(machine));
    findings.extend(open_files(machine));
    findings.push(state_dir(machine, expectations));
    findings.push(gpus(machine));
    findings
}

fn sums(machine: &Machine) -> Finding {
    const AVX512: [&str; 4] = ["avx512f", "avx512bw", "avx512dq", "avx512vl"];
    let has = |feature: &str| machine.cpu_features.contains(feature);
    let name = if machine.cpu.is_empty() { String::new() } else { format!(" ({})", machine.cpu) };
    if AVX512.iter().all(|feature| has(feature)) {
        finding(Level::Ok, "sum kernels", format!("AVX-512{name}"))
    } else if has("avx2") {
        finding(Level::Ok, "sum kernels", format!("AVX2{name}"))
    } else if has("asimd") {
        finding(Level::Ok, "sum kernels", format!("NEON{name}"))
    } else if machine.cpu_features.is_empty() {
        finding(Level::Info, "sum kernels", format!("unknown: the system does not list the processor's features{name}"))
    } else {
        finding(Level::Warn, "sum kernels", format!("portable: no AVX2{name}")).advise(
            "sums run at a fraction of the memory's speed; if this is a virtual machine, expose the host's CPU model",
        )
    }
}

fn encryption(machine: &Machine) -> Option<Finding> {
    if machine.cpu_features.is_empty() {
        return None;
    }
    Some(if machine.cpu_features.contains("aes") {
        finding(Level::Ok, "encryption", "AES in hardware")
    } else {
        finding(Level::Warn, "encryption", "no AES in hardware")
            .advise("encryption will limit the throughput; if this is a virtual machine, expose the host's CPU model")
    })
}

fn cores(machine: &Machine) -> Finding {
    let Some(cores) = machine.cores else { return finding(Level::Info, "cores", "unknown") };
    match machine.core_quota_millis {
        Some(quota) if quota < cores as u64 * 1000 => finding(
            Level::Warn,
            "cores",
            format!("{cores}, of which a control group grants {:.1}", quota as f64 / 1000.0),
        )
        .advise("raise the container's CPU limit, or set sum_threads to what is granted"),
        Some(_) | None => finding(Level::Info, "cores", cores.to_string()),
    }
}

fn memory(machine: &Machine) -> Finding {
    let Some(total) = machine.memory_bytes else { return finding(Level::Info, "memory", "unknown") };
    let mut found = gibibytes(total);
    if let Some(available) = machine.memory_available_bytes {
        found += &format!(", {} available", gibibytes(available));
    }
    if let Some(quota) = machine.memory_quota_bytes.filter(|quota| *quota < total) {
        found += &format!(", a control group grants {}", gibibytes(quota));
    }
    finding(Level::Info, "memory", found)
}

fn identity(machine: &Machine) -> Option<Finding> {
    let missing = machine.unknown_because.as_ref()?;
    let found = format!("{} cannot be read: processes of this machine share no memory", missing.display());
    Some(
        finding(Level::Warn, "machine", found)
            .advise("export GRADLANE_MACHINE=$(hostname), on all processes of this machine"),
    )
}

/// Bursts overrun a small buffer. Every overrun loses packets, and every loss halves the sender's window.
fn buffer(subject: &str, sysctl: &str, limit: Option<u64>, wanted: u64) -> Option<Finding> {
    let limit = limit?;
    Some(if limit >= wanted {
        finding(Level::Ok, subject, format!("{sysctl} is {}", print_bytes(limit)))
    } else {
        finding(Level::Warn, subject, format!("{sysctl} is {}, {} wanted", print_bytes(limit), print_bytes(wanted)))
            .advise(format!("sudo sysctl -w {sysctl}={wanted}    (and the same line in /etc/sysctl.d/ to keep it)"))
    })
}

fn offload(machine: &Machine) -> Option<Finding> {
    let (major, minor) = machine.kernel?;
    let version = format!("Linux {major}.{minor}");
    Some(match (major, minor) {
        (5.., _) => finding(Level::Ok, "udp offload", format!("GSO and GRO ({version})")),
        (4, 18..) => finding(Level::Info, "udp offload", format!("GSO, no GRO before Linux 5.0 ({version})")),
        _ => finding(Level::Warn, "udp offload", format!("none ({version})"))
            .advise("each packet costs a system call: Linux 5.0 or later sends and receives them in batches"),
    })
}

fn interfaces(machine: &Machine) -> Vec<Finding> {
    /// The usual MTU of networks with jumbo frames.
    const JUMBO_MTU: u32 = 9000;
    let judge = |interface: &super::machine::Interface| {
        let subject = format!("interface {}", interface.name);
        let speed = interface.megabits_per_second.map(|speed| format!(", {} Gbit/s", speed as f64 / 1000.0));
        let found = format!("MTU {}{}", interface.mtu, speed.unwrap_or_default());
        if interface.mtu >= JUMBO_MTU {
            return finding(Level::Ok, &subject, found);
        }
        finding(Level::Info, &subject, found).advise(format!(
            "if all switches on the way carry jumbo frames: sudo ip link set {} mtu {JUMBO_MTU}; packets, not bytes, cost the CPU",
            interface.name
        ))
    };
    machine.interfaces.iter().map(judge).collect()
}

fn open_files(machine: &Machine) -> Option<Finding> {
    /// A coordinator or server holds a few files for each of some hundred peers.
    const WANTED: u64 = 4096;
    let (soft, hard) = machine.open_files?;
    Some(if soft >= WANTED {
        finding(Level::Ok, "open files", format!("limit {soft}"))
    } else if hard.is_none_or(|hard| hard >= WANTED) {
        finding(Level::Warn, "open files", format!("limit {soft}")).advise(format!("ulimit -n {WANTED}"))
    } else {
        finding(Level::Warn, "open files", format!("limit {soft}, which this user may not raise"))
            .advise(format!("let the administrator raise `nofile` in /etc/security/limits.conf to {WANTED}"))
    })
}

fn state_dir(machine: &Machine, expectations: &Expectations) -> Finding {
    let (path, user) = (expectations.state_dir.display(), os::effective_user());
    match machine.state_dir {
        StateDir::Absent => {
            finding(Level::Info, "state directory", format!("{path} does not exist yet; it is made when needed"))
        }
        StateDir::NoDirectory => finding(Level::Warn, "state directory", format!("{path} is no directory"))
            .advise("remove it, or set state_dir to another path"),
        StateDir::Directory { owner, .. } if owner != user => {
            finding(Level::Warn, "state directory", format!("{path} belongs to user {owner}"))
                .advise("set state_dir to a directory of your own")
        }
        StateDir::Directory { mode, .. } if mode & 0o077 != 0 => {
            finding(Level::Warn, "state directory", format!("{path} is open to others (mode {mode:o})"))
                .advise(format!("chmod 700 {path}"))
        }
        StateDir::Directory { mode, .. } if mode & 0o700 != 0o700 => {
            finding(Level::Warn, "state directory", format!("{path} cannot be used by its owner (mode {mode:o})"))
                .advise(format!("chmod 700 {path}"))
        }
        StateDir::Directory { .. } => finding(Level::Ok, "state directory", format!("{path}, private")),
    }
}

fn gpus(machine: &Machine) -> Finding {
    match machine.gpus.len() {
        0 => finding(Level::Info, "gpus", "none; tensors are reduced in host memory"),
        count => finding(Level::Ok, "gpus", format!("{count}: {}", machine.gpus.join(", "))),
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

fn finding(level: Level, subject: &str, found: impl Into<String>) -> Finding {
    Finding { level, subject: subject.to_owned(), found: found.into(), advice: String::new() }
}

impl Finding {
    fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Interface;
    use super::*;

    #[test]
    fn a_small_socket_buffer_comes_with_the_line_that_enlarges_it() {
        let machine = Machine { receive_buffer_max: Some(212_992), ..Machine::default() };
        let finding = about(&machine, "udp receive buffer");
        assert_eq!(finding.level, Level::Warn);
        assert_eq!(finding.found, "net.core.rmem_max is 208 KiB, 16 MiB wanted");
        assert!(finding.advice.starts_with("sudo sysctl -w net.core.rmem_max=16777216 "), "{}", finding.advice);

        let machine = Machine { receive_buffer_max: Some(16 << 20), ..Machine::default() };
        assert_eq!(about(&machine, "udp receive buffer").level, Level::Ok);
    }

    #[test]
    fn the_widest_instruction_set_is_named() {
        let with = |features: &[&str]| {
            let cpu_features = features.iter().map(|feature| (*feature).to_owned()).collect();
            about(&Machine { cpu_features, ..Machine::default() }, "sum kernels")
        };
        assert_eq!(with(&["avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"]).found, "AVX-512");
        assert_eq!(with(&["avx2", "avx512f"]).found, "AVX2");
        assert_eq!(with(&["asimd"]).found, "NEON");
        assert_eq!(with(&["sse2"]).level, Level::Warn);
    }

    #[test]
    fn a_control_group_that_grants_less_than_the_cores_is_a_warning() {
        let machine = Machine { cores: Some(2), core_quota_millis: Some(1500), ..Machine::default() };
        assert_eq!(about(&machine, "cores").found, "2, of which a control group grants 1.5");
        let machine = Machine { cores: Some(2), core_quota_millis: Some(2000), ..Machine::default() };
        assert_eq!(about(&machine, "cores").level, Level::Info);
    }

    #[test]
    fn a_usual_mtu_is_no_fault() {
        let interface = |mtu| Interface { name: "eth0".to_owned(), mtu, megabits_per_second: Some(25_000) };
        let machine = Machine { interfaces: vec![interface(1500)], ..Machine::default() };
        let finding = about(&machine, "interface eth0");
        assert_eq!((finding.level, finding.found.as_str()), (Level::Info, "MTU 1500, 25 Gbit/s"));
        assert!(finding.advice.contains("mtu 9000"));
        let machine = Machine { interfaces: vec![interface(9000)], ..Machine::default() };
        assert_eq!(about(&machine, "interface eth0").level, Level::Ok);
    }

    #[test]
    fn a_machine_that_is_not_known_again_gets_a_name() {
        let missing = Machine { unknown_because: Some("/proc/self/ns/mnt".into()), ..Machine::default() };
        let finding = about(&missing, "machine");
        assert!(finding.found.starts_with("/proc/self/ns/mnt cannot be read"), "{finding:?}");
        assert!(finding.advice.contains("GRADLANE_MACHINE"), "{finding:?}");
    }

    #[test]
    fn few_open_files_are_raised_by_the_user_if_he_may() {
        let advice =
            |soft, hard| about(&Machine { open_files: Some((soft, hard)), ..Machine::default() }, "open files").advice;
        assert_eq!(advice(1024, None), "ulimit -n 4096");
        assert_eq!(advice(1024, Some(65_536)), "ulimit -n 4096");
        assert!(advice(1024, Some(2048)).contains("administrator"));
        assert_eq!(advice(20_000, None), "");
    }

    #[test]
    fn a_state_directory_open_to_others_is_a_warning() {
        let owner = os::effective_user();
        let with = |state_dir| about(&Machine { state_dir, ..Machine::default() }, "state directory");
        assert_eq!(with(StateDir::Directory { owner, mode: 0o755 }).advice, "chmod 700 /home/user/.gradlane");
        assert_eq!(with(StateDir::Directory { owner, mode: 0o700 }).level, Level::Ok);
        assert_eq!(with(StateDir::Directory { owner: owner + 1, mode: 0o700 }).level, Level::Warn);
        assert_eq!(with(StateDir::Absent).level, Level::Info);
    }

    #[test]
    fn libraries_are_left_to_the_lines_about_what_was_loaded() {
        let machine = Machine {
            gpus: vec!["H200".to_owned(); 2],
            libcuda: Some("/usr/lib/libcuda.so.1".into()),
            ..Machine::default()
        };
        let expectations = Expectations {
            socket_buffer_bytes: 16 << 20,
            state_dir: "/home/user/.gradlane".into(),
            python_prefixes: Vec::new(),
        };
        let findings = findings(&machine, &expectations);
        assert!(findings.iter().all(|finding| !finding.subject.contains("cuda") && finding.subject != "nccl"));
        assert_eq!(about(&machine, "gpus").found, "2: H200, H200");
    }

    fn about(machine: &Machine, subject: &str) -> Finding {
        let expectations = Expectations {
            socket_buffer_bytes: 16 << 20,
            state_dir: "/home/user/.gradlane".into(),
            python_prefixes: Vec::new(),
        };
        let found = findings(machine, &expectations).into_iter().find(|finding| finding.subject == subject);
        found.unwrap_or_else(|| panic!("nothing about {subject}"))
    }
}
