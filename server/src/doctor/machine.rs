//! Reads facts about the machine from the kernel and the file system. A fact that cannot be read is absent, never an error.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gradlane_core::runtime::process::told_by_kernel;
use gradlane_core::runtime::setup::{Hardware, field};

/// What a job expects of the machine.
#[derive(Clone, Debug)]
pub struct Expectations {
    /// The buffer that sockets will ask for.
    pub socket_buffer_bytes: u64,
    /// Where keys and join strings are kept.
    pub state_dir: PathBuf,
    /// Directories with Python's `lib`, where a wheel may have installed NCCL; `/usr` and `/usr/local` are always searched.
    pub python_prefixes: Vec<PathBuf>,
}

/// The facts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Machine {
    /// The CPU's name and its features, under the kernel's names.
    pub(super) cpu: String,
    pub(super) cpu_features: BTreeSet<String>,
    /// Cores that the kernel shows, and the share of them that a control group grants, in thousandths of a core.
    pub(super) cores: Option<usize>,
    pub(super) core_quota_millis: Option<u64>,
    /// What is missing to know which processes are on this machine too.
    pub(super) unknown_because: Option<PathBuf>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) memory_available_bytes: Option<u64>,
    /// Granted by a control group.
    pub(super) memory_quota_bytes: Option<u64>,
    /// Limits of a socket's buffers, `net.core.rmem_max` and `net.core.wmem_max`.
    pub(super) receive_buffer_max: Option<u64>,
    pub(super) send_buffer_max: Option<u64>,
    /// Major and minor version of Linux.
    pub(super) kernel: Option<(u32, u32)>,
    pub(super) interfaces: Vec<Interface>,
    /// Models of the GPUs, or their device files if the driver does not name them.
    pub(super) gpus: Vec<String>,
    pub(super) libcuda: Option<PathBuf>,
    pub(super) libnccl: Option<PathBuf>,
    /// Soft and hard limit; absent if unlimited.
    pub(super) open_files: Option<(u64, Option<u64>)>,
    pub(super) state_dir: StateDir,
}

/// A network interface that is up.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) mtu: u32,
    /// Not told by virtual interfaces.
    pub(super) megabits_per_second: Option<u64>,
}

/// The directory for keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum StateDir {
    /// Made when it is needed.
    #[default]
    Absent,
    /// The path exists but is no directory.
    NoDirectory,
    Directory {
        owner: u32,
        mode: u32,
    },
}

impl Machine {
    /// Reads the machine below `root`.
    pub(super) fn read(root: &Path, expectations: &Expectations) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let number = |path: &str| text(path).trim().parse().ok();
        let (cpuinfo, meminfo) = (text("proc/cpuinfo"), text("proc/meminfo"));
        let Hardware { kernel: release, processor, processors, gpus: models, .. } = Hardware::read(root);
        Self {
            cpu: processor,
            // x86 says "flags", ARM says "Features".
            cpu_features: field(&cpuinfo, "flags")
                .or_else(|| field(&cpuinfo, "Features"))
                .map(|flags| flags.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default(),
            cores: (processors > 0).then_some(processors),
            core_quota_millis: core_quota_millis(&text("sys/fs/cgroup/cpu.max")),
            unknown_because: told_by_kernel(&root.join("proc")).err(),
            memory_bytes: kilobytes(&meminfo, "MemTotal"),
            memory_available_bytes: kilobytes(&meminfo, "MemAvailable"),
            memory_quota_bytes: number("sys/fs/cgroup/memory.max"),
            receive_buffer_max: number("proc/sys/net/core/rmem_max"),
            send_buffer_max: number("proc/sys/net/core/wmem_max"),
            kernel: kernel(&release),
            interfaces: interfaces(root),
            gpus: if models.is_empty() { device_files(root) } else { models },
            libcuda: library(root, &loader_directories(root), "libcuda.so.1"),
            libnccl: library(root, &nccl_directories(root, expectations), "libnccl.so.2"),
            open_files: open_files(&text("proc/self/limits")),
            state_dir: state_dir(root, &expectations.state_dir),
        }
    }
}

