//! One exchange of a worker over its stream: the bytes that are still to be written, and those that were read. [`WorkerExchange`] decides how it
//! ends.
//!
//! No end is reported before the contribution's memory is back: the streams are reset, quinn-proto drops the bytes that it held, and that
//! returns the loan.

use bytes::Bytes;
use quinn_proto::{Chunks, Connection, ReadError, StreamId, WriteError};

use super::super::closing::{STREAM_GIVEN_UP, gave_up};
use crate::error::{Error, Result};
use crate::local::failpoint::{Failpoint, reach};
use crate::transport::Answer;
use crate::transport::exchange::{Arrival, WorkerExchange, costs_the_link};
use crate::types::LinkId;

/// An exchange under way.
pub(super) struct Exchange {
    pub(super) link: LinkId,
    /// Absent until the server allows one more.
    pub(super) stream: Option<StreamId>,
    /// The rank of the stream among those of its link. A higher rank goes first.
    pub(super) precedence: i32,
    pub(super) state: WorkerExchange,
    arrival: Arrival,
    /// Bytes that quinn-proto has not taken yet: the header, then the body.
    unsent: Vec<Bytes>,
    /// How many pieces of `unsent` quinn-proto has taken.
    taken: usize,
    /// Whether quinn-proto holds no byte of the contribution any more.
    is_released: bool,
}

/// The result of [`Exchange::read`].
pub(super) enum Step {
    /// The exchange goes on later.
    Waits,
    /// The exchange has ended. Its end may be reported.
    Ended,
    /// The server broke the protocol, so its link is closed.
    Broken(Error),
}

impl Exchange {
    pub(super) fn new(link: LinkId, precedence: i32, state: WorkerExchange, body: Vec<Bytes>) -> Self {
        let mut unsent = body;
        unsent.insert(0, Bytes::from(state.push().encode()));
        Self {
            link,
            stream: None,
            precedence,
            state,
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
        // Fails only for a stream that the server stopped, which needs no end.
        let _ = sender.finish();
        self.sent();
        bytes
    }

    /// The server stopped the stream of the body. Its answer is ready, or it resets the stream, which `read` notices.
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

    /// Drops bytes that are kept only for a retransmission.
    fn release(&mut self, connection: &mut Connection) {
        if let Some(stream) = self.stream.filter(|_| !std::mem::replace(&mut self.is_released, true)) {
            let _ = connection.send_stream(stream).reset(STREAM_GIVEN_UP);
        }
    }

    /// Reads the bytes that came, as far as they can land.
    pub(super) fn read(&mut self, connection: &mut Connection, peer: &str) -> Step {
        let Some(stream) = self.stream.filter(|_| self.state.is_pulled() && !self.state.has_ended()) else {
            return Step::Waits;
        };
        let outcome = {
            let mut receiver = connection.recv_stream(stream);
            // The stream is closed if its connection was lost, for which there is an event.
            let Ok(mut chunks) = receiver.read(true) else { return Step::Waits };
            let outcome = self.take_in(&mut chunks, peer);
            let _ = chunks.finalize();
            outcome
        };
        if self.arrival.refuses_body() {
            // Frees the memory now, and not after the delay of an acknowledgement.
            self.release(connection);
        }
        match outcome {
            Ok(None) => {
                if self.arrival.landed() > 0 {
                    reach(Failpoint::SumFlows);
                }
                Step::Waits
            }
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

    /// The answer, if all of it came. Reads the end of the stream too, because stopping the stream before its end would tell the server that the
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

    /// The exchange is over. Frees its memory that the streams still hold, also if the connection was lost.
    pub(super) fn end(&mut self, connection: &mut Connection, outcome: Result<Answer>) {
        if let Some(stream) = self.stream {
            let _ = connection.send_stream(stream).reset(STREAM_GIVEN_UP);
            let _ = connection.recv_stream(stream).stop(STREAM_GIVEN_UP);
        }
        self.end_detached(outcome);
    }

    /// As [`end`](Self::end), for an exchange whose connection is gone with everything that it held.
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
