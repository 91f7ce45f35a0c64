//! One exchange of a worker, from its first byte to its report.
//!
//! However an exchange ends, its task first takes its memory back ([`Memory::take_back`]) and then reports.

use std::sync::Arc;

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream};
use tokio::select;
use tokio::sync::{Notify, oneshot};

use super::calls::Pull;
use super::closing::{
    STREAM_GIVEN_UP, close_for_fault, connection_error, early_end, read_error, read_exact_error, written,
};
use crate::error::{Error, Result};
use crate::mem::{Landing, Loan, Region, Returned};
use crate::transport::exchange::{check_crc, check_sum};
use crate::transport::{Answer, Push, Torn};
use crate::types::Done;
use crate::wire::{self, HeaderReader, Reply, Request, reject};

/// What an exchange needs of its link.
pub(super) struct Wire {
    pub(super) connection: Connection,
    /// A stream that is open already, if there is one.
    pub(super) first_stream: Option<(SendStream, RecvStream)>,
    /// The server, for messages.
    pub(super) peer: String,
}

/// Runs one exchange to its end. The memory it was lent is free again before it reports that end. `_ended` is dropped when the task is
/// over.
pub(super) async fn run(
    mut wire: Wire,
    push: Push,
    done: Done<()>,
    mut pull: oneshot::Receiver<Pull>,
    cancel: Arc<Notify>,
    _ended: impl Send,
) {
    let (sender, returned) = oneshot::channel();
    let loan = Loan::new(push.body, move |proof| {
        let _ = sender.send(proof);
    });
    let mut memory = Memory { streams: wire.first_stream.take(), returned: Some(returned) };

    let sending = memory.send(&wire, &push.header, loan.into_pieces());
    let sent = select! {
        biased;
        () = cancel.notified() => Err(Error::Cancelled),
        sent = sending => sent,
    };
    if let Err(error) = sent {
        memory.take_back().await;
        done.err(error.clone());
        // It may be pulled already.
        if let Ok(pull) = pull.try_recv() {
            pull.end.torn(error);
        }
        return;
    }
    done.ok(());

    let pulled = select! {
        biased;
        () = cancel.notified() => None,
        pull = &mut pull => pull.ok(),
    };
    let Some(Pull { into, end }) = pulled else {
        memory.take_back().await;
        if let Ok(pull) = pull.try_recv() {
            pull.end.torn(Error::Cancelled);
        }
        return;
    };
    let mut landed = 0;
    let receiving = memory.receive(&wire, &push.header, into, &mut landed);
    let outcome = select! {
        biased;
        () = cancel.notified() => Err(Error::Cancelled),
        outcome = receiving => outcome,
    };
    memory.take_back().await;
    end.report(outcome.map_err(|error| Torn { error, landed }));
}

/// The streams that may refer to the caller's memory, and the news that they do no longer.
struct Memory {
    streams: Option<(SendStream, RecvStream)>,
    /// Absent once the memory is back.
    returned: Option<oneshot::Receiver<Returned>>,
}

impl Memory {
    async fn send(&mut self, wire: &Wire, header: &Request, mut body: Vec<Bytes>) -> Result<()> {
        if self.streams.is_none() {
            let opened = wire.connection.open_bi().await;
            self.streams = Some(opened.map_err(|error| connection_error(&error, &wire.peer))?);
        }
        let (sender, _) = self.streams.as_mut().expect("opened above");
        // Fails only for a stream that has ended, which the writing below reports.
        let _ = sender.set_priority(i32::from(header.urgency()));
        body.insert(0, Bytes::from(Vec::from(header.encode())));
        written(sender.write_all_chunks(&mut body).await, &wire.peer)?;
        let _ = sender.finish();
        Ok(())
    }

