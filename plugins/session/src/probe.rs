//! What the exporter shows of a worker whose job has no other members.

use std::sync::Arc;

use gradlane_core::engine::Metrics;
use gradlane_core::metrics::Instance;
use gradlane_core::runtime::Usage;
use gradlane_core::runtime::exporter::{Shown, Standing};

/// A worker that is ready from the beginning.
pub(crate) struct Probe {
    metrics: Arc<Metrics>,
    /// What its process uses.
    usage: Usage,
}

impl Probe {
    pub(crate) fn new(metrics: &Arc<Metrics>) -> Self {
        Self { metrics: Arc::clone(metrics), usage: Usage::new() }
    }

    /// Brings the metrics up to date that nobody counts while they change.
    pub(crate) fn refresh(&self) {
        self.usage.refresh(&*self.metrics);
    }
}

impl Shown for Probe {
    fn name(&self) -> &'static str {
        "worker"
    }

    fn standing(&self) -> Standing {
        Standing::Ready
    }

    fn values(&self) -> Option<Instance> {
        self.refresh();
        Some(self.metrics.instance(0))
    }
}
