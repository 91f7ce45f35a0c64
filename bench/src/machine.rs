//! The machine on which figures were measured, and its load at the time.

use serde_json::{Value, json};

/// The machine as it was when a table began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    load: String,
}

impl Machine {
    /// Reads the load now.
    pub(crate) fn now() -> Self {
        Self { load: load() }
    }

    /// Describes the machine, with its load average at the beginning and now.
    pub(crate) fn describe(&self) -> Value {
        let cpu = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name.to_owned()));
        let memory_kib: Option<u64> = read("/proc/meminfo")
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok());
        json!({
            "cpu": cpu,
            "cores": std::thread::available_parallelism().map_or(1, usize::from),
            "memory_gib": memory_kib.map(|kib| (kib as f64 / f64::from(1 << 20)).round()),
            "kernel": read("/proc/sys/kernel/osrelease").trim(),
            "load_at_begin": self.load,
            "load_at_end": load(),
        })
    }
}

/// The load average over 1, 5 and 15 minutes.
fn load() -> String {
    read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
