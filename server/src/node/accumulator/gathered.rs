//! A sum whose contributions vary in length: each is collected whole, then decoded and added at once.
//!
//! The sum's own wire form has a length that nobody knows before the sum is whole, so no byte of it leaves earlier. The ledger counts the
//! prefixes of contributions as that of an [`Accumulator`](super::Accumulator) does. A contribution keeps its length in repeats, which the
//! node checks, and no byte of it is overwritten before it is here whole.

use gradlane_core::codec::feedback::{Residual, Start};
use gradlane_core::codec::{self, AnyCodec, Malformed, Seed, Tools, Workspace};
use gradlane_core::mem::{Frozen, Lease};
use gradlane_core::types::{ExchangeId, WorkerId};
use gradlane_core::wire::{Body, checksum};

use super::SumResources;
use super::contribution::Contribution;
use crate::node::command::{Order, Receipt, SumSpec, Upload};

/// A sum from its first byte to its last.
#[derive(Debug)]
pub struct Gathered {
    resources: SumResources,
    spec: SumSpec,
    codec: AnyCodec,
    seed: Seed,
    /// By rank, as in `spec.senders`.
    ledger: Vec<Entry>,
    /// The contributions that were added. In rank order they are the first ones.
    added: usize,
    /// In the codec's type of sums; absent before the first contribution was added, and once the sum is finished.
    sum: Option<Lease>,
    divisor: Option<f64>,
    /// What the answers of the part have lost, from [`publish`](Self::publish) to [`seal`](Self::seal), if they have error feedback.
    residual: Option<Residual>,
    finished: Option<Finished>,
    sealed: bool,
}

/// The ledger entry of one worker.
#[derive(Debug)]
struct Entry {
    contribution: Contribution,
    body: Collected,
}

/// ```text
///   Nothing ──first byte──► Bytes, chunk after chunk ──all are here, it has its turn──► Added
/// ```
#[derive(Debug)]
enum Collected {
    Nothing,
    /// The body, and how many bytes of it are here.
    Bytes(Lease, usize),
    Added,
}

/// The sum in its wire form.
#[derive(Debug)]
struct Finished {
    body: Body,
    blocks: Vec<Frozen>,
    checksum: Option<u32>,
}

impl Gathered {
    /// A sum without contributions.
    ///
    /// # Panics
    /// If its codec makes bodies of an exact length, or blocks would cut elements.
    pub fn new(resources: SumResources, spec: SumSpec, seed: Seed) -> Self {
        assert!(spec.block_bytes > 0 && spec.block_bytes.is_multiple_of(8), "a block holds whole elements");
        let codec = codec::of(spec.codec, spec.dtype).filter(|codec| codec.spec().varies());
        let entry = |_| Entry { contribution: Contribution::new(), body: Collected::Nothing };
        Self {
            codec: codec.expect("chosen for such codecs"),
            ledger: spec.senders.iter().map(entry).collect(),
            resources,
            spec,
            seed,
            added: 0,
            sum: None,
            divisor: None,
            residual: None,
            finished: None,
            sealed: false,
        }
    }

    /// As for [`Accumulator::begin`](super::Accumulator::begin).
    pub fn begin(&mut self, worker: WorkerId, exchange: ExchangeId, upload: Upload) -> Option<Receipt> {
        let Entry { contribution, .. } = &mut self.ledger[self.spec.sender(worker)?];
        contribution.begin(exchange, upload);
        let receipt = contribution.receipt(upload.body.bytes);
        // The sum overwrites contributions only when it is whole, and then all of them are.
        if receipt.is_none() && upload.landed > 0 { Some(Receipt::Lost) } else { receipt }
    }

    /// As for [`Accumulator::receive`](super::Accumulator::receive).
    pub fn receive(
        &mut self,
        worker: WorkerId,
        exchange: ExchangeId,
        chunks: &[impl AsRef<[u8]>],
        workspace: &mut Workspace,
    ) -> Option<Receipt> {
        let index = self.spec.sender(worker)?;
        let Entry { contribution, body } = &mut self.ledger[index];
        let bytes = contribution.body().bytes;
        for chunk in chunks {
            let fresh = contribution.fresh(exchange, chunk.as_ref(), bytes)?;
            if fresh.is_empty() {
                continue;
            }
            if let Collected::Nothing = body {
                // The header's length was checked against the part's before it came here.
                let room = usize::try_from(bytes).expect("at most PART_BYTES_MAX");
                *body = Collected::Bytes(self.resources.pool.lease(room), 0);
            }
            if let Collected::Bytes(memory, here) = body {
                self.resources.copies.copy(fresh, &mut memory[*here..*here + fresh.len()]);
                *here += fresh.len();
            }
        }
        if let (Some(Receipt::Whole), Collected::Bytes(memory, _)) = (contribution.receipt(bytes), &*body) {
            let len = self.spec.bytes / self.spec.dtype.bytes();
            if !contribution.body().refused && self.codec.check(memory, len).is_err() {
                contribution.spoil();
            } else {
                self.add_next(index);
                self.finish(workspace);
            }
        }
        self.ledger[index].contribution.receipt(bytes)
    }

