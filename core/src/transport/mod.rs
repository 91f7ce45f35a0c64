//! Carries exchanges between processes; knows no tensors, stages or frameworks.
//!
//! A worker's side is the [`Transport`] trait: `connect` to a server, then for each exchange `push` and `pull`. A server's side is a
//! stream of [`Incoming`] events answered by [`Outgoing`] commands through a [`Listener`]. The control stream to the coordinator is
//! not an exchange and has its own small interface, [`quic::control`].

use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::local::{Ended, Progress};
use crate::mem::{Frozen, Region};
use crate::types::{Address, Done, ExchangeId, LinkId, NodeId};
use crate::wire::{Request, Sum, Target};

mod capabilities;
mod certificate;
mod credentials;
mod enrolment;
pub mod envelope;
mod exchange;
pub mod identity;
mod invitation;
pub mod mem;
pub mod quic;
pub mod router;
pub mod shm;
pub mod site;
mod validity;

pub use crate::types::Peer;
pub use capabilities::Capabilities;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;

#[cfg(test)]
mod contract;

/// A contribution on its way out.
#[derive(Debug)]
pub struct Push {
    /// Opens the stream; `header.body_bytes()` equals the length of `body`. Of two exchanges on one link the one with the higher
    /// [`urgency`](Request::urgency) goes first, both ways.
    pub header: Request,
    /// What is sent, run after run, from where it lies.
    pub body: Vec<Region>,
}

/// What came back.
#[derive(Debug)]
pub enum Answer {
    /// The sum lies where it was wanted.
    Sum(Sum),
    /// The server's reason not to give it.
    Reject(Error),
}

/// Why an exchange failed.
#[derive(Debug)]
pub struct Torn {
    /// The cause.
    pub error: Error,
    /// How many bytes of the sum were already written where it lands. So much of a contribution that lies there is gone.
    pub landed: u64,
}

/// It failed before anything was written.
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
/// `Done` reports, or until `push`'s `Done` reports an error. By then no reference to them remains, not even in a retransmission
/// buffer. Staging memory of the engine's own is the exception: a peer of the same machine may be let read it where it lies, and it is not
/// leased again before that peer has ended or reads it no more.
pub trait Transport: Progress + Send + Sync {
    /// Connects to `peer` until `patience` ends, at its first address with the scheme of this transport. `lost` is called once when an
    /// established link ends, whoever ended it.
    ///
    /// `done` reports [`Error::FailedPrecondition`] if the peer has no such address.
    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>);

    /// Sends a contribution; `done` reports once its last byte was handed over. A failed push ends the exchange.
    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>);

    /// Waits for the sum of an exchange that was pushed on `link`, and lands it in `into`, run after run. Ends the exchange.
    fn pull(&self, link: LinkId, exchange: ExchangeId, into: Vec<Region>, done: Done<Answer, Torn>);

    /// Gives up an exchange that was pushed on `link`: its pending `done` reports [`Error::Cancelled`] soon, as soon as its memory is free.
    /// Unknown ids are ignored.
    fn abandon(&self, link: LinkId, exchange: ExchangeId);

    /// More calls follow at once. A transport may wait for them, until [`uncork`](Self::uncork), before it begins to send. If it began with
    /// the first part alone, that part's server would get so much before the others get anything that their links idle meanwhile.
    fn cork(&self) {}

    /// Ends what one call of [`cork`](Self::cork) began. Each call of it needs one of these, soon.
    fn uncork(&self) {}

    /// Closes a link; its exchanges fail.
    fn disconnect(&self, link: LinkId);

    /// What `link` can do and what it needs. A caller asks this and not which transport carries the link.
    fn capabilities(&self, _link: LinkId) -> Capabilities {
        Capabilities::NETWORK
    }

    /// Calls `ended` if a thread of this transport ends though nobody told it to; at once if one has. Nothing that was handed to the
    /// transport can be relied on then.
    fn watch(&self, _ended: Ended) {}

    /// Closes everything and waits, at most `patience`, until all memory is free and all threads ended.
    fn shutdown(&self, patience: Duration);
}

/// Called once when an established link ends.
pub type LinkLost = Box<dyn FnOnce(LinkId, Error) + Send>;

/// What happens at a listener. Delivered on the transport's thread, so the receiver must not block.
#[derive(Debug)]
pub enum Incoming {
    /// An authenticated peer connected.
    LinkUp {
        /// The connection.
        link: LinkId,
        /// Who it is, from its certificate.
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
    /// An exchange begins. Say [`Outgoing::Accept`] to receive its body (if it has one), or answer at once.
    Opened {
        /// The connection.
        link: LinkId,
        /// The exchange.
        exchange: ExchangeId,
        /// What the peer says, checked field by field.
        header: Request,
    },
    /// The next bytes of an accepted body, in their order. It is whole when as many came as the header announced; the transport lets no
    /// more through, and does not look at the checksum.
    ///
    /// The chunks are cut anywhere, also within an element, and lie where they were received: whoever holds them for long holds up the
    /// peer.
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
    /// The answer has reached the peer whole, so that closing the link takes nothing of it away. Ends the exchange.
    Answered {
        /// The exchange.
        exchange: ExchangeId,
    },
}

/// What a server wants of its listener. An exchange that has ended is ignored.
#[derive(Debug)]
pub enum Outgoing {
    /// Receive the body.
    Accept {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// Begin to send the sum; its blocks follow. A body that is not accepted or still under way is refused (the peer may repeat a push
    /// that was already counted), unless the header says that the answer is [`early`](Sum::early).
    Answer {
        /// The exchange.
        exchange: ExchangeId,
        /// The bytes of its body equal the length of all blocks.
        header: Sum,
    },
    /// Send the next bytes of the sum.
    Block {
        /// An exchange whose answer was begun.
        exchange: ExchangeId,
        /// The bytes, shared by all who get them.
        block: Frozen,
    },
    /// All blocks were given.
    End {
        /// An exchange whose answer was begun.
        exchange: ExchangeId,
        /// CRC-32C of all blocks; sent if the answer's header says that a [`checksum`](Sum::checksum) follows.
        checksum: u32,
    },
    /// Send an error instead of the sum. Where the sum is already on its way, the exchange breaks off: the peer asks again and hears the
    /// error then.
    Reject {
        /// The exchange.
        exchange: ExchangeId,
        /// What the exchange was about, under the server's epoch.
        target: Target,
        /// Why.
        error: Error,
    },
    /// Let the peer of a connection have sent so many bytes that nobody has read. A transport that reads into memory of a fixed size
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
    /// Calls the function if a thread of the listener ends though nobody told it to; at once if one has.
    pub watch: Box<dyn Fn(Ended) + Send + Sync>,
}
