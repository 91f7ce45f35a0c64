//! The names and the rounds of tensors, for people.

use super::Registry;
use crate::types::{PartLayout, TensorKey};

impl Registry {
    /// The tensor's name, if this worker declared it.
    pub fn name_of(&self, key: TensorKey) -> Option<&str> {
        self.spec_of(key).map(|spec| spec.name.as_str())
    }

    /// How often this worker has submitted the tensor, if it declared it.
    pub fn rounds(&self, key: TensorKey) -> Option<u64> {
        self.tensors.get(&key).map(|tensor| tensor.rounds)
    }

    /// A part with the names of its tensors, for people.
    pub fn describe(&self, part: &PartLayout) -> String {
        part.described(|tensor| self.label(tensor))
    }

    pub(super) fn label(&self, key: TensorKey) -> String {
        self.name_of(key).map_or_else(|| UNDECLARED.to_owned(), str::to_owned)
    }
}

/// A tensor of a shared part whose name this worker does not know.
const UNDECLARED: &str = "a tensor that other workers declare and this worker does not";