fn kilobytes(meminfo: &str, key: &str) -> Option<u64> {
    field(meminfo, key)?.strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// From `quota period` in microseconds; `max` for no limit (cgroup v2).
fn core_quota_millis(cpu_max: &str) -> Option<u64> {
    let (quota, period) = cpu_max.trim().split_once(' ')?;
    quota.parse::<u64>().ok()?.checked_mul(1000)?.checked_div(period.parse().ok()?)
}

fn kernel(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn interfaces(root: &Path) -> Vec<Interface> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let mut interfaces: Vec<_> = entries(&root.join("sys/class/net"))
        .into_iter()
        // The loopback says "unknown".
        .filter(|(_, path)| matches!(read(path.join("operstate")).trim(), "up" | "unknown"))
        .filter_map(|(name, path)| {
            let mtu = read(path.join("mtu")).trim().parse().ok()?;
            Some(Interface { name, mtu, megabits_per_second: read(path.join("speed")).trim().parse().ok() })
        })
        .collect();
    interfaces.sort();
    interfaces
}

/// The names of the device files of GPUs.
fn device_files(root: &Path) -> Vec<String> {
    let is_gpu = |name: &str| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    entries(&root.join("dev")).into_iter().map(|(name, _)| name).filter(|name| is_gpu(name)).collect()
}

/// The directories of the loader: built-in ones, those in its configuration, and those in which container runtimes mount the driver.
fn loader_directories(root: &Path) -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> =
        ["lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/cuda/lib64"]
            .into_iter()
            .chain(["usr/local/nvidia/lib64", "usr/local/nvidia/lib"])
            .chain(["usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib/wsl/lib"])
            .map(|directory| root.join(directory))
            .collect();
    for (_, path) in entries(&root.join("etc/ld.so.conf.d")) {
        let configured = fs::read_to_string(path).unwrap_or_default();
        let lines = configured.lines().map(str::trim).filter_map(|line| line.strip_prefix('/'));
        directories.extend(lines.map(|line| root.join(line)));
    }
    directories
}

/// Python wheels bring NCCL as `nvidia/nccl/lib` in their site-packages (PyTorch's own dependency); that one is preferred, because
/// it is the one that PyTorch has loaded.
fn nccl_directories(root: &Path, expectations: &Expectations) -> Vec<PathBuf> {
    let given = expectations.python_prefixes.iter().map(|prefix| below(root, prefix));
    let mut directories = Vec::new();
    for prefix in given.chain([root.join("usr/local"), root.join("usr")]) {
        for (name, python) in entries(&prefix.join("lib")) {
            if name.starts_with("python3") {
                directories
                    .extend(["site-packages", "dist-packages"].map(|site| python.join(site).join("nvidia/nccl/lib")));
            }
        }
    }
    directories.extend(loader_directories(root));
    directories
}

/// The path as the user knows it, without the root of a test.
fn library(root: &Path, directories: &[PathBuf], name: &str) -> Option<PathBuf> {
    let found = directories.iter().map(|directory| directory.join(name)).find(|path| path.exists())?;
    Some(Path::new("/").join(found.strip_prefix(root).unwrap_or(&found)))
}

/// The line `Max open files  <soft>  <hard>  files`.
fn open_files(limits: &str) -> Option<(u64, Option<u64>)> {
    let mut words = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()))
}

fn state_dir(root: &Path, path: &Path) -> StateDir {
    match fs::metadata(below(root, path)) {
        Ok(metadata) if metadata.is_dir() => {
            StateDir::Directory { owner: metadata.uid(), mode: metadata.mode() & 0o777 }
        }
        Ok(_) => StateDir::NoDirectory,
        Err(_) => StateDir::Absent,
    }
}

/// `path`, absolute or not, below `root`.
fn below(root: &Path, path: &Path) -> PathBuf {
    match path.strip_prefix("/") {
        Ok(relative) => root.join(relative),
        Err(_) => path.to_owned(),
    }
}