    /// As for [`Accumulator::publish`](super::Accumulator::publish).
    pub fn publish(&mut self, divisor: f64, residual: Option<(Residual, Start)>, workspace: &mut Workspace) {
        self.divisor = Some(divisor);
        self.residual = residual.map(|(mut residual, start)| {
            residual.start(
                start,
                usize::try_from(self.spec.bytes / self.spec.dtype.bytes()).expect("within a part"),
                None,
            );
            residual
        });
        self.finish(workspace);
    }

    /// As for [`Accumulator::seal`](super::Accumulator::seal).
    pub fn seal(&mut self) -> Option<Residual> {
        self.sealed = true;
        self.residual.take()
    }

    /// The blocks that may be sent: all or none.
    pub fn ready(&self) -> &[Frozen] {
        self.finished.as_ref().filter(|_| self.sealed).map_or(&[], |finished| &finished.blocks)
    }

    /// What travels of the sum; absent until all of it may be sent.
    pub fn body(&self) -> Option<Body> {
        self.finished.as_ref().filter(|_| self.sealed).map(|finished| finished.body)
    }

    /// The CRC-32C of the finished sum.
    pub fn checksum(&mut self) -> u32 {
        let Some(Finished { blocks, checksum: known, .. }) = &mut self.finished else { return 0 };
        *known.get_or_insert_with(|| blocks.iter().fold(0, |crc, block| checksum(crc, block)))
    }

    /// Adds the contribution at `index`, or in rank order all whose turn has come.
    fn add_next(&mut self, index: usize) {
        if self.spec.order == Order::Arrival {
            return self.add(index);
        }
        while let Some(Entry { contribution, body: Collected::Bytes(..) }) = self.ledger.get(self.added)
            && contribution.receipt(contribution.body().bytes) == Some(Receipt::Whole)
        {
            self.add(self.added);
        }
    }

    /// Adds a contribution that is here whole and was checked.
    fn add(&mut self, index: usize) {
        let Entry { contribution, body } = &mut self.ledger[index];
        let Collected::Bytes(memory, _) = std::mem::replace(body, Collected::Added) else { return };
        let SumResources { kernels, pool, .. } = &self.resources;
        let SumSpec { op, dtype, .. } = self.spec;
        let (weight, is_plain, codec) = (contribution.weight(), contribution.body().refused, &self.codec);
        let grown = usize::try_from(self.spec.grown_bytes()).expect("within a few times a part");
        let is_first = self.sum.is_none();
        let sum: &mut [u8] = self.sum.get_or_insert_with(|| pool.lease(grown));
        let added: Result<(), Malformed> = match (is_plain, is_first) {
            (true, true) => {
                kernels.start(op, dtype, weight, &memory, sum);
                Ok(())
            }
            (true, false) => {
                kernels.add(op, dtype, weight, &memory, sum);
                Ok(())
            }
            (false, true) => codec.start(*kernels, op, weight, &memory, sum),
            (false, false) => codec.add(*kernels, op, weight, &memory, sum),
        };
        added.expect("it was checked");
        self.added += 1;
    }

    /// Divides and encodes the sum once, when all contributions are in it. What the codec refuses is sent plain.
    fn finish(&mut self, workspace: &mut Workspace) {
        let (Some(divisor), true) = (self.divisor, self.added == self.ledger.len()) else { return };
        let Some(mut sum) = self.sum.take() else { return };
        let SumResources { kernels, pool, copies, .. } = &self.resources;
        let SumSpec { op, dtype, bytes, block_bytes, codec, .. } = self.spec;
        let block = usize::try_from(block_bytes).expect("below the length of a part");
        let mut encoded = pool.lease(usize::try_from(self.spec.body_bytes()).expect("at most PART_BYTES_MAX"));
        let tools = Tools { kernels: *kernels, seed: self.seed, workspace };
        let cut = |bytes: &[u8]| {
            let blocks = bytes.chunks(block).map(|bytes| {
                let mut block = pool.lease(bytes.len());
                copies.copy(bytes, &mut block);
                block.freeze()
            });
            blocks.collect()
        };
        let used = match &mut self.residual {
            None => self.codec.finish(tools, op, divisor, &sum, &mut encoded),
            // As in `Arithmetic::finish`.
            Some(residual) => {
                kernels.finish_in_place(op, dtype, divisor, &mut sum);
                residual.encode(&*self.codec, tools, 1.0, 0, &sum, &mut encoded)
            }
        };
        let (body, blocks) = match used {
            Ok(used) => (Body { bytes: used as u64, codec, refused: false }, cut(&encoded[..used])),
            // It begins with what is sent plain.
            Err(_) if self.residual.is_some() => (Body { bytes, codec, refused: true }, cut(&encoded)),
            Err(_) => {
                let (grown, size) =
                    [self.codec.sum_type(), dtype].map(|dtype| usize::try_from(dtype.bytes()).expect("a few")).into();
                let blocks = sum.chunks(block / size * grown).map(|sum| {
                    let mut block = pool.lease(sum.len() / grown * size);
                    kernels.finish(op, dtype, divisor, sum, &mut block);
                    block.freeze()
                });
                (Body { bytes, codec, refused: true }, blocks.collect())
            }
        };
        self.finished = Some(Finished { body, blocks, checksum: None });
    }
}

#[cfg(test)]
mod tests;
