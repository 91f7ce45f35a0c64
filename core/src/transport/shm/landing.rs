//! An answer that arrives in pieces of a segment. Bytes that came and cannot be written to their destination yet stay in the segment. Pure.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::error::Result;
use crate::transport::Answer;
use crate::transport::exchange::{Arrival, bad};
use crate::wire::header::HEADER_BYTES;

/// An answer under way.
#[derive(Default)]
pub(super) struct Arriving {
    begun: bool,
    pub(super) arrival: Arrival,
    /// Bytes of a sum that came and were not copied to their destination yet.
    chunks: VecDeque<Bytes>,
    /// The checksum that came with the end of the sum.
    ended: Option<u32>,
}

impl Arriving {
    /// The answer begins.
    pub(super) fn begin(&mut self, head: &[u8; HEADER_BYTES], peer: &str) -> Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            return Err(bad(peer, "answer", "begins twice"));
        }
        self.arrival.take(head, peer)
    }

    /// The next bytes. A set of contributors comes ahead of a sum.
    pub(super) fn take(&mut self, mut bytes: Bytes, peer: &str) -> Result<()> {
        if !self.begun || self.ended.is_some() {
            return Err(bad(peer, "answer", "has more bytes than its header announced"));
        }
        while !bytes.is_empty() {
            if self.arrival.is_sum() {
                self.chunks.push_back(bytes);
                break;
            }
            let wanted = self.arrival.wants().clamp(1, bytes.len());
            self.arrival.take(&bytes.split_to(wanted), peer)?;
        }
        Ok(())
    }

    /// All bytes of the sum came.
    pub(super) fn end(&mut self, checksum: u32, peer: &str) -> Result<()> {
        if !self.arrival.is_sum() || self.ended.replace(checksum).is_some() {
            return Err(bad(peer, "answer", "has an end message that no sum is waiting for"));
        }
        Ok(())
    }

    /// Whether the whole answer is here.
    pub(super) fn is_whole(&self) -> bool {
        self.ended.is_some() || self.begun && !self.arrival.is_sum() && self.arrival.wants() == 0
    }

    /// Whether [`advance`](Self::advance) could do something, given a place.
    pub(super) fn has_news(&self) -> bool {
        !self.chunks.is_empty() || self.is_whole()
    }

    /// Copies the bytes that came to their destination. Returns the answer if that was all of it.
    ///
    /// # Errors
    /// As for [`Arrival::take`] and [`Arrival::finish`].
    pub(super) fn advance(&mut self, peer: &str) -> Result<Option<Answer>> {
        for chunk in self.chunks.drain(..) {
            self.arrival.take(&chunk, peer)?;
        }
        if self.is_whole() { self.arrival.finish(self.ended, peer).map(Some) } else { Ok(None) }
    }
}
