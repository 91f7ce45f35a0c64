//! What a worker has read of parameters.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{PartId, TensorKey, Version};

/// Of each part of a parameter, the version that this worker has read last. Its next change is computed from that.
#[derive(Default, Debug)]
pub(super) struct Read(BTreeMap<PartId, Version>);

impl Read {
    /// The version that was read last, or 0.
    pub(super) fn of(&self, part: PartId) -> Version {
        self.0.get(&part).copied().unwrap_or_default()
    }

    /// The value was read.
    pub(super) fn note(&mut self, part: PartId, version: Version) {
        self.0.insert(part, version);
    }

    /// The worker has given the first value, or one that is taken for it.
    pub(super) fn note_first(&mut self, part: PartId) {
        self.0.entry(part).or_insert(Version(1));
    }

    /// Parameters with these keys have ended.
    pub(super) fn end(&mut self, keys: &BTreeSet<TensorKey>) {
        self.0.retain(|part, _| !keys.contains(&part.key));
    }
}
