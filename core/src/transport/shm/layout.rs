//! The layout of a segment, and the messages in its ring.
//!
//! Each side of a link has one segment that it alone writes. The other side maps it for reading. So no lock between the processes is needed,
//! and a process that breaks the rules damages only its own segment:
//! ```text
//!  page 0      the state of this side, one cache line for each word:
//!                SENT      messages it has written to its ring          READ      messages of the other ring that it has read
//!                ASLEEP    its waits for a wakeup, begun and ended      STARVED   its waits for room, begun and ended
//!                RELEASED  how often this side has released each cell of the other segment and each ticket
//!  ring        128 bytes a message
//!  cells       bytes of bodies and sums on their way: large cells, then small ones
//! ```
//! Room is a message that was read, or a cell that was released.
//!
//! Bytes that already lie in memory that the peer can map are not copied into a cell: a sum of the server, or a contribution that the worker
//! has staged. They are lent where they lie, and a *ticket* stands for them until the peer has released it.

use crate::error::Result;
use crate::mem::Place;
use crate::transport::exchange::bad;
use crate::wire::header::HEADER_BYTES;

/// Bytes of a segment.
pub(super) const SEGMENT_BYTES: usize = CELLS_AT + LARGE_CELLS * LARGE_BYTES + SMALL_CELLS * SMALL_BYTES;
/// The version of the layout and of what comes with a segment. Processes with different versions cannot share a link.
pub(super) const LAYOUT: u32 = 3;

/// Messages that a ring holds.
pub(super) const RING_MESSAGES: u64 = 1024;
/// 64-bit words of a message.
pub(super) const MESSAGE_WORDS: usize = 16;
/// Bytes of a large cell. So large that a part needs few messages, and so small that the cell is still in the cache when the peer reads it.
pub(super) const LARGE_BYTES: usize = 128 << 10;
/// Large cells of a segment.
pub(super) const LARGE_CELLS: usize = 32;
/// Bytes of a small cell, for pieces that would waste a large cell.
pub(super) const SMALL_BYTES: usize = 4 << 10;
/// Small cells of a segment.
pub(super) const SMALL_CELLS: usize = 256;
/// All cells; the large ones come first.
pub(super) const CELLS: usize = LARGE_CELLS + SMALL_CELLS;

/// Sums that can be lent at once.
pub(super) const TICKETS: usize = 448;
/// Slots that can be released: the cells, then the tickets.
pub(super) const SLOTS: usize = CELLS + TICKETS;

/// Offsets of single words in page 0, each in a cache line of its own (two, as processors fetch them in pairs).
pub(super) const SENT_AT: usize = 128;
pub(super) const READ_AT: usize = 256;
pub(super) const ASLEEP_AT: usize = 384;
pub(super) const STARVED_AT: usize = 512;
pub(super) const RELEASED_AT: usize = 1024;
/// Exchanges that a worker may have open on one link, as on QUIC.
pub(super) const EXCHANGES_MAX: usize = 1 << 14;

const RING_AT: usize = 4096;
const CELLS_AT: usize = RING_AT + RING_MESSAGES as usize * MESSAGE_WORDS * 8;

const _: () = assert!(RELEASED_AT + SLOTS * 4 <= RING_AT, "the words fit into page 0");

/// Where the message with this number lies; numbers only grow.
pub(super) fn message_at(number: u64) -> usize {
    RING_AT + (number % RING_MESSAGES) as usize * MESSAGE_WORDS * 8
}

/// Where a cell lies, and how long it is.
///
/// # Panics
/// If there is no such cell.
pub(super) fn cell_at(cell: u16) -> (usize, usize) {
    let cell = usize::from(cell);
    assert!(cell < CELLS, "cell {cell} of {CELLS}");
    match cell.checked_sub(LARGE_CELLS) {
        None => (CELLS_AT + cell * LARGE_BYTES, LARGE_BYTES),
        Some(small) => (CELLS_AT + LARGE_CELLS * LARGE_BYTES + small * SMALL_BYTES, SMALL_BYTES),
    }
}

