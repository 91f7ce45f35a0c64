//! One exchange of a server over its stream: the bytes that were read, and those that are still to be written. [`ServerExchange`] checks the
//! order of the steps.

use bytes::Bytes;
use quinn_proto::{Chunks, Connection, ReadError, StreamId, WriteError};

use super::super::closing::{STREAM_ANSWERED, STREAM_GIVEN_UP, gave_up};
use crate::error::{Error, Result};
use crate::transport::exchange::ServerExchange;
use crate::types::ExchangeId;
use crate::wire::{HeaderReader, Reply, Request};

/// An exchange under way.
pub(super) struct Served {
    pub(super) id: ExchangeId,
    stream: StreamId,
    /// The rank of the stream among those of its link. Set when the answer begins.
    pub(super) precedence: i32,
    /// The urgency of the request, which the answer has too.
    pub(super) urgency: u8,
    /// Bytes of the part; none until the header was read.
    pub(super) part_bytes: u64,
    header: HeaderReader,
    /// Absent until the header was read.
    state: Option<ServerExchange>,
    /// Bytes that quinn-proto has not taken yet.
    unsent: Vec<Bytes>,
    /// The end of the answer was written.
    is_finished: bool,
}

/// The result of [`Served::read`].
#[expect(
    clippy::large_enum_variant,
    reason = "a header has a rule and a key in place; in a box, each exchange would cost an allocation"
)]
pub(super) enum Found {
    /// Nothing new.
    Nothing,
    /// The exchange begins.
    Opened(Request),
    /// The next bytes of the body.
    Body(Vec<Bytes>),
    /// The peer gave the exchange up.
    Torn(Error),
    /// The peer broke the protocol, so its link is closed.
    Broken(Error),
}

impl Served {
    pub(super) fn new(id: ExchangeId, stream: StreamId) -> Self {
        Self {
            id,
            stream,
            precedence: 0,
            urgency: 0,
            part_bytes: 0,
            header: HeaderReader::default(),
            state: None,
            unsent: Vec::new(),
            is_finished: false,
        }
    }

    /// Whether the server was told of the exchange.
    pub(super) fn was_opened(&self) -> bool {
        self.state.is_some()
    }

    /// Whether there is something to write.
    pub(super) fn is_writing(&self) -> bool {
        !self.unsent.is_empty() || self.is_ending()
    }

    /// Whether the end of the answer follows the bytes that are written now.
    fn is_ending(&self) -> bool {
        !self.is_finished && self.state.as_ref().is_some_and(ServerExchange::is_complete)
    }

    /// Whether its answer was begun, and so has a place among the others.
    pub(super) fn is_answering(&self) -> bool {
        self.state.as_ref().is_some_and(ServerExchange::is_answering)
    }

    /// Reads the bytes that came, as far as the server wants them. Call it again until it finds nothing.
    pub(super) fn read(&mut self, connection: &mut Connection, peer: &str) -> Found {
        if self.state.as_ref().is_some_and(|state| !state.wants_body()) {
            return Found::Nothing;
        }
        let mut receiver = connection.recv_stream(self.stream);
        // The stream is closed once its end was read.
        let Ok(mut chunks) = receiver.read(true) else { return Found::Nothing };
        let found = match &mut self.state {
            None => self.read_header(&mut chunks, peer),
            Some(state) => read_body(state, &mut chunks, peer),
        };
        let _ = chunks.finalize();
        found
    }

    fn read_header(&mut self, chunks: &mut Chunks<'_>, peer: &str) -> Found {
        while self.header.missing() > 0 {
            match chunks.next(self.header.missing()) {
                Ok(Some(chunk)) => self.header.take(&chunk.bytes),
                Ok(None) => break,
                Err(ReadError::Blocked) => return Found::Nothing,
                Err(ReadError::Reset(_)) => return Found::Torn(gave_up(peer)),
            }
        }
        match self.header.finish(peer).and_then(|header| header.into_request(peer)) {
            Ok(header) => {
                (self.urgency, self.part_bytes) = (header.urgency(), header.part_bytes());
                self.state = Some(ServerExchange::new(&header));
                Found::Opened(header)
            }
            Err(error) => Found::Broken(error),
        }
    }

