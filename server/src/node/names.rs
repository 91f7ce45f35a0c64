//! Tensors whose names have ended or failed for good: nothing is kept of them, and bytes of them that were long under way begin nothing.

use std::collections::{BTreeMap, VecDeque};

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{PartId, TensorKey};
use gradlane_core::wire::limits;

/// What a node remembers of tensors that it must not begin again.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The index below which all parts of a tensor are over. Only of the names that ended last, so many that a message of an earlier one
    /// cannot be under way any more.
    below: BTreeMap<TensorKey, u32>,
    /// In the order in which they ended.
    order: VecDeque<(TensorKey, u32)>,
    /// Tensors that failed for good.
    failed: BTreeMap<TensorKey, Error>,
}

impl Names {
    /// A tensor ended, with all parts below this index.
    pub(super) fn end(&mut self, key: TensorKey, below: u32) {
        self.failed.remove(&key);
        if self.below.insert(key, below) == Some(below) {
            return;
        }
        self.order.push_back((key, below));
        if self.order.len() > limits::TENSORS_MAX
            && let Some((key, below)) = self.order.pop_front()
            // It may have ended again since then.
            && self.below.get(&key) == Some(&below)
        {
            self.below.remove(&key);
        }
    }

    /// A tensor failed for good, for this reason.
    pub(super) fn fail(&mut self, key: TensorKey, error: Error) {
        self.failed.insert(key, error);
    }

    /// Other workers have come, which may use the names that failed.
    pub(super) fn forgive(&mut self) {
        self.failed.clear();
    }

    /// How many names that ended it remembers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.below.len()
    }

    /// Refuses a part of a tensor that has ended or failed.
    pub(super) fn check(&self, part: PartId) -> Result<()> {
        if self.below.get(&part.key).is_some_and(|below| part.index < *below) {
            return Err(undeclared(part.key));
        }
        self.failed.get(&part.key).map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// The answer for a tensor that has ended.
pub(super) fn undeclared(key: TensorKey) -> Error {
    Error::TensorState {
        tensor: key.into(),
        what: "the name has ended, because every worker has undeclared it".to_owned(),
        hint: "declare it again before you use it".to_owned(),
    }
}
