//! Looks for NaN and infinities in what ranks contribute, while their slices are in the cache: the setting `nan_check`.
//!
//! The rank that reduces a slice looks. A NaN or an infinity in a contribution makes the sum one too. So one look at the sum is enough, as
//! long as the sum is finite. Otherwise the rank looks at each contribution, because a sum of finite numbers can leave its range. A minimum
//! or a maximum can hide an infinity, so there it looks at the contributions at once.
//!
//! The rank writes down whose contributions are not finite before it counts the slice as reduced. A rank that takes the slice reads that. So
//! all members know the same when they have taken the last chunk, and end the operation alike.

use std::sync::atomic::Ordering;

use super::board::Board;
use super::fold::Fold;
use super::layout::Word;
use crate::collective::Dataflow;
use crate::collective::order::Claim;
use crate::config::NanCheck;
use crate::types::{Finding, Goal, Op, Slot};

/// What is known of the contributions of one part. Sets of ranks have one bit for each.
#[derive(Default, Debug)]
pub(super) struct Look {
    slot: Option<Slot>,
    /// Who waits for the part on this rank learns of its own contribution by this.
    finding: Finding,
    /// The ranks at whose contributions somebody looks: the same on all members.
    at: u64,
    /// Those of them whose contributions are not finite, as far as this rank knows.
    unfit: u64,
    /// Whether the slice that is being reduced has a result that may come from something that is not finite.
    is_doubtful: bool,
}

/// Whole elements of every type.
const RUN_BYTES: usize = 8 << 10;

impl Look {
    /// A look at the contributions of an operation whose members have these `weights`. A rank without weight contributes nothing.
    pub(super) fn new(board: &Board, slot: Slot, claim: &Claim, dataflow: Dataflow, weights: &[f64]) -> Self {
        let Dataflow::Reduce { of, .. } = dataflow else { return Self::default() };
        if !claim.dtype.is_float() || !Goal::adds_contributions(slot.1) {
            return Self::default();
        }
        let is_looked_at =
            |rank: usize, weight: f64| of & (1 << rank) != 0 && weight != 0.0 && board.nan_check(rank) != NanCheck::Off;
        let ranks = (0..board.layout.ranks).zip(weights).filter(|(rank, weight)| is_looked_at(*rank, **weight));
        let at = ranks.fold(0, |at, (rank, _)| at | 1 << rank);
        Self { slot: Some(slot), at, ..Self::default() }
    }

    /// With this, which is raised if the contribution of this rank is not finite.
    pub(super) fn telling(self, finding: Finding) -> Self {
        Self { finding, ..self }
    }

    /// How many bytes of a slice of `len` bytes to add before they are looked at: so few that they are still in the first cache.
    pub(super) fn run_bytes(&self, len: usize) -> usize {
        if self.at == 0 { len.max(1) } else { RUN_BYTES }
    }

    /// Looks at a part of the result of a slice.
    pub(super) fn see(&mut self, fold: &Fold, result: &[u8]) {
        if self.at != 0 && !self.is_doubtful {
            let shows_all = matches!(fold.op, Op::Sum | Op::Mean | Op::WeightedMean);
            self.is_doubtful = !(shows_all && fold.kernels.all_finite(fold.dtype, result));
        }
    }

    /// This rank has reduced its slice of chunk `number`: tells the others whose contributions are not finite.
    pub(super) fn judge<'a>(
        &mut self,
        board: &Board,
        number: u64,
        fold: &Fold,
        contribution: impl Fn(usize) -> &'a [u8],
    ) {
        if self.at == 0 {
            return;
        }
        let is_unfit = |rank: &usize| !fold.kernels.all_finite(fold.dtype, contribution(*rank));
        let unfit = match std::mem::take(&mut self.is_doubtful) {
            true => ranks_of(self.at).filter(is_unfit).fold(0, |unfit, rank| unfit | 1 << rank),
            false => 0,
        };
        board.segment.u64(board.layout.unfit(board.me, number)).store(unfit, Ordering::Relaxed);
        self.unfit |= unfit;
    }

    /// Reads what `owner` found in its slice of chunk `number`, which it has counted as reduced.
    pub(super) fn hear(&mut self, board: &Board, number: u64, owner: usize) {
        if self.at != 0 {
            let unfit = board.segment.u64(board.layout.unfit(owner, number)).load(Ordering::Relaxed);
            self.unfit |= unfit & self.at;
        }
    }

    /// The part has ended on this rank. The first rank whose contribution makes it fail, as the setting of that rank says, if there is one.
    pub(super) fn end(&self, board: &Board) -> Option<(Slot, usize)> {
        if self.unfit & (1 << board.me) != 0 {
            self.finding.raise();
        }
        let refused = ranks_of(self.unfit).find(|rank| board.nan_check(*rank) == NanCheck::Error)?;
        Some((self.slot?, refused))
    }
}

impl Board {
    /// Tells the other ranks the setting of this one, before it takes part in anything.
    pub(super) fn set_nan_check(&self, setting: NanCheck) {
        let word = match setting {
            NanCheck::Off => OFF,
            NanCheck::Warn => WARN,
            NanCheck::Error => ERROR,
        };
        self.set_count(Word::NanCheck, word);
    }

    /// The setting of `rank`, which does not change.
    fn nan_check(&self, rank: usize) -> NanCheck {
        match self.count(rank, Word::NanCheck) {
            WARN => NanCheck::Warn,
            ERROR => NanCheck::Error,
            _ => NanCheck::Off,
        }
    }
}

fn ranks_of(set: u64) -> impl Iterator<Item = usize> {
    (0..u64::BITS as usize).filter(move |rank| set & (1 << rank) != 0)
}

const OFF: u64 = 0;
const WARN: u64 = 1;
const ERROR: u64 = 2;
