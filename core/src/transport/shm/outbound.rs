//! What one side of a link sends: messages, and bytes in cells, the most urgent exchange first.
//!
//! Bytes of an exchange go out before the peer has accepted it, which saves small ones a round trip. But a peer may put one exchange off
//! until others are through, and those must not wait behind it: what is not accepted takes at most half of the cells.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::layout::{
    CELLS, LARGE_BYTES, LARGE_CELLS, Message, RING_MESSAGES, SLOTS, SMALL_BYTES, SMALL_CELLS, TICKETS, Words, bad,
};
use super::memory::Memory;
use crate::error::Result;
use crate::mem::Place;

/// The sending half of a link.
pub(super) struct Outbound {
    memory: Arc<Memory>,
    /// The other side, for messages.
    peer: Arc<str>,
    sent: u64,
    read: u64,
    /// Messages for which the ring had no room, oldest first.
    backlog: VecDeque<Words>,
    cells: [Shelf; 2],
    /// Tickets that are free.
    tickets: Vec<u16>,
    /// What is lent, by ticket.
    lent: BTreeMap<u16, Bytes>,
    /// How often each slot was sent; it is free again when the peer has released it as often.
    uses: Vec<u32>,
    /// By class, most urgent first, then by exchange.
    flows: BTreeMap<(u8, u64), Flow>,
    classes: BTreeMap<u64, u8>,
    /// Exchanges that have cells and are not accepted.
    waiting: BTreeMap<u64, [usize; 2]>,
    /// The exchange of which a chunk is being copied. One at a time, so that chunks stay in order.
    copying: Option<u64>,
    /// The peer was told that this side waits for room.
    starved: bool,
}

/// Cells of one size.
struct Shelf {
    /// The last released on top: it is the most likely to be in a cache.
    free: Vec<u16>,
    /// Oldest first.
    busy: VecDeque<u16>,
    waiting: usize,
    waiting_max: usize,
}

/// Bytes to be sent, and where the peer sees them already, if it does.
pub(super) type Piece = (Bytes, Option<Place>);

/// Bytes of one exchange that are to be sent.
struct Flow {
    pieces: VecDeque<Piece>,
    ending: Ending,
    accepted: bool,
}

/// How a flow ends once its pieces are sent.
enum Ending {
    /// More pieces come.
    Open,
    /// With this message, if any.
    With(Option<Message>),
}

/// The next bytes of an exchange, on their way.
pub(super) struct Chunk {
    exchange: u64,
    /// The cell that they are copied into; absent if they are lent, which needs no copy.
    cell: Option<u16>,
    pieces: Vec<Bytes>,
    message: Message,
}

impl Chunk {
    /// Copies the bytes, if they are to be copied, and lets go of them; not under the lock. From then on only what was not taken yet refers to
    /// the caller's memory.
    pub(super) fn fill(&mut self, memory: &Memory) {
        if let Some(cell) = self.cell {
            memory.fill(cell, &self.pieces);
        }
        self.pieces.clear();
    }
}

/// What can be sent now.
pub(super) enum Next {
    /// Fill this, then [`Outbound::publish`] it.
    Chunk(Chunk),
    /// There is no room; the peer rings when there is.
    Starved,
    /// Nothing to do, or somebody else does it.
    Nothing,
}

/// What became of a chunk.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Published {
    /// It was sent and more is to come.
    Part,
    /// It was the last of this exchange.
    Whole(u64),
    /// The exchange was given up meanwhile; nothing refers to its memory any more.
    Dropped(u64),
}

