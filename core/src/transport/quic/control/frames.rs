//! Frames on a stream: a length of four bytes, then the frame. The reader checks the length before it reserves memory.
//!
//! Both queues of a link have limits. The link of a peer that does not read is closed, because the writer's queue is bounded. A peer that sends
//! faster than the machine behind the link handles frames is slowed down: the link is not read further until the machine has handled some
//! ([`Waiting`]). A listener also bounds the queues of all its links together ([`Queues`]). Requests for the status are answered one after the
//! other, because an answer is much longer than a request.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::select;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::super::closing::{
    CLOSE_ORDERLY, close_for_fault, close_with, connection_error, early_end, read_error, read_exact_error, written,
};
use super::Waiting;
use crate::error::{Error, Result};
use crate::wire::{Frame, limits};

/// Frames on their way to one peer.
pub(super) struct Outbox {
    frames: UnboundedSender<Post>,
    queue: Arc<Queue>,
}

/// What [`converse`] takes from an [`Outbox`].
pub(super) struct Posted {
    frames: UnboundedReceiver<Post>,
    queue: Arc<Queue>,
}

/// The frames that one process has queued for all its peers.
#[derive(Debug)]
pub(super) struct Queues {
    bytes: AtomicUsize,
    links: AtomicUsize,
    bytes_max: usize,
}

struct Queue {
    bytes: AtomicUsize,
    all: Arc<Queues>,
    /// Notified if the peer does not read, so that the queue is full.
    overflow: Notify,
    /// A permit for each request for the status that may be under way. It is given back when the answer was written.
    status: Semaphore,
}

enum Post {
    Frame {
        bytes: Bytes,
        /// It answers a request for the status.
        is_status: bool,
    },
    /// After all frames before: ends the link, for a reason if there is one.
    Close(Option<Error>),
}

impl Default for Queues {
    fn default() -> Self {
        Self::new(QUEUES_BYTES_MAX)
    }
}

impl Queues {
    fn new(bytes_max: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), links: AtomicUsize::new(0), bytes_max }
    }

    /// Whether a link may hold `held` bytes. It may if all links together are below the limit, or if it holds less than its equal share. So a
    /// link whose peer reads is not closed, and all links together hold less than twice the limit.
    fn admit(&self, held: usize) -> bool {
        self.bytes.load(Ordering::Relaxed) <= self.bytes_max
            || held <= self.bytes_max / self.links.load(Ordering::Relaxed).max(1)
    }
}

impl Queue {
    /// Counts a frame that is queued. Returns whether the link may hold it.
    fn put(&self, bytes: usize) -> bool {
        self.all.bytes.fetch_add(bytes, Ordering::Relaxed);
        let held = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        held <= QUEUE_BYTES_MAX && self.all.admit(held)
    }

