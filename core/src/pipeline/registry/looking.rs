//! What the registry knows, for those who look.

use std::sync::Arc;

use super::{Registry, State};
use crate::types::{PartId, PartLayout, TensorKey, TensorSpec};

impl Registry {
    /// The tensor's declaration, if this worker declared it.
    pub fn spec_of(&self, key: TensorKey) -> Option<&TensorSpec> {
        self.tensors.get(&key).map(|tensor| &tensor.spec)
    }

    /// The parts of a tensor, in the order of their places in it; none if it has no layout.
    pub fn parts_of(&self, key: TensorKey) -> impl Iterator<Item = &PartLayout> {
        let of_tensor = PartId { key, index: 0 }..=PartId { key, index: u32::MAX };
        self.parts.range(of_tensor).map(|(_, layout)| layout.as_ref())
    }

    /// Every known part.
    pub fn parts(&self) -> impl Iterator<Item = &PartLayout> {
        self.parts.values().map(Arc::as_ref)
    }

    /// The request whose answer brings the layout of a tensor, if the coordinator was asked.
    pub fn request_of(&self, key: TensorKey) -> Option<u64> {
        match self.tensors.get(&key)?.state {
            State::Declaring { request } => Some(request),
            State::Ready { .. } | State::Failed { .. } => None,
        }
    }
}
