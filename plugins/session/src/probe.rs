//! What the exporter shows of a worker whose job has no other members.

use gradlane_core::engine;
use gradlane_core::metrics::Instance;
use gradlane_core::runtime::exporter::{Shown, Standing};

/// A worker that is ready from the beginning. Nothing is sent, so all its metrics are 0.
pub(crate) struct Probe;

impl Shown for Probe {
    fn name(&self) -> &'static str {
        "worker"
    }

    fn standing(&self) -> Standing {
        Standing::Ready
    }

    fn values(&self) -> Option<Instance> {
        Some(engine::Metrics::default().instance(0))
    }
}
