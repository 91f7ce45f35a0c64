//! The memory of a case on one rank: contributions with known elements, and results whose every element can be checked.
//!
//! Every tensor has memory of S bytes for the contribution and as much for the result. [`Collective::pieces`] says which elements of the
//! result a rank gets; the others must stay as they were.
//!
//! Element `i` of rank `r`'s contribution to tensor `t` in set `s` is `(i + 3r + 5t + s) mod 7 - 3`: integers whose sums are exact in every
//! type for up to 80 ranks. They repeat every 7 elements, which is no divisor of the length of a part or a vector. The programs of peers
//! compute the same. Tensors with a codec have other elements: see [`Coded`].
#![expect(unsafe_code, reason = "the engine takes memory by address; see `Set::regions`")]

use std::ops::Range;

use gradlane_core::mem::Region;
use gradlane_core::types::{DType, Op};
use half::{bf16, f16};

use super::coded::Coded;
use super::collective::{Collective, Piece};
use super::orders::Case;

/// The memory of all sets of a case.
pub(crate) struct Buffers {
    dtype: DType,
    op: Op,
    collective: Collective,
    /// Whether every rank gets back what it contributed.
    echo: bool,
    /// If the tensors have a codec.
    coded: Option<Coded>,
    rank: u32,
    ranks: u32,
    sets: Vec<Set>,
}

/// The tensors of one exchange.
pub(crate) struct Set {
    /// Which of the sets it is.
    pub(crate) number: usize,
    contributions: Vec<Vec<u8>>,
    /// The memory of the sums out of place, and of the results of collectives without sums.
    sums: Vec<Vec<u8>>,
}

/// One of the two memories of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    Contribution,
    Result,
}

/// The period of the elements.
const PERIOD: usize = 7;
/// Elements that are written or compared at once, a multiple of the period.
const BLOCK: usize = PERIOD * 1024;
/// Fills the memory of a sum before the exchange.
const UNTOUCHED: u8 = 0xA5;
/// Whole elements of every type.
static UNTOUCHED_RUN: [u8; 8192] = [UNTOUCHED; 8192];

/// Counts wrong elements.
#[derive(Default)]
struct Wrong {
    count: u64,
    /// Describes the first of them.
    first: Option<String>,
}

impl Wrong {
    fn add(&mut self, describe: impl FnOnce() -> String) {
        self.count += 1;
        self.first.get_or_insert_with(describe);
    }
}

impl Buffers {
    /// Allocates memory for `case` and writes all of it, so that page faults are not timed.
    pub(crate) fn new(case: &Case, rank: u32, ranks: u32) -> Self {
        let dtype = case.dtype();
        let memory =
            |elements: u64| vec![UNTOUCHED; usize::try_from(elements * dtype.bytes()).expect("it fits in memory")];
        let all = || case.tensors.iter().map(|tensor| memory(tensor.elements)).collect();
        let sets = (0..case.sets).map(|number| Set { number, contributions: all(), sums: all() }).collect();
        let (op, collective) = (case.op(), case.collective);
        let coded = case.codec.is_some().then(|| Coded::new(case.codec()));
        let mut buffers = Self { dtype, op, collective, echo: case.echoes(), coded, rank, ranks, sets };
        buffers.fill();
        buffers
    }

    /// Writes all contributions, and overwrites all sums.
    pub(crate) fn fill(&mut self) {
        for index in 0..self.sets.len() {
            self.fill_set(index);
        }
    }

    /// Writes the contributions of one set, and overwrites its sums.
    pub(crate) fn fill_set(&mut self, index: usize) {
        let (dtype, rank) = (self.dtype, self.rank as usize);
        let set = &mut self.sets[index];
        for (tensor, memory) in set.contributions.iter_mut().enumerate() {
            if let Some(coded) = &self.coded {
                coded.fill(memory, rank);
                continue;
            }
            let block = block(dtype, |element| contribution(element, rank, tensor, index) as f64);
            memory.chunks_mut(block.len()).for_each(|chunk| chunk.copy_from_slice(&block[..chunk.len()]));
        }
        set.sums.iter_mut().for_each(|sum| sum.fill(UNTOUCHED));
    }

