//! The collectives that ranks can do, and which elements each of them moves. The rules are those of nccl-tests: the size S is that of the
//! larger buffer, and the part of rank `r` is the `r`-th of equal parts of it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What all ranks do together in one exchange.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Collective {
    /// Every rank gets the reduction of all contributions.
    #[default]
    AllReduce,
    /// Every rank gets its own part of that reduction.
    ReduceScatter,
    /// Every rank contributes its own part and gets the parts of all.
    AllGather,
    /// Every rank contributes a part for each rank and gets one from each.
    AllToAll,
}

/// A run of elements of a rank's result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Which elements of the result.
    pub(crate) range: Range<usize>,
    /// The rank whose contribution they are; `None` where they are the reduction of all contributions.
    pub(crate) origin: Option<u32>,
    /// The element of the contributions from which the first of them is made. The next one is made from the next, and so on.
    pub(crate) first: usize,
}

impl Collective {
    /// Its name on the command line and in orders.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::AllToAll => "all-to-all",
        }
    }

    /// Whether contributions are reduced.
    pub(crate) fn reduces(self) -> bool {
        match self {
            Self::AllReduce | Self::ReduceScatter => true,
            Self::AllGather | Self::AllToAll => false,
        }
    }

    /// Busbw divided by algbw among `ranks`, as nccl-tests defines it (`doc/PERFORMANCE.md`): the bytes that each rank must send, for each
    /// byte of S.
    pub(crate) fn bus_factor(self, ranks: u32) -> f64 {
        let others = (f64::from(ranks) - 1.0) / f64::from(ranks);
        match self {
            Self::AllReduce => 2.0 * others,
            Self::ReduceScatter | Self::AllGather | Self::AllToAll => others,
        }
    }

    /// How many of `elements` elements can be measured among `ranks`: rounded down, as nccl-tests does, to whole elements for each rank.
    pub(crate) fn whole_parts(self, elements: u64, ranks: u32) -> u64 {
        match self {
            Self::AllReduce => elements,
            Self::ReduceScatter | Self::AllGather | Self::AllToAll => elements - elements % u64::from(ranks),
        }
    }

    /// The pieces of the result of `rank`, in ascending order. It must not touch the other elements of its result.
    pub(crate) fn pieces(self, elements: usize, rank: u32, ranks: u32) -> Vec<Piece> {
        let piece = |at: u32, origin, source: u32| {
            let range = part(elements, at, ranks);
            Piece { first: part(elements, source, ranks).start, range, origin }
        };
        match self {
            Self::AllReduce => vec![Piece { range: 0..elements, origin: None, first: 0 }],
            Self::ReduceScatter => vec![piece(rank, None, rank)],
            Self::AllGather => (0..ranks).map(|other| piece(other, Some(other), other)).collect(),
            Self::AllToAll => (0..ranks).map(|other| piece(other, Some(other), rank)).collect(),
        }
    }
}

/// The part of `rank`: one of `ranks` equal parts of `elements` elements.
pub(crate) fn part(elements: usize, rank: u32, ranks: u32) -> Range<usize> {
    let length = elements / ranks as usize;
    rank as usize * length..(rank as usize + 1) * length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busbw_has_the_factors_of_nccl_tests() {
        use Collective::{AllGather, AllReduce, AllToAll, ReduceScatter};
        let factors = |ranks| [AllReduce, ReduceScatter, AllGather, AllToAll].map(|of| of.bus_factor(ranks));
        assert_eq!(factors(2), [1.0, 0.5, 0.5, 0.5]);
        assert_eq!(factors(4), [1.5, 0.75, 0.75, 0.75]);
        assert_eq!(factors(1), [0.0; 4], "nothing has to travel");
    }

    #[test]
    fn each_collective_makes_the_result_of_other_elements() {
        let shown = |collective: Collective| {
            let pieces = collective.pieces(6, 1, 3);
            pieces.into_iter().map(|piece| (piece.range, piece.origin, piece.first)).collect::<Vec<_>>()
        };
        assert_eq!(shown(Collective::AllReduce), [(0..6, None, 0)]);
        assert_eq!(shown(Collective::ReduceScatter), [(2..4, None, 2)]);
        assert_eq!(shown(Collective::AllGather), [(0..2, Some(0), 0), (2..4, Some(1), 2), (4..6, Some(2), 4)]);
        assert_eq!(shown(Collective::AllToAll), [(0..2, Some(0), 2), (2..4, Some(1), 2), (4..6, Some(2), 2)]);
    }

    #[test]
    fn every_rank_has_equally_many_elements() {
        assert_eq!(Collective::AllReduce.whole_parts(16, 3), 16);
        assert_eq!([16, 15, 2].map(|elements| Collective::AllGather.whole_parts(elements, 3)), [15, 15, 0]);
    }

    #[test]
    fn orders_and_the_command_line_have_the_same_names() {
        for collective in <Collective as clap::ValueEnum>::value_variants() {
            let value = clap::ValueEnum::to_possible_value(collective).expect("all can be chosen");
            assert_eq!(value.get_name(), collective.name());
            assert_eq!(serde_json::to_value(collective).unwrap(), collective.name());
        }
    }
}
