//! An answer as it arrives: checked, landed, reported. Pure, and owned by the worker's thread while it writes.

use std::collections::VecDeque;

use bytes::Bytes;

use super::layout::bad;
use crate::error::Result;
use crate::mem::{Landing, Region, Returned};
use crate::transport::Answer;
use crate::transport::exchange::{check_crc, check_sum};
use crate::wire::{self, Flags, Header, HeaderKind, limits, reject};

/// An answer under way.
#[derive(Default)]
pub(super) struct Arriving {
    header: Option<Header>,
    /// What came and was not landed yet.
    chunks: VecDeque<Bytes>,
    /// Bytes that came.
    received: u64,
    /// All bytes of the sum came, and have this checksum.
    ended: Option<u32>,
    landing: Option<Landing>,
    checked: bool,
    crc: u32,
    /// Bytes that were written where the sum lands.
    pub(super) landed: u64,
}

/// How far an answer is.
#[derive(Debug)]
pub(super) enum Step {
    /// More must come first, or a place where it goes.
    Wait,
    /// It is there.
    Done(Answer),
}

impl Arriving {
    /// The answer begins.
    pub(super) fn begin(&mut self, header: Header, peer: &str) -> Result<()> {
        if self.header.is_some() {
            return Err(bad(peer, "answer", "begins twice"));
        }
        if header.kind.opens() {
            return Err(bad(peer, "kind", format!("is {:?} where a sum or a reject was due", header.kind)));
        }
        if header.kind == HeaderKind::Reject && header.bytes > limits::REJECT_BYTES_MAX {
            return Err(bad(peer, "reject", format!("has {} bytes", header.bytes)));
        }
        self.header = Some(header);
        Ok(())
    }

    /// The next bytes.
    pub(super) fn take(&mut self, bytes: Bytes, peer: &str) -> Result<()> {
        let announced = self.header.map_or(0, |header| header.body_bytes());
        self.received += bytes.len() as u64;
        if self.received > announced || self.ended.is_some() {
            return Err(bad(peer, "answer", "is longer than announced"));
        }
        self.chunks.push_back(bytes);
        Ok(())
    }

    /// All bytes of the sum came.
    pub(super) fn end(&mut self, checksum: u32, peer: &str) -> Result<()> {
        let Some(header) = self.header else { return Err(bad(peer, "answer", "ends before it begins")) };
        let missing = header.body_bytes() - self.received;
        if missing > 0 || self.ended.is_some() {
            return Err(bad(peer, "sum", format!("ends {missing} bytes early")));
        }
        self.ended = Some(checksum);
        Ok(())
    }

    /// Whether nothing more must come.
    pub(super) fn is_whole(&self) -> bool {
        self.header.is_some_and(|header| match header.kind {
            HeaderKind::Reject => self.received == header.bytes,
            HeaderKind::Sum | HeaderKind::Push | HeaderKind::GiveUp => self.ended.is_some(),
        })
    }

    /// Whether [`advance`](Self::advance) could do something, given a place.
    pub(super) fn has_news(&self) -> bool {
        !self.chunks.is_empty() || self.is_whole()
    }

    /// Whether it has to be told where the sum goes.
    pub(super) fn wants_place(&self) -> bool {
        self.landing.is_none() && self.header.is_some()
    }

    /// Where the sum goes.
    pub(super) fn place(&mut self, into: Vec<Region>, returned: Returned) {
        self.landing = Some(Landing::new(into, returned));
    }

    /// Lands what came.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if it does not answer `push`, [`Error::Checksum`](crate::Error::Checksum) if its
    /// bytes are not those that were sent.
    pub(super) fn advance(&mut self, push: &Header, peer: &str) -> Result<Step> {
        let (Some(header), Some(landing)) = (self.header, self.landing.as_mut()) else { return Ok(Step::Wait) };
        if header.kind == HeaderKind::Reject {
            if !self.is_whole() {
                return Ok(Step::Wait);
            }
            let body: Vec<u8> = self.chunks.drain(..).flat_map(Vec::from).collect();
            return Ok(Step::Done(Answer::Reject(reject::from_body(&body, peer)?)));
        }
        if !std::mem::replace(&mut self.checked, true) {
            check_sum(&header, push, landing.bytes_left(), peer)?;
        }
        let checked = header.flags.contains(Flags::CHECKSUM);
        for chunk in self.chunks.drain(..) {
            self.landed += chunk.len() as u64;
            landing.write(&chunk);
            if checked {
                // Here the bytes are still in the cache.
                self.crc = wire::checksum(self.crc, &chunk);
            }
        }
        let Some(sent) = self.ended else { return Ok(Step::Wait) };
        check_crc(&header, sent, self.crc, peer)?;
        Ok(Step::Done(Answer::Sum(header)))
    }
}
