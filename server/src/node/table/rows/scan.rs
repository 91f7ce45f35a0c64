//! Scans: what has changed in a part since a version, page by page, as it was when the scan began.
//!
//! A page is named by its cursor: first the ids that were removed are counted, and then the places of the arena. So a page that is asked for
//! again has the same bytes.

use gradlane_core::error::{Error, Result, Tensors};
use gradlane_core::types::{NodeId, RowAction};
use gradlane_core::wire::scan::{Begin, Front, Next};

use super::{Rows, bad};
use crate::node::table::scanned::Scan;

/// Versions that are further apart cannot be told from those of rows.
const WINDOW: u64 = 1 << 31;

impl Rows {
    /// Begins a scan for a worker, and ends the one before. Returns its first page, of at most `bytes_max` bytes. If that is all, nothing stays
    /// frozen.
    ///
    /// # Errors
    /// [`Error::FullResyncNeeded`] if what has changed since then is not known any more; [`Error::TensorArgument`] for a version that is not
    /// reached yet; [`Error::Protocol`] for a page that holds no row.
    pub(in super::super) fn begin_scan(
        &mut self,
        table: &Tensors,
        reader: NodeId,
        begin: Begin,
        bytes_max: u64,
    ) -> Result<Vec<u8>> {
        self.end_scan(reader);
        let life = *self.life.get_or_insert(begin.life);
        let since = begin.since.map(|(of, version)| self.checked(table, life, of, version)).transpose()?;
        let gone = self.tombs.since(since.unwrap_or(self.version));
        let gone = gone.into_iter().filter(|id| self.find(*id).is_none()).collect();
        let freeze = self.arena.freeze();
        let scan = Scan { version: self.version, since, with_state: begin.with_state, freeze, gone };
        self.scans.insert(reader, scan);
        let page = self.page_from(reader, 0, bytes_max);
        if page.as_ref().map_or(true, |(_, next)| *next == 0) {
            self.end_scan(reader);
        }
        page.map(|(page, _)| page)
    }

    /// The page of an open scan that begins at a cursor, of at most `bytes_max` bytes. [`RowAction::END`] ends it: the page is empty.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if this worker has no such scan; [`Error::Protocol`] for a page that holds no row.
    pub(in super::super) fn next_page(&mut self, reader: NodeId, next: Next, bytes_max: u64) -> Result<Vec<u8>> {
        if next.cursor == RowAction::END {
            self.end_scan(reader);
            let front = Front { life: next.life, version: next.version, next: 0, rows: 0, gone: 0 };
            return Ok(front.encode().to_vec());
        }
        let is_open = self.scans.get(&reader).is_some_and(|scan| scan.version == next.version);
        if !is_open || self.life != Some(next.life) {
            return Err(Error::FailedPrecondition {
                what: format!("there is no scan of version {} of the {}", next.version, self.shards),
                hint: "one worker reads the changes of a table once at a time; begin again".to_owned(),
            });
        }
        self.page_from(reader, next.cursor, bytes_max).map(|(page, _)| page)
    }

    /// Ends the scan of a worker, if it has one.
    pub(in super::super) fn end_scan(&mut self, reader: NodeId) {
        if let Some(scan) = self.scans.remove(&reader) {
            self.arena.thaw(scan.freeze);
        }
    }

    /// The most bytes that open scans take before they end.
    pub(in super::super) fn scan_bytes(&self) -> u64 {
        let of_scan = |scan: &Scan| self.arena.freeze_bytes(scan.freeze) + 8 * scan.gone.len() as u64;
        self.scans.values().map(of_scan).sum()
    }

    /// A version from which changes are known.
    fn checked(&self, table: &Tensors, life: u64, of: u64, version: u64) -> Result<u64> {
        let lost = |why: String| Err(Error::FullResyncNeeded { tensor: table.clone(), why });
        if of != life {
            return lost(format!("the {} were begun anew since, or are on another server now", self.shards));
        }
        if version > self.version {
            return Err(Error::TensorArgument {
                tensor: table.clone(),
                what: format!(
                    "changes since version {version} of the {}, which are at version {}",
                    self.shards, self.version
                ),
                hint: "give a version that changed, save or load has told".to_owned(),
            });
        }
        if version < self.tombs.floor() || self.version - version > WINDOW {
            return lost(format!(
                "the {} are at version {}, and removals before version {} are forgotten",
                self.shards,
                self.version,
                self.tombs.floor().max(self.version.saturating_sub(WINDOW))
            ));
        }
        Ok(version)
    }

    /// The page of a scan, and where the next one begins.
    fn page_from(&self, reader: NodeId, cursor: u64, bytes_max: u64) -> Result<(Vec<u8>, u64)> {
        let Scan { version, since, with_state, freeze, gone } = &self.scans[&reader];
        let len = if *with_state { self.rule.len() } else { self.dim() };
        let mark_bytes = if *with_state { RowAction::MARK_BYTES } else { 0 };
        let row_bytes = 8 + mark_bytes + 4 * len as u64;
        let room = bytes_max.checked_sub(RowAction::PAGE_FRONT_BYTES).filter(|room| *room >= row_bytes);
        let mut room = room.ok_or_else(|| bad("page length", format!("is {bytes_max}, which holds no row")))?;
        let first_gone = usize::try_from(cursor).map_or(gone.len(), |cursor| cursor.min(gone.len()));
        let of_page = (gone.len() - first_gone).min((room / 8) as usize);
        room -= 8 * of_page as u64;
        let gone_of_page = &gone[first_gone..first_gone + of_page];
        let (mut ids, mut marks, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        let mut read = vec![0.0; len];
        let mut next = 0;
        if first_gone + of_page < gone.len() {
            next = (first_gone + of_page) as u64;
        } else {
            let from = cursor.saturating_sub(gone.len() as u64);
            let from = u32::try_from(from).unwrap_or(u32::MAX);
            let is_new = |changed: u32| {
                let age = (*version as u32).wrapping_sub(changed);
                since.is_none_or(|since| age < (*version as u32).wrapping_sub(since as u32))
            };
            let rows = self.arena.frozen_since(*freeze, from, since.unwrap_or(0));
            for (place, mark, row) in rows.filter(|(_, mark, _)| is_new(mark.changed)) {
                if room < row_bytes {
                    next = gone.len() as u64 + u64::from(place);
                    break;
                }
                room -= row_bytes;
                ids.extend_from_slice(&mark.id.to_le_bytes());
                if *with_state {
                    marks.extend_from_slice(&mark.touched.to_le_bytes());
                    marks.extend_from_slice(&mark.score.to_le_bytes());
                }
                let row = self.stored.numbers(row, &mut read);
                numbers.extend(row.iter().flat_map(|number| number.to_le_bytes()));
            }
        }
        let [rows, gone_rows] = [ids.len() / 8, of_page].map(|count| u32::try_from(count).expect("of a page"));
        let life = self.life.expect("a scan has given it one");
        let front = Front { life, version: *version, next, rows, gone: gone_rows };
        let gone_of_page = gone_of_page.iter().flat_map(|id| id.to_le_bytes()).collect();
        Ok(([front.encode().to_vec(), ids, marks, gone_of_page, numbers].concat(), next))
    }
}

#[cfg(test)]
mod tests;
