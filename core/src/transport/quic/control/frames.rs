//! Frames on a stream: a length of four bytes, then the frame. The reader checks the length before it believes it, and the writer's
//! queue has a limit, so that a peer that does not read costs its link and not the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream};
use tokio::select;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::super::closing::{
    CLOSE_ORDERLY, close_for_fault, close_with, connection_error, early_end, read_error, read_exact_error, written,
};
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

#[derive(Default)]
struct Queue {
    bytes: AtomicUsize,
    /// The peer does not read: more was queued than is kept for it.
    overflow: Notify,
}

enum Post {
    Frame(Bytes),
    /// After all frames before: ends the link, for a reason if there is one.
    Close(Option<Error>),
}

pub(super) fn outbox() -> (Outbox, Posted) {
    let (sender, receiver) = unbounded_channel();
    let queue = Arc::new(Queue::default());
    (Outbox { frames: sender, queue: Arc::clone(&queue) }, Posted { frames: receiver, queue })
}

impl Outbox {
    /// Queues a frame. Never blocks; a frame for a link that has ended is dropped.
    pub(super) fn send(&self, frame: &Frame) {
        let body = frame.encode();
        let length = u32::try_from(body.len()).expect("a frame is far below 4 GiB");
        let bytes = Bytes::from([&length.to_le_bytes(), &body[..]].concat());
        let queued = self.queue.bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        if queued > QUEUE_BYTES_MAX {
            self.queue.overflow.notify_one();
        } else {
            let _ = self.frames.send(Post::Frame(bytes));
        }
    }

    /// Ends the link once everything queued was heard.
    pub(super) fn close(&self, reason: Option<Error>) {
        let _ = self.frames.send(Post::Close(reason));
    }
}

/// Carries frames both ways until the link ends; says why it did. The peer's first frame has at most `first_frame_bytes_max` bytes.
pub(super) async fn converse(
    connection: &Connection,
    stream: (SendStream, RecvStream),
    posted: Posted,
    peer: &str,
    first_frame_bytes_max: usize,
    heard: impl FnMut(Frame),
) -> Error {
    let (sender, receiver) = stream;
    let queue = Arc::clone(&posted.queue);
    let ended = select! {
        ended = listen(connection, receiver, peer, first_frame_bytes_max, heard) => ended,
        ended = speak(connection, sender, posted, peer) => ended,
        () = queue.overflow.notified() => Error::Exhausted {
            what: format!("control frames that {peer} does not read"),
            limit: format!("{} MiB", QUEUE_BYTES_MAX >> 20),
            hint: "look at that process: it may be stopped or out of processor time".to_owned(),
        },
        lost = connection.closed() => connection_error(&lost, peer),
    };
    // Without effect on a connection that is closed already.
    close_with(connection, &ended);
    ended
}

async fn listen(
    connection: &Connection,
    mut receiver: RecvStream,
    peer: &str,
    mut limit: usize,
    mut heard: impl FnMut(Frame),
) -> Error {
    loop {
        match read_frame(&mut receiver, limit, peer).await {
            Ok(Some(frame)) => heard(frame),
            // The reason comes with the end of the connection.
            Ok(None) => match timeout(LAST_WORDS, connection.closed()).await {
                Ok(lost) => return connection_error(&lost, peer),
                Err(_) => return early_end("stream", "ended, but not its connection", peer),
            },
            Err(error) => {
                // Without effect if it is the connection that was lost.
                close_for_fault(connection, &error);
                return error;
            }
        }
        limit = limits::FRAME_BYTES_MAX;
    }
}

/// The next frame, or nothing at an end between frames.
async fn read_frame(receiver: &mut RecvStream, limit: usize, peer: &str) -> Result<Option<Frame>> {
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
    // Grows with what arrives, not with what was announced.
    let mut body = Vec::with_capacity(length.min(64 << 10));
    while body.len() < length {
        match receiver.read_chunk(length - body.len(), true).await.map_err(|error| read_error(error, peer))? {
            Some(chunk) => body.extend_from_slice(&chunk.bytes),
            None => return Err(early_end("frame", &format!("ends after {} bytes", body.len()), peer)),
        }
    }
    Frame::decode(&body, peer).map(Some)
}

async fn speak(connection: &Connection, mut sender: SendStream, mut posted: Posted, peer: &str) -> Error {
    loop {
        // Without an outbox nobody will ever close the link, which is closing it.
        match posted.frames.recv().await.unwrap_or(Post::Close(None)) {
            Post::Frame(bytes) => {
                let length = bytes.len();
                let sent = written(sender.write_chunk(bytes).await, peer);
                posted.queue.bytes.fetch_sub(length, Ordering::Relaxed);
                if let Err(error) = sent {
                    return error;
                }
            }
            Post::Close(reason) => {
                let _ = sender.finish();
                // Closing a connection drops what was not acknowledged yet.
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

/// The largest declaration fits, and the answers to it.
const QUEUE_BYTES_MAX: usize = 2 * limits::FRAME_BYTES_MAX;
/// For frames before the end of a link to be acknowledged.
const LAST_WORDS: Duration = Duration::from_secs(1);