    /// How many sets there are.
    pub(crate) fn len(&self) -> usize {
        self.sets.len()
    }

    /// One of the sets.
    pub(crate) fn set(&mut self, index: usize) -> &mut Set {
        &mut self.sets[index]
    }

    /// Counts the wrong elements in the results of a set, and describes the first.
    pub(crate) fn verify(&self, index: usize, in_place: bool) -> (u64, Option<String>) {
        let set = &self.sets[index];
        let sums = if in_place { &set.contributions } else { &set.sums };
        let mut wrong = Wrong::default();
        for (tensor, sum) in sums.iter().enumerate() {
            if let Some(coded) = &self.coded {
                coded.verify(sum, self.ranks, |element, what| {
                    wrong.add(|| format!("{} {what}", self.place(tensor, element)));
                });
                continue;
            }
            let elements = sum.len() / self.dtype.bytes() as usize;
            let mut end = 0;
            for piece in self.pieces(elements) {
                self.verify_untouched(sum, end..piece.range.start, tensor, &mut wrong);
                end = piece.range.end;
                self.verify_piece(sum, &piece, (tensor, index), &mut wrong);
            }
            self.verify_untouched(sum, end..elements, tensor, &mut wrong);
        }
        (wrong.count, wrong.first)
    }

    fn verify_piece(&self, sum: &[u8], piece: &Piece, (tensor, set): (usize, usize), wrong: &mut Wrong) {
        let bytes = self.dtype.bytes() as usize;
        let block = block(self.dtype, |element| self.expected(piece, element, tensor, set));
        let memory = &sum[piece.range.start * bytes..piece.range.end * bytes];
        for (number, chunk) in memory.chunks(block.len()).enumerate() {
            if chunk == &block[..chunk.len()] {
                continue;
            }
            for (at, (found, due)) in chunk.chunks(bytes).zip(block.chunks(bytes)).enumerate() {
                let (found, due) = (decode(self.dtype, found), decode(self.dtype, due));
                if !self.close(found, due) {
                    let element = piece.range.start + number * BLOCK + at;
                    wrong.add(|| format!("{} is {found} instead of {due}", self.place(tensor, element)));
                }
            }
        }
    }

    /// Counts the elements in `range` that something has written.
    fn verify_untouched(&self, sum: &[u8], range: Range<usize>, tensor: usize, wrong: &mut Wrong) {
        let bytes = self.dtype.bytes() as usize;
        for (at, run) in sum[range.start * bytes..range.end * bytes].chunks(UNTOUCHED_RUN.len()).enumerate() {
            if run == &UNTOUCHED_RUN[..run.len()] {
                continue;
            }
            let first = range.start + at * UNTOUCHED_RUN.len() / bytes;
            for (element, _) in (first..).zip(run.chunks(bytes)).filter(|(_, found)| **found != UNTOUCHED_RUN[..bytes])
            {
                wrong.add(|| format!("{} was written and does not belong to the result", self.place(tensor, element)));
            }
        }
    }

    fn place(&self, tensor: usize, element: usize) -> String {
        format!("rank {}, tensor {tensor}, element {element}", self.rank)
    }

    /// Changes the last element of the last result of the first set.
    pub(crate) fn spoil(&mut self, in_place: bool) {
        let Set { contributions, sums, .. } = &self.sets[0];
        let tensor = sums.len().checked_sub(1).expect("a case has a tensor");
        let bytes = self.dtype.bytes() as usize;
        let end = self.pieces(contributions[tensor].len() / bytes).last().map_or(0, |piece| piece.range.end) * bytes;
        self.sets[0].sum_mut(tensor, in_place)[end - 1] ^= 0x40;
    }

    fn pieces(&self, elements: usize) -> Vec<Piece> {
        let mut pieces = self.collective.pieces(elements, self.rank, self.ranks);
        if self.echo {
            pieces.iter_mut().for_each(|piece| piece.origin = Some(self.rank));
        }
        pieces
    }

