//! One side of a link: the connection that says whether the peer lives, and the two halves of its memory.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::inbound::{self, Inbound};
use super::layout::{Message, RING_MESSAGES, SMALL_BYTES};
use super::memory::Memory;
use super::outbound::{Next, Outbound, Piece, Published};
#[cfg(any(test, feature = "testing"))]
use super::wakeup::Waker;
use super::wakeup::Wakeup;
use crate::error::{Error, Result};
use crate::local::failpoint::{Failpoint, reach};
use crate::local::{Connection, PeerProcess, Received, SharedBacking, Shown};
use crate::mem::borrow::Showable;
use crate::mem::{Frozen, Place, Region};
use crate::metrics::LinkMeter;
use crate::transport::exchange::bad;
use crate::types::LinkId;
use crate::wire::{limits, reject};

/// A link of one side.
pub(super) struct Link {
    pub(super) id: LinkId,
    /// The other side, for messages.
    pub(super) peer: Arc<str>,
    connection: Connection,
    /// The peer wakes this side by it.
    wakeup: Wakeup,
    /// Tells that the peer's process has ended, also where a child of it keeps the connection open.
    process: Option<Arc<PeerProcess>>,
    memory: Arc<Memory>,
    outbound: Mutex<Outbound>,
    inbound: Mutex<Inbound>,
    /// The first defect of the link. This side's thread closes a link that has one.
    broken: Mutex<Option<Error>>,
    /// Why the peer ended the link.
    end: Mutex<Option<Error>>,
    /// Segments that the peer was shown.
    shown: Mutex<BTreeSet<u32>>,
    closed: AtomicBool,
    /// Counts the bytes of a worker's link, if anything does.
    pub(super) meter: OnceLock<Arc<LinkMeter>>,
}

/// The result of a [`greeting`](super::greeting).
pub(super) struct Parts {
    pub(super) connection: Connection,
    /// The peer wakes this side by it.
    pub(super) wakeup: Wakeup,
    /// The own copy of the waker that the peer has. Only tests use it.
    #[cfg(any(test, feature = "testing"))]
    pub(super) waker: Waker,
    pub(super) process: Option<PeerProcess>,
    pub(super) memory: Memory,
}

/// How the sending of an exchange ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// All bytes are where the peer finds them, even if this process ends.
    Whole(u64),
    /// The exchange was given up. Nothing refers to its memory any more.
    Dropped(u64),
    /// Its bytes may not be sent. The exchange is to be given up.
    Withheld(u64),
}

impl Sent {
    fn exchange(self) -> u64 {
        let (Self::Whole(exchange) | Self::Dropped(exchange) | Self::Withheld(exchange)) = self;
        exchange
    }
}

/// The result of [`Link::pump`].
#[derive(Default)]
pub(super) struct Pumped {
    pub(super) sent: Vec<Sent>,
    /// Something is left to do, so this side's thread has to look at the link.
    pub(super) unfinished: bool,
}

impl Link {
    pub(super) fn new(id: LinkId, peer: Arc<str>, parts: Parts) -> Self {
        let Parts { connection, wakeup, process, memory, .. } = parts;
        let memory = Arc::new(memory);
        // A sleeping thread knows only the links that existed when it woke last. So the peer has to wake it for this link.
        memory.set_asleep(true);
        Self {
            id,
            connection,
            wakeup,
            process: process.map(Arc::new),
            outbound: Mutex::new(Outbound::new(Arc::clone(&memory), Arc::clone(&peer))),
            inbound: Mutex::new(Inbound::new(Arc::clone(&memory), Arc::clone(&peer))),
            memory,
            peer,
            broken: Mutex::new(None),
            end: Mutex::new(None),
            shown: Mutex::default(),
            closed: AtomicBool::new(false),
            meter: OnceLock::new(),
        }
    }

    /// The descriptors for which this side's thread waits: the wakeup, and those that say that the peer is gone.
    pub(super) fn fds(&self) -> (BorrowedFd<'_>, impl Iterator<Item = BorrowedFd<'_>>) {
        (
            self.wakeup.fd(),
            [Some(self.connection.fd()), self.process.as_ref().map(|process| process.life.as_fd())]
                .into_iter()
                .flatten(),
        )
    }

