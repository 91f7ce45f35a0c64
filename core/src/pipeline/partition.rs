//! How tensors are cut into parts, and which small tensors share a part. It uses sizes only: no server names and no loads.
//!
//! A tensor larger than a part is cut into parts of nearly equal size. Their number is a multiple of `shares`, the number of equal shares
//! that gives each server its weight. Then the tensor alone loads the servers by their weights, and it does not matter which parts the
//! servers already have. Example: VGG-16's fc6 (411 MB) is 98 parts of 4 MiB. Over 16 equal servers, two servers would carry 7 parts and
//! the others 6. With 112 parts of 3.7 MB all servers carry the same load. If so many parts would each be too small, the tensor has as many
//! parts as the minimum size allows: the smaller the parts, the closer the loads are to the weights.
//!
//! A job on several machines has smaller parts: a tensor is cut into 16 parts, as far as their minimum size allows. A server
//! sums a part only as fast as its own link brings the contributions of all workers, so a tensor in one part would use the link of one
//! server. The sum of a part comes back in blocks, while the rest of the part is still sent; the smaller the part, the smaller the blocks.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use crate::types::{DType, Span, TableSpec, TensorKind, span};
use crate::wire::limits::PART_BYTES_MAX;

/// Part edges are aligned to this many elements, so that up to 64 local ranks own equal shards.
const ALIGN_ELEMENTS: u64 = 64;

/// Parts of a tensor that crosses a network, as far as `pipeline_bytes_min` allows: enough to load the links of some servers evenly. More of
/// them cost headers and gained nothing.
const PIPELINE_PARTS: u64 = 16;

/// The sizes of parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutConfig {
    /// Largest size of a part in bytes; about 4 MiB for each local rank that owns a shard of it.
    pub partition_bytes: u64,
    /// Largest size in bytes of a tensor that shares its part with others.
    pub fuse_bytes: u64,
    /// A part is not made smaller than this many bytes to balance load. Each part costs a header, places in queues and an answer, whatever
    /// its size.
    pub part_bytes_min: u64,
    /// A part is not made smaller than this many bytes so that a tensor has 16 parts. With `partition_bytes` or more, a tensor has as
    /// few parts as fit.
    pub pipeline_bytes_min: u64,
}

impl LayoutConfig {
    /// The same, with parts as large as possible: for jobs that send nothing over a network.
    #[must_use]
    pub fn with_large_parts(self) -> Self {
        Self { pipeline_bytes_min: self.partition_bytes, ..self }
    }
}

impl Default for LayoutConfig {
    fn default() -> Self {
        Self { partition_bytes: 4 << 20, fuse_bytes: 64 << 10, part_bytes_min: 512 << 10, pipeline_bytes_min: 64 << 10 }
    }
}

/// Numbers of which the number of parts of a tensor should be a multiple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Multiples {
    /// Equal shares that give each server its weight. For equal servers, their number.
    pub shares: u64,
    /// The parts of a block; see [`Machines::turns`](crate::types::Machines::turns).
    pub turns: u64,
}

/// The number of parts of a tensor of `bytes` bytes; 0 for an empty tensor.
pub fn part_count(bytes: u64, dtype: DType, multiples: Multiples, config: &LayoutConfig) -> u64 {
    fewest_parts(bytes, dtype, multiples, config).max(pipelined_parts(bytes, dtype, multiples, config))
}

/// The number of parts that balances load.
fn fewest_parts(bytes: u64, dtype: DType, multiples: Multiples, config: &LayoutConfig) -> u64 {
    let (shares, turns) = (multiples.shares.max(1), multiples.turns.max(1));
    let units = bytes.div_ceil(align(dtype));
    let at_least = |bytes: u64| units / (bytes / align(dtype)).max(1);
    let (fewest, most) = (units.div_ceil(units_max(dtype, config)), at_least(config.part_bytes_min));
    let most_in_blocks = at_least(block_part_bytes_min(config));
    let multiple_of = |number: u64| Some(fewest.next_multiple_of(number)).filter(|parts| *parts <= most_in_blocks);
    // A tensor that fits a part is not cut for the sake of servers, because there are other tensors for the others.
    let both = if fewest > 1 { multiple_of(span::lcm(shares, turns)) } else { None };
    match both.or_else(|| multiple_of(turns)) {
        Some(parts) if turns > 1 => parts,
        _ if fewest <= 1 => fewest,
        _ => fewest.next_multiple_of(shares).min(most).max(fewest),
    }
}

