//! Scans of tables: what a worker asks each part for, and what the pages of all parts have.

use crate::error::{Error, Result};
use crate::mem::Copies;
use crate::types::{PartId, RowAction, ScanPoint, Shards, Span, TableSpec};
use crate::wire::scan::{Begin, Body, Front, Next};

/// What a scan of a table asks for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Scan<'a> {
    /// A random number, for parts that nobody has scanned yet: their life. Not 0.
    pub life: u64,
    /// Whether pages have all that is kept of a row. The same for all pages of a scan.
    pub with_state: bool,
    /// Of [`RowAction::Changed`]: behind what changes are wanted; none for all that there is. Of [`RowAction::Page`]: where the scan stands, of
    /// every part. A part with the cursor 0 has no more pages, and so its scan ends; without points the scan of every part ends.
    pub points: &'a [ScanPoint],
}

/// The pages of all parts, one behind the other.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Pages {
    /// Where the scan stands, of every part; the cursor is that of the next page, 0 if there is none.
    pub points: Vec<ScanPoint>,
    /// The ids of rows that have changed, u64 each.
    pub ids: Vec<u8>,
    /// With state: of each row the step of its last use, u32, and its score, f32.
    pub marks: Vec<u8>,
    /// The numbers of each row, f32 each: its values, or with state all that is kept of it.
    pub numbers: Vec<u8>,
    /// The ids of rows that were removed, u64 each.
    pub gone: Vec<u8>,
}

/// Which bytes of an answer are the page of a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageOf {
    pub(super) first: u32,
    /// Where the page begins in the scan of the part.
    cursor: u64,
    pub(super) got: Span,
}

/// Bytes of pages that come in one use from all parts together, if each part may send a page that holds a few rows.
const PAGES_BYTES: u64 = 64 << 20;

impl Scan<'_> {
    /// The most bytes of a page of each of so many parts.
    pub(super) fn page_bytes(table: &TableSpec, parts: usize) -> u64 {
        let even = PAGES_BYTES / (parts as u64).max(1);
        even.max(RowAction::page_bytes_min(table)).min(TableSpec::IDS_MAX)
    }

    /// What goes to each part.
    ///
    /// # Errors
    /// [`Error::FullResyncNeeded`] if changes are wanted behind what was told of other parts; [`Error::FailedPrecondition`] if a scan goes on
    /// that was begun with other parts.
    pub(super) fn bodies(&self, action: RowAction, name: &str, parts: &[(PartId, Shards)]) -> Result<Vec<Vec<u8>>> {
        let begins = action == RowAction::Changed;
        let is_of_these = self.points.iter().map(|point| point.first).eq(parts.iter().map(|(_, of)| of.first));
        if !is_of_these && !self.points.is_empty() {
            return Err(match begins {
                true => {
                    Error::FullResyncNeeded { tensor: name.into(), why: "other servers keep its rows now".to_owned() }
                }
                false => Error::FailedPrecondition {
                    what: format!("table {name} has other parts than when its scan began"),
                    hint: "begin again".to_owned(),
                },
            });
        }
        let body = |index: usize| {
            let point = self.points.get(index);
            match (begins, point) {
                (false, Some(ScanPoint { life, version, cursor, .. })) => {
                    let cursor = if *cursor == 0 { RowAction::END } else { *cursor };
                    Next { life: *life, version: *version, cursor }.encode().into()
                }
                (false, None) => Next { life: 1, version: 0, cursor: RowAction::END }.encode().into(),
                (true, point) => {
                    let since = point.map(|point| (point.life, point.version));
                    Begin { life: self.life, since, with_state: self.with_state }.encode().into()
                }
            }
        };
        Ok((0..parts.len()).map(body).collect())
    }

    /// Where in the answer the pages are.
    pub(super) fn pages(&self, action: RowAction, gots: impl Iterator<Item = (u32, Span)>) -> Vec<PageOf> {
        let goes_on = action == RowAction::Page;
        let cursor = |index: usize| self.points.get(index).filter(|_| goes_on).map_or(0, |point| point.cursor);
        gots.enumerate().map(|(index, (first, got))| PageOf { first, cursor: cursor(index), got }).collect()
    }
}

