//! What workers, servers, the coordinator and the exporter count about themselves.
//!
//! All metrics stand in one table, [`METRICS`]. [`report`] writes it for people, [`prometheus`] writes values for Prometheus.
//!
//! These do not exist, because they would say nothing new, or nothing that a program can use:
//! - the outcome of `resolved`: `failed` counts the errors, and `errors` their classes;
//! - the transport of `push_bytes`, `pull_bytes`, `received_bytes` and `sent_bytes`: a worker reaches each server in one way, `link_sent_bytes` and
//!   `link_received_bytes` count its bytes by server, and a link over a network has `link_rtt`;
//! - the reason of `repeats`: `exchange_failures` counts failed exchanges by the class of the error;
//! - the cause of `losses`: it is a sentence, which the log, the page and the flight recorder of the coordinator show;
//! - members by role and state: `workers_joined`, `servers_joined`, `members_suspect` and `members_missing` are these numbers;
//! - `inflight_bytes` and `credit_bytes` by server: the credit is one for all servers;
//! - the sign of `clock_offset`: the numbers of metrics are unsigned, and `gradlane.timeline.clock()` says the sign.

mod cells;
mod instance;
mod links;
mod named;
mod pairs;
mod process;
mod row;
mod sinks;
mod stages;
mod table;
mod text;
mod trace;

pub use cells::{
    ByCause, ByDevice, ByLimit, ByMember, ByServer, Cell, Durations, Fact, Indexed, Known, MachineLast, MachineLate,
    NowByLane, NowByServer,
};
pub use instance::{Histogram, Instance, Value};
pub use links::{LinkMeter, LinkReading};
pub use named::{ByName, StageDurations, StageWaits, WaitReason, WaitTimes};
pub use process::{InfoCells, OfProcess, ProcessCells};
pub use row::{Kind, Metric, Unit};
pub use sinks::{BySink, Sink};
pub use stages::StageTimes;
pub use table::{CoordinatorMetrics, ExporterMetrics, METRICS, ServerMetrics, WorkerMetrics};
pub use text::{prometheus, report, rows};
pub use trace::TraceCounts;
