//! What this process uses, as the kernel counts it.
//!
//! It is read when somebody asks for metrics, at most about once a second, and never on the way of tensors. Most of the cost is a file for each
//! thread: some milliseconds a second with hundreds of threads. What network interfaces can carry is read once a minute, because the kernel may take
//! a lock of all interfaces for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::nics::capacities;
use super::{Clock, JobClock};
use crate::metrics::{OfProcess, ProcessCells};
use crate::types::{Time, whole_ns};

/// Reads it for the metrics of one worker, server or coordinator. What the kernel does not tell stays 0.
pub struct Usage {
    clock: Clock,
    /// Where `/proc` is.
    proc: PathBuf,
    /// Where `/sys/class/net` is.
    net: PathBuf,
    began_unix: Duration,
    state: Mutex<State>,
    /// The clock of its job, once there is one.
    job_clock: OnceLock<JobClock>,
}

#[derive(Default)]
struct State {
    read_at: Option<Time>,
    nics_read_at: Option<Time>,
    /// How long each thread has waited for a core.
    threads: BTreeMap<u32, u64>,
    /// The same added, with the threads that have ended.
    run_delay_nanoseconds: u64,
}

impl Usage {
    /// Of this process.
    pub fn new() -> Self {
        Self::at(Path::new("/proc"), Path::new("/sys/class/net"))
    }

    fn at(proc: &Path, net: &Path) -> Self {
        let began_unix = began_unix(proc).unwrap_or_default();
        let (clock, proc, net) = (Clock::start(), proc.to_owned(), net.to_owned());
        Self { clock, proc, net, began_unix, state: Mutex::default(), job_clock: OnceLock::new() }
    }

    /// From now on it also reads this clock.
    pub fn joined(&self, job_clock: JobClock) {
        let _ = self.job_clock.set(job_clock);
    }

    /// Brings `metrics` up to date, unless that was done just now. Waits for no lock: while one thread reads, another one leaves it at that.
    pub fn refresh(&self, metrics: &impl OfProcess) {
        if !self.refresh_at(self.clock.now(), &metrics.process_cells()) {
            return;
        }
        let offset = self.job_clock.get().and_then(JobClock::ahead_of_wall);
        if let (Some(offset), Some((error, difference))) = (offset, metrics.clock_cells()) {
            error.set(whole_ns(offset.error));
            difference.set(offset.ns.unsigned_abs());
        }
    }

    /// Returns whether it was time to read.
    fn refresh_at(&self, now: Time, cells: &ProcessCells<'_>) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        if state.read_at.is_some_and(|at| now < at + READ_EVERY) {
            return false;
        }
        state.read_at = Some(now);
        let own = self.proc.join("self");
        state.add_run_delays(&own.join("task"));
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        // The directory that is read is open as well.
        let open_fds = fs::read_dir(own.join("fd")).map_or(0, |fds| fds.count().saturating_sub(1));
        for (cell, value) in [
            (cells.cpu_nanoseconds, Duration::try_from(cpu).map_or(0, whole_ns)),
            (cells.resident_memory_bytes, resident_bytes(&own.join("status")).unwrap_or_default()),
            (cells.open_fds, open_fds as u64),
            (cells.start_time_nanoseconds, whole_ns(self.began_unix)),
            (cells.run_delay_nanoseconds, state.run_delay_nanoseconds),
        ] {
            cell.store(value, Ordering::Relaxed);
        }
        if let Some(nics) = cells.nic_capacity_bytes_per_second
            && state.nics_read_at.is_none_or(|at| at + NICS_READ_EVERY <= now)
        {
            state.nics_read_at = Some(now);
            nics.set(&capacities(&self.net));
        }
        true
    }
}

