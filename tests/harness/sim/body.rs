//! The body of an exchange on its way: read where the worker lent it, until the worker has its memory back.

use bytes::Bytes;
use gradlane_core::types::Span;

use super::worker::Buffer;
use crate::random::Random;

/// A body, perhaps not as it was sent.
#[derive(Debug)]
pub(super) struct Body {
    pieces: Vec<Bytes>,
    /// The memory in which the pieces lie, as long as the worker lends it.
    memory: Vec<Buffer>,
    bytes: u64,
    /// Which bit of which byte changes on its way.
    damage: Option<(u64, u32)>,
}

impl Body {
    /// A body in memory of a worker, or of nobody.
    pub(super) fn new(pieces: Vec<Bytes>, memory: Vec<Buffer>) -> Self {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { pieces, memory, bytes, damage: None }
    }

    /// How many bytes it has.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One bit changes on its way.
    pub(super) fn damage(&mut self, random: &mut Random) {
        if self.bytes > 0 {
            self.damage = Some((random.below(self.bytes), random.below(8) as u32));
        }
    }

    /// It has a byte too many, or one too few.
    pub(super) fn misfit(&mut self, random: &mut Random) {
        if random.chance(50) {
            self.pieces.push(Bytes::from_static(&[0]));
            self.bytes += 1;
        } else if let Some(last) = self.pieces.last_mut() {
            last.truncate(last.len() - 1);
            self.bytes -= 1;
            self.damage = self.damage.filter(|(at, _)| *at < self.bytes);
        }
    }

    /// Some of it, as it arrives.
    pub(super) fn copy(&self, span: Span) -> Vec<u8> {
        let mut copy = Vec::with_capacity(span.bytes as usize);
        let mut at = 0;
        for piece in &self.pieces {
            let [from, until] = [span.offset, span.end()].map(|end| end.clamp(at, at + piece.len() as u64) - at);
            copy.extend_from_slice(&piece[from as usize..until as usize]);
            at += piece.len() as u64;
        }
        if let Some((at, bit)) = self.damage.filter(|(at, _)| (span.offset..span.end()).contains(at)) {
            copy[(at - span.offset) as usize] ^= 1 << bit;
        }
        copy
    }

    /// All of it, as it arrives.
    pub(super) fn whole(&self) -> Vec<u8> {
        self.copy(Span { offset: 0, bytes: self.bytes })
    }

    /// The worker has its memory back. What is on its way is in packets.
    pub(super) fn release(&mut self) {
        if !self.pieces.is_empty() {
            let damage = self.damage.take();
            self.pieces = vec![self.whole().into()];
            self.damage = damage;
        }
        self.memory.clear();
    }

    /// Whether it lies in memory that was given back.
    pub(super) fn is_kept_for_too_long(&self) -> bool {
        self.memory.iter().any(|memory| !memory.is_lent())
    }
}
