//! What workers, servers, the coordinator and the exporter count about themselves.
//!
//! All metrics stand in one table, [`METRICS`]. [`report`] writes it for people, [`prometheus`] writes values for Prometheus.

mod table;
mod text;

pub use table::{
    CoordinatorMetrics, ExporterMetrics, Instance, Kind, METRICS, Metric, ServerMetrics, Unit, WorkerMetrics,
};
pub use text::{prometheus, report, rows};