impl Default for Usage {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Adds how long each thread has waited since the last time.
    fn add_run_delays(&mut self, tasks: &Path) {
        let Ok(entries) = fs::read_dir(tasks) else { return };
        let mut threads: BTreeMap<u32, u64> = BTreeMap::new();
        for entry in entries.flatten() {
            let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let text = fs::read_to_string(entry.path().join("schedstat"));
            // The time on a core, the time of waiting for one, and how often it got one.
            let waited = text.ok().and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
            if let (Some(thread), Some(waited)) = (thread, waited) {
                threads.insert(thread, waited);
            }
        }
        for (thread, waited) in &threads {
            let before = self.threads.get(thread).copied().unwrap_or_default();
            // A number that fell is that of a new thread, which got the id of one that has ended.
            self.run_delay_nanoseconds += waited.checked_sub(before).unwrap_or(*waited);
        }
        self.threads = threads;
    }
}

/// The memory of a process that is in RAM.
fn resident_bytes(status: &Path) -> Option<u64> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// When this process began, since 1970.
fn began_unix(proc: &Path) -> Option<Duration> {
    let stat = fs::read_to_string(proc.join("self/stat")).ok()?;
    // The name of the process stands in parentheses, and may have any characters. The 22nd field is the start since the boot.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let stat = fs::read_to_string(proc.join("stat")).ok()?;
    let boot: u64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(Duration::from_secs(boot) + Duration::from_millis(ticks.checked_mul(1000 / TICKS_A_SECOND)?))
}

