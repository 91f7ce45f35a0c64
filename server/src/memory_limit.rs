//! How much memory this process may use: what its host has, and what its control groups leave it.

use std::path::{Path, PathBuf};

/// Three quarters of the memory that this process may use. The rest is for connections, code and other processes. Absent where the system
/// does not say.
pub(crate) fn default_bytes_max() -> Option<u64> {
    bytes_max(Path::new("/")).map(|bytes| bytes / 4 * 3)
}

/// The smallest limit below `root`, which is `/` outside of tests.
fn bytes_max(root: &Path) -> Option<u64> {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let host = read(root.join("proc/meminfo")).and_then(|text| mem_total(&text));
    let groups = read(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(limit_files).filter_map(|file| read(root.join(file)));
    // "max", or a number beyond all memory, is no limit.
    limits.filter_map(|text| text.trim().parse().ok()).chain(host).min()
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The files with the limits of a line of `/proc/self/cgroup`: of the group and of all groups around it, because each of them counts. In a
/// container the path may be that of the host, so that only the outermost group is found.
fn limit_files(line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (base, file) = match fields.next() {
        Some("") => ("sys/fs/cgroup", "memory.max"),
        Some(controllers) if controllers.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        Some(_) | None => return Vec::new(),
    };
    let group = Path::new(fields.next().unwrap_or_default().trim_start_matches('/'));
    let is_inside = !group.components().any(|part| part == std::path::Component::ParentDir);
    let groups = group.ancestors().filter(|_| is_inside).chain(std::iter::once(Path::new("")));
    groups.map(|group| Path::new(base).join(group).join(file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_smallest_limit_counts() {
        let host = ("proc/meminfo", "MemFree: 1 kB\nMemTotal:       16777216 kB\n");
        let nested = ("proc/self/cgroup", "0::/system.slice/job.service\n");
        let inner = "sys/fs/cgroup/system.slice/job.service/memory.max";
        let outer = "sys/fs/cgroup/system.slice/memory.max";
        let mixed = ("proc/self/cgroup", "12:pids:/a\n5:cpu,memory:/slurm/job_7\n0::/\n");
        type Files<'a> = &'a [(&'a str, &'a str)];
        let tables: [(Files<'_>, Option<u64>); 8] = [
            (&[], None),
            (&[host], Some(16 * GIB)),
            (&[host, nested, (inner, "max\n"), (outer, "8589934592\n")], Some(8 * GIB)),
            (&[host, nested, (inner, "4294967296\n"), (outer, "8589934592\n")], Some(4 * GIB)),
            (&[host, nested, (inner, "99999999999999\n")], Some(16 * GIB)),
            (&[host, mixed, ("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "2147483648\n")], Some(2 * GIB)),
            (&[host, ("proc/self/cgroup", "0::/../../x\n"), ("sys/fs/cgroup/memory.max", "1073741824\n")], Some(GIB)),
            (&[host, ("proc/self/cgroup", "nonsense\n::\n5:memory")], Some(16 * GIB)),
        ];
        for (files, expected) in tables {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            assert_eq!(bytes_max(root.path()), expected, "{files:?}");
        }
    }

    #[test]
    fn this_machine_says_something() {
        assert!(default_bytes_max().is_some_and(|bytes| bytes > 0));
    }
}