/// The number of parts that lets sums come back early: a multiple of the shares if there are so many, and always of the turns; 0 if the
/// tensor is too small for that.
fn pipelined_parts(bytes: u64, dtype: DType, multiples: Multiples, config: &LayoutConfig) -> u64 {
    let (shares, turns) = (multiples.shares.max(1), multiples.turns.max(1));
    // Ranks that take turns already send the parts of a block at once.
    let in_blocks = if turns > 1 { block_part_bytes_min(config) } else { 0 };
    let both = span::lcm(shares, turns);
    let smallest = config.pipeline_bytes_min.max(in_blocks).max(align(dtype));
    let parts = both.max(PIPELINE_PARTS).min(bytes / smallest);
    parts - parts % if parts >= both { both } else { turns }
}

/// Parts of blocks are not smaller than this; where parts are small by choice, they may be smaller than others.
fn block_part_bytes_min(config: &LayoutConfig) -> u64 {
    config.part_bytes_min.min(config.partition_bytes / 8)
}

/// The parts of a tensor: [`part_count`] spans that tile it, as equal as alignment allows, in blocks if their number is a multiple of the
/// turns.
pub fn cut(bytes: u64, dtype: DType, multiples: Multiples, config: &LayoutConfig) -> impl Iterator<Item = Span> {
    let parts = part_count(bytes, dtype, multiples, config);
    let turns = if parts.is_multiple_of(multiples.turns.max(1)) { multiples.turns.max(1) } else { 1 };
    let unit = NonZeroU64::new(align(dtype)).expect("elements have bytes");
    let several = NonZeroU32::new(u32::try_from(turns).expect("at most RANKS_MAX")).expect("at least 1");
    let largest = units_max(dtype, config) * unit.get();
    let blocks = NonZeroU64::new(parts / turns).into_iter();
    let blocks = blocks.flat_map(move |blocks| span::tile(bytes, blocks, unit.saturating_mul(several.into())));
    blocks.flat_map(move |block| {
        let shards = span::shards(block.bytes, several, unit);
        // The last part has what does not divide, unless it is too large then.
        let is_equal = shards.each > 0 && shards.each + shards.tail <= largest;
        let equal = (0..several.get()).filter(move |_| is_equal).map(move |turn| shards.of(turn));
        let uneven = span::tile(block.bytes, several.into(), unit).filter(move |_| !is_equal);
        equal.chain(uneven).map(move |part| Span { offset: block.offset + part.offset, ..part })
    })
}

/// The parts of a table: for each equal share of the servers one, as equal as whole shards allow.
pub fn cut_table(spec: &TableSpec, multiples: Multiples) -> impl Iterator<Item = Span> {
    let parts = multiples.shares.clamp(1, TableSpec::SHARDS.into());
    let [parts, shard] = [parts, spec.shard_bytes()].map(|number| NonZeroU64::new(number).expect("at least 1"));
    span::tile(shard.get() * u64::from(TableSpec::SHARDS), parts, shard)
}

/// The most aligned units of a part.
fn units_max(dtype: DType, config: &LayoutConfig) -> u64 {
    (config.partition_bytes.min(PART_BYTES_MAX) / align(dtype)).max(1)
}

/// A tensor that is about to be laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    /// Its element type.
    pub dtype: DType,
    /// What servers do with it.
    pub kind: TensorKind,
    /// The number of its participants: equal for tensors that have the same.
    pub circle: usize,
    /// Its length.
    pub bytes: u64,
}

/// Groups the positions of `items` that share a part, in order of first position. Tensors that are large or cut have no companions, and neither have
/// those whose codec encodes several elements together, or whose rule changes them together.
///
/// Small tensors join the open part of their dtype, kind and participants until it is full. A large tensor between two small ones does not separate
/// them. Otherwise, in a convolutional network, each pair of normalisation parameters would have a part of its own.
pub fn fuse(items: &[Item], config: &LayoutConfig) -> Vec<Vec<usize>> {
    // The blocks of a codec never hold elements of two tensors.
    let can_share =
        |item: &Item| item.kind.codec().is_elementwise() && item.kind.is_cut() && item.kind.table().is_none();
    let is_small = |item: &Item| item.bytes > 0 && item.bytes <= config.fuse_bytes && can_share(item);
    let together: u64 = items.iter().filter(|item| is_small(item)).map(|item| item.bytes).sum();
    // A part that several tensors share has room for a few of the largest.
    let bytes_min = config.fuse_bytes.max(4 * config.pipeline_bytes_min);
    let bytes_max = together.div_ceil(PIPELINE_PARTS).max(bytes_min).min(config.partition_bytes).min(PART_BYTES_MAX);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut open: BTreeMap<(DType, TensorKind, usize), (usize, u64)> = BTreeMap::new();
    for (position, item) in items.iter().enumerate() {
        let small = is_small(item) && item.bytes <= bytes_max;
        let alike = (item.dtype, item.kind, item.circle);
        match open.get_mut(&alike) {
            Some((group, filled)) if small && *filled + item.bytes <= bytes_max => {
                groups[*group].push(position);
                *filled += item.bytes;
            }
            Some(_) | None => {
                if small {
                    open.insert(alike, (groups.len(), item.bytes));
                }
                groups.push(vec![position]);
            }
        }
    }
    groups
}

