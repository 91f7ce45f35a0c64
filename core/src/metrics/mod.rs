//! What workers, servers, the coordinator and the exporter count about themselves.
//!
//! All metrics stand in one table, [`METRICS`]. [`report`] writes it for people, [`prometheus`] writes values for Prometheus.

mod cells;
mod instance;
mod pairs;
mod table;
mod text;

pub use cells::{ByCause, Cell, Durations, Indexed};
pub use instance::{Histogram, Instance, Value};
pub use table::{CoordinatorMetrics, ExporterMetrics, Kind, METRICS, Metric, ServerMetrics, Unit, WorkerMetrics};
pub use text::{prometheus, report, rows};
