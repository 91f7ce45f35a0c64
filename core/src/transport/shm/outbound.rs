//! The sending half of a link: messages, and bytes in slots, the most urgent exchange first.
//!
//! Bytes of an exchange are sent before the peer has accepted it, which saves a small exchange a round trip. But a peer may accept one
//! exchange only after others have ended, and those others need slots meanwhile. So exchanges that are not accepted hold at most half of the
//! slots.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::cells::{Cells, Size};
use super::layout::{CELLS, EXCHANGES_MAX, LARGE_BYTES, Message, RING_MESSAGES, SMALL_BYTES, Words};
use super::memory::Memory;
use crate::error::Result;
use crate::mem::Place;
use crate::transport::Look;
use crate::transport::exchange::bad;

/// The sending half of a link.
pub(super) struct Outbound {
    memory: Arc<Memory>,
    /// The other side, for messages.
    peer: Arc<str>,
    sent: u64,
    read: u64,
    /// Messages for which the ring had no room, oldest first.
    backlog: VecDeque<Words>,
    cells: Cells,
    /// Exchanges that are being sent: the most urgent class first, then by number.
    flows: BTreeMap<Key, Flow>,
    classes: BTreeMap<u64, u8>,
    /// Flows that have bytes to send: first those that are not accepted, then those that are.
    ready: [BTreeSet<Key>; 2],
    /// The exchange of which a thread copies a chunk now. One at a time, so that chunks stay in order.
    copying: Option<u64>,
    /// The peer was told that this side waits for room.
    starved: bool,
}

/// The class of a flow, 0 for the most urgent, and its exchange.
type Key = (u8, u64);

/// Bytes to be sent. The place is given if the peer can read them where they lie.
pub(super) type Piece = (Bytes, Option<Place>);

/// Bytes of one exchange that are to be sent.
struct Flow {
    pieces: VecDeque<Piece>,
    ending: Ending,
    accepted: bool,
    /// How the bytes are looked at, and how many bytes go ahead of them that are no elements.
    look: Option<(Arc<Look>, usize)>,
}

/// How a flow ends once its pieces are sent.
enum Ending {
    /// More pieces come.
    Open,
    /// With this message, if any.
    With(Option<Message>),
}

/// The next bytes of an exchange, which a thread sends now.
pub(super) struct Chunk {
    exchange: u64,
    /// The cell into which the bytes are copied, or the ticket for which they are lent.
    slot: u16,
    pieces: Vec<Bytes>,
    message: Message,
    /// As that of its exchange.
    look: Option<(Arc<Look>, usize)>,
}

impl Chunk {
    /// Copies the bytes into the cell, unless they are lent, and drops them. Call it without the lock. Afterwards only the pieces that were
    /// not taken yet refer to the caller's memory. Returns whether it may be sent. If not, [`withhold`](Outbound::withhold) it.
    #[must_use]
    pub(super) fn fill(&mut self, memory: &Memory) -> bool {
        let passes = |block: &[u8]| match &mut self.look {
            None => true,
            Some((_, ahead)) if *ahead > 0 => {
                *ahead -= block.len();
                true
            }
            Some((look, _)) => look.passes(block),
        };
        let may_go = self.pieces.is_empty() || memory.fill(self.slot, &self.pieces, passes);
        self.pieces.clear();
        may_go
    }
}

/// The result of [`Outbound::next`].
pub(super) enum Next {
    /// Fill this, then [`Outbound::publish`] it.
    Chunk(Chunk),
    /// There is no room. The peer wakes this side when there is.
    Starved,
    /// Nothing to do, or another thread does it.
    Nothing,
}

/// The result of [`Outbound::publish`].
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Published {
    /// The chunk was sent, and the exchange has more to send.
    Part,
    /// The chunk was the last one of this exchange.
    Whole(u64),
    /// The exchange was given up meanwhile. Nothing refers to its memory any more.
    Dropped(u64),
    /// The chunk may not be sent, and the exchange sends nothing any more until it is given up.
    Withheld(u64),
}

