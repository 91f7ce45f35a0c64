//! One exchange of a server, as a field of its link.
//!
//! ```text
//!  body    header read ──► Offered ──Accept──► Wanted, chunk after chunk ──► Whole
//!                             └──Answer, Reject──► Refused ◄──┘ (an early answer leaves the body as it is)
//!  answer  nothing ──Answer──► sum, block after block ──End──► complete ──► written ──► has reached the peer
//!          nothing ──Reject──► error ──────────────────────────────┘
//! ```
//! Both run at once: a sum may begin while the body is still on its way.

use bytes::Bytes;
use quinn_proto::{Connection, ReadError, StreamId, WriteError};

use super::super::closing::{STREAM_ANSWERED, STREAM_GIVEN_UP, early_end, gave_up};
use crate::error::{Error, Result};
use crate::mem::Frozen;
use crate::transport::exchange::{broken_off, reject_of};
use crate::types::ExchangeId;
use crate::wire::{HeaderReader, Request, Sum, Target};

/// An exchange under way.
pub(super) struct Served {
    pub(super) id: ExchangeId,
    stream: StreamId,
    /// Which of two streams of a link goes first; given with the answer.
    pub(super) precedence: i32,
    /// Of the request; the answer goes by it.
    pub(super) urgency: u8,
    body: Body,
    answer: Answer,
    /// What quinn-proto has not taken yet.
    unsent: Vec<Bytes>,
}

enum Body {
    /// Its header is being read.
    Header(HeaderReader),
    /// Nobody has said whether it is wanted.
    Offered { bytes: u64 },
    /// It is passed on as it comes.
    Wanted { bytes: u64, got: u64 },
    /// It was passed on, or there is none; only the end of the stream is left to see.
    Whole,
    /// Nobody wants the rest.
    Refused,
}

enum Answer {
    /// Not begun.
    Open,
    /// Begun, with so many bytes after the last block.
    Sum { trailer_bytes: usize },
    /// All of it is in `unsent`, or written.
    Complete,
    /// Written with its end.
    Finished,
}

/// What reading found.
pub(super) enum Found {
    /// Nothing to tell.
    Nothing,
    /// The exchange begins.
    Opened(Request),
    /// The next bytes of the body.
    Body(Vec<Bytes>),
    /// The peer gave it up.
    Torn(Error),
    /// The peer broke the protocol, which costs it the link.
    Broken(Error),
}

impl Served {
    pub(super) fn new(id: ExchangeId, stream: StreamId) -> Self {
        let body = Body::Header(HeaderReader::default());
        Self { id, stream, precedence: 0, urgency: 0, body, answer: Answer::Open, unsent: Vec::new() }
    }

    /// Whether anybody has heard of it.
    pub(super) fn was_opened(&self) -> bool {
        !matches!(self.body, Body::Header(_))
    }

    /// Whether there is something to write.
    pub(super) fn is_writing(&self) -> bool {
        !self.unsent.is_empty() || matches!(self.answer, Answer::Complete)
    }

    /// Whether its answer was begun, and so has a place among the others.
    pub(super) fn is_answering(&self) -> bool {
        !matches!(self.answer, Answer::Open)
    }

    /// Reads what has come, as far as it is wanted. Call it again until it finds nothing.
    pub(super) fn read(&mut self, connection: &mut Connection, peer: &str) -> Found {
        if matches!(self.body, Body::Offered { .. } | Body::Refused) {
            return Found::Nothing;
        }
        let mut receiver = connection.recv_stream(self.stream);
        // Closed once its end was seen.
        let Ok(mut chunks) = receiver.read(true) else { return Found::Nothing };
        let found = match &mut self.body {
            Body::Header(reader) => loop {
                if reader.missing() == 0 {
                    break match reader.finish(peer).and_then(|header| header.into_request(peer)) {
                        Ok(header) => {
                            self.urgency = header.urgency();
                            self.body = match header.body_bytes() {
                                0 => Body::Whole,
                                bytes => Body::Offered { bytes },
                            };
                            Found::Opened(header)
                        }
                        Err(error) => Found::Broken(error),
                    };
                }
                match chunks.next(reader.missing()) {
                    Ok(Some(chunk)) => reader.take(&chunk.bytes),
                    Ok(None) => break Found::Broken(reader.finish(peer).expect_err("bytes are missing")),
                    Err(ReadError::Blocked) => break Found::Nothing,
                    Err(ReadError::Reset(_)) => break Found::Torn(gave_up(peer)),
                }
            },
            Body::Wanted { bytes, got } => {
                let mut pieces = Vec::new();
                let end = loop {
                    match chunks.next(usize::MAX) {
                        Ok(Some(chunk)) if chunk.bytes.len() as u64 <= *bytes - *got => {
                            *got += chunk.bytes.len() as u64;
                            pieces.push(chunk.bytes);
                        }
                        Ok(Some(_)) => break Some(Found::Broken(early_end("body", "is longer than announced", peer))),
                        Ok(None) if got == bytes => break None,
                        Ok(None) => {
                            let problem = format!("ends after {got} of {bytes} bytes");
                            break Some(Found::Broken(early_end("body", &problem, peer)));
                        }
                        Err(ReadError::Blocked) => break None,
                        // Once it is whole, a reset says only that the peer does not wait for acknowledgements.
                        Err(ReadError::Reset(_)) if got == bytes => break None,
                        Err(ReadError::Reset(_)) => break Some(Found::Torn(gave_up(peer))),
                    }
                };
                if got == bytes {
                    self.body = Body::Whole;
                }
                end.unwrap_or(if pieces.is_empty() { Found::Nothing } else { Found::Body(pieces) })
            }
            Body::Whole => match chunks.next(usize::MAX) {
                Ok(Some(_)) => Found::Broken(early_end("body", "is longer than announced", peer)),
                Ok(None) | Err(ReadError::Blocked | ReadError::Reset(_)) => Found::Nothing,
            },
            Body::Offered { .. } | Body::Refused => unreachable!("returned above"),
        };
        let _ = chunks.finalize();
        found
    }

