//! One exchange of a worker, as a field of its link: what is still to be written, what was read, and who waits.
//!
//! ```text
//!  waits for a stream ──► writes ──► written: the push is done ──► pulled ──► header read ──► the loan is back ──► lands ──► end
//!        └────────────────┴──────────────┴──── given up, link lost: streams reset, then the loan comes back, then the report ────┘
//! ```
//! However it ends, it reports only when nothing refers to its memory any more: that is when the loan has returned.

use bytes::Bytes;
use quinn_proto::{Chunks, Connection, ReadError, StreamId, WriteError};

use super::super::calls::Pull;
use super::super::closing::{STREAM_GIVEN_UP, early_end, gave_up};
use crate::error::{Error, Result};
use crate::mem::{Landing, Region, Returned};
use crate::transport::exchange::{check_crc, check_sum};
use crate::transport::{Answer, Torn};
use crate::types::{Done, LinkId};
use crate::wire::{self, HeaderReader, Reply, Request, Sum, checksum, reject};

/// An exchange under way.
pub(super) struct Exchange {
    pub(super) link: LinkId,
    /// Absent until the server allows one more.
    pub(super) stream: Option<StreamId>,
    /// Which of two streams of a link goes first; higher is sooner.
    pub(super) precedence: i32,
    push: Request,
    /// What quinn-proto has not taken yet: the header, then the body.
    unsent: Vec<Bytes>,
    /// How many of `unsent` are gone.
    taken: usize,
    /// Present until the push has reported.
    done: Option<Done<()>>,
    loan: Loaned,
    pull: Option<Pull>,
    reading: Reading,
    /// How it ended. It is reported when the loan is back.
    end: Option<Result<Answer>>,
}

enum Loaned {
    /// Pieces of the contribution are somewhere.
    Out,
    /// Nothing refers to it.
    Back(Returned),
    /// The landing has the proof.
    Spent,
}

enum Reading {
    Header(HeaderReader),
    Reject {
        body: Vec<u8>,
        bytes: usize,
    },
    /// The header was read; the sum lands when the loan is back.
    Announced {
        header: Sum,
        is_released: bool,
    },
    Landing {
        header: Sum,
        landing: Landing,
        landed: u64,
        crc: u32,
        trailer: Vec<u8>,
    },
}

/// What became of reading and writing.
pub(super) enum Step {
    /// It goes on later.
    Waits,
    /// It has ended; see [`Exchange::report`].
    Ended,
    /// The server broke the protocol, which costs it the link.
    Broken(Error),
}

impl Exchange {
    pub(super) fn new(link: LinkId, precedence: i32, push: Request, body: Vec<Bytes>, done: Done<()>) -> Self {
        let mut unsent = body;
        unsent.insert(0, Bytes::from(Vec::from(push.encode())));
        Self {
            link,
            stream: None,
            precedence,
            push,
            unsent,
            taken: 0,
            done: Some(done),
            loan: Loaned::Out,
            pull: None,
            reading: Reading::Header(HeaderReader::default()),
            end: None,
        }
    }

    /// Whether there is more to write.
    pub(super) fn is_writing(&self) -> bool {
        self.done.is_some() && self.end.is_none()
    }

    /// Whether a pull can still be made.
    pub(super) fn is_unpulled(&self) -> bool {
        self.pull.is_none()
    }

    /// Somebody waits for the sum.
    pub(super) fn pulled(&mut self, pull: Pull) {
        self.pull = Some(pull);
    }

    /// The last piece of the contribution was dropped.
    pub(super) fn returned(&mut self, proof: Returned) {
        self.loan = Loaned::Back(proof);
    }

    /// Bytes of the part.
    pub(super) fn bytes(&self) -> u64 {
        self.push.part_bytes()
    }