impl Outbound {
    pub(super) fn new(memory: Arc<Memory>, peer: Arc<str>) -> Self {
        let shelf = |from: usize, count: usize| Shelf {
            free: (from..from + count).rev().map(|cell| u16::try_from(cell).expect("few cells")).collect(),
            busy: VecDeque::new(),
            waiting: 0,
            waiting_max: count / 2,
        };
        Self {
            memory,
            peer,
            sent: 0,
            read: 0,
            backlog: VecDeque::new(),
            cells: [shelf(0, LARGE_CELLS), shelf(LARGE_CELLS, SMALL_CELLS)],
            tickets: (0..u16::try_from(TICKETS).expect("few tickets")).rev().collect(),
            lent: BTreeMap::new(),
            uses: vec![0; SLOTS],
            flows: BTreeMap::new(),
            classes: BTreeMap::new(),
            waiting: BTreeMap::new(),
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

    /// Begins to send bytes of an exchange, which come by [`extend`](Self::extend) until [`end`](Self::end).
    pub(super) fn begin(&mut self, exchange: u64, urgency: u8, accepted: bool) {
        let class = 7 - urgency.min(7);
        self.flows.insert((class, exchange), Flow { pieces: VecDeque::new(), ending: Ending::Open, accepted });
        self.classes.insert(exchange, class);
    }

    /// The next bytes of an exchange that was begun. Ignored once it is given up.
    pub(super) fn extend(&mut self, exchange: u64, pieces: impl IntoIterator<Item = Piece>) {
        if let Some(flow) = self.flow(exchange) {
            flow.pieces.extend(pieces.into_iter().filter(|(bytes, _)| !bytes.is_empty()));
        }
    }

    /// No more bytes of an exchange come; `message` follows the last. Whether all were sent before, so that it is through.
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    pub(super) fn end(&mut self, exchange: u64, message: Option<Message>) -> Result<bool> {
        let copying = self.copying == Some(exchange);
        let Some(flow) = self.flow(exchange) else { return Ok(false) };
        flow.ending = Ending::With(message);
        if copying || !flow.pieces.is_empty() {
            return Ok(false);
        }
        self.close(exchange)?;
        Ok(true)
    }

    /// The peer accepts an exchange.
    pub(super) fn accept(&mut self, exchange: u64) {
        if let Some(flow) = self.flow(exchange) {
            flow.accepted = true;
        }
        self.forget(exchange);
    }

    /// Sends no more of an exchange. What was to be sent is returned, to be dropped without the lock; whether a chunk is being copied.
    pub(super) fn give_up(&mut self, exchange: u64) -> Option<(VecDeque<Piece>, bool)> {
        self.forget(exchange);
        let class = self.classes.remove(&exchange)?;
        let flow = self.flows.remove(&(class, exchange)).expect("both maps name the same exchanges");
        Some((flow.pieces, self.copying == Some(exchange)))
    }

    /// The exchange is over for the peer: what it still holds of it, it will release.
    pub(super) fn forget(&mut self, exchange: u64) {
        if let Some(cells) = self.waiting.remove(&exchange) {
            for (shelf, count) in self.cells.iter_mut().zip(cells) {
                shelf.waiting -= count;
            }
        }
    }

    /// Whether there are bytes that somebody should send.
    pub(super) fn has_work(&self) -> bool {
        !self.backlog.is_empty() || self.flows.values().any(|flow| !flow.pieces.is_empty())
    }

    /// Takes the next chunk to be sent.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) if the peer's segment says what cannot be.
    pub(super) fn next(&mut self) -> Result<Next> {
        if self.copying.is_some() {
            return Ok(Next::Nothing);
        }
        self.flush()?;
        if let Some(chunk) = self.take()? {
            self.hunger(false);
            return Ok(Next::Chunk(chunk));
        }
        if !self.has_work() {
            self.hunger(false);
            return Ok(Next::Nothing);
        }
        self.hunger(true);
        // What was released before the peer could know that it is waited for.
        self.flush()?;
        match self.take()? {
            Some(chunk) => {
                self.hunger(false);
                Ok(Next::Chunk(chunk))
            }
            None if self.has_work() => Ok(Next::Starved),
            None => {
                self.hunger(false);
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
        let Some(flow) = self.flow(chunk.exchange) else {
            if let Some(cell) = chunk.cell {
                let (shelf, slot) = (class_of(cell), usize::from(cell));
                self.uses[slot] = self.uses[slot].wrapping_sub(1);
                self.cells[shelf].busy.retain(|busy| *busy != cell);
                self.cells[shelf].free.push(cell);
            }
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

    fn close(&mut self, exchange: u64) -> Result<()> {
        let class = self.classes.remove(&exchange).expect("it flows");
        match self.flows.remove(&(class, exchange)).map(|flow| flow.ending) {
            Some(Ending::With(Some(message))) => self.put(message.encode()),
            Some(Ending::With(None) | Ending::Open) | None => Ok(()),
        }
    }

    fn flow(&mut self, exchange: u64) -> Option<&mut Flow> {
        let class = self.classes.get(&exchange)?;
        self.flows.get_mut(&(*class, exchange))
    }

    /// The first bytes that may have a cell, in one.
    fn take(&mut self) -> Result<Option<Chunk>> {
        if !self.backlog.is_empty() || !self.has_room()? {
            return Ok(None);
        }
        self.reclaim();
        let Self { cells, flows, waiting, uses, tickets, lent, .. } = self;
        for ((_, exchange), flow) in flows.iter_mut() {
            let exchange = *exchange;
            match flow.pieces.front() {
                None => continue,
                Some((bytes, Some(place))) => {
                    let Some(ticket) = tickets.pop() else { continue };
                    let (place, length) = (*place, u32::try_from(bytes.len()).expect("a part is shorter"));
                    let (bytes, _) = flow.pieces.pop_front().expect("looked at");
                    uses[CELLS + usize::from(ticket)] = uses[CELLS + usize::from(ticket)].wrapping_add(1);
                    lent.insert(ticket, bytes);
                    self.copying = Some(exchange);
                    let message = Message::Lent { exchange, ticket, place, bytes: length };
                    return Ok(Some(Chunk { exchange, cell: None, pieces: Vec::new(), message }));
                }
                Some((_, None)) => {}
            }
            let size = usize::from(has_at_most(&flow.pieces, SMALL_BYTES));
            let shelf = &mut cells[size];
            if !flow.accepted && shelf.waiting >= shelf.waiting_max {
                continue;
            }
            let Some(cell) = shelf.free.pop() else { continue };
            shelf.busy.push_back(cell);
            uses[usize::from(cell)] = uses[usize::from(cell)].wrapping_add(1);
            if !flow.accepted {
                shelf.waiting += 1;
                waiting.entry(exchange).or_default()[size] += 1;
            }
            let pieces = cut(&mut flow.pieces, [LARGE_BYTES, SMALL_BYTES][size]);
            let bytes = pieces.iter().map(Bytes::len).sum::<usize>();
            self.copying = Some(exchange);
            let message = Message::Data { exchange, cell, bytes: u32::try_from(bytes).expect("a cell is small") };
            return Ok(Some(Chunk { exchange, cell: Some(cell), pieces, message }));
        }
        Ok(None)
    }

    /// What the peer no longer reads of what was lent to it; to be dropped without the lock.
    pub(super) fn returned(&mut self) -> Vec<Bytes> {
        let Self { lent, uses, memory, tickets, .. } = self;
        let released = |ticket: u16| {
            let slot = CELLS + usize::from(ticket);
            memory.releases(slot) == uses[slot]
        };
        let back: Vec<u16> = lent.keys().copied().filter(|ticket| released(*ticket)).collect();
        tickets.extend(&back);
        back.iter().filter_map(|ticket| lent.remove(ticket)).collect()
    }

    /// Finds the cells that the peer has released.
    fn reclaim(&mut self) {
        let Self { cells, uses, memory, .. } = self;
        for Shelf { free, busy, .. } in cells {
            let released = |cell: u16| memory.releases(usize::from(cell)) == uses[usize::from(cell)];
            while let Some(cell) = busy.front().copied().filter(|cell| released(*cell)) {
                busy.pop_front();
                free.push(cell);
            }
            // Usually they come back in order; only when that leaves nothing all are looked at.
            if free.is_empty() {
                busy.retain(|cell| {
                    let back = released(*cell);
                    free.extend(back.then_some(*cell));
                    !back
                });
            }
        }
    }

    fn hunger(&mut self, starved: bool) {
        if self.starved != starved {
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
            return Err(bad(&self.peer, "ring", format!("leaves {BACKLOG_MAX} messages unread")));
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

/// Messages that wait for room in the ring. A peer that is alive reads; only a broken one lets them grow.
const BACKLOG_MAX: usize = 8 * RING_MESSAGES as usize;

fn class_of(cell: u16) -> usize {
    usize::from(usize::from(cell) >= LARGE_CELLS)
}

/// Whether what is to be copied next has at most so many bytes.
fn has_at_most(pieces: &VecDeque<Piece>, bytes: usize) -> bool {
    let mut left = bytes;
    pieces.iter().take_while(|(_, place)| place.is_none()).all(|(piece, _)| {
        let fits = piece.len() <= left;
        left = left.saturating_sub(piece.len());
        fits
    })
}

/// Takes up to `room` bytes that are to be copied off the front.
fn cut(pieces: &mut VecDeque<Piece>, mut room: usize) -> Vec<Bytes> {
    let mut taken = Vec::with_capacity(1);
    while room > 0
        && let Some((piece, None)) = pieces.front_mut()
    {
        let part = if piece.len() > room { piece.split_to(room) } else { pieces.pop_front().expect("looked at").0 };
        room -= part.len();
        taken.push(part);
    }
    taken
}
