//! One link as its side has it: the connection that says whether the peer lives, and the two halves of its memory.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::bell::Ear;
#[cfg(any(test, feature = "testing"))]
use super::bell::Rope;
use super::inbound::{self, Inbound};
use super::layout::{Message, RING_MESSAGES, SMALL_BYTES};
use super::memory::Memory;
use super::outbound::{Next, Outbound, Piece, Published};
use crate::error::{Error, Result};
use crate::local::socket::wait_any;
use crate::local::{Connection, Received, SharedBacking, Shown};
use crate::mem::borrow::Showable;
use crate::mem::{Frozen, Place, Region};
use crate::transport::exchange::bad;
use crate::types::LinkId;
use crate::wire::{limits, reject};

/// A link of one side.
pub(super) struct Link {
    pub(super) id: LinkId,
    /// The other side, for messages.
    pub(super) peer: Arc<str>,
    connection: Connection,
    /// Rung by the peer.
    ear: Ear,
    /// Ready when the peer's process has ended, also where a child of it keeps the connection open.
    life: Option<OwnedFd>,
    memory: Arc<Memory>,
    outbound: Mutex<Outbound>,
    inbound: Mutex<Inbound>,
    /// The first defect of the link; its side's thread closes it.
    broken: Mutex<Option<Error>>,
    /// Why the peer ended it.
    end: Mutex<Option<Error>>,
    /// Segments that the peer was shown.
    shown: Mutex<BTreeSet<u32>>,
    closed: AtomicBool,
}