impl Outbound {
    pub(super) fn new(memory: Arc<Memory>, peer: Arc<str>) -> Self {
        Self {
            memory,
            peer,
            sent: 0,
            read: 0,
            backlog: VecDeque::new(),
            cells: Cells::new(),
            flows: BTreeMap::new(),
            classes: BTreeMap::new(),
            ready: [BTreeSet::new(), BTreeSet::new()],
            copying: None,
            starved: false,
        }
    }

    /// Sends a message, as soon as there is room. Wake the peer afterwards.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if the peer does not read its messages.
    pub(super) fn post(&mut self, message: &Message) -> Result<()> {
        self.flush()?;
        self.put(message.encode())
    }

    /// Begins to send an exchange. [`extend`](Self::extend) adds its bytes, and [`end`](Self::end) ends them.
    pub(super) fn begin(&mut self, exchange: u64, urgency: u8, accepted: bool) {
        let class = 7 - urgency.min(7);
        let flow = Flow { pieces: VecDeque::new(), ending: Ending::Open, accepted, look: None };
        self.flows.insert((class, exchange), flow);
        self.classes.insert(exchange, class);
    }

    /// Looks at the bytes of an exchange that was begun, but for the first `ahead` bytes. Call it before its bytes are added.
    pub(super) fn look(&mut self, exchange: u64, look: Arc<Look>, ahead: usize) {
        if let Some((_, flow)) = self.flow(exchange) {
            flow.look = Some((look, ahead));
        }
    }

    /// Adds bytes to an exchange that was begun. Ignores an exchange that was given up.
    pub(super) fn extend(&mut self, exchange: u64, pieces: impl IntoIterator<Item = Piece>) {
        let Some((key, flow)) = self.flow(exchange) else { return };
        flow.pieces.extend(pieces.into_iter().filter(|(bytes, _)| !bytes.is_empty()));
        let (accepted, empty) = (flow.accepted, flow.pieces.is_empty());
        if !empty {
            self.ready[usize::from(accepted)].insert(key);
        }
    }

    /// Ends the bytes of an exchange. `message` follows the last of them. Returns whether all bytes were sent before this call.
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    pub(super) fn end(&mut self, exchange: u64, message: Option<Message>) -> Result<bool> {
        let copying = self.copying == Some(exchange);
        let Some((_, flow)) = self.flow(exchange) else { return Ok(false) };
        flow.ending = Ending::With(message);
        if copying || !flow.pieces.is_empty() {
            return Ok(false);
        }
        self.close(exchange)?;
        Ok(true)
    }

    /// The peer accepts an exchange.
    pub(super) fn accept(&mut self, exchange: u64) {
        if let Some((key, flow)) = self.flow(exchange) {
            flow.accepted = true;
            if self.ready[0].remove(&key) {
                self.ready[1].insert(key);
            }
        }
        self.forget(exchange);
    }

    /// Stops sending an exchange. Returns the pieces that were not sent, which the caller drops without the lock, and whether another thread
    /// copies a chunk of it now. `None` if the exchange was not being sent.
    pub(super) fn give_up(&mut self, exchange: u64) -> Option<(VecDeque<Piece>, bool)> {
        self.forget(exchange);
        let key = (self.classes.remove(&exchange)?, exchange);
        let flow = self.flows.remove(&key).expect("both maps name the same exchanges");
        self.ready[usize::from(flow.accepted)].remove(&key);
        Some((flow.pieces, self.copying == Some(exchange)))
    }

    /// The exchange is over for the peer, which will release its slots without waiting for other exchanges.
    pub(super) fn forget(&mut self, exchange: u64) {
        self.cells.forget(exchange);
    }

    /// Whether there are messages or bytes to send.
    pub(super) fn has_work(&self) -> bool {
        !self.backlog.is_empty() || self.ready.iter().any(|ready| !ready.is_empty())
    }

