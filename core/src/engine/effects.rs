//! What becomes of changes of parameters is told to their handles, and counted.

use std::sync::Arc;

use super::handle::EffectTeller;
use super::metrics::Metrics;
use crate::types::Access;

/// The same, which counts what becomes of a change.
pub(super) fn counting(access: Access, metrics: &Arc<Metrics>, tell: EffectTeller) -> EffectTeller {
    if !access.changes() {
        return tell;
    }
    let metrics = Arc::clone(metrics);
    Box::new(move |effect| {
        metrics.count_change(effect);
        tell(effect);
    })
}
