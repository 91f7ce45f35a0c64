//! What callers see of error feedback: the parts in which a tensor has residuals, for those who save and restore them.

use super::machine::Worker;
use super::records::Submission;
use crate::error::{Error, Result};
use crate::types::{PartId, PartLayout, Span, TensorKey, TensorSpec};

/// The place of a tensor's elements in a part that this worker encodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeedbackPlace {
    /// The part.
    pub part: PartId,
    /// Bytes of the whole part.
    pub part_bytes: u64,
    /// Where the tensor's bytes begin in the part.
    pub offset: u64,
    /// Which bytes of the tensor they are.
    pub span: Span,
    /// Whether the next body goes on with the residual of the part; else it begins at zero.
    pub is_kept: bool,
}

impl Worker {
    /// The declaration of a tensor with error feedback, and the places of its elements that this worker encodes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no such tensor is declared, or it has no error feedback. [`Error::FailedPrecondition`] while it is being
    /// reduced.
    pub fn feedback_of(&self, name: &str) -> Result<(&TensorSpec, Vec<FeedbackPlace>)> {
        let key = TensorKey::of(name);
        let spec = self.registry.spec_of(key).filter(|spec| spec.kind.codec().has_feedback());
        let spec = spec.ok_or_else(|| Error::InvalidArgument {
            what: format!("no tensor {name} with error feedback is declared"),
            hint: "declare it with a codec that has feedback=1".to_owned(),
        })?;
        let has = |submission: &Submission| submission.tensors.as_slice().iter().any(|tensor| tensor.key == key);
        if self.submissions.values().any(has) {
            return Err(Error::FailedPrecondition {
                what: format!("tensor {name} is being reduced"),
                hint: "wait for its handle first".to_owned(),
            });
        }
        let mut places = Vec::new();
        for layout in self.registry.parts().filter(|layout| self.encodes(spec, layout)) {
            let mut offset = 0;
            for piece in &layout.pieces {
                if piece.tensor == key {
                    let (part, part_bytes, span) = (layout.part, layout.bytes(), piece.span);
                    let is_kept = self.residuals.is_kept(part);
                    places.push(FeedbackPlace { part, part_bytes, offset, span, is_kept });
                }
                offset += piece.span.bytes;
            }
        }
        Ok((spec, places))
    }

    /// Whether this worker encodes a part of a tensor: its own contribution, or that of its machine.
    fn encodes(&self, spec: &TensorSpec, layout: &PartLayout) -> bool {
        let rank = self.rank();
        !spec.participants.is_everybody() || self.here().machines.owner(layout.part, layout.dtype, rank) == rank
    }

    /// Takes the news that the residual of a part was put back, and its velocity.
    pub fn handle_restored(&mut self, part: PartId) {
        self.residuals.restore(part, self.is_of_machine(part));
    }

    /// Takes the news that from the next body of a part on, what was there before is kept too.
    pub fn handle_held(&mut self, part: PartId) {
        self.residuals.hold(part, self.is_of_machine(part));
    }

    /// Takes the news that what the latest body of a part has changed for this tensor was taken back. Its next contribution tells the server,
    /// once that is so for all tensors of the part.
    pub fn handle_taken_back(&mut self, part: PartId, name: &str) {
        self.residuals.take_back(part, TensorKey::of(name));
    }

    fn is_of_machine(&self, part: PartId) -> bool {
        self.registry.spec_of(part.key).is_some_and(|spec| spec.participants.is_everybody())
    }
}
