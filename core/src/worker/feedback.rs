//! What callers see of error feedback: the parts in which a tensor has residuals, for those who save and restore them. Here and on the
//! servers.

use std::collections::BTreeSet;

use super::machine::Worker;
use super::records::Submission;
use crate::error::{Error, Result};
use crate::pipeline::registry::ReadyPart;
use crate::types::{CodecSpec, PartId, PartLayout, Piece, ResidualUse, Round, Span, TensorKey, TensorSpec};
use crate::wire::{AnswerResidual, Hold, ResidualAction, Target};

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

    /// Refuses a use of the residuals of these tensors' answers if one is being reduced, or if one shares a part with a tensor that is not
    /// among them, because a part goes to its server as a whole.
    pub(super) fn check_residual_use(&self, specs: &[TensorSpec]) -> Result<()> {
        let keys: BTreeSet<TensorKey> = specs.iter().map(TensorSpec::key).collect();
        specs.iter().try_for_each(|spec| self.feedback_of(&spec.name).map(drop))?;
        for PartLayout { pieces, .. } in self.registry.parts() {
            let (asked, left): (Vec<&Piece>, Vec<&Piece>) =
                pieces.iter().partition(|piece| keys.contains(&piece.tensor));
            if let ([asked, ..], [left, ..]) = (&*asked, &*left) {
                let [asked, left] = [asked, left].map(|piece| self.registry.name_of(piece.tensor).unwrap_or_default());
                return Err(Error::InvalidArgument {
                    what: format!(
                        "the residual of the answers of tensor {asked} without that of {left}, which shares a part with it"
                    ),
                    hint: "read or give the residuals of all tensors of a model in one call".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// The declaration of a tensor with error feedback, and whether servers keep residuals of its answers: its parts go to them, and its codec
    /// loses something there.
    ///
    /// # Errors
    /// As [`feedback_of`](Self::feedback_of).
    pub fn answers_of(&self, name: &str) -> Result<(&TensorSpec, bool)> {
        let (spec, _) = self.feedback_of(name)?;
        let formation = self.here();
        let is_together =
            !spec.participants.is_everybody() && formation.machines.are_together(&spec.participants, self.rank());
        let has_residual = spec.kind.codec().has_answer_feedback() && formation.pipeline.pushes() && !is_together;
        Ok((spec, has_residual))
    }

    /// The header of a use of the residual of a part's answers. The driver sets the checksum of a gift.
    pub(super) fn residual_header(&self, target: Target, part: &ReadyPart, of: ResidualUse) -> AnswerResidual {
        let layout = &part.layout;
        let action = match of {
            ResidualUse::Read => ResidualAction::Read(self.hold_of(layout, part.round)),
            ResidualUse::Give => ResidualAction::Give { checksum: 0 },
        };
        let (participants, codec, part_bytes) = (part.participants.clone(), layout.kind.codec(), layout.bytes());
        AnswerResidual { target, participants, codec, part_bytes, action }
    }

    /// What a contribution to a round, as a body of this codec, says of the residual of the answers: whether the answer may be taken back or
    /// the one before was, and whether it begins with what was given.
    pub(super) fn said_of_answers(&self, layout: &PartLayout, round: Round, codec: CodecSpec) -> (Hold, bool) {
        match codec.has_answer_feedback() {
            true => (self.hold_of(layout, round), self.residuals.is_given(layout.part, round)),
            false => (Hold::No, false),
        }
    }

    /// Whether what comes back of a part is for this worker.
    pub(super) fn is_receiver(&self, part: &ReadyPart) -> bool {
        part.demand.receives() && (part.demand.is_of_residual() || part.participants.receives(self.rank()))
    }

    fn hold_of(&self, layout: &PartLayout, round: Round) -> Hold {
        self.residuals.hold_of(layout.part, round, layout.pieces.iter().map(|piece| piece.tensor))
    }

    /// Takes the news that the servers were given the residual with which the next answers to a tensor begin. This worker has given all of it,
    /// also of the parts that others of its machine encode now.
    pub fn handle_given(&mut self, name: &str) {
        let key = TensorKey::of(name);
        let has = |layout: &&PartLayout| layout.pieces.iter().any(|piece| piece.tensor == key);
        let parts: Vec<PartId> = self.registry.parts().filter(has).map(|layout| layout.part).collect();
        for part in parts {
            self.residuals.give(part, self.is_of_machine(part));
        }
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
