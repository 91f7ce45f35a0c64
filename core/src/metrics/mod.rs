//! What workers, servers, the coordinator and the exporter count about themselves.
//!
//! All metrics stand in one table, [`METRICS`]. [`report`] writes it for people, [`prometheus`] writes values for Prometheus.

mod cells;
mod instance;
mod links;
mod named;
mod pairs;
mod process;
mod stages;
mod table;
mod text;

pub use cells::{ByCause, ByLimit, ByMember, ByServer, Cell, Durations, Indexed, Known, NowByServer};
pub use instance::{Histogram, Instance, Value};
pub use links::{LinkMeter, LinkReading};
pub use named::{ByName, StageDurations, StageWaits};
pub use process::{OfProcess, ProcessCells};
pub use stages::StageTimes;
pub use table::{CoordinatorMetrics, ExporterMetrics, Kind, METRICS, Metric, ServerMetrics, Unit, WorkerMetrics};
pub use text::{prometheus, report, rows};