    /// Takes the next chunk to be sent.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if the state in the peer's segment is impossible.
    pub(super) fn next(&mut self) -> Result<Next> {
        if self.copying.is_some() {
            return Ok(Next::Nothing);
        }
        self.flush()?;
        if let Some(chunk) = self.take()? {
            self.set_starved(false);
            return Ok(Next::Chunk(chunk));
        }
        if !self.has_work() {
            self.set_starved(false);
            return Ok(Next::Nothing);
        }
        self.set_starved(true);
        // Looks again, for room that the peer made before it could see that this side waits.
        self.flush()?;
        match self.take()? {
            Some(chunk) => {
                self.set_starved(false);
                Ok(Next::Chunk(chunk))
            }
            None if self.has_work() => Ok(Next::Starved),
            None => {
                self.set_starved(false);
                Ok(Next::Nothing)
            }
        }
    }

    /// Sends a chunk that was filled. Wake the peer afterwards, without the lock.
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    pub(super) fn publish(&mut self, chunk: &Chunk) -> Result<Published> {
        self.copying = None;
        let Some((_, flow)) = self.flow(chunk.exchange) else {
            // Memory of a pool, as in `take`.
            drop(self.cells.undo(chunk.slot));
            return Ok(Published::Dropped(chunk.exchange));
        };
        let whole = flow.pieces.is_empty() && matches!(flow.ending, Ending::With(_));
        self.put(chunk.message.encode())?;
        if !whole {
            return Ok(Published::Part);
        }
        self.close(chunk.exchange)?;
        Ok(Published::Whole(chunk.exchange))
    }

    /// Sends nothing of a chunk that may not be sent, and stops its exchange. Give the exchange up then.
    pub(super) fn withhold(&mut self, chunk: &Chunk) -> Published {
        self.copying = None;
        // Memory of a pool, as in `take`.
        drop(self.cells.undo(chunk.slot));
        let Some((key, flow)) = self.flow(chunk.exchange) else { return Published::Dropped(chunk.exchange) };
        let accepted = flow.accepted;
        self.ready[usize::from(accepted)].remove(&key);
        Published::Withheld(chunk.exchange)
    }

    fn close(&mut self, exchange: u64) -> Result<()> {
        let class = self.classes.remove(&exchange).expect("it flows");
        match self.flows.remove(&(class, exchange)).map(|flow| flow.ending) {
            Some(Ending::With(Some(message))) => self.put(message.encode()),
            Some(Ending::With(None) | Ending::Open) | None => Ok(()),
        }
    }

    fn flow(&mut self, exchange: u64) -> Option<(Key, &mut Flow)> {
        let key = (*self.classes.get(&exchange)?, exchange);
        Some((key, self.flows.get_mut(&key)?))
    }