/// Members tell their metrics once a second, with a little unrest.
const READ_EVERY: Duration = Duration::from_millis(900);
/// Hardly anybody changes them.
const NICS_READ_EVERY: Duration = Duration::from_secs(60);
/// Linux shows times to programs in this unit on all architectures for which Gradlane is built (`USER_HZ`).
const TICKS_A_SECOND: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Exchange, Offsets};
    use crate::metrics::WorkerMetrics;

    #[test]
    fn this_process_uses_something() {
        let metrics = WorkerMetrics::default();
        Usage::new().refresh(&metrics);
        let (cpu, resident) = (metrics.process_cpu_nanoseconds(), metrics.process_resident_memory_bytes());
        assert!(cpu > 0 && resident > 1 << 20, "{cpu} ns, {resident} bytes");
        assert!(metrics.process_open_fds() > 2);
        let year_2020 = 1_577_836_800_000_000_000;
        assert!(metrics.process_start_time_nanoseconds() > year_2020);
    }

    #[test]
    fn the_clock_of_the_job_is_shown_once_it_is_known() {
        let (clock, metrics) = (Clock::start(), WorkerMetrics::default());
        let of = |name: &str| metrics.instance(0).number(name);
        let unknown = Usage::new();
        unknown.joined(JobClock::new(clock));
        unknown.refresh(&metrics);
        assert_eq!((of("clock_error_nanoseconds"), of("clock_offset_nanoseconds")), (None, None));

        let (mut offsets, now) = (Offsets::default(), clock.now());
        offsets.add(
            1_000_000,
            Exchange { sent: now, received: now, answered: now, heard: now + Duration::from_micros(20) },
        );
        let known = Usage::new();
        known.joined(JobClock::known(clock, offsets));
        known.refresh(&metrics);
        assert!(of("clock_error_nanoseconds") >= Some(10_000), "half of the delay at least");
        assert!(of("clock_offset_nanoseconds") > Some(1_577_836_800_000_000_000), "that clock began in 1970");
    }

    #[test]
    fn it_is_read_as_the_kernel_writes_it() {
        let kernel = Kernel::new();
        kernel.writes("stat", "cpu 1 2 3\nbtime 1700000000\nprocesses 9\n");
        let fields = "R 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 9 0 250 4096 7";
        kernel.writes("self/stat", &format!("77 (a ) b) {fields}\n"));
        kernel.writes("self/status", "Name:\ta\nVmHWM:\t 9000 kB\nVmRSS:\t    2000 kB\n");
        for name in ["0", "1", "2"] {
            kernel.writes(&format!("self/fd/{name}"), "");
        }
        kernel.has_threads(&[(77, 5)]);
        let metrics = WorkerMetrics::default();
        kernel.usage().refresh(&metrics);
        assert_eq!(metrics.process_start_time_nanoseconds(), 1_700_000_002_500_000_000);
        assert_eq!(metrics.process_resident_memory_bytes(), 2000 * 1024);
        assert_eq!((metrics.process_open_fds(), metrics.run_delay_nanoseconds()), (2, 5));
    }

    #[test]
    fn waits_of_threads_that_have_ended_count_and_none_twice() {
        let kernel = Kernel::new();
        let (usage, metrics, mut now) = (kernel.usage(), WorkerMetrics::default(), Time::ZERO);
        for (threads, sum) in [
            (&[(1, 10), (2, 5)][..], 15),
            (&[(1, 12), (2, 5), (3, 1)], 18),
            (&[(1, 12)], 18),
            // The id of a thread that has ended, and a new one that has the id of another.
            (&[(1, 3), (2, 4)], 25),
        ] {
            kernel.has_threads(threads);
            usage.refresh_at(now, &metrics.process_cells());
            assert_eq!(metrics.run_delay_nanoseconds(), sum, "{threads:?}");
            now = now + READ_EVERY;
        }
    }

    #[test]
    fn it_is_not_read_again_at_once() {
        let kernel = Kernel::new();
        let (usage, metrics) = (kernel.usage(), WorkerMetrics::default());
        for (millis, expected) in [(0, 1), (899, 1), (900, 4)] {
            kernel.has_threads(&[(1, 1 + millis / 300)]);
            usage.refresh_at(Time::ZERO + Duration::from_millis(millis), &metrics.process_cells());
            assert_eq!(metrics.run_delay_nanoseconds(), expected, "after {millis} ms");
        }
    }

    #[test]
    fn network_interfaces_are_read_once_a_minute() {
        let kernel = Kernel::new();
        let (usage, metrics) = (kernel.usage(), WorkerMetrics::default());
        kernel.writes("net/eth0/operstate", "up\n");
        kernel.writes("net/eth0/device/vendor", "0x15b3\n");
        for (seconds, megabits, expected) in [(0, 8, 1_000_000), (59, 16, 1_000_000), (61, 16, 2_000_000)] {
            kernel.writes("net/eth0/speed", &format!("{megabits}\n"));
            usage.refresh_at(Time::ZERO + Duration::from_secs(seconds), &metrics.process_cells());
            let told = metrics.instance(0);
            let told: Vec<_> = told.family("nic_capacity_bytes_per_second").collect();
            assert_eq!(told, [(&["eth0".to_owned()][..], expected)], "after {seconds} s");
        }
    }

    #[test]
    fn what_the_kernel_does_not_tell_stays_0() {
        let kernel = Kernel::new();
        for text in ["", "no number\n", "VmRSS: many kB\n", "1 (a) R 1\n"] {
            for name in ["stat", "self/stat", "self/status", "self/task/1/schedstat"] {
                kernel.writes(name, text);
            }
            let metrics = WorkerMetrics::default();
            kernel.usage().refresh(&metrics);
            let told = [
                metrics.process_start_time_nanoseconds(),
                metrics.process_resident_memory_bytes(),
                metrics.process_open_fds(),
                metrics.run_delay_nanoseconds(),
            ];
            assert_eq!(told, [0; 4], "{text:?}");
        }
    }

    struct Kernel(tempfile::TempDir);

    impl Kernel {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn usage(&self) -> Usage {
            Usage::at(self.0.path(), &self.0.path().join("net"))
        }

        fn writes(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn has_threads(&self, threads: &[(u32, u64)]) {
            let _ = fs::remove_dir_all(self.0.path().join("self/task"));
            for (thread, waited) in threads {
                self.writes(&format!("self/task/{thread}/schedstat"), &format!("100 {waited} 3\n"));
            }
        }
    }
}