    async fn receive(&mut self, wire: &Wire, push: &Request, into: Vec<Region>, landed: &mut u64) -> Result<Answer> {
        let peer = wire.peer.as_str();
        let (sender, receiver) = self.streams.as_mut().expect("what is pulled was sent");
        let mut header = HeaderReader::default();
        while header.missing() > 0 {
            let chunk = receiver.read_chunk(header.missing(), true).await.map_err(|error| read_error(error, peer))?;
            let Some(chunk) = chunk else { break };
            header.take(&chunk.bytes);
        }
        let header = broken(wire, header.finish(peer).and_then(|header| header.into_reply(peer)))?;
        let header = match header {
            Reply::Sum(header) => header,
            Reply::Reject(header) => {
                let length = usize::try_from(header.error_bytes).expect("at most REJECT_BYTES_MAX");
                let mut body = vec![0; length];
                let read = receiver.read_exact(&mut body).await;
                read.map_err(|error| read_exact_error(error, "reject", peer))?;
                // To stop the stream before its end would tell the server that its answer did not arrive.
                let end = receiver.read_chunk(1, true).await.map_err(|error| read_error(error, peer))?;
                if end.is_some() {
                    return broken(wire, Err(early_end("reject", "is longer than announced", peer)));
                }
                return Ok(Answer::Reject(broken(wire, reject::from_body(&body, peer))?));
            }
        };
        broken(wire, check_sum(&header, push, into.iter().map(Region::len).sum(), peer))?;

        if !header.early {
            // A server that answers needs no more of the body: what is not acknowledged yet would only be kept for a retransmission. So
            // the memory is free now, not an acknowledgement's delay later.
            let _ = sender.reset(STREAM_GIVEN_UP);
        }
        let stopped = sender.stopped();
        let mut returned = self.returned.take().expect("taken only here");
        let returned = select! {
            biased;
            returned = &mut returned => returned,
            // Acknowledged to the last byte, or not wanted any more.
            _ = stopped => {
                let _ = sender.reset(STREAM_GIVEN_UP);
                returned.await
            }
        };
        let returned = returned.expect("a loan returns");
        let mut landing = Landing::new(into, returned);
        let mut crc = 0;
        while landing.bytes_left() > 0 {
            let chunk =
                receiver.read_chunk(landing.bytes_left(), true).await.map_err(|error| read_error(error, peer))?;
            let Some(chunk) = chunk else {
                let problem = format!("ends {} bytes early", landing.bytes_left());
                return broken(wire, Err(early_end("sum", &problem, peer)));
            };
            *landed += chunk.bytes.len() as u64;
            landing.write(&chunk.bytes);
            if header.checksum {
                // Here the bytes are still in the cache.
                crc = wire::checksum(crc, &chunk.bytes);
            }
        }
        let mut sent = [0; size_of::<u32>()];
        let read = receiver.read_exact(&mut sent[..header.trailer_bytes()]).await;
        read.map_err(|error| read_exact_error(error, "checksum of the sum", peer))?;
        check_crc(&header, u32::from_le_bytes(sent), crc, peer)?;
        let end = receiver.read_chunk(1, true).await.map_err(|error| read_error(error, peer))?;
        if end.is_some() {
            return broken(wire, Err(early_end("sum", "is longer than announced", peer)));
        }
        Ok(Answer::Sum(header))
    }

    /// Ends the streams, which frees what they still hold, and waits until nothing refers to the caller's memory.
    ///
    /// A reset drops unacknowledged data at once, also on a connection that is lost; what is already acknowledged was dropped then.
    async fn take_back(mut self) {
        if let Some((mut sender, mut receiver)) = self.streams.take() {
            let _ = sender.reset(STREAM_GIVEN_UP);
            let _ = receiver.stop(STREAM_GIVEN_UP);
        }
        if let Some(returned) = self.returned {
            let _ = returned.await;
        }
    }
}

/// Passes a server's answer on; one that breaks the protocol costs it the link, with the error as the reason.
fn broken<T>(wire: &Wire, outcome: Result<T>) -> Result<T> {
    if let Err(error) = &outcome {
        tracing::warn!(peer = wire.peer, %error, "closing a link");
        close_for_fault(&wire.connection, error);
    }
    outcome
}
