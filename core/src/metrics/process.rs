//! Where a worker, a server or a coordinator keeps what its process uses.

use std::sync::atomic::AtomicU64;

use super::cells::Known;
use super::table::{CoordinatorMetrics, ServerMetrics, WorkerMetrics};

/// The counters and gauges of a process. Each is documented in the [table](super::METRICS).
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the table documents them")]
pub struct ProcessCells<'a> {
    pub cpu_nanoseconds: &'a AtomicU64,
    pub resident_memory_bytes: &'a AtomicU64,
    pub open_fds: &'a AtomicU64,
    pub start_time_nanoseconds: &'a AtomicU64,
    pub run_delay_nanoseconds: &'a AtomicU64,
}

/// Metrics among which are those of a process.
pub trait OfProcess {
    /// Where they are.
    fn process_cells(&self) -> ProcessCells<'_>;

    /// Where the error of the clock of the job is, and its offset; none of who leads the job.
    fn clock_cells(&self) -> Option<(&Known, &Known)>;
}

macro_rules! of_process {
    ($($set:ident: $metrics:ident => $clock:expr;)+) => {$(
        impl OfProcess for $set {
            fn process_cells(&self) -> ProcessCells<'_> {
                ProcessCells {
                    cpu_nanoseconds: &self.process_cpu_nanoseconds,
                    resident_memory_bytes: &self.process_resident_memory_bytes,
                    open_fds: &self.process_open_fds,
                    start_time_nanoseconds: &self.process_start_time_nanoseconds,
                    run_delay_nanoseconds: &self.run_delay_nanoseconds,
                }
            }

            fn clock_cells(&self) -> Option<(&Known, &Known)> {
                let $metrics = self;
                $clock
            }
        }
    )+};
}
of_process! {
    WorkerMetrics: metrics => Some((&metrics.clock_error_nanoseconds, &metrics.clock_offset_nanoseconds));
    ServerMetrics: metrics => Some((&metrics.clock_error_nanoseconds, &metrics.clock_offset_nanoseconds));
    CoordinatorMetrics: _metrics => None;
}
