//! The names of tensors in texts for people.

use super::Registry;
use crate::types::{PartLayout, TensorKey};

impl Registry {
    /// A part with the names of its tensors, for people.
    pub fn describe(&self, part: &PartLayout) -> String {
        let of = |tensor| self.label(tensor);
        part.pieces
            .iter()
            .fold(part.to_string(), |text, piece| text.replace(&piece.tensor.to_string(), &of(piece.tensor)))
    }

    pub(super) fn label(&self, key: TensorKey) -> String {
        self.name_of(key).map_or_else(|| UNDECLARED.to_owned(), str::to_owned)
    }
}

/// A tensor of a shared part whose name this worker does not know.
const UNDECLARED: &str = "a tensor that other workers declare and this worker does not";
