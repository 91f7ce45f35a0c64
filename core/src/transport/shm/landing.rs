//! An answer as it arrives: checked, landed, reported. Pure, and owned by the worker's thread while it writes.

use std::collections::VecDeque;

use bytes::Bytes;

use super::layout::bad;
use crate::error::Result;
use crate::mem::{Landing, Region, Returned};
use crate::transport::Answer;
use crate::transport::exchange::{check_crc, check_sum};
use crate::wire::header::HEADER_BYTES;
use crate::wire::{self, HeaderReader, Reply, Request, reject};

/// An answer under way.
#[derive(Default)]
pub(super) struct Arriving {
    begun: bool,
    /// The header while some of it is missing: a set of contributors comes ahead of the body.
    reader: HeaderReader,
    header: Option<Reply>,
    /// What came and was not landed yet.
    chunks: VecDeque<Bytes>,
    /// Bytes that came behind the header.
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
    pub(super) fn begin(&mut self, head: &[u8; HEADER_BYTES], peer: &str) -> Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            return Err(bad(peer, "answer", "begins twice"));
        }
        self.reader.take(head);
        self.read_header(peer)
    }

    fn read_header(&mut self, peer: &str) -> Result<()> {
        if self.reader.missing() == 0 {
            self.header = Some(self.reader.finish(peer)?.into_reply(peer)?);
        }
        Ok(())
    }

    /// Whether the server has said that it needs no more of the contribution.
    pub(super) fn refuses_body(&self) -> bool {
        self.header.as_ref().is_some_and(|header| !header.is_early())
    }

    /// The next bytes.
    pub(super) fn take(&mut self, mut bytes: Bytes, peer: &str) -> Result<()> {
        if self.begun && self.header.is_none() {
            self.reader.take(&bytes.split_to(self.reader.missing().min(bytes.len())));
            self.read_header(peer)?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
        self.received += bytes.len() as u64;
        if self.received > self.announced() || self.ended.is_some() {
            return Err(bad(peer, "answer", "is longer than announced"));
        }
        self.chunks.push_back(bytes);
        Ok(())
    }

    /// Bytes behind the header.
    fn announced(&self) -> u64 {
        self.header.as_ref().map_or(0, Reply::body_bytes)
    }

    /// All bytes of the sum came.
    pub(super) fn end(&mut self, checksum: u32, peer: &str) -> Result<()> {
        if self.header.is_none() {
            return Err(bad(peer, "answer", "ends before it begins"));
        }
        let missing = self.announced() - self.received;
        if missing > 0 || self.ended.is_some() {
            return Err(bad(peer, "sum", format!("ends {missing} bytes early")));
        }
        self.ended = Some(checksum);
        Ok(())
    }

    /// Whether nothing more must come.
    pub(super) fn is_whole(&self) -> bool {
        match &self.header {
            Some(Reply::Reject(header)) => self.received == header.error_bytes,
            Some(Reply::Sum(_)) => self.ended.is_some(),
            None => false,
        }
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
    pub(super) fn advance(&mut self, push: &Request, peer: &str) -> Result<Step> {
        let whole = self.is_whole();
        let (Some(header), Some(landing)) = (&self.header, self.landing.as_mut()) else { return Ok(Step::Wait) };
        let sum = match header {
            Reply::Reject(_) if whole => {
                let body: Vec<u8> = self.chunks.drain(..).flat_map(Vec::from).collect();
                return Ok(Step::Done(Answer::Reject(reject::from_body(&body, peer)?)));
            }
            Reply::Reject(_) => return Ok(Step::Wait),
            Reply::Sum(sum) => sum,
        };
        if !std::mem::replace(&mut self.checked, true) {
            check_sum(sum, push, landing.bytes_left(), peer)?;
        }
        for chunk in self.chunks.drain(..) {
            self.landed += chunk.len() as u64;
            landing.write(&chunk);
            if sum.checksum {
                // Here the bytes are still in the cache.
                self.crc = wire::checksum(self.crc, &chunk);
            }
        }
        let Some(sent) = self.ended else { return Ok(Step::Wait) };
        check_crc(sum, sent, self.crc, peer)?;
        Ok(Step::Done(Answer::Sum(sum.clone())))
    }
}
