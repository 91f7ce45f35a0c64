//! Saving and restoring what error feedback keeps of a tensor, on this worker and on the servers.

use std::sync::Arc;

use super::batch::{Batch, Member};
use super::driver::Engine;
use super::residuals::SharedResidual;
use super::submit::HERE_BYTES_MAX;
use crate::error::{Error, Result};
use crate::mem::borrow::{self, OwnedBytes, Staging};
use crate::mem::{Copies, Region};
use crate::pipeline::Stage;
use crate::types::{CodecSpec, Demand, Priority, ResidualUse, TensorSpec};
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
    /// What error feedback keeps of a tensor on this worker. The residual of the answers is on the servers, and not a part of it:
    /// [`answer_feedback`](Self::answer_feedback) reads it.
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
            check_bytes(what, name, found, due)?;
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

    /// Reads from the servers what the answers to these tensors have lost and not brought yet, as the answers of the next rounds would find it:
    /// of each an f32 for each element, little-endian, in order. It is empty of a tensor whose answers lose nothing, because its codec is
    /// sparse, or because no part of it goes to a server. If all workers have [taken back](Self::take_back_feedback) the latest round,
    /// it is what was there before that.
    ///
    /// Call it between rounds, with all tensors that share parts. It is the same on each worker that has finished the same rounds.
    ///
    /// # Errors
    /// As [`feedback`](Self::feedback); [`Error::InvalidArgument`] without a tensor that shares a part with one of these;
    /// [`Error::TensorState`] if other workers are in a later round, whose answer has changed it; as
    /// [`push_pull`](Self::push_pull).
    pub fn answer_feedback(&self, names: &[&str]) -> Result<Vec<Vec<u8>>> {
        let specs = self.answers_of(names)?;
        let kept: Vec<&TensorSpec> = specs.iter().filter(|(_, is_kept)| *is_kept).map(|(spec, _)| spec).collect();
        let memory: Vec<Arc<Staging>> = kept
            .iter()
            .map(|spec| {
                Arc::new(Staging::new(self.shared.wire.lease(spec.bytes().expect("its limits were checked"), false)))
            })
            .collect();
        let regions = memory.iter().map(|memory| memory.region()).collect();
        self.use_residuals(ResidualUse::Read, kept, regions, memory.clone())?;
        let mut read = memory.iter().map(|memory| borrow::read(&[memory.region()], &Copies::default(), <[u8]>::to_vec));
        let of = |is_kept: bool| if is_kept { read.next().expect("one of each") } else { Vec::new() };
        Ok(specs.iter().map(|(_, is_kept)| *is_kept).map(of).collect())
    }

    /// Gives the servers what [`answer_feedback`](Self::answer_feedback) has returned, by the names of tensors, so that the answers of the next
    /// rounds go on with it. All workers must give the same before the next round; they may be more or fewer than those that have read it, and
    /// so may the servers. What is given for tensors of which no part goes to a server is not used.
    ///
    /// # Errors
    /// As [`answer_feedback`](Self::answer_feedback); [`Error::InvalidArgument`] if it is of a tensor of another length, or of one whose
    /// answers lose nothing; [`Error::Mismatch`] if another worker has given something else. Nothing of it is used then. If workers have not all
    /// given it, the next round fails on all of them.
    pub fn set_answer_feedback(&self, given: &[(&str, &[u8])]) -> Result<()> {
        let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
        let specs = self.answers_of(&names)?;
        for ((spec, _), (name, bytes)) in specs.iter().zip(given) {
            if !spec.kind.codec().has_answer_feedback() {
                return Err(Error::InvalidArgument {
                    what: format!(
                        "a residual of the answers of tensor {name}, whose codec {} leaves none",
                        spec.kind.codec()
                    ),
                    hint: "load the state of the same model with the same compression".to_owned(),
                });
            }
            check_bytes("residual of the answers", name, bytes.len(), spec.bytes().unwrap_or_default() as usize)?;
        }
        let kept = specs.iter().zip(given).filter(|((_, is_kept), _)| *is_kept);
        let (kept, memory): (Vec<&TensorSpec>, Vec<Arc<OwnedBytes>>) =
            kept.map(|((spec, _), (_, bytes))| (spec, Arc::new(OwnedBytes::new(Vec::from(*bytes))))).unzip();
        let regions = memory.iter().map(|memory| memory.region()).collect();
        let names: Vec<String> = kept.iter().map(|spec| spec.name.clone()).collect();
        self.use_residuals(ResidualUse::Give, kept, regions, memory)?;
        self.shared.with(|state, _| names.iter().for_each(|name| state.worker.handle_given(name)))
    }

    /// Uses the residuals of the answers to these tensors, with their memory, and waits for it. `lent` has the memory.
    fn use_residuals(
        &self,
        of: ResidualUse,
        specs: Vec<&TensorSpec>,
        regions: Vec<Region>,
        lent: impl Send + 'static,
    ) -> Result<()> {
        if specs.is_empty() {
            return Ok(());
        }
        self.stages.start(&[Stage::Push])?;
        let batch = Batch::new(specs.into_iter().cloned().collect())?;
        let member = |region: Region| {
            let (source, destination) = (region.again().into(), region.into());
            Member { source, destination, priority: Priority(0) }
        };
        let members = regions.into_iter().map(member).collect();
        let demand = (Demand::AnswerResidual(of), None);
        self.submit_batch(&batch, members, demand, HERE_BYTES_MAX, &|| {}, move |_| drop(lent))?.wait(None)
    }

    /// Declarations, and whether servers keep residuals of the answers.
    fn answers_of(&self, names: &[&str]) -> Result<Vec<(TensorSpec, bool)>> {
        self.shared.with(|state, _| {
            let of = |name: &&str| state.worker.answers_of(name).map(|(spec, is_kept)| (spec.clone(), is_kept));
            names.iter().map(of).collect()
        })?
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

fn check_bytes(what: &str, name: &str, found: usize, due: usize) -> Result<()> {
    if found == due {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        what: format!("the saved {what} of tensor {name} has {found} bytes instead of {due}"),
        hint: "load the state of the same model with the same compression".to_owned(),
    })
}

fn velocity_bytes(codec: CodecSpec, bytes: usize) -> usize {
    if codec.momentum().is_some() { bytes } else { 0 }
}
