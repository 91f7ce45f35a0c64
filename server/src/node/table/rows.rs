//! The rows of a part of a table: which there are, and what each use does to them. Knows no exchanges.
//!
//! A hash table says where the row of an id is: it has the number of a place in the [`Arena`], where the id stands beside the row. So an
//! entry has 4 bytes, and a table of many rows costs little more than its rows.
//!
//! A use is done as a whole or not at all: what can be wrong with it is found before anything changes. What changes a row also notes the
//! version at which it does, in the same step: a reader of changes sees both or none.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use gradlane_core::error::{Error, Result};
use gradlane_core::reduce::{Kernels, RowRule};
use gradlane_core::types::{Full, NodeId, RowAction, Shards, TableSpec};

use self::scan::Scan;
use super::arena::{Arena, Mark};
use super::tombs::Tombs;

pub(super) use self::restore::SavedMark;

mod restore;
mod scan;

/// The rows of some shards of a table.
#[derive(Debug)]
pub(super) struct Rows {
    spec: TableSpec,
    shards: Shards,
    rule: RowRule,
    /// The places of rows, by the hash of their ids.
    index: HashTable<u32>,
    arena: Arena,
    /// How often ids that have no row yet were pulled.
    waiting: HashTable<Waiting>,
    /// Numbers the uses, for the order in which rows were used last.
    uses: u32,
    /// The latest step that a worker has said.
    step: u64,
    /// How often something was changed.
    version: u64,
    /// The number to which versions belong, once somebody has asked for changes.
    life: Option<u64>,
    /// The ids that were removed.
    tombs: Tombs,
    /// The open scans.
    scans: BTreeMap<NodeId, Scan>,
    /// Where the search for a row that makes room goes on.
    hand: u32,
    evicted: u64,
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    pulls: u32,
}

/// Of some rows that may make room, the one that was used longest ago does.
const CANDIDATES: u32 = 16;
/// Bytes that an entry of the index costs at most: 5 for each of 16/7 buckets.
const INDEX_BYTES: u64 = 12;
/// The same of an id that waits.
const WAITING_BYTES: u64 = 40;

/// What a table counts, in the order in which it travels: rows that were looked at, rows that were removed, rows that there are, ids that
/// wait, bytes, and ids whose gradients were dropped.
pub(super) type Counts = [u64; RowAction::COUNTS as usize];

impl Rows {
    /// No rows of these shards.
    pub(super) fn new(spec: TableSpec, shards: Shards, kernels: Kernels) -> Self {
        let rule = RowRule::new(spec.rule, usize::try_from(spec.dim).expect("DIM_MAX"), spec.bound(), kernels);
        Self {
            spec,
            shards,
            rule,
            index: HashTable::new(),
            arena: Arena::new(rule.len()),
            waiting: HashTable::new(),
            uses: 0,
            step: 0,
            version: 0,
            life: None,
            tombs: Tombs::default(),
            scans: BTreeMap::new(),
            hand: 0,
            evicted: 0,
            dropped: 0,
        }
    }

    /// The most bytes by which such rows grow in a use of so many ids.
    pub(super) fn growth_max(spec: &TableSpec, ids: u64) -> u64 {
        let rule = RowRule::new(spec.rule, usize::try_from(spec.dim).expect("DIM_MAX"), None, Kernels::portable());
        Arena::growth_max(rule.len(), ids) + ids * (WAITING_BYTES.max(INDEX_BYTES) + Tombs::ENTRY_BYTES)
    }

    /// Bytes that are taken for them.
    pub(super) fn bytes(&self) -> u64 {
        let [rows, waiting] = [self.index.len(), self.waiting.len()].map(|count| count as u64);
        self.arena.bytes() + rows * INDEX_BYTES + waiting * WAITING_BYTES + self.tombs.bytes()
    }