    /// Forgets the wakeups so far. This side's thread is awake.
    pub(super) fn clear_wakeup(&self) {
        self.wakeup.clear();
    }

    /// The sending half. Drop bytes that it returns after its lock is released, because dropping them may call back.
    pub(super) fn outbound(&self) -> MutexGuard<'_, Outbound> {
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message and wakes the peer if it sleeps.
    pub(super) fn post(&self, message: &Message) {
        self.post_quietly(message);
        self.memory.wake_reader();
    }

    /// Sends a message for which a sleeping peer is not woken. The peer reads it when it wakes for another reason. A peer that waits for room
    /// is woken.
    pub(super) fn post_quietly(&self, message: &Message) {
        let posted = self.outbound().post(message);
        self.note(posted);
        self.memory.wake_writer();
    }

    /// Wakes the peer if it sleeps.
    pub(super) fn wake_reader(&self) {
        self.memory.wake_reader();
    }

    /// Gives the peer's messages to `receive`. Returns whether there was one.
    ///
    /// Stops after as many messages as a ring holds, because a peer that sends without end must not keep the thread from other links.
    pub(super) fn drain(&self, receive: impl Fn(inbound::Received)) -> bool {
        let ring = usize::try_from(RING_MESSAGES).expect("a small number");
        let any = std::iter::from_fn(|| self.receive()).take(ring).map(receive).count() > 0;
        if any {
            self.memory.wake_writer();
            // A peer that sends again has probably released memory that was lent to it.
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

    /// Sends as much as there is room for. Stops when the exchange `until` was sent, if there is one. With `quietly` the peer is not woken,
    /// because the caller sends more at once.
    pub(super) fn pump(&self, until: Option<u64>, quietly: bool) -> Pumped {
        let mut pumped = Pumped::default();
        loop {
            let next = self.outbound().next();
            let mut chunk = match next {
                Ok(Next::Chunk(chunk)) => chunk,
                Ok(Next::Nothing) => return pumped,
                Ok(Next::Starved) => {
                    // A message that makes room may lie there unread, because the peer does not wake this side for it.
                    pumped.unfinished |= self.memory.has_unread();
                    return pumped;
                }
                Err(error) => {
                    self.fail(error);
                    pumped.unfinished = true;
                    return pumped;
                }
            };
            let published = match chunk.fill(&self.memory) {
                true => self.outbound().publish(&chunk),
                false => Ok(self.outbound().withhold(&chunk)),
            };
            if !quietly {
                self.memory.wake_reader();
            }
            match published {
                Ok(Published::Part) => reach(Failpoint::BytesLeave),
                Ok(Published::Whole(exchange)) => pumped.sent.push(Sent::Whole(exchange)),
                Ok(Published::Dropped(exchange)) => pumped.sent.push(Sent::Dropped(exchange)),
                Ok(Published::Withheld(exchange)) => pumped.sent.push(Sent::Withheld(exchange)),
                Err(error) => {
                    self.fail(error);
                    pumped.unfinished = true;
                    return pumped;
                }
            }
            if pumped.sent.last().is_some_and(|sent| Some(sent.exchange()) == until) {
                pumped.unfinished |= self.outbound().has_work();
                return pumped;
            }
        }
    }

    /// Frees memory that was lent and that the peer has released.
    fn take_back(&self) {
        let returned = self.outbound().returned();
        drop(returned);
    }

    /// Stops sending an exchange. Returns whether its memory is free now, or `None` if the exchange was not being sent.
    pub(super) fn give_up(&self, exchange: u64) -> Option<bool> {
        let given_up = self.outbound().give_up(exchange);
        given_up.map(|(pieces, copying)| {
            drop(pieces);
            !copying
        })
    }

    /// Tells the peer whether this side's thread sleeps.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.memory.set_asleep(asleep);
    }

    /// Whether there is something to do for this side's thread.
    pub(super) fn has_news(&self) -> bool {
        self.memory.has_unread() || self.defect().is_some()
    }

    /// Notes a defect of the link. Only the first counts.
    pub(super) fn fail(&self, error: Error) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// The defect of the link, if it has one.
    pub(super) fn defect(&self) -> Option<Error> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the link, and tells the peer the `reason` if there is one. The peer notices it at once.
    pub(super) fn close(&self, reason: Option<&Error>) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(reason) = reason {
            let told: Vec<u8> = [REASON].into_iter().chain(reject::to_body(reason)).collect();
            // A peer that does not read its socket misses the reason. This side does not wait for it.
            let _ = self.connection.send(&told, &[], Duration::ZERO);
        }
        self.connection.close();
    }

