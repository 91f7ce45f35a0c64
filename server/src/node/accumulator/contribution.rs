//! The progress of one worker's contribution: its prefix, the split unit at the end of it, and in rank order the staged bytes.

use std::collections::VecDeque;

use gradlane_core::mem::Lease;
use gradlane_core::types::ExchangeId;
use gradlane_core::wire::{Body, checksum};

use crate::node::command::{Receipt, Upload};

/// The ledger entry of one worker.
///
/// `added <= taken`: a split unit and staged bytes lie in between.
#[derive(Debug)]
pub(super) struct Contribution {
    /// Its latest exchange, and how many bytes that has brought.
    exchange: Option<(ExchangeId, u64)>,
    upload: Upload,
    /// Bytes taken from all its exchanges. Bytes before this position are repeats.
    taken: u64,
    /// Their CRC-32C.
    crc: u32,
    /// Bytes added: whole units.
    added: u64,
    /// The first bytes of a unit whose last ones have not come.
    split: Vec<u8>,
    /// Whether some added bytes were no valid wire form.
    spoiled: bool,
    staged: VecDeque<Staged>,
}

/// Bytes whose turn has not come.
#[derive(Debug)]
pub(super) struct Staged {
    memory: Lease,
    done: usize,
}

impl Contribution {
    pub(super) fn new() -> Self {
        Self {
            exchange: None,
            upload: Upload { body: Body::plain(0), weight: 1.0, checksum: None, landed: 0 },
            taken: 0,
            crc: 0,
            added: 0,
            split: Vec::new(),
            spoiled: false,
            staged: VecDeque::new(),
        }
    }

    /// `exchange` will bring it once more from its first byte.
    pub(super) fn begin(&mut self, exchange: ExchangeId, upload: Upload) {
        self.exchange = Some((exchange, 0));
        self.upload = upload;
    }

    /// Forgets the taken bytes; only a planted defect does this.
    pub(super) fn forget(&mut self) {
        (self.taken, self.crc, self.added) = (0, 0, 0);
        self.split.clear();
        self.staged.clear();
    }

    /// Takes the new bytes among the next bytes of `exchange`, and returns them; `None` if `exchange` does not bring this contribution.
    pub(super) fn fresh<'a>(&mut self, exchange: ExchangeId, chunk: &'a [u8], bytes: u64) -> Option<&'a [u8]> {
        let (current, offset) = self.exchange.as_mut()?;
        if *current != exchange {
            return None;
        }
        let begin = *offset;
        *offset += chunk.len() as u64;
        let known =
            usize::try_from(self.taken.saturating_sub(begin)).map_or(chunk.len(), |known| known.min(chunk.len()));
        let room = usize::try_from(bytes - self.taken).expect("within a part");
        let fresh = &chunk[known..];
        // The transport passes no more bytes than the header announced.
        let fresh = &fresh[..fresh.len().min(room)];
        if self.upload.checksum.is_some() {
            self.crc = checksum(self.crc, fresh);
        }
        self.taken += fresh.len() as u64;
        Some(fresh)
    }

    /// The receipt, once all of its `bytes` were taken.
    pub(super) fn receipt(&self, bytes: u64) -> Option<Receipt> {
        if self.taken < bytes {
            return None;
        }
        let intact = !self.spoiled && self.upload.checksum.is_none_or(|announced| announced == self.crc);
        Some(if intact { Receipt::Whole } else { Receipt::Damaged })
    }

    pub(super) fn added(&self) -> u64 {
        self.added
    }

    pub(super) fn body(&self) -> Body {
        self.upload.body
    }

    pub(super) fn weight(&self) -> f64 {
        self.upload.weight
    }

    pub(super) fn advance(&mut self, bytes: u64) {
        self.added += bytes;
    }

    /// Some added bytes were no valid wire form of a number.
    pub(super) fn spoil(&mut self) {
        self.spoiled = true;
    }

    /// Bytes of the split unit at its end.
    pub(super) fn carried(&self) -> usize {
        self.split.len()
    }

    /// Completes the split unit, which has `unit` bytes, with the next bytes. Returns the bytes after it.
    pub(super) fn carry<'a>(&mut self, bytes: &'a [u8], unit: usize) -> &'a [u8] {
        let (more, rest) = bytes.split_at(bytes.len().min(unit - self.split.len()));
        self.keep(more);
        rest
    }

    /// The split unit, if it is whole now.
    pub(super) fn take_carried(&mut self, unit: usize) -> Option<Vec<u8>> {
        (self.split.len() == unit).then(|| std::mem::take(&mut self.split))
    }

    /// Gives back memory for the next split unit.
    pub(super) fn reuse(&mut self, mut memory: Vec<u8>) {
        memory.clear();
        self.split = memory;
    }

    /// Keeps the first bytes of a unit, if there are any: fewer than a unit, which are held as a register would hold them.
    pub(super) fn keep(&mut self, first: &[u8]) {
        self.split.extend(first);
    }

    /// Whether bytes wait for their turn, so that later ones must wait too.
    pub(super) fn stages(&self) -> bool {
        !self.staged.is_empty()
    }

    pub(super) fn stage(&mut self, memory: Lease) {
        self.staged.push_back(Staged { memory, done: 0 });
    }

    pub(super) fn unstage(&mut self) -> Option<Staged> {
        self.staged.pop_front()
    }

    pub(super) fn stage_again(&mut self, staged: Staged) {
        self.staged.push_front(staged);
    }
}

impl Staged {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.done..]
    }

    /// The next `bytes` were added; whether some are left.
    pub(super) fn advance(&mut self, bytes: usize) -> bool {
        self.done += bytes;
        self.done < self.memory.len()
    }
}
