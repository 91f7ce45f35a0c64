//! One link as its side has it: the connection that says whether the peer lives, and the two halves of its memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::inbound::{Inbound, Received};
use super::layout::Message;
use super::memory::Memory;
use super::outbound::{Next, Outbound, Published};
use crate::error::{Error, Result};
use crate::local::Connection;
use crate::types::LinkId;
use crate::wire::{limits, reject};

/// A link of one side.
pub(super) struct Link {
    pub(super) id: LinkId,
    /// The other side, for messages.
    pub(super) peer: Arc<str>,
    connection: Connection,
    /// Rung by the peer.
    bell: OwnedFd,
    /// Ready when the peer's process has ended, also where a child of it keeps the connection open.
    life: Option<OwnedFd>,
    memory: Arc<Memory>,
    outbound: Mutex<Outbound>,
    inbound: Mutex<Inbound>,
    /// The first defect of the link; its side's thread closes it.
    broken: Mutex<Option<Error>>,
    closed: AtomicBool,
}

/// What a connected pair of processes has: see [`greeting`](super::greeting).
pub(super) struct Parts {
    pub(super) connection: Connection,
    pub(super) bell: OwnedFd,
    pub(super) life: Option<OwnedFd>,
    pub(super) memory: Memory,
}

/// How the sending of an exchange ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// All of it is where the peer finds it, whatever becomes of this process.
    Whole(u64),
    /// It was given up; nothing refers to its memory any more.
    Dropped(u64),
}

/// What a call of [`Link::pump`] did.
#[derive(Default)]
pub(super) struct Pumped {
    pub(super) sent: Vec<Sent>,
    /// This side's thread has to look at the link: something is left to do.
    pub(super) unfinished: bool,
}

impl Link {
    pub(super) fn new(id: LinkId, peer: Arc<str>, parts: Parts) -> Self {
        let Parts { connection, bell, life, memory } = parts;
        let memory = Arc::new(memory);
        Self {
            id,
            connection,
            bell,
            life,
            outbound: Mutex::new(Outbound::new(Arc::clone(&memory), Arc::clone(&peer))),
            inbound: Mutex::new(Inbound::new(Arc::clone(&memory), Arc::clone(&peer))),
            memory,
            peer,
            broken: Mutex::new(None),
            closed: AtomicBool::new(false),
        }
    }

    /// What its side's thread waits for: the bell, then what says that the peer is gone.
    pub(super) fn fds(&self) -> (BorrowedFd<'_>, impl Iterator<Item = BorrowedFd<'_>>) {
        (self.bell.as_fd(), [Some(self.connection.fd()), self.life.as_ref().map(AsFd::as_fd)].into_iter().flatten())
    }

    /// The sending half. What it gives out is dropped without it, because dropping may call back.
    pub(super) fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message and wakes the peer if it sleeps.
    pub(super) fn post(&self, message: &Message) {
        self.post_quietly(message);
        self.memory.nudge();
    }

    /// Sends a message that the peer need not see before it wakes for another reason, unless it waits for room.
    pub(super) fn post_quietly(&self, message: &Message) {
        let posted = self.outbound().post(message);
        self.note(posted);
        self.memory.relieve();
    }

    /// Wakes the peer if it sleeps.
    pub(super) fn nudge(&self) {
        self.memory.nudge();
    }

    /// The peer's next message. A defect of the peer is noted and ends the link.
    pub(super) fn receive(&self) -> Option<Received> {
        if self.defect().is_some() {
            return None;
        }
        let received = self.inbound.lock().unwrap_or_else(PoisonError::into_inner).next();
        match received {
            Ok(Some(received)) => Some(received),
            Ok(None) => None,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// To be called when messages were received.
    pub(super) fn received_some(&self) {
        self.memory.relieve();
    }

    /// Sends what there is room for, until the exchange `until` is through or, without one, all.
    pub(super) fn pump(&self, until: Option<u64>) -> Pumped {
        let mut pumped = Pumped::default();
        loop {
            let next = self.outbound().next();
            let chunk = match next {
                Ok(Next::Chunk(chunk)) => chunk,
                Ok(Next::Nothing) => return pumped,
                Ok(Next::Starved) => {
                    // A message that makes room may lie there already, sent when nobody had to be woken for it.
                    pumped.unfinished |= self.memory.has_unread();
                    return pumped;
                }
                Err(error) => {
                    self.fail(error);
                    pumped.unfinished = true;
                    return pumped;
                }
            };
            chunk.fill(&self.memory);
            let published = self.outbound().publish(&chunk);
            self.memory.nudge();
            drop(chunk);
            match published {
                Ok(Published::Part) => {}
                Ok(Published::Whole(exchange)) => pumped.sent.push(Sent::Whole(exchange)),
                Ok(Published::Dropped(exchange)) => pumped.sent.push(Sent::Dropped(exchange)),
                Err(error) => {
                    self.fail(error);
                    pumped.unfinished = true;
                    return pumped;
                }
            }
            let through = |sent: &Sent| matches!(sent, Sent::Whole(exchange) | Sent::Dropped(exchange) if Some(*exchange) == until);
            if pumped.sent.last().is_some_and(through) {
                pumped.unfinished |= self.outbound().has_work();
                return pumped;
            }
        }
    }

    /// Stops sending an exchange; whether its memory is free now, or `None` if nothing of it was being sent.
    pub(super) fn give_up(&self, exchange: u64) -> Option<bool> {
        let given_up = self.outbound().give_up(exchange);
        given_up.map(|(pieces, copying)| {
            drop(pieces);
            !copying
        })
    }

    /// Says that this side's thread is about to sleep, or that it is awake.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.memory.set_asleep(asleep);
    }

    /// Whether there is something to do for this side's thread.
    pub(super) fn has_news(&self) -> bool {
        self.memory.has_unread() || self.defect().is_some()
    }

    /// Notes what is wrong with the link; only the first counts.
    pub(super) fn fail(&self, error: Error) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// What is wrong with the link.
    pub(super) fn defect(&self) -> Option<Error> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the link, telling the peer why if it is not in order. The peer sees it at once.
    pub(super) fn close(&self, reason: Option<&Error>) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(reason) = reason {
            // Who does not read does not learn it; nobody waits for that.
            let _ = self.connection.send(&reject::to_body(reason), &[], Duration::ZERO);
        }
        self.connection.close();
    }

    /// Why the peer ended the link, once [`fds`](Self::fds) said that it did.
    pub(super) fn farewell(&self) -> Error {
        let unavailable = |cause: &str| Error::Unavailable { what: self.peer.to_string(), cause: cause.to_owned() };
        let mut buffer = vec![0; usize::try_from(limits::REJECT_BYTES_MAX).expect("64 KiB")];
        match self.connection.recv(&mut buffer, Duration::ZERO) {
            Ok(Some(received)) => reject::from_body(&buffer[..received.bytes], &self.peer)
                .unwrap_or_else(|_| unavailable("it closed the connection for a reason that cannot be read")),
            Ok(None) => unavailable("it closed the connection"),
            // A descriptor of it lives on in a child, but the process has ended.
            Err(Error::Timeout { .. }) => unavailable("its process has ended"),
            Err(error) => unavailable(&error.to_string()),
        }
    }

    fn note(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.fail(error);
        }
    }
}
