//! One sum in the making: which bytes of which contribution are in it, and the blocks of memory in which it grows.
//!
//! An [`Accumulator`] is fed with chunks as they arrive, cut anywhere. It is a list of *blocks*; a block is finished (divided, rounded,
//! frozen) as soon as every contribution has passed it and the divisor is known, so that the first bytes of a sum can be on their way
//! back while the last ones are still to come. All positions count bytes of a contribution as it travels, which is how the sum travels too;
//! [`arithmetic`] knows what these mean.
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
use gradlane_core::types::{Defect, ExchangeId, WorkerId, planted};
use gradlane_core::wire::checksum;

use crate::node::command::{Order, Receipt, SumSpec, Upload};

mod arithmetic;
mod contribution;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

use arithmetic::Arithmetic;
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
    /// Bytes of a contribution that one block holds; a multiple of eight, so that no element lies in two blocks. With a codec it is as many
    /// of them as whole units have.
    pub block_bytes: u64,
    /// The mistake to make, for the tests of the simulation.
    pub defect: Option<Defect>,
}

/// A sum from its first byte to its last.
#[derive(Debug)]
pub struct Accumulator {
    workshop: Workshop,
    arithmetic: Arithmetic,
    /// Bytes of a contribution.
    bytes: u64,
    block_bytes: u64,
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
        let arithmetic = Arithmetic::of(workshop.kernels, &spec);
        Self::with(workshop, spec, arithmetic)
    }

    fn with(workshop: Workshop, spec: SumSpec, arithmetic: Arithmetic) -> Self {
        assert!(workshop.block_bytes > 0 && workshop.block_bytes.is_multiple_of(8), "a block holds whole elements");
        let (bytes, unit) = (arithmetic.bytes(), arithmetic.unit_bytes());
        let block_bytes = (workshop.block_bytes / unit).max(1) * unit;
        let blocks = usize::try_from(bytes.div_ceil(block_bytes)).expect("bounded by PART_BYTES_MAX");
        Self {
            arithmetic,
            bytes,
            block_bytes,
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
        if again && contribution.receipt(self.bytes).is_none() {
            contribution.forget();
        }
        contribution.receipt(self.bytes)
    }

    /// Takes the next bytes that `exchange` brought of the contribution of `worker`. An exchange that is not the worker's latest brings
    /// nothing.
    ///
    /// The answer comes with the last byte.
    pub fn receive(&mut self, worker: WorkerId, exchange: ExchangeId, chunks: &[impl AsRef<[u8]>]) -> Option<Receipt> {
        let index = self.spec.sender(worker)?;
        for chunk in chunks {
            let fresh = self.ledger[index].fresh(exchange, chunk.as_ref(), self.bytes)?;
            if !fresh.is_empty() {
                self.take(index, fresh);
            }
        }
        self.finish_blocks();
        self.ledger[index].receipt(self.bytes)
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

    /// Adds bytes that follow on those of a contribution that were added, as far as it has its turn; how many. A unit of which a part is
    /// missing is kept until the rest comes.
    fn absorb(&mut self, index: usize, bytes: &[u8]) -> usize {
        let limit = match (self.spec.order, index.checked_sub(1)) {
            (Order::Rank, Some(before)) => self.ledger[before].added(),
            (Order::Rank, None) | (Order::Arrival, _) => self.bytes,
        };
        let added = self.ledger[index].added();
        let room = usize::try_from(limit.saturating_sub(added)).expect("within a part");
        let taken = bytes.len().min(room.saturating_sub(self.ledger[index].carried()));
        let mut bytes = &bytes[..taken];
        let unit = usize::try_from(self.arithmetic.unit_bytes().min(self.bytes - added)).expect("within a part");
        if self.ledger[index].carried() > 0 {
            bytes = self.ledger[index].carry(bytes, unit);
            if let Some(whole) = self.ledger[index].take_carried(unit) {
                self.fold(index, &whole);
                self.ledger[index].reuse(whole);
            }
        }
        let is_end = self.ledger[index].added() + bytes.len() as u64 == self.bytes;
        let split = if is_end { 0 } else { bytes.len() % unit.max(1) };
        let (units, split) = bytes.split_at(bytes.len() - split);
        self.fold(index, units);
        self.ledger[index].keep(split);
        taken
    }

    /// Adds whole units at the place that a contribution has come to.
    fn fold(&mut self, index: usize, mut units: &[u8]) {
        let Self { workshop, arithmetic, ledger, blocks, started, bytes, block_bytes, .. } = self;
        let weight = ledger[index].weight();
        while !units.is_empty() {
            let at = ledger[index].added();
            let begin = at / *block_bytes * *block_bytes;
            let end = (begin + *block_bytes).min(*bytes);
            // What was started is added to, what was not is started.
            let is_started = at < *started;
            let until = if is_started { end.min(*started) } else { end };
            let run = (until - at).min(units.len() as u64);
            let (now, later) = units.split_at(usize::try_from(run).expect("within a chunk"));
            // Within the block's memory.
            let grown = |to: u64| {
                usize::try_from(arithmetic.grown(to) - arithmetic.grown(begin)).expect("within a few times a part")
            };
            let block = &mut blocks[usize::try_from(begin / *block_bytes).expect("a block of this sum")];
            if let Block::Empty = block {
                *block = Block::Growing(workshop.pool.lease(grown(end)));
            }
            if let Block::Growing(memory) = block {
                let place = &mut memory[grown(at)..grown(at + run)];
                let folded =
                    if is_started { arithmetic.add(weight, now, place) } else { arithmetic.start(weight, now, place) };
                if folded.is_err() {
                    ledger[index].spoil();
                }
            } else {
                // Only a planted defect comes here: what every prefix has passed is never taken again.
                debug_assert!(workshop.defect.is_some(), "a finished block never changes");
            }
            ledger[index].advance(run);
            *started = (*started).max(at + run);
            units = later;
        }
    }

    /// Finishes every block that all contributions have passed.
    fn finish_blocks(&mut self) {
        let Some(divisor) = self.divisor else { return };
        let passed = self.passed();
        while let Some(block) = self.blocks.get_mut(self.finished) {
            let begin = self.finished as u64 * self.block_bytes;
            let end = (begin + self.block_bytes).min(self.bytes);
            let Block::Growing(_) = block else { return };
            if end > passed {
                return;
            }
            let Block::Growing(memory) = std::mem::replace(block, Block::Empty) else { unreachable!("matched above") };
            let bytes = usize::try_from(end - begin).expect("within a part");
            let sum = self.arithmetic.finish(&self.workshop.pool, divisor, memory, bytes);
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
