//! One exchange of a worker over its stream: what is still to be written, and what was read. [`WorkerExchange`] says how it ends.
//!
//! However it ends, nothing is reported before the contribution's memory is back: the streams are reset, quinn-proto drops what it held,
//! and that returns the loan.

use bytes::Bytes;
use quinn_proto::{Chunks, Connection, ReadError, StreamId, WriteError};

use super::super::closing::{STREAM_GIVEN_UP, gave_up};
use crate::error::{Error, Result};
use crate::transport::Answer;
use crate::transport::exchange::{Arrival, WorkerExchange, costs_the_link};
use crate::types::{Done, LinkId};
use crate::wire::Request;

/// An exchange under way.
pub(super) struct Exchange {
    pub(super) link: LinkId,
    /// Absent until the server allows one more.
    pub(super) stream: Option<StreamId>,
    /// Which of two streams of a link goes first; higher is sooner.
    pub(super) precedence: i32,
    pub(super) state: WorkerExchange,
    arrival: Arrival,
    /// What quinn-proto has not taken yet: the header, then the body.
    unsent: Vec<Bytes>,
    /// How many of `unsent` are gone.
    taken: usize,
    /// quinn-proto keeps nothing of the contribution any more.
    is_released: bool,
}

/// What became of reading.
pub(super) enum Step {
    /// It goes on later.
    Waits,
    /// It has ended, which may be reported.
    Ended,
    /// The server broke the protocol, which costs it the link.
    Broken(Error),
}

impl Exchange {
    pub(super) fn new(link: LinkId, precedence: i32, push: Request, body: Vec<Bytes>, done: Done<()>) -> Self {
        let mut unsent = body;
        unsent.insert(0, Bytes::from(push.encode()));
        Self {
            link,
            stream: None,
            precedence,
            state: WorkerExchange::new(push, done),
            arrival: Arrival::default(),
            unsent,
            taken: 0,
            is_released: false,
        }
    }

    /// Writes as much as the connection takes, and returns how many bytes that were.
    pub(super) fn write(&mut self, connection: &mut Connection) -> usize {
        let mut bytes = 0;
        let Some(stream) = self.stream.filter(|_| self.state.is_pushing()) else { return bytes };
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
        self.release(connection);
        self.sent();
    }

    fn sent(&mut self) {
        self.unsent = Vec::new();
        self.taken = 0;
        if let Some(done) = self.state.handed_over() {
            done.ok(());
        }
    }

    /// Drops what would only be kept for a retransmission.
    fn release(&mut self, connection: &mut Connection) {
        if let Some(stream) = self.stream.filter(|_| !std::mem::replace(&mut self.is_released, true)) {
            let _ = connection.send_stream(stream).reset(STREAM_GIVEN_UP);
        }
    }

    /// Reads what has come, if it is wanted already.
    pub(super) fn read(&mut self, connection: &mut Connection, peer: &str) -> Step {
        let Some(stream) = self.stream.filter(|_| self.state.is_pulled() && !self.state.has_ended()) else {
            return Step::Waits;
        };
        let outcome = {
            let mut receiver = connection.recv_stream(stream);
            // Closed is a stream whose connection was lost, which is told elsewhere.
            let Ok(mut chunks) = receiver.read(true) else { return Step::Waits };
            let outcome = self.take_in(&mut chunks, peer);
            let _ = chunks.finalize();
            outcome
        };
        if self.arrival.refuses_body() {
            // The memory is free now, and not an acknowledgement's delay later.
            self.release(connection);
        }
        match outcome {
            Ok(None) => Step::Waits,
            Err(error) if costs_the_link(&error) => Step::Broken(error),
            Ok(Some(answer)) => {
                self.end(connection, Ok(answer));
                Step::Ended
            }
            Err(error) => {
                self.end(connection, Err(error));
                Step::Ended
            }
        }
    }

    /// The answer, if all of it is there. The end of the stream is read too: to stop the stream before it would tell the server that its
    /// answer did not arrive.
    fn take_in(&mut self, chunks: &mut Chunks<'_>, peer: &str) -> Result<Option<Answer>> {
        while self.state.place(&mut self.arrival, peer)? {
            match chunks.next(self.arrival.wants().max(1)) {
                Ok(Some(chunk)) => self.arrival.take(&chunk.bytes, peer)?,
                Ok(None) => return self.arrival.finish(None, peer).map(Some),
                Err(ReadError::Blocked) => break,
                Err(ReadError::Reset(_)) => return Err(gave_up(peer)),
            }
        }
        Ok(None)
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
        self.state.end(outcome);
    }

    /// Reports the end of an exchange that is over.
    pub(super) fn report(self) {
        self.state.report(self.arrival.landed());
    }
}