/// A message as it lies in a ring.
pub(super) type Words = [u64; MESSAGE_WORDS];

/// What one side tells the other. Exchanges are named by the worker, which counts them from 1 on each link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// Worker to server: an exchange begins.
    Open {
        /// One more than the one before.
        exchange: u64,
        /// An encoded [`Header`](crate::wire::Header) of a push.
        header: [u8; HEADER_BYTES],
    },
    /// Server to worker: the answer begins.
    Answer {
        /// The exchange.
        exchange: u64,
        /// An encoded header of a sum or of a reject.
        header: [u8; HEADER_BYTES],
    },
    /// The next bytes of the body or of the answer lie in a cell of the sender's segment, which the reader releases.
    Data {
        /// The exchange.
        exchange: u64,
        /// Which cell.
        cell: u16,
        /// How many bytes, from its beginning.
        bytes: u32,
    },
    /// The next bytes of the body or of the answer lie in a segment that the sender has shown, until the ticket is released.
    Lent {
        /// The exchange.
        exchange: u64,
        /// Counts from 0.
        ticket: u16,
        /// Where they lie.
        place: Place,
        /// How many.
        bytes: u32,
    },
    /// The reader will take all bytes of this exchange at once: they need no longer be held back for the sake of others.
    Accept {
        /// The exchange.
        exchange: u64,
    },
    /// Worker to server: the exchange is given up.
    Abandon {
        /// The exchange.
        exchange: u64,
    },
    /// Server to worker: all bytes of the sum were sent.
    End {
        /// The exchange.
        exchange: u64,
        /// Their CRC-32C, if the answer's header says that there is one.
        checksum: u32,
    },
    /// Server to worker: a sum that was begun breaks off.
    Break {
        /// The exchange.
        exchange: u64,
    },
}

impl Message {
    pub(super) fn encode(&self) -> Words {
        let mut words = [0; MESSAGE_WORDS];
        (words[0], words[1]) = match self {
            Self::Open { exchange, .. } => (1, *exchange),
            Self::Answer { exchange, .. } => (2, *exchange),
            Self::Data { exchange, .. } => (3, *exchange),
            Self::Accept { exchange } => (4, *exchange),
            Self::Abandon { exchange } => (5, *exchange),
            Self::End { exchange, .. } => (6, *exchange),
            Self::Break { exchange } => (7, *exchange),
            Self::Lent { exchange, .. } => (8, *exchange),
        };
        match self {
            Self::Open { header, .. } | Self::Answer { header, .. } => {
                for (word, bytes) in words[2..].iter_mut().zip(header.chunks_exact(8)) {
                    *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                }
            }
            Self::Data { cell, bytes, .. } => (words[2], words[3]) = (u64::from(*cell), u64::from(*bytes)),
            Self::Lent { ticket, place, bytes, .. } => {
                (words[2], words[3]) = (u64::from(*ticket), u64::from(*bytes));
                (words[4], words[5]) = (u64::from(place.segment), place.offset);
            }
            Self::End { checksum, .. } => words[2] = u64::from(*checksum),
            Self::Accept { .. } | Self::Abandon { .. } | Self::Break { .. } => {}
        }
        words
    }

