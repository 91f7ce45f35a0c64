//! One sum in the making: which bytes of which contribution are in it, and the blocks of memory in which it grows.
//!
//! An [`Accumulator`] is fed with chunks as they arrive, cut anywhere. It is a list of *blocks*; a block is finished (divided, rounded,
//! frozen) as soon as every contribution has passed it and the divisor is known, so that the first bytes of a sum can be on their way
//! back while the last ones are still to come.
//!
//! **Exactly once.** The ledger keeps for each worker how many bytes of its contribution were *taken*: its prefix. What lies below it is
//! skipped, whatever an exchange brings there; what lies above is taken in order. So a transfer that breaks off may begin again at its
//! first byte, and a repeat whose front is overwritten by bytes of the sum does no harm as long as the overwritten bytes are fewer than
//! the prefix. They are: a byte of the sum leaves only when every prefix has passed it.
//!
//! **One pass.** Of all contributions the one that is ahead *starts* the memory (its bytes are converted or copied there, nothing is set
//! to zero before), the others are added. In the order of the ranks a contribution is added no further than the one before it has come;
//! what is ahead of that is staged, which is the only copy that is ever made.

use gradlane_core::mem::{Copies, Frozen, Lease, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{DType, Defect, ExchangeId, Op, WorkerId, planted};
use gradlane_core::wire::checksum;

use crate::node::command::{Order, Receipt, SumSpec, Upload};

mod contribution;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

use contribution::Contribution;

/// Bytes of a contribution that one block holds: small enough to be finished while it is in a core's cache, large enough that its
/// bookkeeping does not show.
pub const BLOCK_BYTES: u64 = 256 << 10;

/// What all sums of a server are made with.
#[derive(Clone, Debug)]
pub struct Workshop {
    /// The arithmetic.
    pub kernels: Kernels,
    /// The memory.
    pub pool: Pool,
    /// How bytes are copied whose turn has not come, which happens in rank order only.
    pub copies: Copies,
    /// Bytes of a contribution that one block holds; a multiple of eight, so that no element lies in two blocks.
    pub block_bytes: u64,
    /// The mistake to make, for the tests of the simulation.
    pub defect: Option<Defect>,
}

/// A sum from its first byte to its last.
#[derive(Debug)]
pub struct Accumulator {
    workshop: Workshop,
    spec: SumSpec,
    /// By rank, as in `spec.senders`.
    ledger: Vec<Contribution>,
    blocks: Vec<Block>,
    /// Bytes, counted as those of a contribution, that the one that is ahead has started.
    started: u64,
    /// Known once every sender has opened its exchange.
    divisor: Option<f64>,
    /// Blocks that are finished, from the first.
    finished: usize,
    /// CRC-32C of the finished blocks, up to `checked`.
    checksum: u32,
    checked: usize,
    /// Whether it will be asked for.
    checks: bool,
    sealed: bool,
}

/// `Empty ──first byte──► Growing ──every prefix has passed it, the divisor is known──► Finished`
#[derive(Debug)]
enum Block {
    Empty,
    Growing(Lease),
    Finished(Frozen),
}

impl Accumulator {
    /// A sum without contributions. Memory is taken when the first bytes come.
    ///
    /// # Panics
    /// If the workshop's blocks would cut elements.
    pub fn new(workshop: Workshop, spec: SumSpec) -> Self {
        assert!(workshop.block_bytes > 0 && workshop.block_bytes.is_multiple_of(8), "a block holds whole elements");
        let blocks = usize::try_from(spec.bytes.div_ceil(workshop.block_bytes)).expect("bounded by PART_BYTES_MAX");
        Self {
            ledger: spec.senders.iter().map(|_| Contribution::new()).collect(),
            blocks: std::iter::repeat_with(|| Block::Empty).take(blocks).collect(),
            workshop,
            spec,
            started: 0,
            divisor: None,
            finished: 0,
            checksum: 0,
            checked: 0,
            checks: false,
            sealed: false,
        }
    }

    /// `exchange` will bring the contribution of `worker` from its first byte; an earlier exchange of the worker brings nothing more.
    ///
    /// The answer says whether nothing of it is needed any more, or nothing of it can be used.
    pub fn begin(&mut self, worker: WorkerId, exchange: ExchangeId, upload: Upload) -> Option<Receipt> {
        let defect = self.workshop.defect;
        let contribution = &mut self.ledger[self.spec.sender(worker)?];
        if upload.landed > contribution.added() && !planted(defect, Defect::ResumedGarbage) {
            return Some(Receipt::Lost);
        }
        contribution.begin(exchange, upload);
        self.checks |= upload.checksum.is_some();
        let again =
            planted(defect, Defect::PrefixIgnored) || (planted(defect, Defect::ResumedGarbage) && upload.landed > 0);
        if again && contribution.receipt(self.spec.bytes).is_none() {
            contribution.forget();
        }
        contribution.receipt(self.spec.bytes)
    }

    /// Takes the next bytes that `exchange` brought of the contribution of `worker`. An exchange that is not the worker's latest brings
    /// nothing.
    ///
    /// The answer comes with the last byte.
    pub fn receive(&mut self, worker: WorkerId, exchange: ExchangeId, chunks: &[impl AsRef<[u8]>]) -> Option<Receipt> {
        let index = self.spec.sender(worker)?;
        for chunk in chunks {
            let fresh = self.ledger[index].fresh(exchange, chunk.as_ref(), self.spec.bytes)?;
            if !fresh.is_empty() {
                self.take(index, fresh);
            }
        }
        self.finish_blocks();
        self.ledger[index].receipt(self.spec.bytes)
    }

    /// Every sender has opened its exchange: what is complete may be finished.
    pub fn publish(&mut self, divisor: f64) {
        self.divisor = Some(divisor);
        self.finish_blocks();
    }

    /// It is decided that the round has a sum: the last block may leave too.
    pub fn seal(&mut self) {
        self.sealed = true;
    }

    /// The blocks that may be sent, from the first. The last block is among them only when the sum is sealed, so that nobody gets a whole
    /// sum out of a round that fails.
    pub fn ready(&self) -> impl ExactSizeIterator<Item = &Frozen> {
        let last = self.blocks.len().saturating_sub(1);
        let ready = if self.sealed { self.finished } else { self.finished.min(last) };
        self.blocks[..ready].iter().map(|block| match block {
            Block::Finished(block) => block,
            Block::Empty | Block::Growing(_) => unreachable!("blocks are finished in order"),
        })
    }

    /// Whether all of the sum may be sent.
    pub fn is_complete(&self) -> bool {
        self.sealed && self.finished == self.blocks.len()
    }

    /// The CRC-32C of the finished blocks. Known already where a contribution came with one, computed now elsewhere.
    pub fn checksum(&mut self) -> u32 {
        self.check_blocks();
        self.checksum
    }

    fn check_blocks(&mut self) {
        for block in &self.blocks[self.checked..self.finished] {
            let Block::Finished(sum) = block else { unreachable!("blocks are finished in order") };
            self.checksum = checksum(self.checksum, sum);
        }
        self.checked = self.finished;
    }

    /// Adds what may be added of bytes that were never taken before, and stages the rest.
    fn take(&mut self, index: usize, fresh: &[u8]) {
        let rest = if self.ledger[index].stages() { fresh } else { &fresh[self.absorb(index, fresh)..] };
        if !rest.is_empty() {
            let mut copy = self.workshop.pool.lease(rest.len());
            self.workshop.copies.copy(rest, &mut copy);
            self.ledger[index].stage(copy);
        }
        // The next contribution in rank order may be added as far as this one was.
        for next in index + 1..self.ledger.len() {
            if self.spec.order == Order::Arrival || !self.catch_up(next) {
                break;
            }
        }
    }

    /// Adds staged bytes whose turn has come; whether there were any.
    fn catch_up(&mut self, index: usize) -> bool {
        let mut moved = false;
        while let Some(mut staged) = self.ledger[index].unstage() {
            let absorbed = self.absorb(index, staged.bytes());
            moved |= absorbed > 0;
            if staged.advance(absorbed) {
                self.ledger[index].stage_again(staged);
                break;
            }
        }
        moved
    }

    /// Adds bytes that follow on those of a contribution that were added, as far as it has its turn; how many. An element of which a part
    /// is missing is kept until the rest comes.
    fn absorb(&mut self, index: usize, bytes: &[u8]) -> usize {
        let limit = match (self.spec.order, index.checked_sub(1)) {
            (Order::Rank, Some(before)) => self.ledger[before].added(),
            (Order::Rank, None) | (Order::Arrival, _) => self.spec.bytes,
        };
        let size = usize::try_from(self.spec.dtype.bytes()).expect("at most eight");
        let room = usize::try_from(limit.saturating_sub(self.ledger[index].added())).expect("within a part");
        let taken = bytes.len().min(room.saturating_sub(self.ledger[index].carried()));
        let mut bytes = &bytes[..taken];
        if let Some((element, rest)) = self.ledger[index].carry(bytes, size) {
            if let Some(element) = element {
                self.fold(index, &element[..size]);
            }
            bytes = rest;
        }
        let (elements, split) = bytes.split_at(bytes.len() - bytes.len() % size);
        self.fold(index, elements);
        self.ledger[index].keep(split);
        taken
    }

    /// Adds whole elements at the place that a contribution has come to.
    fn fold(&mut self, index: usize, mut elements: &[u8]) {
        let Self { workshop, spec, ledger, blocks, started, .. } = self;
        let block_bytes = workshop.block_bytes;
        let weight = ledger[index].weight();
        while !elements.is_empty() {
            let at = ledger[index].added();
            let (number, offset) = (at / block_bytes, at % block_bytes);
            // What was started is added to, what was not is started.
            let until = if at < *started { *started } else { spec.bytes };
            let run = (block_bytes - offset).min(until - at).min(elements.len() as u64);
            let (now, later) = elements.split_at(usize::try_from(run).expect("within a chunk"));
            let length = block_bytes.min(spec.bytes - number * block_bytes);
            let block = &mut blocks[usize::try_from(number).expect("a block of this sum")];
            if let Block::Empty = block {
                let bytes = usize::try_from(spec.grown(length)).expect("within twice a part");
                *block = Block::Growing(workshop.pool.lease(bytes));
            }
            if let Block::Growing(memory) = block {
                let grown = |bytes| usize::try_from(spec.grown(bytes)).expect("within twice a part");
                let place = &mut memory[grown(offset)..grown(offset + run)];
                match spec.op {
                    // As bytes, whatever they are: a number that is read and written need not keep its bits.
                    Op::Broadcast { .. } => workshop.kernels.start(spec.op, DType::U8, weight, now, place),
                    Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean if at < *started => {
                        workshop.kernels.add(spec.op, spec.dtype, weight, now, place);
                    }
                    Op::Sum | Op::Mean | Op::Min | Op::Max | Op::WeightedMean => {
                        workshop.kernels.start(spec.op, spec.dtype, weight, now, place);
                    }
                }
            } else {
                // Only a planted defect comes here: what every prefix has passed is never taken again.
                debug_assert!(workshop.defect.is_some(), "a finished block never changes");
            }
            ledger[index].advance(run);
            *started = (*started).max(at + run);
            elements = later;
        }
    }

    /// Finishes every block that all contributions have passed.
    fn finish_blocks(&mut self) {
        let Some(divisor) = self.divisor else { return };
        let passed = self.passed();
        let block_bytes = self.workshop.block_bytes;
        while let Some(block) = self.blocks.get_mut(self.finished) {
            let end = ((self.finished as u64 + 1) * block_bytes).min(self.spec.bytes);
            let Block::Growing(_) = block else { return };
            if end > passed {
                return;
            }
            let Block::Growing(memory) = std::mem::replace(block, Block::Empty) else { unreachable!("matched above") };
            let sum = finish(&self.workshop, &self.spec, divisor, memory);
            *block = Block::Finished(sum.freeze());
            self.finished += 1;
            if self.checks {
                // Here the block is still in the cache.
                self.check_blocks();
            }
        }
    }

    /// Up to where every contribution was added.
    fn passed(&self) -> u64 {
        if planted(self.workshop.defect, Defect::BlockSentEarly) && self.ledger.len() > 1 {
            let mut prefixes: Vec<u64> = self.ledger.iter().map(Contribution::added).collect();
            prefixes.sort_unstable();
            return prefixes[1];
        }
        self.ledger.iter().map(Contribution::added).min().unwrap_or(0)
    }
}

/// Divides and rounds a block, once; where it lies if it may stay there.
fn finish(workshop: &Workshop, spec: &SumSpec, divisor: f64, mut memory: Lease) -> Lease {
    let Workshop { kernels, pool, .. } = workshop;
    if let Op::Broadcast { .. } = spec.op {
        return memory;
    }
    if spec.dtype.accumulator() == spec.dtype {
        kernels.finish_in_place(spec.op, spec.dtype, divisor, &mut memory);
        return memory;
    }
    let ratio = spec.dtype.accumulator().bytes() / spec.dtype.bytes();
    let mut sum = pool.lease(memory.len() / usize::try_from(ratio).expect("two"));
    kernels.finish(spec.op, spec.dtype, divisor, &memory, &mut sum);
    sum
}