    /// Shows the peer the segment of a block. Returns the block's place there, or `None` if the block has to be copied.
    pub(super) fn show(&self, shared_memory: &SharedBacking, block: &Frozen) -> Option<Place> {
        let place = block.place().filter(|_| block.len() > SMALL_BYTES)?;
        let segment = shared_memory.segment(place.segment)?;
        self.show_segment(place.segment, segment.fd(), segment.bytes())?;
        Some(place)
    }

    /// Cuts a body into pieces that the peer reads where they lie. `None` if a region cannot be shown to the peer, or is so small that copying
    /// it is cheaper.
    pub(super) fn lend(&self, body: &[Region]) -> Option<Vec<Piece>> {
        let mut pieces = Vec::new();
        for region in body {
            let Showable { mut place, mapped: (fd, bytes), bytes: mut rest } =
                region.showable().filter(|_| region.len() > SMALL_BYTES)?;
            self.show_segment(place.segment, fd, bytes)?;
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(LENT_BYTES));
                let next = Place { offset: place.offset + piece.len() as u64, ..place };
                pieces.push((piece, Some(std::mem::replace(&mut place, next))));
            }
        }
        Some(pieces).filter(|pieces| !pieces.is_empty())
    }

    /// Whether the peer may still read memory that was lent to it.
    fn lends(&self) -> bool {
        self.take_back();
        self.outbound().lends() && !self.peer_has_ended()
    }

    /// Shows a segment to the peer, once. `None` if the socket takes no message now.
    fn show_segment(&self, number: u32, fd: BorrowedFd<'_>, bytes: usize) -> Option<()> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if !shown.contains(&number) {
            let (name, bytes) = (number.to_le_bytes(), (bytes as u64).to_le_bytes());
            let told: Vec<u8> = [SHOWN].into_iter().chain(name).chain(bytes).collect();
            self.connection.send(&told, &[fd], Duration::ZERO).ok()?;
            shown.insert(number);
        }
        Some(())
    }

    /// The peer's process, if the system shows it.
    pub(super) fn process(&self) -> Option<&Arc<PeerProcess>> {
        self.process.as_ref()
    }

    fn peer_has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.has_ended())
    }

    /// Reads the peer's messages on the socket. Returns why the peer ended the link, if it did. Notes a defect of the peer.
    pub(super) fn end_reason(&self) -> Option<Error> {
        let heard = self.listen(&mut self.inbound());
        self.note(heard);
        let heard = self.end.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A child of the peer's process may keep the socket open after that process has ended.
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
                    _ => return Err(bad(&self.peer, "message on the socket", "is of an unknown kind")),
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

/// Links that are over, whose peers live and may still read memory that was lent to them. That memory is not used again before they cannot.
#[derive(Default)]
pub(super) struct LingeringLinks(Mutex<Vec<Arc<Link>>>);

impl LingeringLinks {
    /// Keeps a link that is over, if its peer may still read memory that was lent to it.
    pub(super) fn keep(&self, link: &Arc<Link>) {
        if link.lends() {
            self.links().push(Arc::clone(link));
        }
    }

    /// Drops the links whose peers read nothing any more.
    pub(super) fn release(&self) {
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

/// Bytes that are lent for one ticket. So many that a part needs few messages, and so few that the server adds the first piece while it
/// learns of the next.
const LENT_BYTES: usize = 256 << 10;

/// Kinds of messages on the socket: the reason of the end, and another segment with its number and length.
pub(super) const REASON: u8 = 1;
pub(super) const SHOWN: u8 = 2;