    fn state(&mut self) -> &mut ServerExchange {
        self.state.as_mut().expect("only what was opened gets commands")
    }

    /// The body is wanted.
    pub(super) fn accept(&mut self) {
        self.state().accept();
    }

    /// An answer begins. The rest of the body is refused, unless the answer is early.
    ///
    /// # Errors
    /// As for [`ServerExchange::answer`].
    pub(super) fn answer(&mut self, connection: &mut Connection, reply: &Reply, precedence: i32) -> Result<()> {
        let state = self.state();
        state.answer(reply)?;
        if state.refuses_body() && state.body_left() > 0 {
            let _ = connection.recv_stream(self.stream).stop(STREAM_ANSWERED);
        }
        self.precedence = precedence;
        // Fails only for a stream that the peer stopped, for which there is an event.
        let _ = connection.send_stream(self.stream).set_priority(precedence);
        self.unsent.push(Bytes::from(reply.encode()));
        Ok(())
    }

    /// The next bytes of the answer.
    ///
    /// # Errors
    /// As for [`ServerExchange::block`].
    pub(super) fn block(&mut self, block: Bytes) -> Result<()> {
        self.state().block(block.len())?;
        self.unsent.push(block);
        Ok(())
    }

    /// All blocks were given.
    ///
    /// # Errors
    /// As for [`ServerExchange::end`].
    pub(super) fn last(&mut self, checksum: u32) -> Result<()> {
        let trailer_bytes = self.state().end()?;
        self.unsent.push(Bytes::from(checksum.to_le_bytes()[..trailer_bytes].to_owned()));
        Ok(())
    }

    /// Writes as much as the connection takes, and returns how many bytes that were.
    pub(super) fn write(&mut self, connection: &mut Connection) -> usize {
        let mut sender = connection.send_stream(self.stream);
        let (mut taken, mut bytes) = (0, 0);
        while taken < self.unsent.len() {
            match sender.write_chunks(&mut self.unsent[taken..]) {
                Ok(written) => {
                    bytes += written.bytes;
                    taken += written.chunks;
                }
                Err(WriteError::Blocked) => break,
                // There is an event for it.
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => taken = self.unsent.len(),
            }
        }
        self.unsent.drain(..taken);
        if self.unsent.is_empty() && self.is_ending() {
            self.is_finished = true;
            let _ = sender.finish();
        }
        bytes
    }

    /// The exchange is over. Drops the bytes that its streams still hold.
    pub(super) fn end(&self, connection: &mut Connection) {
        let _ = connection.send_stream(self.stream).reset(STREAM_GIVEN_UP);
        let _ = connection.recv_stream(self.stream).stop(STREAM_GIVEN_UP);
    }
}

fn read_body(state: &mut ServerExchange, chunks: &mut Chunks<'_>, peer: &str) -> Found {
    let mut pieces = Vec::new();
    loop {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => match state.received(chunk.bytes.len(), peer) {
                Ok(()) => pieces.push(chunk.bytes),
                Err(error) => return Found::Broken(error),
            },
            Ok(None) => match state.body_ended(peer) {
                Ok(()) => break,
                Err(error) => return Found::Broken(error),
            },
            Err(ReadError::Blocked) => break,
            // After the whole body, a reset says only that the peer does not wait for acknowledgements.
            Err(ReadError::Reset(_)) if state.body_left() == 0 => break,
            Err(ReadError::Reset(_)) => return Found::Torn(gave_up(peer)),
        }
    }
    if pieces.is_empty() { Found::Nothing } else { Found::Body(pieces) }
}
