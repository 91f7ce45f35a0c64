//! Carries exchanges between processes; knows no tensors, stages or frameworks.
//!
//! A worker's side is the [`Transport`] trait: `connect` to a server, then `push` each exchange and say where its answer lands. A server's
//! side is a stream of [`Incoming`] events answered by [`Outgoing`] commands through a [`Listener`]. The control stream to the coordinator is
//! not an exchange and has its own small interface, [`quic::control`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::local::{Ended, PeerProcess, Progress};
use crate::mem::{Frozen, Region};
use crate::metrics::LinkMeter;
use crate::types::{Address, Done, ExchangeId, LinkId, NodeId};
use crate::wire::{About, Request, Response};

mod capabilities;
#[cfg(not(any(test, feature = "testing")))]
mod exchange;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod exchange;
mod look;
pub mod mem;
pub mod quic;
pub mod router;
pub mod shm;

pub use crate::types::Peer;
pub use capabilities::Capabilities;
pub use look::Look;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;

#[cfg(test)]
mod contract;

/// A contribution on its way out.
#[derive(Debug)]
pub struct Push {
    /// Opens the stream; [`body_bytes`](Request::body_bytes) equals the length of `body`. Of two exchanges on one link the one with the higher
    /// [`urgency`](Request::urgency) goes first, both ways.
    pub header: Request,
    /// The contribution: these regions one after the other. They are sent from where they lie.
    pub body: Vec<Region>,
    /// Where the answer lands, and who waits for it. A caller that does not know this yet calls [`Transport::pull`] later.
    pub pull: Option<Pull>,
    /// How to look at the body, on a link that [`looks`](Capabilities::looks). Other links do not look.
    pub look: Option<Look>,
}

impl Push {
    /// Reports `error` for an exchange that did not begin.
    fn refuse(self, done: Done<()>, error: Error) {
        done.err(error.clone());
        if let Some(pull) = self.pull {
            pull.done.err(error);
        }
    }
}

/// The destination of an answer, and the caller that waits for it.
#[derive(Debug)]
pub struct Pull {
    /// The sum lands in these regions, one after the other.
    pub into: Vec<Region>,
    /// Reports the end of the exchange.
    pub done: Done<Answer, Torn>,
}

/// The answer of a server.
#[derive(Debug)]
pub enum Answer {
    /// What was asked for is in the memory that the pull named.
    Response(Response),
    /// The server does not give it, for this reason.
    Reject(Error),
}

/// Why an exchange failed.
#[derive(Debug)]
pub struct Torn {
    /// The cause.
    pub error: Error,
    /// Bytes of the sum that were written to its destination. A contribution in the same memory has lost so many bytes.
    pub landed: u64,
}

/// The exchange failed before any byte of the sum was written.
impl From<Error> for Torn {
    fn from(error: Error) -> Self {
        Self { error, landed: 0 }
    }
}

/// A way to carry exchanges from a worker to its servers.
///
/// **Links.** An exchange belongs to the link on which it was pushed, and is known on that link alone. Every call names both, so that a
/// transport finds the exchange without a table over all links. The caller chooses the ids of exchanges; two that are open at the same time
/// differ, also on different links.
///
/// **Memory.** The regions of a push and of a pull belong to the transport from the call until the exchange ends: until `pull`'s
/// `Done` reports, or until `push`'s `Done` reports an error and the exchange was not pulled. By then no reference to them remains, not even
/// in a retransmission buffer. Exception: a peer of the same machine may read staging memory of the engine where it lies. Then that memory is
/// not leased again before the peer has ended or has released it.
pub trait Transport: Progress + Send + Sync {
    /// Connects to `peer` until `patience` ends, at its first address with the scheme of this transport. `lost` is called once when an
    /// established link ends, whoever ended it.
    ///
    /// `done` reports [`Error::FailedPrecondition`] if the peer has no such address.
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>);

    /// Sends a contribution; `done` reports once its last byte was handed over. A failed push ends the exchange, and its pull reports the same
    /// error. If the push names its [`pull`](Push::pull), threads may make the two reports in any order.
    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>);

    /// Waits for the sum of an exchange that was pushed on `link` without a pull, and lands it in `into`, run after run. Ends the exchange.
    fn pull(&self, link: LinkId, exchange: ExchangeId, into: Vec<Region>, done: Done<Answer, Torn>);

    /// Gives up an exchange that was pushed on `link`. Its pending `done` reports [`Error::Cancelled`] as soon as its memory is free. Unknown
    /// ids are ignored.
    fn abandon(&self, link: LinkId, exchange: ExchangeId);

    /// More calls follow at once. Until [`uncork`](Self::uncork), a transport may wait for them before it begins to send. If it began with the
    /// first part alone, the links of the other parts' servers would be idle meanwhile.
    fn cork(&self) {}

    /// Ends one call of [`cork`](Self::cork). The caller must call it soon, once for each `cork`.
    fn uncork(&self) {}

    /// Closes a link; its exchanges fail.
    fn disconnect(&self, link: LinkId);

    /// The capabilities and needs of `link`. A caller uses these, so that it need not know which transport carries the link.
    fn capabilities(&self, _link: LinkId) -> Capabilities {
        Capabilities::NETWORK
    }

    /// The process at the other end of `link`, if it is on this machine and the system shows it.
    fn process(&self, _link: LinkId) -> Option<Arc<PeerProcess>> {
        None
    }

    /// Counts in `meter` from now on what goes over `link`, which has just come up: once in a tenth of a second while there is anything to count.
    fn measure(&self, _link: LinkId, _meter: Arc<LinkMeter>) {}

    /// Calls `ended` if a thread of this transport ends without being told to. Calls it at once if one has ended so. The transport may lose any
    /// call then.
    fn watch(&self, _ended: Ended) {}

    /// Closes everything and waits, at most `patience`, until all memory is free and all threads ended.
    fn shutdown(&self, patience: Duration);
}