    /// A frame was written or dropped.
    fn take(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.all.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
        self.all.links.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A queue for one peer. Its bytes count towards the limit of `all`.
pub(super) fn outbox(all: &Arc<Queues>) -> (Outbox, Posted) {
    let (sender, receiver) = unbounded_channel();
    all.links.fetch_add(1, Ordering::Relaxed);
    let queue = Arc::new(Queue {
        bytes: AtomicUsize::new(0),
        all: Arc::clone(all),
        overflow: Notify::new(),
        status: Semaphore::new(STATUS_REQUESTS_MAX),
    });
    (Outbox { frames: sender, queue: Arc::clone(&queue) }, Posted { frames: receiver, queue })
}

impl Outbox {
    /// Queues a frame. Never blocks. Drops a frame for a link that has ended.
    pub(super) fn send(&self, frame: &Frame) {
        let body = frame.encode();
        let length = u32::try_from(body.len()).expect("a frame is far below 4 GiB");
        let bytes = Bytes::from([&length.to_le_bytes(), &body[..]].concat());
        if !self.queue.put(bytes.len()) {
            self.queue.take(bytes.len());
            self.queue.overflow.notify_one();
        } else {
            let _ = self
                .frames
                .send(Post::Frame { bytes, is_status: matches!(frame, Frame::Status(_) | Frame::Forming(_)) });
        }
    }

    /// Ends the link after the peer has received everything that is queued.
    pub(super) fn close(&self, reason: Option<Error>) {
        let _ = self.frames.send(Post::Close(reason));
    }
}

/// Carries frames both ways until the link ends. Returns the reason of the end. The peer's frames may have at most `bytes_max_before_join`
/// bytes until it sends a [`Frame::Join`]. The link is not read further while [`WAITING_FRAMES_MAX`] frames that were given to `heard` are not
/// handled, or as many bytes as the largest frame has.
pub(super) async fn converse(
    connection: &Connection,
    stream: (SendStream, RecvStream),
    posted: Posted,
    peer: &str,
    bytes_max_before_join: usize,
    heard: impl FnMut(Frame, Waiting),
) -> Error {
    let (sender, receiver) = stream;
    let queue = Arc::clone(&posted.queue);
    let mut listening = pin!(listen(connection, receiver, peer, (bytes_max_before_join, &queue.status), heard));
    let ended = select! {
        ended = &mut listening => ended,
        ended = speak(connection, sender, posted, peer) => match connection.close_reason() {
            // The peer ended the connection, or it was lost. Frames that came before are still handled.
            Some(lost) if !matches!(lost, ConnectionError::LocallyClosed) => last_frames(listening, &lost, peer).await,
            Some(_) | None => ended,
        },
        () = queue.overflow.notified() => Error::Exhausted {
            what: format!("control frames that {peer} does not read"),
            limit: format!("{} MiB", QUEUE_BYTES_MAX >> 20),
            hint: "look at that process: it may be stopped or out of processor time".to_owned(),
        },
        lost = connection.closed() => last_frames(listening, &lost, peer).await,
    };
    // Does nothing if the connection is closed already.
    close_with(connection, &ended);
    ended
}

/// Reads the frames that came before the connection was lost, as far as the machine handles them within [`LAST_FRAMES`].
async fn last_frames(listening: Pin<&mut impl Future<Output = Error>>, lost: &ConnectionError, peer: &str) -> Error {
    let _ = timeout(LAST_FRAMES, listening).await;
    connection_error(lost, peer)
}

async fn listen(
    connection: &Connection,
    mut receiver: RecvStream,
    peer: &str,
    (mut limit, status): (usize, &Semaphore),
    mut heard: impl FnMut(Frame, Waiting),
) -> Error {
    let room = Arc::new(Semaphore::new(limits::FRAME_BYTES_MAX));
    let mut next_status = Instant::now();
    loop {
        match read_frame(&mut receiver, limit, &room, peer).await {
            Ok(Some((frame, waiting))) => {
                match frame {
                    Frame::Join(_) => limit = limits::FRAME_BYTES_MAX,
                    Frame::StatusRequest => {
                        status.acquire().await.expect("nobody closes it").forget();
                        sleep_until(next_status).await;
                        next_status = Instant::now() + STATUS_PAUSE;
                    }
                    _ => {}
                }
                heard(frame, waiting);
            }
            // The reason of the end comes with the end of the connection.
            Ok(None) => match timeout(LAST_WORDS, connection.closed()).await {
                Ok(lost) => return connection_error(&lost, peer),
                Err(_) => return early_end("stream", "ended without the end of its connection", peer),
            },
            Err(error) => {
                // Does nothing if the connection was lost.
                close_for_fault(connection, &error);
                return error;
            }
        }
    }
}

/// The next frame. `None` if the stream ends between two frames. Waits for `room` before it reads the frame.
async fn read_frame(
    receiver: &mut RecvStream,
    limit: usize,
    room: &Arc<Semaphore>,
    peer: &str,
) -> Result<Option<(Frame, Waiting)>> {
    let mut length = [0; 4];
    match receiver.read_exact(&mut length).await {
        Ok(()) => {}
        Err(quinn::ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(error) => return Err(read_exact_error(error, "length", peer)),
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Err(early_end("length", &format!("is {length}, above {limit}"), peer));
    }
    let share = u32::try_from(length.max(limits::FRAME_BYTES_MAX / WAITING_FRAMES_MAX)).expect("below the limit");
    let permit = Arc::clone(room).acquire_many_owned(share).await.expect("nobody closes it");
    // Grows with the bytes that arrive, so that an announced length costs nothing.
    let mut body = Vec::with_capacity(length.min(64 << 10));
    while body.len() < length {
        match receiver.read_chunk(length - body.len(), true).await.map_err(|error| read_error(error, peer))? {
            Some(chunk) => body.extend_from_slice(&chunk.bytes),
            None => return Err(early_end("frame", &format!("ends after {} bytes", body.len()), peer)),
        }
    }
    Ok(Some((Frame::decode(&body, peer)?, Waiting { _permit: permit })))
}

async fn speak(connection: &Connection, mut sender: SendStream, mut posted: Posted, peer: &str) -> Error {
    loop {
        // The outbox was dropped, so the link is closed.
        match posted.frames.recv().await.unwrap_or(Post::Close(None)) {
            Post::Frame { bytes, is_status } => {
                let length = bytes.len();
                let sent = written(sender.write_chunk(bytes).await, peer);
                posted.queue.take(length);
                if is_status && posted.queue.status.available_permits() < STATUS_REQUESTS_MAX {
                    posted.queue.status.add_permits(1);
                }
                if let Err(error) = sent {
                    return error;
                }
            }
            Post::Close(reason) => {
                let _ = sender.finish();
                // Closing a connection drops bytes that were not acknowledged yet.
                let _ = timeout(LAST_WORDS, sender.stopped()).await;
                match &reason {
                    Some(reason) => close_with(connection, reason),
                    None => connection.close(CLOSE_ORDERLY, b""),
                }
                return reason.unwrap_or(Error::Cancelled);
            }
        }
    }
}

/// Bytes that one link may hold: the largest declaration and the answers to it fit.
const QUEUE_BYTES_MAX: usize = 2 * limits::FRAME_BYTES_MAX;
/// Bytes that all links of a listener may hold together. Above it, links that hold more than their share are closed. The answers to 1,000
/// workers that declare 10,000 tensors each take a quarter of it.
const QUEUES_BYTES_MAX: usize = 1 << 30;
/// Frames of one link that may wait for the machine behind it. A worker sends few frames without waiting for an answer.
pub(in crate::transport::quic) const WAITING_FRAMES_MAX: usize = 64;
/// Requests for the status that are under way on one link, from the reading of the request to the writing of the answer.
const STATUS_REQUESTS_MAX: usize = 1;
/// The pause between two answers with the status on one link. The status of a job with thousands of members takes milliseconds to write.
const STATUS_PAUSE: Duration = Duration::from_millis(100);
/// For frames that came before the end of a link to be handled.
const LAST_FRAMES: Duration = Duration::from_secs(5);
/// For frames before the end of a link to be acknowledged.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Time;
    use crate::wire::frame::AckTimes;

    #[test]
    fn links_that_are_not_read_hold_no_more_together_than_one_process_can_bear() {
        let frame = Frame::HeartbeatAck { sent: Time(1), times: AckTimes::default() };
        let bytes = frame.encode().len() + 4;
        let all = Arc::new(Queues::new(100 * bytes));
        let links: Vec<_> = (0..10).map(|_| outbox(&all)).collect();
        for (outbox, _) in &links {
            (0..1000).for_each(|_| outbox.send(&frame));
        }
        let held = all.bytes.load(Ordering::Relaxed);
        assert!((100 * bytes..=200 * bytes).contains(&held), "{held}");
        let [.., (last, _)] = &links[..] else { panic!("ten links") };
        assert!(last.queue.bytes.load(Ordering::Relaxed) >= 10 * bytes, "a link keeps its share whatever others hold");
        drop(links);
        assert_eq!((all.bytes.load(Ordering::Relaxed), all.links.load(Ordering::Relaxed)), (0, 0));
    }
}