/// What a connected pair of processes has: see [`greeting`](super::greeting).
pub(super) struct Parts {
    pub(super) connection: Connection,
    /// Rung by the peer.
    pub(super) ear: Ear,
    /// The own copy of what the peer rings with, for which only tests have a use.
    #[cfg(any(test, feature = "testing"))]
    pub(super) rope: Rope,
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
        let Parts { connection, ear, life, memory, .. } = parts;
        let memory = Arc::new(memory);
        // A thread that sleeps looks at links that it knew when it woke. The peer must ring until it has seen this one.
        memory.set_asleep(true);
        Self {
            id,
            connection,
            ear,
            life,
            outbound: Mutex::new(Outbound::new(Arc::clone(&memory), Arc::clone(&peer))),
            inbound: Mutex::new(Inbound::new(Arc::clone(&memory), Arc::clone(&peer))),
            memory,
            peer,
            broken: Mutex::new(None),
            end: Mutex::new(None),
            shown: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// What its side's thread waits for: the bell, then what says that the peer is gone.
    pub(super) fn fds(&self) -> (BorrowedFd<'_>, impl Iterator<Item = BorrowedFd<'_>>) {
        (self.ear.fd(), [Some(self.connection.fd()), self.life.as_ref().map(AsFd::as_fd)].into_iter().flatten())
    }

    /// The bell was rung, and this side's thread is awake.
    pub(super) fn hush(&self) {
        self.ear.hush();
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

    /// Hands on what the peer has said; whether that was anything.
    ///
    /// A ring's worth of messages at most: a peer that never stops talking must not keep the thread from the other links.
    pub(super) fn drain(&self, receive: impl Fn(inbound::Received)) -> bool {
        let ring = usize::try_from(RING_MESSAGES).expect("a small number");
        let any = std::iter::from_fn(|| self.receive()).take(ring).map(receive).count() > 0;
        if any {
            self.memory.relieve();
            // A peer that speaks again has read what was lent to it before.
            self.take_back();
        }
        any
    }

    /// The peer's next message. A defect of the peer is noted and ends the link.
    fn receive(&self) -> Option<inbound::Received> {
        if self.defect().is_some() {
            return None;
        }
        let received = self.inbound().next(|inbound| self.listen(inbound));
        match received {
            Ok(Some(received)) => Some(received),
            Ok(None) => None,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// Sends what there is room for, until the exchange `until` is through or, without one, all. With `quietly` the peer is not woken,
    /// because the caller says more at once.
    pub(super) fn pump(&self, until: Option<u64>, quietly: bool) -> Pumped {
        let mut pumped = Pumped::default();
        loop {
            let next = self.outbound().next();
            let mut chunk = match next {
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
            if !quietly {
                self.memory.nudge();
            }
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

    /// Frees what was lent and is no longer read.
    fn take_back(&self) {
        let returned = self.outbound().returned();
        drop(returned);
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
            let told: Vec<u8> = [REASON].into_iter().chain(reject::to_body(reason)).collect();
            // Who does not read does not learn it; nobody waits for that.
            let _ = self.connection.send(&told, &[], Duration::ZERO);
        }
        self.connection.close();
    }

    /// Where the peer finds a block, if it can be shown to it.
    pub(super) fn show(&self, shared_memory: &SharedBacking, block: &Frozen) -> Option<Place> {
        let place = block.place().filter(|_| block.len() > SMALL_BYTES)?;
        let segment = shared_memory.segment(place.segment)?;
        self.tell(place.segment, segment.fd(), segment.bytes())?;
        Some(place)
    }

    /// A body whose memory can be shown to the peer, as pieces that it reads where they lie; none if all or some of it cannot, or is too
    /// little to be worth it.
    pub(super) fn lend(&self, body: &[Region]) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        for region in body {
            let Showable { mut place, mapped: (fd, bytes), bytes: mut rest } =
                region.showable().filter(|_| region.len() > SMALL_BYTES)?;
            self.tell(place.segment, fd, bytes)?;
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(LENT_BYTES));
                let next = Place { offset: place.offset + piece.len() as u64, ..place };
                pieces.push((piece, Some(std::mem::replace(&mut place, next))));
            }
        }
        Some(pieces).filter(|pieces| !pieces.is_empty())
    }

    /// Whether the peer may still read what was lent to it.
    fn lends(&self) -> bool {
        self.take_back();
        self.outbound().lends() && !self.peer_has_ended()
    }

    /// Tells the peer of a segment, once; nothing if it does not hear.
    fn tell(&self, number: u32, fd: BorrowedFd<'_>, bytes: usize) -> Option<()> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if !shown.contains(&number) {
            let (name, bytes) = (number.to_le_bytes(), (bytes as u64).to_le_bytes());
            let told: Vec<u8> = [SHOWN].into_iter().chain(name).chain(bytes).collect();
            self.connection.send(&told, &[fd], Duration::ZERO).ok()?;
            shown.insert(number);
        }
        Some(())
    }

    fn peer_has_ended(&self) -> bool {
        self.life.as_ref().is_some_and(|life| wait_any(&[life.as_fd()], Duration::ZERO) == Ok(vec![true]))
    }

    /// Hears what the peer says by the socket; why it ended the link, if it did. A defect of the peer is noted.
    pub(super) fn farewell(&self) -> Option<Error> {
        let heard = self.listen(&mut self.inbound());
        self.note(heard);
        let heard = self.end.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Where its process has ended, a descriptor of it may live on in a child.
        heard.or_else(|| self.peer_has_ended().then(|| self.unavailable("its process has ended")))
    }

    fn listen(&self, inbound: &mut Inbound) -> Result<()> {
        let mut buffer = vec![0; usize::try_from(limits::REJECT_BYTES_MAX).expect("64 KiB") + 1];
        loop {
            let end = match self.connection.recv(&mut buffer, Duration::ZERO) {
                Ok(Some(Received { bytes, fds })) => match (&buffer[..bytes], fds.into_iter().next()) {
                    ([SHOWN, told @ ..], Some(fd)) if told.len() == 12 => {
                        let segment = u32::from_le_bytes(told[..4].try_into().expect("four bytes"));
                        let bytes = u64::from_le_bytes(told[4..].try_into().expect("eight bytes"));
                        inbound.show(segment, Shown::map(fd, bytes)?)?;
                        continue;
                    }
                    ([REASON, reason @ ..], None) => reject::from_body(reason, &self.peer)?,
                    _ => return Err(bad(&self.peer, "message", "is none that is expected")),
                },
                Ok(None) => self.unavailable("it closed the connection"),
                Err(Error::Timeout { .. }) => return Ok(()),
                Err(error @ Error::Protocol { .. }) => return Err(error),
                Err(error) => self.unavailable(&error.to_string()),
            };
            self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
            return Ok(());
        }
    }

    fn unavailable(&self, cause: &str) -> Error {
        Error::Unavailable { what: self.peer.to_string(), cause: cause.to_owned() }
    }

    fn inbound(&self) -> MutexGuard<'_, Inbound> {
        self.inbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.fail(error);
        }
    }
}

/// Links that are over, and whose peers live and may still read what was lent to them: until then that memory is nobody else's.
#[derive(Default)]
pub(super) struct Ended(Mutex<Vec<Arc<Link>>>);

impl Ended {
    /// Keeps a link that is over and sends no more, as long as there is a reason.
    pub(super) fn keep(&self, link: &Arc<Link>) {
        if link.lends() {
            self.links().push(Arc::clone(link));
        }
    }

    /// Lets go of those whose peers read nothing any more.
    pub(super) fn let_go(&self) {
        let ended = std::mem::take(&mut *self.links());
        if !ended.is_empty() {
            // Dropped without the lock.
            let (lending, _free): (Vec<_>, Vec<_>) = ended.into_iter().partition(|link| link.lends());
            self.links().extend(lending);
        }
    }

    fn links(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For one ticket: few enough messages, and the server adds the first while it is told of the next.
const LENT_BYTES: usize = 256 << 10;

/// Messages by the socket: why the link ends, and another segment with its number and length.
pub(super) const REASON: u8 = 1;
pub(super) const SHOWN: u8 = 2;