impl Pages {
    /// Reads the pages of an answer.
    ///
    /// # Errors
    /// [`Error::Protocol`] if one is not what it should be.
    pub(super) fn read(answer: &[u8], pages: &[PageOf], table: &TableSpec, with_state: bool) -> Result<Self> {
        let (mut all, copies) = (Self::default(), Copies::default());
        for PageOf { first, cursor, got } in pages {
            let page = &answer[got.offset as usize..got.end() as usize];
            let (Front { life, version, next, .. }, body) = Front::decode(page, table, with_state)?;
            if next != 0 && next <= *cursor {
                let problem = format!("is {next} behind {cursor}");
                return Err(Error::Protocol {
                    peer: "the server".to_owned(),
                    field: "next cursor".to_owned(),
                    problem,
                });
            }
            all.points.push(ScanPoint { first: *first, life, version, cursor: next });
            let Body { ids, marks, gone, numbers } = body;
            for (all, more) in
                [(&mut all.ids, ids), (&mut all.marks, marks), (&mut all.gone, gone), (&mut all.numbers, numbers)]
            {
                let at = all.len();
                all.resize(at + more.len(), 0);
                copies.copy(more, &mut all[at..]);
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TensorKey;

    #[test]
    fn a_scan_asks_each_part_for_what_is_its_own() {
        let points = [point(0, 3), point(300, 0)];
        let scan = Scan { life: 9, with_state: true, points: &points };
        let begun = scan.bodies(RowAction::Changed, "rows", &parts()).unwrap();
        assert_eq!(Begin::decode(&begun[1]), Ok(Begin { life: 9, since: Some((300 + 7, 5)), with_state: true }));
        let next = scan.bodies(RowAction::Page, "rows", &parts()).unwrap();
        assert_eq!(Next::decode(&next[0]), Next { life: 7, version: 5, cursor: 3 });
        assert_eq!(Next::decode(&next[1]).cursor, RowAction::END, "it has no more pages");
        let all = Scan { points: &[], ..scan }.bodies(RowAction::Changed, "rows", &parts()).unwrap();
        assert_eq!(Begin::decode(&all[0]).unwrap().since, None);
        let over = Scan { points: &[], ..scan }.bodies(RowAction::Page, "rows", &parts()).unwrap();
        assert!(over.iter().all(|body| Next::decode(body).cursor == RowAction::END));
    }

    #[test]
    fn versions_of_other_parts_are_refused() {
        let points = [point(0, 3), point(400, 0)];
        let scan = Scan { life: 9, with_state: false, points: &points };
        let refused = scan.bodies(RowAction::Changed, "rows", &parts()).unwrap_err();
        assert!(matches!(refused, Error::FullResyncNeeded { .. }), "{refused}");
        let refused = scan.bodies(RowAction::Page, "rows", &parts()).unwrap_err();
        assert!(matches!(refused, Error::FailedPrecondition { .. }), "{refused}");
    }

    #[test]
    fn a_page_that_goes_back_is_refused() {
        let table: TableSpec = "sgd;dim=1".parse().unwrap();
        let front = |next| Front { life: 1, version: 2, next, rows: 1, gone: 0 };
        let answer = |next| [&front(next).encode()[..], &[1; 8], &[2; 4], &[0; 9]].concat();
        let page = PageOf { first: 0, cursor: 4, got: Span { offset: 0, bytes: 53 } };
        let read = Pages::read(&answer(5), &[page], &table, false).unwrap();
        assert_eq!((read.ids, read.numbers, read.points[0].cursor), (vec![1; 8], vec![2; 4], 5));
        assert!(matches!(Pages::read(&answer(4), &[page], &table, false), Err(Error::Protocol { .. })));
    }

    fn point(first: u32, cursor: u64) -> ScanPoint {
        ScanPoint { first, life: u64::from(first) + 7, version: 5, cursor }
    }

    fn parts() -> [(PartId, Shards); 2] {
        let part = |index| PartId { key: TensorKey::of("rows"), index };
        [(part(4), Shards { first: 0, count: 300 }), (part(5), Shards { first: 300, count: 724 })]
    }
}
