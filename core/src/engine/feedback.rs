//! Saving and restoring what error feedback keeps of a tensor.

use super::driver::Engine;
use super::residuals::SharedResidual;
use crate::error::{Error, Result};
use crate::types::CodecSpec;
use crate::worker::FeedbackPlace;

/// What error feedback keeps of a tensor of f32, in the order of its elements. What this worker does not encode is zero.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FeedbackState {
    /// What bodies have lost of each element and not brought yet, little-endian f32.
    pub residual: Vec<u8>,
    /// The velocity of each element; empty if the codec has no momentum.
    pub velocity: Vec<u8>,
}

impl Engine {
    /// What error feedback keeps of a tensor on this worker. The residual of the answers is on the servers, and not a part of it.
    ///
    /// # Errors
    /// As [`Worker::feedback_of`](crate::worker::Worker::feedback_of).
    pub fn feedback(&self, name: &str) -> Result<FeedbackState> {
        let (bytes, codec, places) = self.places(name)?;
        let mut state = FeedbackState { residual: vec![0; bytes], velocity: vec![0; velocity_bytes(codec, bytes)] };
        for Place { place: FeedbackPlace { offset, span, is_kept, .. }, residual } in places {
            let range = span.offset as usize..span.end() as usize;
            let velocity = state.velocity.get_mut(range.clone()).unwrap_or_default();
            residual.read(is_kept, offset as usize, [&mut state.residual[range], velocity]);
        }
        Ok(state)
    }

    /// Puts back what [`feedback`](Self::feedback) has returned, so that the next round goes on with it.
    ///
    /// # Errors
    /// As [`feedback`](Self::feedback); [`Error::InvalidArgument`] if it is of a tensor of another length, or of a codec with another
    /// momentum. Then nothing has changed.
    pub fn set_feedback(&self, name: &str, state: &FeedbackState) -> Result<()> {
        let (bytes, codec, places) = self.places(name)?;
        for (what, found, due) in [
            ("residual", state.residual.len(), bytes),
            ("velocity", state.velocity.len(), velocity_bytes(codec, bytes)),
        ] {
            if found != due {
                return Err(Error::InvalidArgument {
                    what: format!("the saved {what} of tensor {name} has {found} bytes instead of {due}"),
                    hint: "load the state of the same model with the same compression".to_owned(),
                });
            }
        }
        for Place { place: FeedbackPlace { part, part_bytes, offset, span, is_kept }, residual } in places {
            let range = span.offset as usize..span.end() as usize;
            let velocity = state.velocity.get(range.clone()).unwrap_or_default();
            let of = (part_bytes as usize, codec.momentum());
            residual.write(is_kept, of, offset as usize, [&state.residual[range], velocity]);
            self.shared.with(|state, _| state.worker.handle_restored(part))?;
        }
        Ok(())
    }

    /// Keeps, from the next round of a tensor on, also what error feedback had before each round, for
    /// [`take_back_feedback`](Self::take_back_feedback). That takes as much memory again, for the whole parts in which the tensor lies. It
    /// ends where a part gets another layout, as after the loss of a worker. Servers do the same with the residual of the answers, if all
    /// workers ask for it.
    ///
    /// # Errors
    /// As [`feedback`](Self::feedback).
    pub fn hold_feedback(&self, name: &str) -> Result<()> {
        for Place { place: FeedbackPlace { part, .. }, residual } in self.places(name)?.2 {
            residual.hold();
            self.shared.with(|state, _| state.worker.handle_held(part))?;
        }
        Ok(())
    }

    /// Makes error feedback of a tensor what it was before the latest round, whose sum is not used. Does nothing if that was not
    /// [held](Self::hold_feedback).
    ///
    /// The residual of the answers, on the servers, follows with the next round, where it was held and all workers have taken back that round
    /// for all tensors of a part. Else it stays as it is.
    ///
    /// # Errors
    /// As [`feedback`](Self::feedback).
    pub fn take_back_feedback(&self, name: &str) -> Result<()> {
        for Place { place: FeedbackPlace { part, offset, span, .. }, residual } in self.places(name)?.2 {
            residual.take_back(offset as usize..(offset + span.bytes) as usize);
            self.shared.with(|state, _| state.worker.handle_taken_back(part, name))?;
        }
        Ok(())
    }

    /// Bytes of a tensor, its codec, and its residuals on this worker with their places.
    fn places(&self, name: &str) -> Result<(usize, CodecSpec, Vec<Place>)> {
        self.shared.with(|state, _| {
            let (spec, places) = state.worker.feedback_of(name)?;
            let bytes = spec.bytes().and_then(|bytes| usize::try_from(bytes).ok()).expect("its limits were checked");
            let codec = spec.kind.codec();
            let with_memory = |place: FeedbackPlace| Place { residual: state.residuals.of(place.part), place };
            Ok((bytes, codec, places.into_iter().map(with_memory).collect()))
        })?
    }
}

/// A place of a tensor's elements in a part, with the memory of the part's residual.
struct Place {
    place: FeedbackPlace,
    residual: SharedResidual,
}

fn velocity_bytes(codec: CodecSpec, bytes: usize) -> usize {
    if codec.momentum().is_some() { bytes } else { 0 }
}