    /// Reads a message of `peer`, which may have written anything.
    ///
    /// # Errors
    /// [`Error::Protocol`](crate::Error::Protocol) naming the field.
    pub(super) fn decode(words: &Words, peer: &str) -> Result<Self> {
        let exchange = words[1];
        let mut header = [0; HEADER_BYTES];
        for (to, from) in header.iter_mut().zip(words[2..].iter().flat_map(|word| word.to_le_bytes())) {
            *to = from;
        }
        let (message, used) = match words[0] {
            1 => (Self::Open { exchange, header }, 2 + HEADER_BYTES / 8),
            2 => (Self::Answer { exchange, header }, 2 + HEADER_BYTES / 8),
            3 => {
                let cell = u16::try_from(words[2]).ok().filter(|cell| usize::from(*cell) < CELLS);
                let cell = cell.ok_or_else(|| bad(peer, "cell", format!("is {} of {CELLS}", words[2])))?;
                let (_, room) = cell_at(cell);
                let bytes = u32::try_from(words[3]).ok().filter(|bytes| (1..=room).contains(&(*bytes as usize)));
                let bytes = bytes.ok_or_else(|| bad(peer, "length", format!("is {} in a cell of {room}", words[3])))?;
                (Self::Data { exchange, cell, bytes }, 4)
            }
            4 => (Self::Accept { exchange }, 2),
            5 => (Self::Abandon { exchange }, 2),
            6 => {
                let checksum = u32::try_from(words[2])
                    .map_err(|_| bad(peer, "checksum", format!("is {}, which has more than 32 bits", words[2])))?;
                (Self::End { exchange, checksum }, 3)
            }
            7 => (Self::Break { exchange }, 2),
            8 => {
                let ticket = u16::try_from(words[2]).ok().filter(|ticket| usize::from(*ticket) < TICKETS);
                let ticket = ticket.ok_or_else(|| bad(peer, "ticket", format!("is {} of {TICKETS}", words[2])))?;
                let bytes = u32::try_from(words[3]).ok().filter(|bytes| *bytes > 0);
                let bytes = bytes.ok_or_else(|| bad(peer, "length", format!("is {}", words[3])))?;
                let segment = u32::try_from(words[4]).map_err(|_| bad(peer, "segment", format!("is {}", words[4])))?;
                (Self::Lent { exchange, ticket, place: Place { segment, offset: words[5] }, bytes }, 6)
            }
            kind => return Err(bad(peer, "kind", format!("is {kind}"))),
        };
        if words[used..].iter().any(|word| *word != 0) {
            return Err(bad(peer, "reserved words", "are not zero".to_owned()));
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::Error;

    fn samples() -> Vec<Message> {
        let header: [u8; HEADER_BYTES] = std::array::from_fn(|at| at as u8);
        vec![
            Message::Open { exchange: 1, header },
            Message::Answer { exchange: u64::MAX, header },
            Message::Data { exchange: 7, cell: 0, bytes: LARGE_BYTES as u32 },
            Message::Data { exchange: 7, cell: CELLS as u16 - 1, bytes: 1 },
            Message::Accept { exchange: 8 },
            Message::Abandon { exchange: 9 },
            Message::End { exchange: 10, checksum: u32::MAX },
            Message::Break { exchange: 11 },
            Message::Lent { exchange: 12, ticket: 447, place: Place { segment: 3, offset: 1 << 40 }, bytes: u32::MAX },
        ]
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for message in samples() {
            assert_eq!(Message::decode(&message.encode(), "worker 0"), Ok(message));
        }
    }

    #[test]
    fn a_message_that_points_outside_of_its_cell_is_refused() {
        for (word, value, field) in [
            (2, CELLS as u64, "cell"),
            (2, u64::MAX, "cell"),
            (3, 0, "length"),
            (3, SMALL_BYTES as u64 + 1, "length"),
            (3, u64::MAX, "length"),
            (0, 9, "kind"),
            (0, 0, "kind"),
            (15, 1, "reserved words"),
        ] {
            let mut words = Message::Data { exchange: 1, cell: LARGE_CELLS as u16, bytes: 5 }.encode();
            words[word] = value;
            let error = Message::decode(&words, "worker 0").unwrap_err();
            assert!(matches!(&error, Error::Protocol { field: named, .. } if named == field), "{error}");
        }
    }

    #[test]
    fn cells_and_messages_do_not_overlap() {
        let mut end = message_at(RING_MESSAGES - 1) + MESSAGE_WORDS * 8;
        for cell in 0..CELLS as u16 {
            let (at, len) = cell_at(cell);
            assert_eq!(at, end);
            end = at + len;
        }
        assert_eq!(end, SEGMENT_BYTES);
        assert_eq!(message_at(RING_MESSAGES), message_at(0), "a ring");
    }

    proptest! {
        #[test]
        fn any_words_are_read_or_refused(words: Words) {
            if let Ok(message) = Message::decode(&words, "worker 0") {
                prop_assert_eq!(message.encode(), words);
            }
        }
    }
}