    /// Writes as much as the connection takes, and returns how many bytes that were.
    pub(super) fn write(&mut self, connection: &mut Connection) -> usize {
        let mut bytes = 0;
        let Some(stream) = self.stream.filter(|_| self.is_writing()) else { return bytes };
        let mut sender = connection.send_stream(stream);
        while self.taken < self.unsent.len() {
            match sender.write_chunks(&mut self.unsent[self.taken..]) {
                Ok(written) => {
                    bytes += written.bytes;
                    self.taken += written.chunks;
                }
                Err(WriteError::Blocked) => return bytes,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                    self.refused(connection);
                    return bytes;
                }
            }
        }
        // Fails only for a stream that was stopped, which is as good.
        let _ = sender.finish();
        self.sent();
        bytes
    }

    /// The server needs no more of the body: it has its answer ready, or resets the stream, which reading shows.
    pub(super) fn refused(&mut self, connection: &mut Connection) {
        if let Some(stream) = self.stream {
            // Drops what would only be kept for a retransmission.
            let _ = connection.send_stream(stream).reset(STREAM_GIVEN_UP);
        }
        self.sent();
    }

    fn sent(&mut self) {
        self.unsent = Vec::new();
        self.taken = 0;
        if let Some(done) = self.done.take() {
            done.ok(());
        }
    }

    /// Reads what has come, if it is wanted already.
    pub(super) fn read(&mut self, connection: &mut Connection, peer: &str) -> Step {
        let (Some(stream), None) = (self.stream, &self.end) else { return Step::Waits };
        if self.pull.is_none() {
            return Step::Waits;
        }
        let outcome = {
            let mut receiver = connection.recv_stream(stream);
            // Closed is a stream whose connection was lost, which is told elsewhere.
            let Ok(mut chunks) = receiver.read(true) else { return Step::Waits };
            let outcome = self.take_in(&mut chunks, peer);
            let _ = chunks.finalize();
            outcome
        };
        if let Reading::Announced { header, is_released: is_released @ false } = &mut self.reading
            && !header.early
        {
            // A server that answers needs no more of the body: what is not acknowledged yet would only be kept for a retransmission. So
            // the memory is free now, not an acknowledgement's delay later.
            *is_released = true;
            let _ = connection.send_stream(stream).reset(STREAM_GIVEN_UP);
        }
        match outcome {
            Ok(None) => Step::Waits,
            Ok(Some(answer)) => {
                self.end(connection, Ok(answer));
                Step::Ended
            }
            Err(Fault::Exchange(error)) => {
                self.end(connection, Err(error));
                Step::Ended
            }
            Err(Fault::Link(error)) => Step::Broken(error),
        }
    }

    fn take_in(&mut self, chunks: &mut Chunks<'_>, peer: &str) -> std::result::Result<Option<Answer>, Fault> {
        loop {
            match &mut self.reading {
                Reading::Header(reader) => {
                    while reader.missing() > 0 {
                        match next(chunks, reader.missing(), peer)? {
                            Some(Chunk::Bytes(chunk)) => reader.take(&chunk),
                            Some(Chunk::End) => break,
                            None => return Ok(None),
                        }
                    }
                    let reply = reader.finish(peer).and_then(|header| header.into_reply(peer));
                    self.reading = match reply.map_err(Fault::Link)? {
                        Reply::Reject(header) => {
                            let bytes = usize::try_from(header.error_bytes).expect("at most REJECT_BYTES_MAX");
                            Reading::Reject { body: Vec::new(), bytes }
                        }
                        Reply::Sum(header) => {
                            let into = self.pull.as_ref().expect("only what is pulled is read");
                            let wanted = into.into.iter().map(Region::len).sum();
                            check_sum(&header, &self.push, wanted, peer).map_err(Fault::Link)?;
                            Reading::Announced { header, is_released: false }
                        }
                    };
                }
                Reading::Reject { body, bytes } => {
                    while body.len() < *bytes {
                        match next(chunks, *bytes - body.len(), peer)? {
                            Some(Chunk::Bytes(chunk)) => wire::append(body, &chunk),
                            Some(Chunk::End) => {
                                let problem = format!("ends after {} bytes", body.len());
                                return Err(Fault::Link(early_end("reject", &problem, peer)));
                            }
                            None => return Ok(None),
                        }
                    }
                    // To stop the stream before its end would tell the server that its answer did not arrive.
                    return match next(chunks, 1, peer)? {
                        Some(Chunk::End) => {
                            reject::from_body(body, peer).map(|error| Some(Answer::Reject(error))).map_err(Fault::Link)
                        }
                        Some(Chunk::Bytes(_)) => {
                            Err(Fault::Link(early_end("reject", "is longer than announced", peer)))
                        }
                        None => Ok(None),
                    };
                }
                Reading::Announced { header, .. } => {
                    let header = header.clone();
                    let proof = match std::mem::replace(&mut self.loan, Loaned::Spent) {
                        Loaned::Back(proof) => proof,
                        other => {
                            self.loan = other;
                            return Ok(None);
                        }
                    };
                    let into = std::mem::take(&mut self.pull.as_mut().expect("only what is pulled is read").into);
                    let landing = Landing::new(into, proof);
                    self.reading = Reading::Landing { header, landing, landed: 0, crc: 0, trailer: Vec::new() };
                }
                Reading::Landing { header, landing, landed, crc, trailer } => {
                    let early =
                        |problem: String| Fault::Link(early_end("sum", &format!("ends {problem} bytes early"), peer));
                    while landing.bytes_left() > 0 {
                        match next(chunks, landing.bytes_left(), peer)? {
                            Some(Chunk::Bytes(chunk)) => {
                                landing.write(&chunk);
                                *landed += chunk.len() as u64;
                                if header.checksum {
                                    // Here the bytes are still in the cache.
                                    *crc = checksum(*crc, &chunk);
                                }
                            }
                            Some(Chunk::End) => return Err(early(landing.bytes_left().to_string())),
                            None => return Ok(None),
                        }
                    }
                    while trailer.len() < header.trailer_bytes() {
                        match next(chunks, header.trailer_bytes() - trailer.len(), peer)? {
                            Some(Chunk::Bytes(chunk)) => wire::append(trailer, &chunk),
                            Some(Chunk::End) => return Err(early("its checksum's".to_owned())),
                            None => return Ok(None),
                        }
                    }
                    if let Ok(sent) = trailer.as_slice().try_into() {
                        check_crc(header, u32::from_le_bytes(sent), *crc, peer).map_err(Fault::Exchange)?;
                    }
                    return match next(chunks, 1, peer)? {
                        Some(Chunk::End) => Ok(Some(Answer::Sum(header.clone()))),
                        Some(Chunk::Bytes(_)) => Err(Fault::Link(early_end("sum", "is longer than announced", peer))),
                        None => Ok(None),
                    };
                }
            }
        }
    }

    /// It is over. What the streams still hold of its memory is freed; on a lost connection too.
    pub(super) fn end(&mut self, connection: &mut Connection, outcome: Result<Answer>) {
        if let Some(stream) = self.stream {
            let _ = connection.send_stream(stream).reset(STREAM_GIVEN_UP);
            let _ = connection.recv_stream(stream).stop(STREAM_GIVEN_UP);
        }
        self.end_detached(outcome);
    }

    /// The same for an exchange whose connection is gone, and with it what it held.
    pub(super) fn end_detached(&mut self, outcome: Result<Answer>) {
        self.unsent = Vec::new();
        self.taken = 0;
        if self.end.is_none() {
            self.end = Some(outcome);
        }
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Reports the end if there is one and the memory is free. Gives the exchange back if it is to be kept: nothing to report yet, or a
    /// failure that the pull will ask for.
    pub(super) fn report(mut self) -> Option<Self> {
        let is_back = matches!(self.loan, Loaned::Back(_) | Loaned::Spent);
        let Some(end) = self.end.take_if(|_| is_back) else { return Some(self) };
        let landed = match &self.reading {
            Reading::Landing { landed, .. } => *landed,
            Reading::Header(_) | Reading::Reject { .. } | Reading::Announced { .. } => 0,
        };
        match (self.done.take(), self.pull.take(), end) {
            (Some(done), pull, end) => {
                let error = end.err().unwrap_or(Error::Cancelled);
                done.err(error.clone());
                // It may be pulled already.
                if let Some(pull) = pull {
                    pull.end.torn(error);
                }
            }
            (None, Some(pull), end) => pull.end.report(end.map_err(|error| Torn { error, landed })),
            // Who gave it up does not ask.
            (None, None, Err(Error::Cancelled)) => {}
            (None, None, end) => {
                self.end = Some(end);
                return Some(self);
            }
        }
        None
    }
}

/// What failed, and so what it costs.
enum Fault {
    Exchange(Error),
    Link(Error),
}

/// The next piece of a stream.
enum Chunk {
    Bytes(Bytes),
    End,
}

/// The next piece of at most `bytes`, if it is there.
fn next(chunks: &mut Chunks<'_>, bytes: usize, peer: &str) -> std::result::Result<Option<Chunk>, Fault> {
    match chunks.next(bytes) {
        Ok(Some(chunk)) => Ok(Some(Chunk::Bytes(chunk.bytes))),
        Ok(None) => Ok(Some(Chunk::End)),
        Err(ReadError::Blocked) => Ok(None),
        Err(ReadError::Reset(_)) => Err(Fault::Exchange(gave_up(peer))),
    }
}
