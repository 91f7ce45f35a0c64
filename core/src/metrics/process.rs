//! Where a worker, a server or a coordinator keeps what its process uses.

use std::sync::atomic::AtomicU64;

use super::cells::{ByDevice, Fact, Known};
use super::table::{CoordinatorMetrics, ServerMetrics, WorkerMetrics};
use crate::types::Role;
use crate::types::setup::{COMMIT, VERSION};

/// The counters and gauges of a process. Each is documented in the [table](super::METRICS).
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the table documents them")]
pub struct ProcessCells<'a> {
    pub cpu_nanoseconds: &'a AtomicU64,
    pub resident_memory_bytes: &'a AtomicU64,
    pub open_fds: &'a AtomicU64,
    pub start_time_nanoseconds: &'a AtomicU64,
    pub run_delay_nanoseconds: &'a AtomicU64,
    /// None of who leads the job, because no tensors come to it.
    pub nic_capacity_bytes_per_second: Option<&'a ByDevice>,
}

/// What a part of a process is. Each is documented in the [table](super::METRICS).
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the table documents them")]
pub struct InfoCells<'a> {
    pub build: &'a Fact,
    pub member: &'a Fact,
    pub config: &'a Fact,
}

/// Metrics among which are those of a process.
pub trait OfProcess {
    /// Where they are.
    fn process_cells(&self) -> ProcessCells<'_>;

    /// Where the error of the clock of the job is, and its offset; none of who leads the job.
    fn clock_cells(&self) -> Option<(&Known, &Known)>;

    /// Where it says what it is.
    fn info_cells(&self) -> InfoCells<'_>;

    /// It has settings with this [fingerprint](crate::config::Config::fingerprint).
    fn configured(&self, fingerprint: u64) {
        let InfoCells { build, config, .. } = self.info_cells();
        build.set(&[VERSION, COMMIT.unwrap_or("unknown")]);
        config.set(&[&format!("{fingerprint:016x}")]);
    }

    /// It has this place in its job.
    fn placed(&self, role: Role, index: u32, host: &str) {
        self.info_cells().member.set(&[&role.to_string(), &index.to_string(), host]);
    }
}

macro_rules! of_process {
    ($($set:ident: $metrics:ident => $clock:expr, $nic:expr;)+) => {$(
        impl OfProcess for $set {
            fn process_cells(&self) -> ProcessCells<'_> {
                let $metrics = self;
                ProcessCells {
                    cpu_nanoseconds: &self.process_cpu_nanoseconds,
                    resident_memory_bytes: &self.process_resident_memory_bytes,
                    open_fds: &self.process_open_fds,
                    start_time_nanoseconds: &self.process_start_time_nanoseconds,
                    run_delay_nanoseconds: &self.run_delay_nanoseconds,
                    nic_capacity_bytes_per_second: $nic,
                }
            }

            fn clock_cells(&self) -> Option<(&Known, &Known)> {
                let $metrics = self;
                $clock
            }

            fn info_cells(&self) -> InfoCells<'_> {
                InfoCells { build: &self.build_info, member: &self.member_info, config: &self.config_info }
            }
        }
    )+};
}
of_process! {
    WorkerMetrics: metrics =>
        Some((&metrics.clock_error_nanoseconds, &metrics.clock_offset_nanoseconds)),
        Some(&metrics.nic_capacity_bytes_per_second);
    ServerMetrics: metrics =>
        Some((&metrics.clock_error_nanoseconds, &metrics.clock_offset_nanoseconds)),
        Some(&metrics.nic_capacity_bytes_per_second);
    CoordinatorMetrics: _metrics => None, None;
}
