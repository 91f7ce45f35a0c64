//! A submission of a tensor of which an operator has asked for a round.

use std::sync::Arc;

use super::dumps::{self, Asked, Seen};
use super::memory::Memory;
use super::shared::Shared;
use crate::error::{Error, Result};
use crate::mem::borrow;
use crate::types::{Demand, Done, Round, TensorKey, TensorSpec};

/// A contribution that may be the one that was asked for. It is kept before it is submitted, because a sum may overwrite it.
pub(super) struct Watched {
    tensor: TensorSpec,
    contribution: Result<Vec<u8>>,
}

impl Watched {
    /// Keeps a contribution, if somebody has asked for a round of its tensor. Costs the look at one flag if nobody has asked for anything.
    pub(super) fn look(shared: &Shared, tensor: &TensorSpec, source: &Memory, demand: Demand) -> Option<Self> {
        if shared.dumps.is_off() || demand.is_of_residual() || !shared.dumps.wants(shared.clock.now(), tensor.key()) {
            return None;
        }
        let contribution = match demand {
            Demand::Reduce { .. } => bytes(shared, tensor, source),
            Demand::Access { .. } => {
                let what = format!("tensor {} is a parameter, which has no sums", tensor.name);
                Err(Error::InvalidArgument { what, hint: "save a checkpoint to see its value".to_owned() })
            }
            Demand::AnswerResidual(_) => unreachable!("nobody asks for these"),
            Demand::Rows { .. } => {
                let what = format!("tensor {} is a table, which has no sums", tensor.name);
                Err(Error::InvalidArgument { what, hint: "look up rows to see their values".to_owned() })
            }
        };
        Some(Self { tensor: tensor.clone(), contribution })
    }

    /// The tensor.
    pub(super) fn key(&self) -> TensorKey {
        self.tensor.key()
    }

    /// The submission has got this round, and its result comes to `destination`. The token that is returned takes the place of `done`: it
    /// writes the files before it reports, if the round is the one that was asked for.
    pub(super) fn follow(
        self,
        shared: &Arc<Shared>,
        round: Option<Round>,
        destination: &Memory,
        done: Done<()>,
    ) -> Done<()> {
        let Some(asked) = round.and_then(|round| shared.dumps.take(shared.clock.now(), self.key(), round)) else {
            return done;
        };
        let (shared, destination) = (Arc::clone(shared), destination.again());
        Done::new(move |outcome: Result<()>| {
            let seen = outcome.clone().and_then(|()| self.seen(&shared, &destination));
            // The memory is the caller's again.
            done.report(outcome);
            tell(shared, asked, seen);
        })
    }

    fn seen(self, shared: &Shared, destination: &Memory) -> Result<Seen> {
        let Self { tensor, contribution } = self;
        let rank = shared.look(|state| state.worker.rank());
        let receives = tensor.participants.receives(rank);
        let sum = receives.then(|| bytes(shared, &tensor, destination)).transpose()?;
        Ok(Seen { rank, contribution: contribution?, sum, tensor })
    }
}

/// Writes the files and tells the coordinator, on a thread of its own, because a disk may be slow.
fn tell(shared: Arc<Shared>, asked: Asked, seen: Result<Seen>) {
    let number = asked.number;
    let again = Arc::clone(&shared);
    let write = move || {
        let outcome = seen.and_then(|seen| dumps::write(&asked, &seen));
        shared.tell(|membership| membership.reporter().report_commanded(number, outcome));
    };
    if let Err(error) = std::thread::Builder::new().name("gl-dump".to_owned()).spawn(write) {
        let error = Error::Io { what: "starting a thread".to_owned(), cause: error.to_string() };
        again.tell(|membership| membership.reporter().report_commanded(number, Err(error)));
    }
}

/// The bytes of a tensor in memory of the host.
fn bytes(shared: &Shared, tensor: &TensorSpec, memory: &Memory) -> Result<Vec<u8>> {
    match memory {
        Memory::Host(region) => {
            let copies = shared.metrics.copies();
            Ok(borrow::read(&[region.again()], &copies, |bytes| copies.to_vec(bytes)))
        }
        Memory::Device { .. } => Err(Error::InvalidArgument {
            what: format!("tensor {} lies in memory of a device", tensor.name),
            hint: "only tensors in memory of the host can be dumped".to_owned(),
        }),
    }
}
