//! Which gradients are clipped: the parameters whose rules bound the norm of a round, by their clocks.

use std::collections::BTreeMap;

use gradlane_core::cluster::ticks::{clip_of, other_clip};
use gradlane_core::error::Result;
use gradlane_core::types::{ClockKey, TensorKey, TensorSpec, WorkerId};

/// The parameters of each clock that are clipped, with the worker that has declared each first. All of a clock name the same norm.
#[derive(Default, Debug)]
pub(super) struct Clips(BTreeMap<ClockKey, BTreeMap<TensorKey, (WorkerId, TensorSpec)>>);

impl Clips {
    /// Refuses a declaration of `worker` that names another norm than a parameter of the same clock.
    ///
    /// # Errors
    /// [`Error::Mismatch`](gradlane_core::error::Error::Mismatch) that names both.
    pub(super) fn check(&self, worker: WorkerId, tensors: &[TensorSpec]) -> Result<()> {
        let mut firsts: BTreeMap<ClockKey, (WorkerId, &TensorSpec)> = BTreeMap::new();
        for tensor in tensors {
            let Some((clock, _)) = clip_of(tensor) else { continue };
            let known = || self.0.get(&clock).and_then(|clipped| clipped.values().next());
            let first = known().map_or((worker, tensor), |(by, first)| (*by, first));
            let first = *firsts.entry(clock).or_insert(first);
            other_clip(first, (worker, tensor)).map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Notes parameters that `worker` has declared.
    pub(super) fn declare(&mut self, worker: WorkerId, tensors: &[TensorSpec]) {
        for tensor in tensors {
            if let Some((clock, _)) = clip_of(tensor) {
                self.0.entry(clock).or_default().entry(tensor.key()).or_insert_with(|| (worker, tensor.clone()));
            }
        }
    }

    /// These tensors have ended.
    pub(super) fn end(&mut self, keys: &[TensorKey]) {
        self.0.retain(|_, clipped| {
            keys.iter().for_each(|key| drop(clipped.remove(key)));
            !clipped.is_empty()
        });
    }

    /// Whether gradients of rounds of this clock are clipped.
    pub(super) fn has(&self, clock: ClockKey) -> bool {
        self.0.contains_key(&clock)
    }
}