/// Names and paths in a directory, sorted by name; none if it cannot be read.
fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let Ok(read) = fs::read_dir(directory) else { return Vec::new() };
    let mut entries: Vec<_> =
        read.flatten().map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path())).collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_x86_server_is_read_from_its_files() {
        let machine = read(&[
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: EPYC\nflags\t\t: avx2 aes\n\nprocessor\t: 1\nflags\t\t: avx2 aes\n",
            ),
            ("proc/meminfo", "MemTotal:  2048 kB\nMemFree:  100 kB\nMemAvailable:  1024 kB\n"),
            ("proc/sys/net/core/rmem_max", "212992\n"),
            ("proc/sys/kernel/osrelease", "6.8.0-31-generic\n"),
            (
                "proc/self/limits",
                "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n",
            ),
            ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
        ]);
        assert_eq!(machine.cpu, "EPYC");
        assert_eq!(machine.cores, Some(2));
        assert!(machine.cpu_features.contains("avx2") && machine.cpu_features.contains("aes"));
        assert_eq!(machine.core_quota_millis, Some(1500));
        assert_eq!((machine.memory_bytes, machine.memory_available_bytes), (Some(2 << 20), Some(1 << 20)));
        assert_eq!(machine.memory_quota_bytes, None);
        assert_eq!((machine.receive_buffer_max, machine.send_buffer_max), (Some(212_992), None));
        assert_eq!(machine.kernel, Some((6, 8)));
        assert_eq!(machine.open_files, Some((1024, Some(4096))));
        assert!(machine.unknown_because.is_some_and(|path| path.ends_with("proc/sys/kernel/random/boot_id")));
    }

    #[test]
    fn an_arm_server_names_its_features_otherwise() {
        let machine = read(&[("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd crc32\n")]);
        assert!(machine.cpu_features.contains("asimd"));
    }

    #[test]
    fn interfaces_that_are_down_do_not_count() {
        let machine = read(&[
            ("sys/class/net/eth0/mtu", "9000\n"),
            ("sys/class/net/eth0/operstate", "up\n"),
            ("sys/class/net/eth0/speed", "100000\n"),
            ("sys/class/net/eth1/mtu", "1500\n"),
            ("sys/class/net/eth1/operstate", "down\n"),
        ]);
        let eth0 = Interface { name: "eth0".to_owned(), mtu: 9000, megabits_per_second: Some(100_000) };
        assert_eq!(machine.interfaces, [eth0]);
    }

    #[test]
    fn gpus_are_named_by_the_driver_or_else_by_their_device_files() {
        let named = read(&[("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t NVIDIA H200\nIRQ: 1\n")]);
        assert_eq!(named.gpus, ["NVIDIA H200"]);
        let files = read(&[("dev/nvidia0", ""), ("dev/nvidia1", ""), ("dev/nvidiactl", ""), ("dev/nvidia-uvm", "")]);
        assert_eq!(files.gpus, ["nvidia0", "nvidia1"]);
    }

    #[test]
    fn libraries_are_found_where_the_loader_and_the_wheels_have_them() {
        let machine = read(&[
            ("etc/ld.so.conf.d/driver.conf", "# driver\n/opt/driver/lib\n"),
            ("opt/driver/lib/libcuda.so.1", ""),
            ("usr/lib/x86_64-linux-gnu/libnccl.so.2", ""),
            ("opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", ""),
        ]);
        assert_eq!(machine.libcuda.as_deref(), Some(Path::new("/opt/driver/lib/libcuda.so.1")));
        let wheel = "/opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2";
        assert_eq!(machine.libnccl.as_deref(), Some(Path::new(wheel)), "the wheel's goes first");
    }

    #[test]
    fn the_state_directory_tells_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("home/user/.gradlane");
        assert_eq!(Machine::read(root.path(), &expectations()).state_dir, StateDir::Absent);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let found = Machine::read(root.path(), &expectations()).state_dir;
        assert!(matches!(found, StateDir::Directory { mode: 0o750, .. }), "{found:?}");
    }

    fn read(files: &[(&str, &str)]) -> Machine {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Machine::read(root.path(), &expectations())
    }

    fn expectations() -> Expectations {
        Expectations {
            socket_buffer_bytes: 1 << 24,
            state_dir: "/home/user/.gradlane".into(),
            python_prefixes: vec!["/opt/venv".into()],
        }
    }
}
