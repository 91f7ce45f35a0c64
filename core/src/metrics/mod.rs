//! What a worker or a server counts about itself.
//!
//! All metrics stand in one table, [`METRICS`]. [`report`] writes it for people, [`prometheus`] writes values for Prometheus.

mod table;
mod text;

pub use table::{Instance, Kind, METRICS, Metric, ServerMetrics, Unit, WorkerMetrics};
pub use text::{prometheus, report, rows};