    /// The correct value of an element of a piece, before it is rounded to the type.
    fn expected(&self, piece: &Piece, element: usize, tensor: usize, set: usize) -> f64 {
        let of = |rank: u32| contribution(piece.first + element, rank as usize, tensor, set);
        if let Some(origin) = piece.origin {
            return of(origin) as f64;
        }
        let integer = !self.dtype.is_float();
        let all = (0..self.ranks).map(of);
        match self.op {
            Op::Sum => all.sum::<i64>() as f64,
            Op::Min => all.map(|value| as_stored(self.dtype, value)).min().unwrap_or(0) as f64,
            Op::Max => all.map(|value| as_stored(self.dtype, value)).max().unwrap_or(0) as f64,
            Op::Mean | Op::WeightedMean => {
                let sum: i64 = all.map(|value| as_stored(self.dtype, value)).sum();
                let sum = if integer { as_stored(self.dtype, sum) } else { sum };
                let mean = sum as f64 / f64::from(self.ranks);
                if integer { mean.floor() } else { mean }
            }
            Op::Broadcast { root } => of(root.0) as f64,
        }
    }

    /// Compares exactly, but a mean may be rounded once more than ours, because means are not integers.
    fn close(&self, found: f64, due: f64) -> bool {
        let rounding = match (self.op, self.dtype) {
            (Op::Mean, DType::F32) => f64::from(f32::EPSILON),
            (Op::Mean, DType::F64) => f64::EPSILON,
            (Op::Mean, DType::F16) => f64::from(f16::EPSILON),
            (Op::Mean, DType::BF16) => f64::from(bf16::EPSILON),
            _ => 0.0,
        };
        (found - due).abs() <= rounding * due.abs()
    }
}

impl Set {
    /// Contribution and sum of each tensor, for the engine. The set must be left alone until the exchange has ended.
    pub(crate) fn regions(&mut self, in_place: bool) -> Vec<(Region, Region)> {
        let sums: Vec<*mut u8> = match in_place {
            true => self.contributions.iter_mut().map(Vec::as_mut_ptr).collect(),
            false => self.sums.iter_mut().map(Vec::as_mut_ptr).collect(),
        };
        let regions = self.contributions.iter_mut().zip(sums).map(|(contribution, sum)| {
            let (source, bytes) = (contribution.as_mut_ptr(), contribution.len());
            // SAFETY: the memory belongs to this set, whose vectors never grow and which `rank::obey` neither touches nor drops before
            // every handle of the exchange has resolved; source and sum are the two ends of one exchange.
            unsafe { (Region::new(source, bytes), Region::new(sum, bytes)) }
        });
        regions.collect()
    }

    /// These bytes of one of the memories of a tensor, for the engine; otherwise as [`Set::regions`]. Two regions of an exchange may
    /// overlap only as the two ends of one operation.
    pub(crate) fn region(&mut self, tensor: usize, memory: Memory, bytes: Range<usize>) -> Region {
        let whole = match memory {
            Memory::Contribution => &mut self.contributions[tensor],
            Memory::Result => &mut self.sums[tensor],
        };
        assert!(bytes.start <= bytes.end && bytes.end <= whole.len(), "the bytes lie within the tensor");
        // Not through a slice: that would be a second reference to bytes that an earlier region may give to the engine.
        let begin = whole.as_mut_ptr().wrapping_add(bytes.start);
        // SAFETY: as in `regions`; the caller gives the engine no overlapping regions but the two ends of one operation.
        unsafe { Region::new(begin, bytes.len()) }
    }

    /// Copies these bytes of a contribution to the same place of the result. Must precede the first [`Set::region`] of an exchange.
    pub(crate) fn copy(&mut self, tensor: usize, bytes: Range<usize>) {
        self.sums[tensor][bytes.clone()].copy_from_slice(&self.contributions[tensor][bytes]);
    }

    /// Takes a contribution out of the set, for a caller that must own it; [`Set::give_back`] returns it.
    pub(crate) fn take_contribution(&mut self, tensor: usize) -> Vec<u8> {
        std::mem::take(&mut self.contributions[tensor])
    }

