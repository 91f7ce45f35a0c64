//! A sum while contributions arrive: the bytes of each contribution that are in it, and its blocks of memory.
//!
//! An [`Accumulator`] takes chunks as they arrive, cut anywhere; [`Gathered`] takes those of codecs whose bodies vary in length. It is a list of *blocks*. A block is finished (divided, rounded, frozen)
//! as soon as every contribution has passed it and the divisor is known. So the first bytes of a sum can leave before the last bytes of the
//! contributions have come. All positions count bytes of a contribution's wire form, which is also the form of the sum; [`arithmetic`]
//! knows their meaning.
//!
//! **Exactly once.** For each worker, the ledger counts the bytes of its contribution that were *taken*: its prefix. Bytes within the
//! prefix are skipped, whatever an exchange brings; bytes after it are taken in order. So a broken transfer may begin again at its first
//! byte. A repeat whose first bytes are overwritten with the sum does no harm, because the overwritten bytes always lie within the prefix:
//! a byte of the sum leaves only when every prefix has passed it.
//!
//! **One pass.** The contribution that is ahead *starts* the memory: its bytes are converted or copied there, and nothing is set to zero
//! before. The others are added. In rank order, a contribution is added only as far as the one before it has come. Bytes beyond that are
//! staged, which is the only copy.

use gradlane_core::codec::feedback::{Residual, Start};
use gradlane_core::codec::{Seed, Workspace};
use gradlane_core::mem::{Copies, Frozen, Lease, Pool};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{Defect, ExchangeId, WorkerId, planted};
use gradlane_core::wire::checksum;

use crate::node::command::{Order, Receipt, SumSpec, Upload};

mod arithmetic;
mod contribution;
mod gathered;

#[cfg(test)]
mod feedback_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

use arithmetic::Arithmetic;
use contribution::Contribution;
pub use gathered::Gathered;

/// What all sums of a server share.
#[derive(Clone, Debug)]
pub struct SumResources {
    /// The arithmetic kernels.
    pub kernels: Kernels,
    /// The pool that sums lease their memory from.
    pub pool: Pool,
    /// Copies bytes that must wait for their turn, in rank order only.
    pub copies: Copies,
    /// The defect to plant, for the tests of the simulation.
    pub defect: Option<Defect>,
}

/// A sum from its first byte to its last.
#[derive(Debug)]
pub struct Accumulator {
    resources: SumResources,
    arithmetic: Arithmetic,
    /// Bytes of a contribution.
    bytes: u64,
    block_bytes: u64,
    spec: SumSpec,
    /// By rank, as in `spec.senders`.
    ledger: Vec<Contribution>,
    blocks: Vec<Block>,
    /// Bytes, counted as those of a contribution, that are started.
    started: u64,
    /// The divisor; known once every sender has opened its exchange.
    divisor: Option<f64>,
    /// What the answers of the part have lost, from [`publish`](Self::publish) to [`seal`](Self::seal), if its codec has error feedback.
    residual: Option<Residual>,
    /// Blocks that are finished, from the first.
    finished: usize,
    /// CRC-32C of the finished blocks, up to `checked`.
    checksum: u32,
    checked: usize,
    /// Whether the CRC will be needed.
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
    /// If blocks would cut elements.
    pub fn new(resources: SumResources, spec: SumSpec, seed: Seed) -> Self {
        let arithmetic = Arithmetic::of(resources.kernels, &spec, seed);
        assert!(spec.block_bytes > 0 && spec.block_bytes.is_multiple_of(8), "a block holds whole elements");
        let (bytes, unit) = (arithmetic.bytes(), arithmetic.unit_bytes());
        let block_bytes = (spec.block_bytes / unit).max(1) * unit;
        let blocks = usize::try_from(bytes.div_ceil(block_bytes)).expect("bounded by PART_BYTES_MAX");
        Self {
            arithmetic,
            bytes,
            block_bytes,
            ledger: spec.senders.iter().map(|_| Contribution::new()).collect(),
            blocks: std::iter::repeat_with(|| Block::Empty).take(blocks).collect(),
            resources,
            spec,
            started: 0,
            divisor: None,
            residual: None,
            finished: 0,
            checksum: 0,
            checked: 0,
            checks: false,
            sealed: false,
        }
    }

