//! Stand-in for `gradlane_core::pipeline` until it is there: one part a tensor, fused ones in one part.

use gradlane_core::types::{DType, PartId, PartLayout, Piece, ServerId, Span, TensorKey, TensorSpec};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutConfig {
    pub partition_bytes: u64,
}

impl Default for LayoutConfig {
    fn default() -> Self {
        Self { partition_bytes: 4 << 20 }
    }
}

#[derive(Debug)]
pub(super) struct Layouter {
    servers: u32,
    layouts: Vec<PartLayout>,
}

impl Layouter {
    pub(super) fn new(_config: LayoutConfig, weights: &[f64]) -> Self {
        Self { servers: weights.len() as u32, layouts: Vec::new() }
    }

    pub(super) fn declare(&mut self, specs: &[TensorSpec], fuse: bool) -> Vec<PartLayout> {
        let groups: Vec<&[TensorSpec]> =
            if fuse && !specs.is_empty() { vec![specs] } else { specs.chunks(1).collect() };
        for group in groups {
            let piece = |spec: &TensorSpec| Piece {
                tensor: spec.key(),
                span: Span { offset: 0, bytes: spec.bytes().unwrap_or(0) },
            };
            self.layouts.push(PartLayout {
                part: PartId { key: group[0].key(), index: 0 },
                dtype: group[0].dtype,
                server: ServerId(self.layouts.len() as u32 % self.servers.max(1)),
                pieces: group.iter().map(piece).collect(),
            });
        }
        specs.iter().flat_map(|spec| self.parts_of(spec.key())).collect()
    }

    pub(super) fn parts_of(&self, key: TensorKey) -> Vec<PartLayout> {
        self.layouts.iter().filter(|layout| layout.pieces.iter().any(|piece| piece.tensor == key)).cloned().collect()
    }
}

pub(super) fn part_count(bytes: u64, _dtype: DType, _servers: u64, config: &LayoutConfig) -> u64 {
    bytes.div_ceil(config.partition_bytes)
}