fn align(dtype: DType) -> u64 {
    ALIGN_ELEMENTS * dtype.bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::{CodecSpec, Encoding};

    #[test]
    fn a_tensor_up_to_a_part_is_not_cut() {
        assert_eq!(part_count(0, DType::F32, servers(16), &large()), 0);
        assert_eq!(part_count(1, DType::U8, servers(16), &large()), 1);
        assert_eq!(part_count(4 << 20, DType::F32, servers(16), &large()), 1);
    }

    #[test]
    fn vgg16_fc6_is_even_over_16_servers() {
        let bytes = 25_088 * 4096 * 4;
        let parts: Vec<Span> = cut(bytes, DType::F32, servers(16), &large()).collect();
        assert_eq!(parts.len(), 112, "7 for each of 16 servers");
        assert!(parts.iter().all(|part| part.bytes.abs_diff(bytes / 112) <= 256));
    }

    #[test]
    fn parts_are_not_made_tiny_to_be_even() {
        let just_two_parts = (4 << 20) + 256;
        assert_eq!(part_count(just_two_parts, DType::F32, servers(8), &large()), 8, "512 KiB each");
        assert_eq!(part_count(just_two_parts, DType::F32, servers(9), &large()), 8, "one server goes without");
    }

    #[test]
    fn small_tensors_of_one_dtype_share_a_part_across_larger_ones() {
        let config =
            LayoutConfig { partition_bytes: 1000, fuse_bytes: 400, part_bytes_min: 0, pipeline_bytes_min: 1000 };
        let items =
            [f32(400), f32(9000), f32(300), item(DType::F16, 20), f32(300), f32(100), f32(0), item(DType::F16, 20)];
        assert_eq!(fuse(&items, &config), [vec![0, 2, 4], vec![1], vec![3, 7], vec![5], vec![6]]);
    }

    #[test]
    fn tensors_whose_codec_has_blocks_share_no_part() {
        let kind = TensorKind::Sum { codec: CodecSpec::of(Encoding::Int8) };
        let items = [f32(400), Item { kind, ..f32(400) }, Item { kind, ..f32(400) }, f32(400)];
        assert_eq!(fuse(&items, &large()), [vec![0, 3], vec![1], vec![2]]);
    }

    #[test]
    fn a_thousand_small_tensors_are_one_part() {
        assert_eq!(fuse(&[f32(4096); 1000], &large()).len(), 1);
    }

    #[test]
    fn the_parts_of_a_block_are_equal_and_what_does_not_divide_is_in_the_last() {
        let config = large();
        for turns in [2, 3, 4, 8] {
            for bytes in [turns * (512 << 10), 9_437_184, 8_192_000, 411_041_792, 100_000_004, 64 << 20] {
                let parts: Vec<Span> = cut(bytes, DType::F32, Multiples { shares: 3, turns }, &config).collect();
                if bytes < turns * config.part_bytes_min {
                    continue;
                }
                assert!(parts.len().is_multiple_of(turns as usize), "{} parts of {bytes} bytes", parts.len());
                for (index, block) in parts.chunks(turns as usize).enumerate() {
                    let (last, others) = block.split_last().unwrap();
                    assert!(others.iter().all(|part| part.bytes == others[0].bytes), "{turns} turns of {bytes} bytes");
                    let tail = last.bytes - others[0].bytes;
                    let is_last = (index + 1) * turns as usize == parts.len();
                    assert!(if is_last { tail < turns * 256 } else { tail == 0 }, "a tail of {tail} bytes");
                }
            }
        }
    }

    #[test]
    fn a_part_is_not_cut_for_a_block_of_tiny_parts() {
        let eight = Multiples { shares: 2, turns: 8 };
        assert_eq!(part_count(4 << 20, DType::F32, eight, &large()), 8, "512 KiB each");
        assert_eq!(part_count((4 << 20) - 256, DType::F32, eight, &large()), 1);
        assert_eq!(part_count(5 << 20, DType::F32, Multiples { shares: 3, turns: 8 }, &large()), 8);
        assert_eq!(part_count(64 << 20, DType::F32, Multiples { shares: 3, turns: 8 }, &large()), 24);
    }

    #[test]
    fn parts_of_a_pipeline_are_16_or_as_many_as_64_kib_allow() {
        let count = |bytes, multiples| part_count(bytes, DType::F32, multiples, &LayoutConfig::default());
        for (bytes, due) in [(1 << 10, 1), (64 << 10, 1), (127 << 10, 1), (128 << 10, 2), (1 << 20, 16), (4 << 20, 16)]
        {
            assert_eq!(count(bytes, servers(1)), due, "{bytes} bytes");
        }
        assert_eq!(count(4 << 20, servers(3)), 15, "a multiple of the servers");
        assert_eq!(count(4 << 20, servers(40)), 40, "one for each server");
        assert_eq!(count(1 << 20, servers(40)), 16, "of 64 KiB, for some servers");
        assert_eq!(count(1 << 30, servers(1)), 256, "4 MiB at most");
        assert_eq!(count(3 << 20, Multiples { shares: 2, turns: 4 }), 4, "ranks that take turns send 512 KiB each");
    }

    #[test]
    fn small_tensors_of_a_pipeline_share_several_parts() {
        let groups = fuse(&[f32(4096); 1000], &LayoutConfig::default());
        assert_eq!(groups.iter().map(Vec::len).max(), Some(64), "256 KiB");
        assert_eq!(fuse(&[f32(64 << 10); 1000], &LayoutConfig::default()).len(), 17, "3.9 MiB where they have 64");
    }

    proptest! {
        #[test]
        fn parts_tile_a_tensor_within_bounds(
            bits in 0..34u32,
            fraction in 0..1u64 << 34,
            dtype in prop::sample::select(DType::ALL.to_vec()),
            shares in 0..65u64,
            turns in 1..65u64,
            partition_bits in 10..27u32,
            part_bytes_min in 0..1u64 << 20,
            pipeline_bytes_min in 0..1u64 << 18,
        ) {
            let bytes = (fraction >> (34 - bits)) * dtype.bytes();
            // Some ten thousand parts are enough.
            let partition_bytes = (1 << partition_bits).max(bytes >> 14);
            let config = LayoutConfig { partition_bytes, fuse_bytes: 0, part_bytes_min, pipeline_bytes_min };
            let multiples = Multiples { shares, turns };
            let mut end = 0;
            let mut count = 0;
            for part in cut(bytes, dtype, multiples, &config) {
                prop_assert_eq!(part.offset, end);
                prop_assert_eq!(part.offset % align(dtype), 0);
                prop_assert!(part.bytes > 0 && part.bytes <= config.partition_bytes.min(PART_BYTES_MAX));
                end = part.end();
                count += 1;
            }
            prop_assert_eq!(end, bytes);
            prop_assert_eq!(count, part_count(bytes, dtype, multiples, &config));
        }

        #[test]
        fn fusion_keeps_every_tensor_and_overfills_no_part(sizes in prop::collection::vec(0..300u64, 0..200)) {
            let config = LayoutConfig { partition_bytes: 1000, fuse_bytes: 250, part_bytes_min: 0, pipeline_bytes_min: 1000 };
            let items: Vec<Item> = sizes.iter().map(|bytes| f32(*bytes)).collect();
            let groups = fuse(&items, &config);
            let mut positions: Vec<usize> = groups.concat();
            positions.sort_unstable();
            prop_assert_eq!(positions, (0..items.len()).collect::<Vec<_>>());
            for group in groups {
                prop_assert!(group.is_sorted());
                prop_assert!(group.iter().map(|position| items[*position].bytes).sum::<u64>() <= 1000);
            }
        }
    }

    fn large() -> LayoutConfig {
        LayoutConfig::default().with_large_parts()
    }

    fn servers(shares: u64) -> Multiples {
        Multiples { shares, turns: 1 }
    }

    fn f32(bytes: u64) -> Item {
        item(DType::F32, bytes)
    }

    fn item(dtype: DType, bytes: u64) -> Item {
        Item { dtype, kind: TensorKind::PLAIN_SUM, circle: 0, bytes }
    }
}
