//! The elements of a case whose tensors have a codec, and what their sums may be.
//!
//! Rank `r` contributes `r + 1` times a base that all ranks share, so a sum that lacks a contribution, or has one twice, is another
//! multiple of the base. The base depends on what the codec loses:
//!
//! | codec | base | an element of the sum |
//! |---|---|---|
//! | sends all elements | 1 or -1 | right but for rounding: every codec holds the largest magnitude of its block almost exactly |
//! | sends some of them | whole numbers of many sizes and either sign | zero, or a whole multiple of the right one |
//!
//! A multiple above 1 comes from codecs that send an element times the number of those that it stands for, and from error feedback.

use std::fmt;

use gradlane_core::codec::Seed;
use gradlane_core::types::{CodecSpec, PartId, Round, TensorKey};

/// The base of all tensors of a case.
pub(crate) struct Coded {
    codec: CodecSpec,
    /// Repeated over a tensor.
    base: Vec<f32>,
}

/// Elements of the base: no divisor of the length of a part or a block.
const PERIOD: usize = 7 * 1024;
const F32_BYTES: usize = 4;
/// How far an element may be off, divided by the right one. The largest part of it is the scale of int4, which has 8 bits.
const ROUNDING: f64 = 1.0 / 32.0;
/// The same where elements are rounded by chance: to the neighbour of the largest number of the coarsest grid, in the contributions and
/// in the sum.
const CHANCE: f64 = 0.3;
/// How far a multiple may be from a whole number, divided by it: sums are f32.
const WHOLE: f64 = 1e-5;

impl Coded {
    /// The base for this codec.
    pub(crate) fn new(codec: CodecSpec) -> Self {
        let seed = Seed::of(PartId { key: TensorKey(3), index: 0 }, Round(0));
        let mut order: Vec<u64> = (0..PERIOD as u64).collect();
        order.sort_by_key(|index| seed.draw(*index));
        let element = |(index, place): (u64, u64)| {
            let magnitude = if codec.is_sparse() { (place + 1) as f32 } else { 1.0 };
            if seed.draw(PERIOD as u64 + index) & 1 == 0 { magnitude } else { -magnitude }
        };
        Self { codec, base: (0..).zip(order).map(element).collect() }
    }

    /// Writes the contribution of `rank`.
    pub(crate) fn fill(&self, memory: &mut [u8], rank: usize) {
        let factor = (rank + 1) as f32;
        let block: Vec<u8> = self.base.iter().flat_map(|base| (base * factor).to_le_bytes()).collect();
        memory.chunks_mut(block.len()).for_each(|chunk| chunk.copy_from_slice(&block[..chunk.len()]));
    }

    /// Calls `wrong` for each wrong element of a sum over `ranks`, with its index and what is wrong with it. A fault of the sum as a whole
    /// counts as one of its last element.
    pub(crate) fn verify(&self, sum: &[u8], ranks: u32, mut wrong: impl FnMut(usize, fmt::Arguments<'_>)) {
        let factor = f64::from(ranks) * f64::from(ranks + 1) / 2.0;
        let floats = sum.as_chunks::<F32_BYTES>().0.iter().map(|float| f64::from(f32::from_le_bytes(*float)));
        let (mut sent, mut shares) = (0, 0.0);
        for (index, found) in floats.enumerate() {
            let due = f64::from(self.base[index % PERIOD]) * factor;
            let share = found / due;
            if !self.may_be(share) {
                wrong(index, format_args!("is {found} instead of {due}"));
            }
            sent += u64::from(share != 0.0);
            shares += share;
        }
        let len = sum.len() / F32_BYTES;
        if self.codec.is_sparse() {
            // Each part sends at least its share, and no element of the base is zero.
            let least = len as u64 * u64::from(self.codec.parameters()[0]) / 1_000_000;
            if sent < least {
                wrong(
                    len - 1,
                    format_args!("is the last of a sum with {sent} elements that are not zero instead of {least}"),
                );
            }
        } else if len > 0 && (shares / len as f64 - 1.0).abs() > ROUNDING + CHANCE / (len as f64).sqrt() {
            wrong(
                len - 1,
                format_args!("is the last of a sum that is {} of the right one on average", shares / len as f64),
            );
        }
    }

    /// Whether an element may be this multiple of the right one.
    fn may_be(&self, share: f64) -> bool {
        if self.codec.is_sparse() {
            let whole = share.round();
            return share == 0.0 || whole >= 1.0 && (share - whole).abs() <= WHOLE * whole;
        }
        (share - 1.0).abs() <= if self.codec.draws() { CHANCE } else { ROUNDING }
    }
}

#[cfg(test)]
mod tests {
    use gradlane_core::codec::{self, Tools, Workspace};
    use gradlane_core::reduce::Kernels;
    use gradlane_core::types::{DType, Encoding, Op};