    /// The body is wanted.
    pub(super) fn accept(&mut self) {
        if let Body::Offered { bytes } = self.body {
            self.body = Body::Wanted { bytes, got: 0 };
        }
    }

    /// The sum is to be sent. What is left of the body is refused, unless the answer is early.
    ///
    /// # Errors
    /// [`Error::Internal`] if it was answered before.
    pub(super) fn answer(&mut self, connection: &mut Connection, header: &Sum, precedence: i32) -> Result<()> {
        if !matches!(self.answer, Answer::Open) {
            return Err(out_of_turn());
        }
        if !header.early {
            self.refuse(connection);
        }
        self.begin(connection, header.encode(), precedence);
        self.answer = Answer::Sum { trailer_bytes: header.trailer_bytes() };
        Ok(())
    }

    /// The next bytes of the sum.
    ///
    /// # Errors
    /// [`Error::Internal`] if no sum was begun.
    pub(super) fn block(&mut self, block: Frozen) -> Result<()> {
        if !matches!(self.answer, Answer::Sum { .. }) {
            return Err(out_of_turn());
        }
        self.unsent.push(Bytes::from_owner(block));
        Ok(())
    }

    /// All blocks were given.
    ///
    /// # Errors
    /// [`Error::Internal`] if no sum was begun.
    pub(super) fn last(&mut self, checksum: u32) -> Result<()> {
        let Answer::Sum { trailer_bytes } = self.answer else { return Err(out_of_turn()) };
        self.unsent.push(Bytes::from(checksum.to_le_bytes()[..trailer_bytes].to_owned()));
        self.answer = Answer::Complete;
        Ok(())
    }

    /// An error is to be sent. What is left of the body is refused.
    ///
    /// # Errors
    /// [`broken_off`] if the sum was begun, [`Error::Internal`] if it was answered before.
    pub(super) fn reject(
        &mut self,
        connection: &mut Connection,
        target: Target,
        error: &Error,
        precedence: i32,
    ) -> Result<()> {
        match self.answer {
            Answer::Open => {}
            Answer::Sum { .. } => return Err(broken_off()),
            Answer::Complete | Answer::Finished => return Err(out_of_turn()),
        }
        self.refuse(connection);
        let (header, body) = reject_of(target, error);
        self.begin(connection, Vec::from(header.encode()), precedence);
        self.unsent.push(Bytes::from(body));
        self.answer = Answer::Complete;
        Ok(())
    }

    fn begin(&mut self, connection: &mut Connection, header: Vec<u8>, precedence: i32) {
        self.precedence = precedence;
        // Fails only for a stream that was stopped, which is told by its event.
        let _ = connection.send_stream(self.stream).set_priority(precedence);
        self.unsent.push(Bytes::from(header));
    }

    fn refuse(&mut self, connection: &mut Connection) {
        if !matches!(self.body, Body::Whole) {
            let _ = connection.recv_stream(self.stream).stop(STREAM_ANSWERED);
            self.body = Body::Refused;
        }
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
                // Told by its event.
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => taken = self.unsent.len(),
            }
        }
        self.unsent.drain(..taken);
        if self.unsent.is_empty() && matches!(self.answer, Answer::Complete) {
            self.answer = Answer::Finished;
            let _ = sender.finish();
        }
        bytes
    }

    /// It is over: what its streams still hold is dropped.
    pub(super) fn end(&self, connection: &mut Connection) {
        let _ = connection.send_stream(self.stream).reset(STREAM_GIVEN_UP);
        let _ = connection.recv_stream(self.stream).stop(STREAM_GIVEN_UP);
    }
}

fn out_of_turn() -> Error {
    Error::Internal { what: "an answer was begun twice or not at all".to_owned() }
}
