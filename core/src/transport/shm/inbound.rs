//! The receiving half of a link: reads the peer's messages in order and checks each.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::layout::Message;
use super::memory::Memory;
use crate::error::Result;
use crate::local::Shown;
use crate::mem::Place;
use crate::transport::exchange::bad;
use crate::wire::header::HEADER_BYTES;

/// The receiving half of a link.
pub(super) struct Inbound {
    memory: Arc<Memory>,
    /// The other side, for messages.
    peer: Arc<str>,
    read: u64,
    /// The segments that the peer has shown, beside that of the link.
    shown: BTreeMap<u32, Arc<Shown>>,
}

/// A message of the peer. Bytes are there themselves in place of the number of their slot.
#[derive(Debug)]
pub(super) enum Received {
    /// See [`Message::Open`].
    Open(u64, [u8; HEADER_BYTES]),
    /// See [`Message::Answer`].
    Answer(u64, [u8; HEADER_BYTES]),
    /// The next bytes of an exchange, where they lie. Dropping them makes room for the peer.
    Data(u64, Bytes),
    /// See [`Message::Accept`].
    Accept(u64),
    /// See [`Message::Abandon`].
    Abandon(u64),
    /// See [`Message::End`].
    End(u64, u32),
    /// See [`Message::Break`].
    Break(u64),
}

impl Received {
    /// The exchange that the message is about.
    pub(super) fn exchange(&self) -> u64 {
        match self {
            Self::Open(exchange, _)
            | Self::Answer(exchange, _)
            | Self::Data(exchange, _)
            | Self::Accept(exchange)
            | Self::Abandon(exchange)
            | Self::End(exchange, _)
            | Self::Break(exchange) => *exchange,
        }
    }
}

impl Inbound {
    pub(super) fn new(memory: Arc<Memory>, peer: Arc<str>) -> Self {
        Self { memory, peer, read: 0, shown: BTreeMap::new() }
    }

    /// The peer shows another segment.
    pub(super) fn show(&mut self, segment: u32, shown: Shown) -> Result<()> {
        if self.shown.len() >= SHOWN_MAX {
            return Err(bad(&self.peer, "segment", format!("is one more than the {SHOWN_MAX} that a peer may show")));
        }
        match self.shown.insert(segment, Arc::new(shown)) {
            None => Ok(()),
            Some(_) => Err(bad(&self.peer, "segment", format!("{segment} was shown before"))),
        }
    }

    /// The next message, if there is one. Calls `listen` if the message names an unknown segment, which the socket may announce. Call
    /// [`Memory::wake_writer`] after the last message, because the peer may wait for room in its ring.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol). The link cannot be used afterwards.
    pub(super) fn next(&mut self, listen: impl FnOnce(&mut Self) -> Result<()>) -> Result<Option<Received>> {
        let Some(words) = self.memory.read(self.read, &self.peer)? else { return Ok(None) };
        self.read += 1;
        Ok(Some(match Message::decode(&words, &self.peer)? {
            Message::Open { exchange, header } => Received::Open(exchange, header),
            Message::Answer { exchange, header } => Received::Answer(exchange, header),
            Message::Data { exchange, cell, bytes } => match self.memory.hold(cell, bytes) {
                Some(bytes) => Received::Data(exchange, bytes),
                None => return Err(bad(&self.peer, "cell", format!("{cell} is used again before it was released"))),
            },
            Message::Lent { exchange, ticket, place: Place { segment, offset }, bytes } => {
                if !self.shown.contains_key(&segment) {
                    listen(self)?;
                }
                let shown = self.shown.get(&segment);
                let shown = shown.ok_or_else(|| bad(&self.peer, "segment", format!("{segment} was not shown")))?;
                let bytes = bytes as usize;
                let offset = usize::try_from(offset)
                    .ok()
                    .filter(|offset| offset.checked_add(bytes).is_some_and(|end| end <= shown.bytes()));
                let offset = offset.ok_or_else(|| bad(&self.peer, "place", "lies outside of its segment"))?;
                match self.memory.borrow(ticket, Arc::clone(shown), offset, bytes) {
                    Some(bytes) => Received::Data(exchange, bytes),
                    None => return Err(bad(&self.peer, "ticket", format!("{ticket} is used before it was released"))),
                }
            }
            Message::Accept { exchange } => Received::Accept(exchange),
            Message::Abandon { exchange } => Received::Abandon(exchange),
            Message::End { exchange, checksum } => Received::End(exchange, checksum),
            Message::Break { exchange } => Received::Break(exchange),
        }))
    }
}

/// Segments that a peer may show beside that of the link. Enough for any amount of memory, because a process makes each segment larger than
/// the one before.
const SHOWN_MAX: usize = 4096;