    use super::*;

    const LEN: usize = 3 * PERIOD + 100;

    #[test]
    fn what_a_server_makes_of_all_contributions_is_right_and_of_others_it_is_wrong() {
        let codecs = Encoding::all().map(CodecSpec::of).filter(|codec| !codec.is_plain() && codec.encodes(DType::F32));
        let by_chance = ["bf16:stochastic=1", "int4:stochastic=1"].map(|codec| codec.parse().unwrap());
        for codec in codecs.chain(by_chance) {
            let coded = Coded::new(codec);
            assert_eq!(wrong(&coded, &sum(&coded, &[0, 1])), 0, "{codec}");
            for others in [&[0][..], &[1], &[0, 1, 1], &[0, 0]] {
                assert!(wrong(&coded, &sum(&coded, others)) > 0, "{codec} of {others:?}");
            }
        }
    }

    #[test]
    fn a_single_wrong_element_is_found() {
        for codec in ["bf16", "topk"] {
            let coded = Coded::new(codec.parse().unwrap());
            let mut memory = sum(&coded, &[0, 1]);
            memory[4 * 70..4 * 71].copy_from_slice(&0.7_f32.to_le_bytes());
            assert_eq!(wrong(&coded, &memory), 1, "{codec}");
        }
    }

    #[test]
    fn a_sum_of_zeros_is_wrong() {
        for codec in ["int8", "randomk"] {
            assert!(wrong(&Coded::new(codec.parse().unwrap()), &[0; 4 * LEN]) > 0, "{codec}");
        }
    }

    fn wrong(coded: &Coded, sum: &[u8]) -> usize {
        let mut count = 0;
        coded.verify(sum, 2, |_, _| count += 1);
        count
    }

    /// The sum of the contributions of these ranks, as workers encode them and a server adds them.
    fn sum(coded: &Coded, ranks: &[usize]) -> Vec<u8> {
        let codec = codec::of(coded.codec, DType::F32).expect("it is not plain");
        let (kernels, seed) = (Kernels::detect(), Seed::of(PartId { key: TensorKey(1), index: 0 }, Round(0)));
        let mut body = vec![0; codec.body_bytes(LEN as u64).max() as usize];
        let (mut elements, mut sum) = (vec![0; 4 * LEN], vec![0; 4 * LEN]);
        for (number, rank) in ranks.iter().enumerate() {
            coded.fill(&mut elements, *rank);
            let tools = Tools { kernels, seed, workspace: &mut Workspace::default() };
            let used = codec.encode(tools, 1.0, &elements, &mut body).expect("it gets shorter");
            let body = &body[..used];
            let added = match number {
                0 => codec.start(kernels, Op::Sum, 1.0, body, &mut sum),
                _ => codec.add(kernels, Op::Sum, 1.0, body, &mut sum),
            };
            added.expect("its own body");
        }
        let tools = Tools { kernels, seed, workspace: &mut Workspace::default() };
        let used = codec.finish(tools, Op::Sum, 1.0, &sum, &mut body).expect("it gets shorter");
        codec.decode(kernels, &body[..used], &mut elements).expect("its own body");
        elements
    }
}