    /// Returns what [`Set::take_contribution`] took.
    pub(crate) fn give_back(&mut self, tensor: usize, contribution: Vec<u8>) {
        self.contributions[tensor] = contribution;
    }

    /// The memory of a sum.
    pub(crate) fn sum_mut(&mut self, tensor: usize, in_place: bool) -> &mut [u8] {
        if in_place { &mut self.contributions[tensor] } else { &mut self.sums[tensor] }
    }
}

fn contribution(element: usize, rank: usize, tensor: usize, set: usize) -> i64 {
    ((element + 3 * rank + 5 * tensor + set) % PERIOD) as i64 - 3
}

/// Wraps an integer as the type does.
fn as_stored(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::U8 => i64::from(value as u8),
        DType::I8 => i64::from(value as i8),
        DType::I32 => i64::from(value as i32),
        DType::I64 | DType::F32 | DType::F64 | DType::F16 | DType::BF16 => value,
    }
}

/// Encodes the first elements of a periodic sequence.
fn block(dtype: DType, value: impl Fn(usize) -> f64) -> Vec<u8> {
    let period: Vec<u8> = (0..PERIOD).flat_map(|element| encode(dtype, value(element))).collect();
    period.repeat(BLOCK / PERIOD)
}

fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        // Through i64, because a float out of range would saturate instead of wrapping.
        DType::I32 => (value as i64 as i32).to_le_bytes().to_vec(),
        DType::I64 => (value as i64).to_le_bytes().to_vec(),
        DType::I8 => (value as i64 as i8).to_le_bytes().to_vec(),
        DType::U8 => (value as i64 as u8).to_le_bytes().to_vec(),
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().expect("four bytes"))),
        DType::F64 => f64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        DType::F16 => f16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f64(),
        DType::BF16 => bf16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f64(),
        DType::I32 => f64::from(i32::from_le_bytes(bytes.try_into().expect("four bytes"))),
        DType::I64 => i64::from_le_bytes(bytes.try_into().expect("eight bytes")) as f64,
        DType::I8 => f64::from(bytes[0] as i8),
        DType::U8 => f64::from(bytes[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Point;

    #[test]
    fn the_only_rank_finds_its_own_contribution_right_and_a_spoilt_one_wrong() {
        for dtype in DType::ALL {
            let case = Case::single("t", 16 * BLOCK as u64 + 8, dtype, Op::Sum, 2);
            let mut buffers = Buffers::new(&case, 0, 1);
            assert_eq!(buffers.verify(0, true), (0, None), "{dtype}");
            assert!(buffers.verify(0, false).0 > 0, "{dtype}: nothing was summed out of place");
            buffers.spoil(true);
            let (wrong, at) = buffers.verify(0, true);
            assert_eq!(wrong, 1, "{dtype}");
            assert!(at.unwrap().starts_with("rank 0, tensor 1, element "));
        }
    }

    #[test]
    fn each_collective_has_its_result_and_a_spoilt_or_a_missing_piece_is_noticed() {
        for collective in
            [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll]
        {
            for (dtype, rank) in [(DType::F32, 0), (DType::BF16, 1), (DType::U8, 2)] {
                // A length of pieces that is no multiple of the period, and longer than a block.
                let case = case(collective, dtype, 3 * (BLOCK as u64 + 11));
                let mut buffers = Buffers::new(&case, rank, 3);
                let pieces = buffers.pieces(3 * (BLOCK + 11));
                assert_eq!(buffers.verify(0, false).0, elements(&pieces), "{collective:?}: nothing was exchanged");
                let others: Vec<Buffers> = (0..3).map(|rank| Buffers::new(&case, rank, 3)).collect();
                for piece in &pieces {
                    exchange(&mut buffers, &others, piece);
                }
                assert_eq!(buffers.verify(0, false), (0, None), "{collective:?} {dtype} on rank {rank}");

                buffers.spoil(false);
                let (wrong, at) = buffers.verify(0, false);
                let last = pieces.last().unwrap().range.end - 1;
                assert_eq!(wrong, 1, "{collective:?} {dtype}");
                assert!(at.unwrap().starts_with(&format!("rank {rank}, tensor 0, element {last} is ")));
                for missing in &pieces {
                    buffers.fill();
                    for piece in pieces.iter().filter(|piece| *piece != missing) {
                        exchange(&mut buffers, &others, piece);
                    }
                    assert_eq!(buffers.verify(0, false).0, missing.range.len() as u64, "{collective:?} {dtype}");
                }
            }
        }
    }

    #[test]
    fn a_reduce_scatter_writes_its_own_part_only() {
        let case = case(Collective::ReduceScatter, DType::F32, 12);
        let others: Vec<Buffers> = (0..3).map(|rank| Buffers::new(&case, rank, 3)).collect();
        for element in [0, 3, 8, 11] {
            let mut buffers = Buffers::new(&case, 1, 3);
            let own = buffers.pieces(12).remove(0);
            assert_eq!(own.range, 4..8);
            exchange(&mut buffers, &others, &own);
            buffers.sets[0].sums[0][4 * element] = 0;
            let (wrong, at) = buffers.verify(0, false);
            assert_eq!(wrong, 1);
            assert_eq!(
                at,
                Some(format!("rank 1, tensor 0, element {element} was written and does not belong to the result"))
            );
        }
    }

    #[test]
    fn regions_are_windows_of_the_memory() {
        let mut buffers = Buffers::new(&case(Collective::AllToAll, DType::I8, 12), 0, 3);
        let set = buffers.set(0);
        let (from, to) = (set.region(0, Memory::Contribution, 4..8), set.region(0, Memory::Result, 8..12));
        assert_eq!((from.len(), to.len()), (4, 4));
        set.copy(0, 4..8);
        assert_eq!(set.sums[0], [[UNTOUCHED; 4], [1, 2, 3, 253], [UNTOUCHED; 4]].concat());
    }

    fn case(collective: Collective, dtype: DType, elements: u64) -> Case {
        match collective {
            Collective::AllReduce => Case::single("t", elements * dtype.bytes(), dtype, Op::Sum, 1),
            other => {
                Case::of_parts(other, Point { bytes: elements * dtype.bytes(), dtype, op: Op::Sum }, 1, 3).unwrap()
            }
        }
    }

    fn elements(pieces: &[Piece]) -> u64 {
        pieces.iter().map(|piece| piece.range.len() as u64).sum()
    }

    /// Writes a piece of the result from the contributions of `others`.
    fn exchange(buffers: &mut Buffers, others: &[Buffers], piece: &Piece) {
        let (dtype, bytes) = (buffers.dtype, buffers.dtype.bytes() as usize);
        for (offset, element) in piece.range.clone().enumerate() {
            let from = (piece.first + offset) * bytes..(piece.first + offset + 1) * bytes;
            let of = |other: &Buffers| decode(dtype, &other.sets[0].contributions[0][from.clone()]);
            let value = match piece.origin {
                Some(origin) => of(&others[origin as usize]),
                None => others.iter().map(of).sum(),
            };
            let to = element * bytes..(element + 1) * bytes;
            buffers.sets[0].sums[0][to].copy_from_slice(&encode(dtype, value));
        }
    }

    #[test]
    fn means_of_integers_round_down_and_unsigned_ones_wrap() {
        let mean = |dtype, ranks| {
            let case = Case::single("t", 56, dtype, Op::Mean, 1);
            let buffers = Buffers::new(&case, 0, ranks);
            let piece = buffers.pieces(7).remove(0);
            (0..7).map(|element| buffers.expected(&piece, element, 0, 0)).collect::<Vec<_>>()
        };
        // -3 + 0, -2 + 1, -1 + 2, 0 + 3, 1 - 3, 2 - 2, 3 - 1
        assert_eq!(mean(DType::I32, 2), [-2.0, -1.0, 0.0, 1.0, -1.0, 0.0, 1.0]);
        assert_eq!(mean(DType::F32, 2), [-1.5, -0.5, 0.5, 1.5, -1.0, 0.0, 1.0]);
        assert_eq!(mean(DType::U8, 1)[0], 253.0);
    }
}
