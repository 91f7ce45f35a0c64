//! All arithmetic of offsets, lengths and shards. Bytes are `u64` everywhere, so other code needs no special care for tensors over 4 GiB.

use std::num::{NonZeroU32, NonZeroU64};

/// A run of bytes within a tensor or a part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Span {
    /// The byte after the last.
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

/// Divides `bytes` bytes into shards among `ranks`. The shards are equal, and each is a multiple of `align`, so that a reduce-scatter
/// works. The remainder is the tail, owned by the last rank.
///
/// NCCL requires equal counts per rank (NCCL user guide, "Collectives"). The tail is not padded, because padding would put bytes on the
/// wire that no rank owns. The tail is shorter than `ranks * align`.
pub fn shards(bytes: u64, ranks: NonZeroU32, align: NonZeroU64) -> Shards {
    let each = bytes / u64::from(ranks.get()) / align * align.get();
    Shards { each, ranks, tail: bytes - each * u64::from(ranks.get()) }
}

/// The result of [`shards`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shards {
    /// Bytes of every rank's shard, without the last rank's tail.
    pub each: u64,
    /// Number of shards.
    pub ranks: NonZeroU32,
    /// Bytes after the last shard.
    pub tail: u64,
}

impl Shards {
    /// The shard that `rank` owns. For the last rank it includes the tail.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn of(self, rank: u32) -> Span {
        assert!(rank < self.ranks.get(), "rank {rank} of {}", self.ranks);
        let tail = if rank + 1 == self.ranks.get() { self.tail } else { 0 };
        Span { offset: u64::from(rank) * self.each, bytes: self.each + tail }
    }
}

/// The least common multiple of two numbers above zero.
pub fn lcm(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}

/// Tiles `bytes` bytes with `parts` spans that differ by at most `align`, each but the last a multiple of `align`.
pub fn tile(bytes: u64, parts: NonZeroU64, align: NonZeroU64) -> impl Iterator<Item = Span> {
    let units = bytes.div_ceil(align.get());
    let edge = move |index: u64| {
        let units_before = u128::from(units) * u128::from(index) / u128::from(parts.get());
        (u64::try_from(units_before).expect("not above units") * align.get()).min(bytes)
    };
    (0..parts.get()).map(move |index| Span { offset: edge(index), bytes: edge(index + 1) - edge(index) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_rank_owns_the_tail() {
        let shards = shards(103, NonZeroU32::new(4).unwrap(), NonZeroU64::new(8).unwrap());
        assert_eq!(shards.of(0), Span { offset: 0, bytes: 24 });
        assert_eq!(shards.of(3), Span { offset: 72, bytes: 31 });
    }

    proptest! {
        #[test]
        fn shards_tile_the_whole(bytes in 0..1u64 << 40, ranks in 1..64u32, align in 1..512u64) {
            let shards = shards(bytes, NonZeroU32::new(ranks).unwrap(), NonZeroU64::new(align).unwrap());
            let mut end = 0;
            for rank in 0..ranks {
                prop_assert_eq!(shards.of(rank).offset, end);
                end = shards.of(rank).end();
            }
            prop_assert_eq!(end, bytes);
            prop_assert!(shards.tail < u64::from(ranks) * align);
        }

        #[test]
        fn tiles_are_even_and_aligned(bytes in 0..1u64 << 42, parts in 1..4096u64, align in 1..512u64) {
            let mut end = 0;
            let spans: Vec<Span> = tile(bytes, NonZeroU64::new(parts).unwrap(), NonZeroU64::new(align).unwrap()).collect();
            for span in &spans {
                prop_assert_eq!(span.offset, end);
                prop_assert!(span.offset % align == 0 || span.bytes == 0);
                end = span.end();
            }
            prop_assert_eq!(end, bytes);
            let longest = spans.iter().map(|span| span.bytes).max().unwrap();
            let shortest = spans[..spans.len() - 1].iter().map(|span| span.bytes).min().unwrap_or(longest);
            prop_assert!(longest - shortest <= align);
        }
    }
}
