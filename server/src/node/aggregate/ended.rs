//! Tensors whose names have ended: nothing is kept of them, and bytes of them that were long under way begin nothing.

use std::collections::{BTreeMap, VecDeque};

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{PartId, TensorKey};
use gradlane_core::wire::limits;

/// The names that ended last, so many that a message of an earlier one cannot be under way any more.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// The index below which all parts of a tensor are over.
    below: BTreeMap<TensorKey, u32>,
    /// In the order in which they ended.
    order: VecDeque<(TensorKey, u32)>,
}

impl Ended {
    /// A tensor ended, with all parts below this index.
    pub(super) fn insert(&mut self, key: TensorKey, below: u32) {
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

    /// How many names it remembers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.below.len()
    }

    /// Refuses a part of a tensor that has ended.
    pub(super) fn check(&self, part: PartId) -> Result<()> {
        if self.below.get(&part.key).is_none_or(|below| part.index >= *below) {
            return Ok(());
        }
        Err(undeclared(part.key))
    }
}

/// The answer for a tensor that has ended.
pub(super) fn undeclared(key: TensorKey) -> Error {
    Error::FailedPrecondition {
        what: format!("tensor {key} has ended, because every worker has undeclared it"),
        hint: "declare it again before you use it".to_owned(),
    }
}