    /// How often something was changed.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Reads the rows of `ids` into `out`, one after the other. For training, ids get a row if they are admitted, or come nearer to it; `step`
    /// counts as their use. Returns nothing of an error, and changes nothing then.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an id of other shards, [`Error::FailedPrecondition`] if the table is full.
    ///
    /// # Panics
    /// If `out` is not as long as the rows.
    pub(super) fn pull(&mut self, ids: &[u64], trains: bool, step: u64, out: &mut [f32]) -> Result<()> {
        self.check_ids(ids)?;
        let dim = self.dim();
        assert_eq!(out.len(), ids.len() * dim, "a row for each id");
        if trains {
            self.step = self.step.max(step);
            self.uses = self.uses.wrapping_add(1);
            self.check_room(ids, |this, id| {
                this.spec.admits(id) && this.pulls_of(id) + 1 >= this.spec.admission.after
            })?;
        }
        let mut has_changed = false;
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(dim)) {
            let place = match self.find(*id) {
                None if trains => {
                    let made = self.admit(*id);
                    has_changed |= made.is_some();
                    made
                }
                found => found,
            };
            match place {
                Some(place) => {
                    row.copy_from_slice(&self.arena.row(place)[..dim]);
                    if trains {
                        self.touch(place);
                    }
                }
                None if trains => row.fill(0.0),
                // What its row would begin with.
                None => self.spec.begin(*id, row),
            }
        }
        self.version += u64::from(has_changed);
        Ok(())
    }

    /// Changes the rows of `ids`, each of which comes once, by the rule and these gradients, which say nothing afterwards. Ids without a row get
    /// one first, if no number of pulls is due for it; otherwise their gradients are dropped.
    ///
    /// # Errors
    /// As [`pull`](Self::pull); [`Error::Protocol`] also for an id that comes twice, or a gradient that is not finite. Nothing is changed then.
    ///
    /// # Panics
    /// If there is not a gradient for each id.
    pub(super) fn push(&mut self, ids: &[u64], step: u64, gradients: &mut [f32]) -> Result<()> {
        self.check_ids(ids)?;
        let dim = self.dim();
        assert_eq!(gradients.len(), ids.len() * dim, "a gradient for each id");
        if gradients.iter().any(|number| !number.is_finite()) {
            return Err(bad("gradient", "is not finite".to_owned()));
        }
        self.uses = self.uses.wrapping_add(1);
        self.check_once(ids)?;
        self.check_room(ids, |this, id| this.gets_row_by_push(id))?;
        self.step = self.step.max(step);
        let at_step = self.rule.at(self.step);
        for (id, gradient) in ids.iter().zip(gradients.chunks_exact_mut(dim)) {
            let place = match self.find(*id) {
                None if self.gets_row_by_push(*id) => Some(self.make(*id)),
                found => found,
            };
            let Some(place) = place else {
                self.dropped += 1;
                continue;
            };
            let (row, mark) = self.arena.change(place, self.version + 1);
            at_step.change(row, gradient);
            (mark.touched, mark.used_by) = (saturated(self.step), self.uses);
            mark.score += 1.0;
        }
        self.version += 1;
        Ok(())
    }

    /// Multiplies the scores of all rows by `decay`, and then removes those whose score is below `min_score`, and those that were not used for
    /// more than `max_idle` steps.
    pub(super) fn shrink(&mut self, decay: f32, min_score: f32, max_idle: u64) -> Counts {
        let (scanned, before) = (self.index.len() as u64, self.evicted);
        for place in 0..self.arena.places() {
            if !self.arena.is_taken(place) {
                continue;
            }
            let step = self.step;
            let mark = self.arena.mark_mut(place);
            mark.score *= decay;
            if mark.score < min_score || step - u64::from(mark.touched) > max_idle {
                self.remove(place);
            }
        }
        self.version += 1;
        let [_, evicted, rest @ ..] = self.counts();
        let [rows, waiting, bytes, dropped] = rest;
        [scanned, evicted - before, rows, waiting, bytes, dropped]
    }

    /// Removes all rows, and ids that wait.
    pub(super) fn clear(&mut self) {
        self.evicted += self.index.len() as u64;
        self.index = HashTable::new();
        self.waiting = HashTable::new();
        self.arena.clear();
        self.hand = 0;
        self.version += 1;
        self.tombs.clear(self.version);
    }

    /// What it counts.
    pub(super) fn counts(&self) -> Counts {
        let [rows, waiting] = [self.index.len(), self.waiting.len()].map(|count| count as u64);
        [0, self.evicted, rows, waiting, self.bytes(), self.dropped]
    }

    fn dim(&self) -> usize {
        usize::try_from(self.spec.dim).expect("DIM_MAX")
    }

    fn find(&self, id: u64) -> Option<u32> {
        self.index.find(TableSpec::hash_of(id), |place| self.arena.mark(*place).id == id).copied()
    }

    fn touch(&mut self, place: u32) {
        let (step, uses) = (self.step, self.uses);
        let mark = self.arena.mark_mut(place);
        (mark.touched, mark.used_by) = (saturated(step), uses);
    }

    fn check_ids(&self, ids: &[u64]) -> Result<()> {
        match ids.iter().find(|id| !self.shards.have(**id)) {
            None => Ok(()),
            Some(id) => {
                let (shard, ours) = (TableSpec::shard_of(*id), self.shards);
                Err(bad("id", format!("is {id}, of shard {shard}, and these are {ours}")))
            }
        }
    }

    /// Refuses ids that come twice. Those that have a row are marked meanwhile as used by this use.
    fn check_once(&mut self, ids: &[u64]) -> Result<()> {
        let uses = self.uses;
        let mut without_row = Vec::new();
        for id in ids {
            let Some(place) = self.find(*id) else {
                without_row.push(*id);
                continue;
            };
            if self.arena.note_use(place, uses) == uses {
                return Err(bad("id", format!("{id} comes twice")));
            }
        }
        without_row.sort_unstable();
        match without_row.windows(2).find(|two| two[0] == two[1]) {
            None => Ok(()),
            Some(two) => Err(bad("id", format!("{} comes twice", two[0]))),
        }
    }

    /// Refuses a use for whose new rows there is no room, if rows do not make room or all are of this use.
    fn check_room(&mut self, ids: &[u64], gets_row: impl Fn(&Self, u64) -> bool) -> Result<()> {
        let Some(rows_max) = self.rows_max() else { return Ok(()) };
        let uses = self.uses;
        let (mut new, mut of_this_use) = (Vec::new(), 0);
        for id in ids {
            match self.find(*id) {
                Some(place) => {
                    // What this use has is not what makes room for it.
                    self.arena.note_use(place, uses);
                    of_this_use += 1;
                }
                None if gets_row(self, *id) => new.push(*id),
                None => {}
            }
        }
        new.sort_unstable();
        new.dedup();
        let (rows, new) = (self.index.len() as u64, new.len() as u64);
        let fits = match self.spec.full {
            Full::Refuse => rows + new <= rows_max,
            Full::Evict => of_this_use.min(rows) + new <= rows_max,
        };
        if fits || new == 0 {
            return Ok(());
        }
        // Not one that is tried again: nothing says that there will be room.
        Err(Error::FailedPrecondition {
            what: format!(
                "the table is full: the {} have {rows} rows, of {rows_max} that are their share of {}, and {new} more are wanted",
                self.shards, self.spec.rows_max
            ),
            hint: match self.spec.full {
                Full::Refuse => "declare the table with more rows or full=evict, or shrink it".to_owned(),
                Full::Evict => {
                    "declare the table with more rows: one use has more ids than it may have rows".to_owned()
                }
            },
        })
    }

    /// The most rows of these shards.
    fn rows_max(&self) -> Option<u64> {
        let (all, shards) = (self.spec.rows_max, u64::from(self.shards.count));
        (all > 0).then(|| (u128::from(all) * u128::from(shards)).div_ceil(u128::from(TableSpec::SHARDS)) as u64)
    }

    /// Whether an id without a row gets one by a push: if no number of pulls is due for it.
    fn gets_row_by_push(&self, id: u64) -> bool {
        self.spec.admission.after == 1 && self.spec.admits(id)
    }

    fn pulls_of(&self, id: u64) -> u32 {
        self.waiting.find(TableSpec::hash_of(id), |waiting| waiting.id == id).map_or(0, |waiting| waiting.pulls)
    }

    /// An id without a row is pulled for training. Returns the place of its row, if it has one now.
    fn admit(&mut self, id: u64) -> Option<u32> {
        if !self.spec.admits(id) {
            return None;
        }
        if self.spec.admission.after > 1 {
            let hash = TableSpec::hash_of(id);
            let entry = self.waiting.entry(hash, |waiting| waiting.id == id, |waiting| TableSpec::hash_of(waiting.id));
            let mut entry = entry.or_insert(Waiting { id, pulls: 0 });
            entry.get_mut().pulls += 1;
            if entry.get().pulls < self.spec.admission.after {
                return None;
            }
            entry.remove();
        }
        Some(self.make(id))
    }

    /// Forgets how often an id without a row was pulled.
    fn wait_no_more(&mut self, id: u64) {
        if let Ok(entry) = self.waiting.find_entry(TableSpec::hash_of(id), |waiting| waiting.id == id) {
            entry.remove();
        }
    }

    /// Makes the row of an id, and lets another one make room for it if it must.
    fn make(&mut self, id: u64) -> u32 {
        if self.rows_max().is_some_and(|rows_max| self.index.len() as u64 >= rows_max) {
            let place = self.least_used();
            self.remove(place);
        }
        let mark = Mark { id, touched: saturated(self.step), used_by: self.uses, changed: 0, score: 0.0 };
        let place = self.arena.take(mark).expect("fewer rows than a server has memory for");
        let (row, _) = self.arena.change(place, self.version + 1);
        let (values, _) = row.split_at_mut(usize::try_from(self.spec.dim).expect("DIM_MAX"));
        self.spec.begin(id, values);
        self.rule.begin(row);
        let arena = &self.arena;
        self.index.insert_unique(TableSpec::hash_of(id), place, |place| TableSpec::hash_of(arena.mark(*place).id));
        place
    }

    /// Of the next rows behind the hand that are not of this use, the one that was used longest ago.
    ///
    /// # Panics
    /// If there is none.
    fn least_used(&mut self) -> u32 {
        let (uses, places) = (self.uses, self.arena.places());
        let mut oldest: Option<(u32, u32)> = None;
        let mut seen = 0;
        for _ in 0..places {
            let place = self.hand % places;
            self.hand = place + 1;
            let age = uses.wrapping_sub(self.arena.mark(place).used_by);
            if !self.arena.is_taken(place) || age == 0 {
                continue;
            }
            if oldest.is_none_or(|(before, _)| age > before) {
                oldest = Some((age, place));
            }
            seen += 1;
            if seen == CANDIDATES {
                break;
            }
        }
        oldest.expect("there is room for what a use has").1
    }

    /// Removes the row at a place, in the change that is under way.
    fn remove(&mut self, place: u32) {
        let id = self.arena.mark(place).id;
        let found = self.index.find_entry(TableSpec::hash_of(id), |of| *of == place);
        found.expect("a row is in the index").remove();
        self.arena.free(place);
        self.tombs.push(id, self.version + 1, self.index.len());
        self.evicted += 1;
    }
}

/// A step as rows keep it.
fn saturated(step: u64) -> u32 {
    u32::try_from(step).unwrap_or(u32::MAX)
}

/// Something in a body that no worker of this version sends.
fn bad(field: &str, problem: String) -> Error {
    Error::Protocol { peer: "the worker".to_owned(), field: field.to_owned(), problem }
}

#[cfg(test)]
mod tests;
