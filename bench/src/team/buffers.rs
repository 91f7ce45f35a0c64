//! The memory of a case on one rank: contributions with known elements, and sums whose every element can be checked.
//!
//! Element `i` of rank `r`'s contribution to tensor `t` in set `s` is `(i + 3r + 5t + s) mod 7 - 3`: integers whose sums are exact in every
//! type for up to 80 ranks. They repeat every 7 elements, which is no divisor of the length of a part or a vector. The programs of peers
//! compute the same.
#![expect(unsafe_code, reason = "the engine takes memory by address; see `Set::regions`")]

use gradlane_core::mem::Region;
use gradlane_core::types::{DType, Op, WorkerId};
use half::{bf16, f16};

use super::orders::{Case, ECHO};

/// The memory of all sets of a case.
pub(crate) struct Buffers {
    dtype: DType,
    op: Op,
    rank: u32,
    ranks: u32,
    sets: Vec<Set>,
}

/// The tensors of one exchange.
pub(crate) struct Set {
    /// Which of the sets it is.
    pub(crate) number: usize,
    contributions: Vec<Vec<u8>>,
    /// The memory of the sums out of place.
    sums: Vec<Vec<u8>>,
}

/// The period of the elements.
const PERIOD: usize = 7;
/// Elements that are written or compared at once, a multiple of the period.
const BLOCK: usize = PERIOD * 1024;
/// Fills the memory of a sum before the exchange.
const UNTOUCHED: u8 = 0xA5;

impl Buffers {
    /// Allocates memory for `case` and writes all of it, so that page faults are not timed.
    pub(crate) fn new(case: &Case, rank: u32, ranks: u32) -> Self {
        let dtype = case.dtype();
        let memory =
            |elements: u64| vec![UNTOUCHED; usize::try_from(elements * dtype.bytes()).expect("it fits in memory")];
        let all = || case.tensors.iter().map(|tensor| memory(tensor.elements)).collect();
        let sets = (0..case.sets).map(|number| Set { number, contributions: all(), sums: all() }).collect();
        let op = if case.op == ECHO { Op::Broadcast { root: WorkerId(rank) } } else { case.op() };
        let mut buffers = Self { dtype, op, rank, ranks, sets };
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

    /// Counts the wrong elements in the sums of a set, and describes the first.
    pub(crate) fn verify(&self, index: usize, in_place: bool) -> (u64, Option<String>) {
        let set = &self.sets[index];
        let sums = if in_place { &set.contributions } else { &set.sums };
        let mut wrong = 0;
        let mut first = None;
        for (tensor, sum) in sums.iter().enumerate() {
            let expected = |element| self.expected(element, tensor, index);
            let block = block(self.dtype, expected);
            for (number, chunk) in sum.chunks(block.len()).enumerate() {
                if chunk == &block[..chunk.len()] {
                    continue;
                }
                let bytes = self.dtype.bytes() as usize;
                for (at, (found, due)) in chunk.chunks(bytes).zip(block.chunks(bytes)).enumerate() {
                    let (found, due) = (decode(self.dtype, found), decode(self.dtype, due));
                    if !self.close(found, due) {
                        wrong += 1;
                        let element = number * BLOCK + at;
                        first.get_or_insert_with(|| {
                            format!(
                                "rank {}, tensor {tensor}, element {element} is {found} instead of {due}",
                                self.rank
                            )
                        });
                    }
                }
            }
        }
        (wrong, first)
    }

    /// The correct sum, before it is rounded to the type.
    fn expected(&self, element: usize, tensor: usize, set: usize) -> f64 {
        let of = |rank: u32| contribution(element, rank as usize, tensor, set);
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

    /// Changes one element of a sum.
    pub(crate) fn spoil(&mut self, in_place: bool) {
        let sums = if in_place { &mut self.contributions } else { &mut self.sums };
        let last = sums.last_mut().and_then(|sum| sum.last_mut()).expect("a case has a tensor, a tensor an element");
        *last ^= 0x40;
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

    #[test]
    fn the_only_rank_finds_its_own_contribution_right_and_a_spoilt_one_wrong() {
        for dtype in DType::ALL {
            let case = Case::single("t", 16 * BLOCK as u64 + 8, dtype, Op::Sum, 2);
            let mut buffers = Buffers::new(&case, 0, 1);
            assert_eq!(buffers.verify(0, true), (0, None), "{dtype}");
            assert!(buffers.verify(0, false).0 > 0, "{dtype}: nothing was summed out of place");
            buffers.set(0).spoil(true);
            let (wrong, at) = buffers.verify(0, true);
            assert_eq!(wrong, 1, "{dtype}");
            assert!(at.unwrap().starts_with("rank 0, tensor 1, element "));
        }
    }

    #[test]
    fn means_of_integers_round_down_and_unsigned_ones_wrap() {
        let mean = |dtype, ranks| {
            let case = Case::single("t", 56, dtype, Op::Mean, 1);
            (0..7).map(|element| Buffers::new(&case, 0, ranks).expected(element, 0, 0)).collect::<Vec<_>>()
        };
        // -3 + 0, -2 + 1, -1 + 2, 0 + 3, 1 - 3, 2 - 2, 3 - 1
        assert_eq!(mean(DType::I32, 2), [-2.0, -1.0, 0.0, 1.0, -1.0, 0.0, 1.0]);
        assert_eq!(mean(DType::F32, 2), [-1.5, -0.5, 0.5, 1.5, -1.0, 0.0, 1.0]);
        assert_eq!(mean(DType::U8, 1)[0], 253.0);
    }
}