    /// `exchange` will bring the contribution of `worker` from its first byte; an earlier exchange of the worker brings nothing more.
    ///
    /// Returns a receipt if nothing of it is needed any more, or nothing of it can be used.
    pub fn begin(&mut self, worker: WorkerId, exchange: ExchangeId, upload: Upload) -> Option<Receipt> {
        let defect = self.resources.defect;
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
    pub fn receive(
        &mut self,
        worker: WorkerId,
        exchange: ExchangeId,
        chunks: &[impl AsRef<[u8]>],
        workspace: &mut Workspace,
    ) -> Option<Receipt> {
        let index = self.spec.sender(worker)?;
        for chunk in chunks {
            let fresh = self.ledger[index].fresh(exchange, chunk.as_ref(), self.bytes)?;
            if !fresh.is_empty() {
                self.take(index, fresh);
            }
        }
        self.finish_blocks(workspace);
        self.ledger[index].receipt(self.bytes)
    }

    /// Every sender has opened its exchange: what is complete may be finished. If the codec has error feedback, the sum takes the residual
    /// of its part, and the answer uses it as said.
    pub fn publish(&mut self, divisor: f64, residual: Option<(Residual, Start)>, workspace: &mut Workspace) {
        self.divisor = Some(divisor);
        self.residual = residual.map(|(mut residual, start)| {
            residual.start(start, self.arithmetic.len(), None);
            residual
        });
        self.finish_blocks(workspace);
    }

    /// The round has its sum: the last block may leave too. Gives the residual back, because every block is finished.
    pub fn seal(&mut self) -> Option<Residual> {
        self.sealed = true;
        self.residual.take()
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

    /// The CRC-32C of the finished blocks. Computed while blocks were finished if a contribution came with one, else now.
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

    /// Adds new bytes as far as their turn has come, and stages the rest.
    fn take(&mut self, index: usize, fresh: &[u8]) {
        let rest = if self.ledger[index].stages() { fresh } else { &fresh[self.absorb(index, fresh)..] };
        if !rest.is_empty() {
            let mut copy = self.resources.pool.lease(rest.len());
            self.resources.copies.copy(rest, &mut copy);
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
        let Self { resources, arithmetic, ledger, blocks, started, bytes, block_bytes, .. } = self;
        let weight = ledger[index].weight();
        while !units.is_empty() {
            let at = ledger[index].added();
            let begin = at / *block_bytes * *block_bytes;
            let end = (begin + *block_bytes).min(*bytes);
            // Adds to started memory, and starts the rest.
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
                *block = Block::Growing(resources.pool.lease(grown(end)));
            }
            if let Block::Growing(memory) = block {
                let place = &mut memory[grown(at)..grown(at + run)];
                let folded =
                    if is_started { arithmetic.add(weight, now, place) } else { arithmetic.start(weight, now, place) };
                if folded.is_err() {
                    ledger[index].spoil();
                }
            } else {
                // Only a planted defect comes here, because bytes that every prefix has passed are never taken again.
                debug_assert!(resources.defect.is_some(), "a finished block never changes");
            }
            ledger[index].advance(run);
            *started = (*started).max(at + run);
            units = later;
        }
    }

    /// Finishes every block that all contributions have passed.
    fn finish_blocks(&mut self, workspace: &mut Workspace) {
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
            let residual = self.residual.as_mut();
            let sum = self.arithmetic.finish(&self.resources.pool, workspace, divisor, memory, begin..end, residual);
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
        if planted(self.resources.defect, Defect::BlockSentEarly) && self.ledger.len() > 1 {
            let mut prefixes: Vec<u64> = self.ledger.iter().map(Contribution::added).collect();
            prefixes.sort_unstable();
            return prefixes[1];
        }
        self.ledger.iter().map(Contribution::added).min().unwrap_or(0)
    }
}