    /// The most urgent bytes that are accepted, or the most urgent ones that are not. `None` if there is no slot for either. Less urgent flows
    /// are not tried then.
    fn take(&mut self) -> Result<Option<Chunk>> {
        if !self.backlog.is_empty() || !self.has_room()? {
            return Ok(None);
        }
        // Lent bytes are memory of a pool. The pool takes it back without a callback, so they may be dropped under the lock.
        drop(self.cells.reclaim(&self.memory));
        let mut first: Vec<Key> = self.ready.iter().filter_map(|ready| ready.first().copied()).collect();
        first.sort_unstable();
        for key in first {
            if let Some(chunk) = self.take_of(key) {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    fn take_of(&mut self, key: Key) -> Option<Chunk> {
        let exchange = key.1;
        let flow = self.flows.get_mut(&key).expect("what is ready flows");
        let (place, bytes) = match flow.pieces.front().expect("what is ready has pieces") {
            (bytes, Some(place)) => (Some(*place), bytes.len()),
            (_, None) => (None, 0),
        };
        let size = match place {
            Some(_) => Size::Ticket,
            None if has_at_most(&flow.pieces, SMALL_BYTES) => Size::Small,
            None => Size::Large,
        };
        let slot = self.cells.take(size, exchange, flow.accepted)?;
        let (pieces, message) = match place {
            Some(place) => {
                let (lent, _) = flow.pieces.pop_front().expect("looked at");
                self.cells.lend(slot, lent);
                let ticket = slot - u16::try_from(CELLS).expect("few cells");
                let bytes = u32::try_from(bytes).expect("a part is shorter");
                (Vec::new(), Message::Lent { exchange, ticket, place, bytes })
            }
            None => {
                let room = if size == Size::Small { SMALL_BYTES } else { LARGE_BYTES };
                let pieces = cut(&mut flow.pieces, room);
                let bytes = pieces.iter().map(Bytes::len).sum::<usize>();
                let bytes = u32::try_from(bytes).expect("a cell is small");
                (pieces, Message::Data { exchange, cell: slot, bytes })
            }
        };
        let look = flow.look.clone();
        if let Some((_, ahead)) = &mut flow.look {
            *ahead = ahead.saturating_sub(pieces.iter().map(Bytes::len).sum());
        }
        if flow.pieces.is_empty() {
            self.ready[usize::from(flow.accepted)].remove(&key);
        }
        self.copying = Some(exchange);
        Some(Chunk { exchange, slot, pieces, message, look })
    }

    /// The bytes that were lent to the peer and that it has released. The caller drops them without the lock.
    pub(super) fn returned(&mut self) -> Vec<Bytes> {
        self.cells.reclaim(&self.memory)
    }

    /// Whether the peer may still read bytes that were lent to it.
    pub(super) fn lends(&self) -> bool {
        self.cells.has_lent()
    }

    fn set_starved(&mut self, starved: bool) {
        // Each wait for room needs a new number, because the peer ends a wait once.
        if starved || self.starved {
            self.memory.set_starved(starved);
            self.starved = starved;
        }
    }

    fn has_room(&mut self) -> Result<bool> {
        if self.sent - self.read >= RING_MESSAGES {
            self.read = self.memory.peer_has_read(self.read, self.sent, &self.peer)?;
        }
        Ok(self.sent - self.read < RING_MESSAGES)
    }

    fn put(&mut self, words: Words) -> Result<()> {
        if self.backlog.is_empty() && self.has_room()? {
            self.memory.write(self.sent, &words);
            self.sent += 1;
        } else if self.backlog.len() < BACKLOG_MAX {
            self.backlog.push_back(words);
        } else {
            return Err(bad(
                &self.peer,
                "ring",
                format!("is full, and {BACKLOG_MAX} more messages wait for the peer to read"),
            ));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        while !self.backlog.is_empty() && self.has_room()? {
            let words = self.backlog.pop_front().expect("not empty");
            self.memory.write(self.sent, &words);
            self.sent += 1;
        }
        Ok(())
    }
}

/// Messages that may wait for room in the ring: a few for each exchange. Only a broken peer lets so many wait.
const BACKLOG_MAX: usize = 4 * EXCHANGES_MAX;

/// The length of the longest element of a tensor. That of any other divides it.
const ELEMENT_BYTES_MAX: usize = 8;

/// Whether the pieces at the front that have to be copied have at most so many bytes.
fn has_at_most(pieces: &VecDeque<Piece>, bytes: usize) -> bool {
    let mut left = bytes;
    pieces.iter().take_while(|(_, place)| place.is_none()).all(|(piece, _)| {
        let fits = piece.len() <= left;
        left = left.saturating_sub(piece.len());
        fits
    })
}

/// Takes up to `room` bytes of the pieces at the front that have to be copied. Cuts no element of a piece that begins with a whole one.
fn cut(pieces: &mut VecDeque<Piece>, mut room: usize) -> Vec<Bytes> {
    let mut taken = Vec::with_capacity(1);
    while room > 0
        && let Some((piece, None)) = pieces.front_mut()
    {
        if piece.len() <= room {
            room -= piece.len();
            taken.push(pieces.pop_front().expect("looked at").0);
            continue;
        }
        let whole = room - room % ELEMENT_BYTES_MAX;
        if whole > 0 {
            taken.push(piece.split_to(whole));
        }
        break;
    }
    taken
}
