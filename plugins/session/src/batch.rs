//! Tensors that are submitted together in every round, in the form of the engine.

use gradlane_core::engine::{self, Member};
use gradlane_core::types::{Priority, TensorSpec};
use gradlane_core::{Error, Result};

use crate::memory::{Lender, tensor_bytes};

/// Names, dtypes and shapes of tensors that are submitted together. It belongs to no session and holds no memory.
#[derive(Debug)]
pub struct Batch {
    batch: engine::Batch,
    /// Bytes of each tensor.
    lengths: Vec<usize>,
}

/// Addresses of the tensors of a batch, in its order.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    /// The contribution of each tensor.
    pub sources: &'a [usize],
    /// The address of each result; `None` if the results replace the contributions.
    pub destinations: Option<&'a [usize]>,
    /// The streams of the sources, followed by those of the destinations if these differ from the sources; or none at all.
    pub streams: &'a [Option<u64>],
}

impl Batch {
    /// A batch of these tensors.
    ///
    /// # Errors
    /// As [`engine::Batch::new`]; [`Error::InvalidArgument`] for a tensor that is larger than the address space.
    pub fn new(tensors: Vec<TensorSpec>) -> Result<Self> {
        let lengths = tensors.iter().map(tensor_bytes).collect::<Result<_>>()?;
        Ok(Self { batch: engine::Batch::new(tensors)?, lengths })
    }

    /// The engine's batch.
    pub fn tensors(&self) -> &engine::Batch {
        &self.batch
    }

    /// How many tensors. At least one.
    #[expect(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Makes memory of these addresses with `lender`. The first tensor has the priority `first`, each further one has one less than the one
    /// before.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the number of addresses or streams is wrong; those of [`Lender::lend`].
    ///
    /// # Safety
    /// As [`Lender::lend`], for each address and the length of its tensor.
    #[expect(unsafe_code, reason = "a framework gives addresses and a promise")]
    pub unsafe fn lend(&self, mut lender: Lender<'_>, lent: Lent<'_>, first: Priority) -> Result<Vec<Member>> {
        let Lent { sources, destinations, streams } = lent;
        let tensors = self.len();
        let targets = destinations.unwrap_or(sources);
        let sides = if destinations.is_some() { 2 } else { 1 };
        if [sources.len(), targets.len()] != [tensors; 2] || ![0, sides * tensors].contains(&streams.len()) {
            return Err(Error::InvalidArgument {
                what: format!(
                    "{} and {} addresses and {} streams for {tensors} tensors",
                    sources.len(),
                    targets.len(),
                    streams.len()
                ),
                hint: "give one for each".to_owned(),
            });
        }
        let (begin, end) = streams.split_at(streams.len().min(tensors));
        let end = if destinations.is_some() { end } else { begin };
        let stream = |of: &[Option<u64>], index: usize| of.get(index).copied().flatten();
        let mut lend = |address: usize, bytes: usize, stream: Option<u64>| {
            // SAFETY: the caller of this function promises it for each address.
            unsafe { lender.lend(address, bytes, stream) }
        };
        let member = |index: usize| {
            let (bytes, position) = (self.lengths[index], i32::try_from(index).unwrap_or(i32::MAX));
            Ok(Member {
                source: lend(sources[index], bytes, stream(begin, index))?,
                destination: lend(targets[index], bytes, stream(end, index))?,
                priority: Priority(first.0.saturating_sub(position)),
            })
        };
        (0..tensors).map(member).collect()
    }
}
