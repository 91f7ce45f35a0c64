//! What the exporter shows of a worker.

use std::sync::{Arc, OnceLock};

use super::metrics::Metrics;
use super::recorder::Flight;
use crate::metrics::Instance;
use crate::runtime::Usage;
use crate::runtime::exporter::{Shown, Standing, StandingCell};

/// The metrics and the state of a worker, beside its lock: they can be read while every thread of the engine is stuck.
pub(super) struct Probe {
    metrics: Arc<Metrics>,
    flight: Arc<Flight>,
    /// How far it is.
    pub(super) standing: StandingCell,
    /// Its rank, once it has one.
    pub(super) rank: OnceLock<u32>,
    /// What its process uses.
    pub(super) usage: Usage,
}

impl Probe {
    pub(super) fn new(metrics: &Arc<Metrics>, flight: &Arc<Flight>) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            flight: Arc::clone(flight),
            standing: StandingCell::default(),
            rank: OnceLock::new(),
            usage: Usage::new(),
        }
    }

    /// Brings the metrics up to date that nobody counts while they change.
    pub(super) fn refresh(&self) {
        self.usage.refresh(&*self.metrics);
        self.flight.count_in(&self.metrics.trace_counts());
    }
}

impl Shown for Probe {
    fn name(&self) -> &'static str {
        "worker"
    }

    fn standing(&self) -> Standing {
        self.standing.now()
    }

    fn values(&self) -> Option<Instance> {
        self.refresh();
        self.rank.get().map(|rank| self.metrics.instance(rank))
    }
}