/// Called once when an established link ends.
pub type LinkLost = Box<dyn FnOnce(LinkId, Error) + Send>;

/// What happens at a listener. Delivered on the transport's thread, so the receiver must not block.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a header has a rule and a key in place; in a box, each exchange would cost an allocation"
)]
pub enum Incoming {
    /// An authenticated peer connected.
    LinkUp {
        /// The connection.
        link: LinkId,
        /// Its identity, from its certificate.
        node: NodeId,
        /// Its network address, for messages.
        address: String,
    },
    /// A peer is gone. All its exchanges were reported [`Incoming::Torn`] before.
    LinkDown {
        /// The connection.
        link: LinkId,
        /// Why.
        reason: Error,
    },
    /// The process of a peer has ended, as the system says. Only a transport within a machine sees that.
    ProcessEnded {
        /// The peer's identity.
        node: NodeId,
        /// The number of the process.
        pid: u32,
    },
    /// An exchange begins. Say [`Outgoing::Accept`] to receive its body (if it has one), or answer at once.
    Opened {
        /// The connection.
        link: LinkId,
        /// The exchange.
        exchange: ExchangeId,
        /// The request of the peer. All fields were checked.
        header: Request,
    },
    /// The next bytes of an accepted body, in their order. The body is whole when as many bytes came as the header announced. The transport passes
    /// on no more bytes than that, and does not check the checksum.
    ///
    /// The chunks are cut anywhere, also within an element. They lie where they were received, so holding them delays the peer.
    Body {
        /// The exchange.
        exchange: ExchangeId,
        /// The bytes; none of the chunks is empty.
        chunks: Vec<Bytes>,
    },
    /// The exchange ended without an answer delivered: reset, connection lost, a body cut short.
    Torn {
        /// The exchange.
        exchange: ExchangeId,
        /// Why.
        reason: Error,
    },
    /// The whole answer has reached the peer, so closing the link cannot lose any of it. Ends the exchange.
    Answered {
        /// The exchange.
        exchange: ExchangeId,
    },
}

/// A command of a server to its listener. A command for an exchange that has ended is ignored.
#[derive(Debug)]
pub enum Outgoing {
    /// Receive the body.
    Accept {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// Begin to send the sum or the value. Its blocks follow. The rest of the body is refused, unless the header says that the answer is
    /// [`early`](Response::is_early). The rest is not needed if the peer repeats a push that was already counted.
    Answer {
        /// The exchange.
        exchange: ExchangeId,
        /// The bytes of its body equal the length of all blocks.
        header: Response,
    },
    /// Send the next bytes of the sum.
    Block {
        /// An exchange whose answer was begun.
        exchange: ExchangeId,
        /// The bytes. All exchanges that get this block share them.
        block: Frozen,
    },
    /// All blocks were given.
    End {
        /// An exchange whose answer was begun.
        exchange: ExchangeId,
        /// CRC-32C of all blocks; sent if the answer's header says that a [`checksum`](Response::has_checksum) follows.
        checksum: u32,
    },
    /// Send an error instead of the sum. If the sum is already on its way, the exchange breaks off. The peer asks again and gets the error then.
    Reject {
        /// The exchange.
        exchange: ExchangeId,
        /// What the exchange was about, under the server's epoch.
        about: About,
        /// Why.
        error: Error,
    },
    /// Limit the bytes that the peer of a connection may have sent and that were not read yet. A transport that reads into memory of a fixed size
    /// ignores this.
    Grant {
        /// The connection.
        link: LinkId,
        /// How many.
        unread_bytes_max: u64,
    },
    /// Close a connection.
    Disconnect {
        /// The connection.
        link: LinkId,
        /// Why; the peer is told.
        reason: Error,
    },
}

/// Receives a listener's events.
pub type Inbox = Box<dyn Fn(Incoming) + Send + Sync>;

/// A server's side of a transport, while it listens.
pub struct Listener {
    /// Where it listens; the ports are known.
    pub addresses: Vec<Address>,
    /// Carries commands to the transport's thread; never blocks.
    pub outbox: Box<dyn Fn(Outgoing) + Send + Sync>,
    /// Stops listening, closes all links and waits for the thread, at most the given time.
    pub stop: Box<dyn Fn(Duration) + Send + Sync>,
    /// Calls the function if a thread of the listener ends without being told to. Calls it at once if one has ended so.
    pub watch: Box<dyn Fn(Ended) + Send + Sync>,
}
