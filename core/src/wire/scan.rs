//! The bodies of scans of tables: what a worker asks of a part, and what is at the front of a page.
//!
//! A page follows its front: the ids of its rows, u64 each; with state, what is known of each row beside its numbers
//! ([`RowAction::MARK_BYTES`]); the ids that were removed; and the numbers of the rows, f32: the values alone, or with state all of the row. All
//! numbers are little-endian.

use crate::error::{Error, Result};
use crate::types::{RowAction, TableSpec};

/// What [`RowAction::Changed`] says to a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// The life of the part, if it has none yet: see [`ScanPoint`](crate::types::ScanPoint).
    pub life: u64,
    /// The life and the version behind which changes are wanted; `None` for all that there is.
    pub since: Option<(u64, u64)>,
    /// Whether pages have all that is kept of a row.
    pub with_state: bool,
}

/// What [`RowAction::Page`] says to a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next {
    /// The life of the part.
    pub life: u64,
    /// The version at which the scan began.
    pub version: u64,
    /// Where the page begins, or [`RowAction::END`].
    pub cursor: u64,
}

/// The front of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front {
    /// The life of the part.
    pub life: u64,
    /// The version of the part when the scan began.
    pub version: u64,
    /// Where the next page begins; 0 if this is the last one.
    pub next: u64,
    /// How many rows it has.
    pub rows: u32,
    /// How many ids of removed rows it has.
    pub gone: u32,
}

impl Begin {
    /// Its bytes.
    pub fn encode(&self) -> [u8; RowAction::BEGIN_BYTES as usize] {
        let (life, version) = self.since.unwrap_or_default();
        joined([self.life, life, version, u64::from(self.with_state)])
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Error::Protocol`] naming the field that is wrong.
    ///
    /// # Panics
    /// If the body is not as long as the header of a scan says.
    pub fn decode(body: &[u8]) -> Result<Self> {
        let [life, since_life, since, flags] = numbers(body);
        if life == 0 {
            return Err(bad("the worker", "life", "is 0".to_owned()));
        }
        if flags > 1 {
            return Err(bad("the worker", "flags", format!("are {flags:#x}")));
        }
        if since_life == 0 && since != 0 {
            return Err(bad("the worker", "version", format!("is {since} of no life")));
        }
        Ok(Self { life, since: (since_life != 0).then_some((since_life, since)), with_state: flags == 1 })
    }
}

impl Next {
    /// Its bytes.
    pub fn encode(&self) -> [u8; RowAction::PAGE_BYTES as usize] {
        joined([self.life, self.version, self.cursor])
    }

    /// Reads it. Any numbers are one; whether they are those of a scan, the scan knows.
    ///
    /// # Panics
    /// If the body is not as long as the header of a page says.
    pub fn decode(body: &[u8]) -> Self {
        let [life, version, cursor] = numbers(body);
        Self { life, version, cursor }
    }
}

impl Front {
    /// Its bytes.
    pub fn encode(&self) -> [u8; RowAction::PAGE_FRONT_BYTES as usize] {
        joined([self.life, self.version, self.next, u64::from(self.rows) | u64::from(self.gone) << 32])
    }

    /// Reads the front of a page of at most `page.len()` bytes, and finds what follows it.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the page is not so long.
    ///
    /// # Panics
    /// If there is no front.
    pub fn decode<'a>(page: &'a [u8], table: &TableSpec, with_state: bool) -> Result<(Self, Body<'a>)> {
        let (front, rest) = page.split_at(RowAction::PAGE_FRONT_BYTES as usize);
        let [life, version, next, counts] = numbers(front);
        let front = Self { life, version, next, rows: counts as u32, gone: (counts >> 32) as u32 };
        let row_len = if with_state { table.row_len() } else { table.dim };
        let mark_bytes = if with_state { RowAction::MARK_BYTES } else { 0 };
        let [rows, gone] = [front.rows, front.gone].map(u64::from);
        let lengths = [8 * rows, mark_bytes * rows, 8 * gone, 4 * row_len * rows];
        if life == 0 || lengths.iter().sum::<u64>() > rest.len() as u64 {
            let problem = format!("has {rows} rows and {gone} removed ids in {} bytes, of life {life}", page.len());
            return Err(bad("the server", "page", problem));
        }
        let mut rest = rest;
        let [ids, marks, gone, numbers] = lengths.map(|bytes| {
            let (first, behind) = rest.split_at(bytes as usize);
            rest = behind;
            first
        });
        Ok((front, Body { ids, marks, gone, numbers }))
    }
}

/// What a page has, as it travelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Body<'a> {
    /// The ids of the rows.
    pub ids: &'a [u8],
    /// What is known of each beside its numbers; empty without state.
    pub marks: &'a [u8],
    /// The ids of rows that were removed.
    pub gone: &'a [u8],
    /// The numbers of the rows.
    pub numbers: &'a [u8],
}

fn joined<const N: usize, const BYTES: usize>(numbers: [u64; N]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_le_bytes());
    bytes
}

fn numbers<const N: usize>(body: &[u8]) -> [u64; N] {
    let (numbers, _) = body.as_chunks();
    std::array::from_fn(|index| u64::from_le_bytes(numbers[index]))
}

fn bad(peer: &str, field: &str, problem: String) -> Error {
    Error::Protocol { peer: peer.to_owned(), field: field.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_as_it_is_written() {
        for since in [None, Some((3, 0)), Some((u64::MAX, 9))] {
            let begin = Begin { life: 7, since, with_state: since.is_some() };
            assert_eq!(Begin::decode(&begin.encode()), Ok(begin));
        }
        let next = Next { life: 1, version: 2, cursor: RowAction::END };
        assert_eq!(Next::decode(&next.encode()), next);
        for wrong in [[0, 0, 0, 0], [7, 0, 1, 0], [7, 0, 0, 2]] {
            let body: [u8; 32] = joined(wrong);
            assert!(matches!(Begin::decode(&body), Err(Error::Protocol { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn a_page_that_says_more_than_it_has_is_refused() {
        let table: TableSpec = "adam;dim=2".parse().unwrap();
        let front = Front { life: 1, version: 2, next: 0, rows: 1, gone: 1 };
        // An id, a mark, a removed id, and two values with two moments each.
        let page = [&front.encode()[..], &[1; 8], &[2; 8], &[3; 8], &[4; 24]].concat();
        let body = Body { ids: &[1; 8], marks: &[2; 8], gone: &[3; 8], numbers: &[4; 24] };
        assert_eq!(Front::decode(&page, &table, true), Ok((front, body)));
        let without = Body { ids: &[1; 8], marks: &[], gone: &[2; 8], numbers: &[3; 8] };
        assert_eq!(Front::decode(&page[..56], &table, false), Ok((front, without)));
        assert!(Front::decode(&page[..page.len() - 1], &table, true).is_err());
        let most = Front { rows: u32::MAX, gone: u32::MAX, ..front };
        assert!(Front::decode(&most.encode(), &table, true).is_err());
    }
}
