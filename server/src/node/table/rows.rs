//! The rows of a part of a table: which there are, and what each use does to them. Knows no exchanges.
//!
//! A hash table says where the row of an id is: it has the number of a place in the [`Arena`], where the id stands beside the row. So an
//! entry has 4 bytes, and a table of many rows costs little more than its rows.
//!
//! A use is done as a whole or not at all: what can be wrong with it is found before anything changes. What changes a row also notes the
//! version at which it does, in the same step: a reader of changes sees both or none.

use std::collections::BTreeMap;
use std::ops::Range;

use hashbrown::HashTable;

use gradlane_core::codec::{Rounding, StoredRows};
use gradlane_core::error::{Error, Result};
use gradlane_core::reduce::{Kernels, RowRule};
use gradlane_core::types::{NodeId, RowAction, Shards, ShrinkBounds, TableSpec};

use super::arena::{Arena, Mark};
use super::scanned::Scan;
use super::tombs::Tombs;

pub(super) use self::restore::SavedMark;

mod restore;
mod room;
mod scan;

/// The rows of some shards of a table.
#[derive(Debug)]
pub(super) struct Rows {
    spec: TableSpec,
    shards: Shards,
    rule: RowRule,
    /// How rows lie in the arena.
    stored: StoredRows,
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
    /// The place that was looked at last for a row that has expired.
    swept: u32,
    evicted: u64,
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    pulls: u32,
    /// What its pushes have brought.
    score: f32,
}

/// The rows of a pull: their places in the arena, or one of the two below.
#[derive(Debug)]
pub(super) struct Pulled(Vec<u32>);

/// The place of an id that has no row, and reads as zeros.
const NOWHERE: u32 = u32::MAX;
/// The place of an id that has no row, and reads as what it would begin with.
const BEGINS: u32 = u32::MAX - 1;

/// The gradients of a push.
pub(super) trait Gradients {
    /// How many numbers they have.
    fn numbers(&self) -> usize;

    /// Whether all of them are finite.
    fn all_finite(&self) -> bool;

    /// Writes the one at this place.
    fn read(&self, at: usize, gradient: &mut [f32]);

    /// The score that it brings.
    fn score(&self, _at: usize) -> f32 {
        1.0
    }
}

/// So many rows before its use, the memory of a row is asked for.
const AHEAD: usize = 8;
/// Ids whose places are guessed before any of them is looked at.
const GUESSED: usize = 16;
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
        let stored = StoredRows::of(&spec, kernels);
        Self {
            spec,
            shards,
            rule,
            stored,
            index: HashTable::new(),
            arena: Arena::new(stored.words()),
            waiting: HashTable::new(),
            uses: 0,
            step: 0,
            version: 0,
            life: None,
            tombs: Tombs::default(),
            scans: BTreeMap::new(),
            hand: 0,
            swept: 0,
            evicted: 0,
            dropped: 0,
        }
    }

    /// The most bytes by which such rows grow in a use of so many ids.
    pub(super) fn growth_max(spec: &TableSpec, ids: u64) -> u64 {
        let words = usize::try_from(spec.row_words()).expect("it lies in memory");
        Arena::growth_max(words, ids) + ids * (WAITING_BYTES.max(INDEX_BYTES) + Tombs::ENTRY_BYTES)
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

    /// Finds the rows of `ids`, for [`read`](Self::read). For training, ids get a row if they are admitted, or come nearer to it; `step` counts as
    /// their use. After an error nothing has changed.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an id of other shards, [`Error::FailedPrecondition`] if the table is full.
    pub(super) fn pull(&mut self, ids: &[u64], trains: bool, step: u64) -> Result<Pulled> {
        self.check_ids(ids)?;
        if !trains {
            let is_there = |place: &u32| !self.has_expired(*place);
            let place_of = |id: &u64| self.find(*id).filter(is_there).unwrap_or(BEGINS);
            return Ok(Pulled(ids.iter().map(place_of).collect()));
        }
        self.expire(step, ids);
        let mut places = self.places_of(ids);
        self.uses = self.uses.wrapping_add(1);
        self.check_room(ids, &places, |this, _, id| this.gets_row_by_pull(id))?;
        let mut has_changed = false;
        for (place, id) in places.iter_mut().zip(ids) {
            if *place == NOWHERE {
                // The same id may have come before.
                let found = self.find(*id);
                let made = if found.is_none() { self.admit(*id) } else { None };
                has_changed |= made.is_some();
                *place = found.or(made).unwrap_or(NOWHERE);
            }
            if *place != NOWHERE {
                self.touch(*place);
            }
        }
        self.version += u64::from(has_changed);
        Ok(Pulled(places))
    }

    /// Calls `take` with the rows of some of the ids that were pulled last, which are `ids`.
    pub(super) fn read(&self, pulled: &Pulled, ids: &[u64], some: Range<usize>, mut take: impl FnMut(usize, &[f32])) {
        let dim = self.dim();
        let mut other = vec![0.0; dim];
        let places = &pulled.0[some.clone()];
        for (at, (place, id)) in places.iter().zip(&ids[some]).enumerate() {
            self.expect(places, at + AHEAD);
            match *place {
                NOWHERE => {
                    other.fill(0.0);
                    take(at, &other);
                }
                // What its row would begin with.
                BEGINS => {
                    self.spec.begin(*id, &mut other);
                    take(at, &other);
                }
                place => take(at, self.stored.numbers(self.arena.row(place), &mut other)),
            }
        }
    }

    /// Changes the rows of `ids`, each of which comes once, by the rule and these gradients. Ids without a row get one first, if no number of
    /// pulls is due for it; otherwise their gradients are dropped.
    ///
    /// # Errors
    /// As [`pull`](Self::pull); [`Error::Protocol`] also for an id that comes twice, or a gradient that is not finite. Nothing is changed then.
    ///
    /// # Panics
    /// If there is not a gradient for each id.
    pub(super) fn push(&mut self, ids: &[u64], step: u64, gradients: &impl Gradients) -> Result<()> {
        self.check_gradients(ids, gradients)?;
        self.expire(step, ids);
        let places = self.places_once(ids)?;
        self.check_room(ids, &places, |this, at, id| this.gets_row_by_push(id, gradients.score(at)))?;
        let at_step = self.rule.at(self.step);
        let mut gradient = vec![0.0; self.dim()];
        let mut values = gradient.clone();
        for (at, (id, place)) in ids.iter().zip(&places).enumerate() {
            self.expect(&places, at + AHEAD);
            let score = gradients.score(at);
            let place = match *place {
                NOWHERE => match self.admit_by_push(*id, score) {
                    Some(place) => place,
                    None => {
                        self.dropped += 1;
                        continue;
                    }
                },
                place => place,
            };
            gradients.read(at, &mut gradient);
            let (row, mark) = self.arena.change(place, self.version + 1);
            // Not the latest step that this part has heard of: which steps it hears depends on the servers that there are.
            let rounding = Rounding { id: *id, step, score: mark.score };
            self.stored.change(&at_step, rounding, row, &mut values, &mut gradient);
            (mark.touched, mark.used_by) = (saturated(self.step), self.uses);
            mark.score += score;
        }
        self.version += 1;
        Ok(())
    }

    /// Finds what is wrong with a push, but for the room of a full table.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub(super) fn check_push(&mut self, ids: &[u64], gradients: &impl Gradients) -> Result<()> {
        self.check_gradients(ids, gradients)?;
        self.places_once(ids).map(drop)
    }

    /// Multiplies the scores of all rows, and then removes those whose score is too low, and those that were not used for too many steps. If
    /// fewer rows than the floor were left, those of the highest scores stay.
    pub(super) fn shrink(&mut self, bounds: ShrinkBounds) -> Counts {
        let (scanned, before) = (self.index.len() as u64, self.evicted);
        let [decay, min_score] = [bounds.decay, bounds.min_score].map(|number| number as f32);
        let mut goes: Vec<(f32, u32)> = Vec::new();
        for place in 0..self.arena.places() {
            if !self.arena.is_taken(place) {
                continue;
            }
            let step = self.step;
            let mark = self.arena.mark_mut(place);
            mark.score *= decay;
            if mark.score < min_score || step - u64::from(mark.touched) > bounds.max_idle {
                goes.push((mark.score, place));
            }
        }
        let most = scanned.saturating_sub(self.share_of(bounds.floor));
        if most < goes.len() as u64 {
            goes.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
            goes.truncate(usize::try_from(most).expect("fewer than there are"));
        }
        goes.into_iter().for_each(|(_, place)| self.remove(place));
        let by_score = self.spec.admission.score().is_some();
        self.waiting.retain(|waiting| {
            (waiting.score, waiting.pulls) = (waiting.score * decay, (waiting.pulls as f32 * decay) as u32);
            if by_score { waiting.score >= min_score } else { waiting.pulls > 0 }
        });
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
        (self.hand, self.swept) = (0, 0);
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

    fn check_gradients(&self, ids: &[u64], gradients: &impl Gradients) -> Result<()> {
        self.check_ids(ids)?;
        assert_eq!(gradients.numbers(), ids.len() * self.dim(), "a gradient for each id");
        if !gradients.all_finite() {
            return Err(bad("gradient", "is not finite".to_owned()));
        }
        match (0..ids.len()).map(|at| gradients.score(at)).find(|score| !(0.0..f32::INFINITY).contains(score)) {
            None => Ok(()),
            Some(score) => Err(bad("score", format!("is {score}"))),
        }
    }

    /// Where the rows of these ids are.
    fn places_of(&self, ids: &[u64]) -> Vec<u32> {
        // The id of a row is far away, and the bits of its hash in the index are nearly always enough to know the place. So the places of a
        // run are guessed first, and by the time when the ids are compared, the memory has come.
        let mut places = Vec::with_capacity(ids.len());
        for run in ids.chunks(GUESSED) {
            let first = places.len();
            for id in run {
                let guess = self.index.find(TableSpec::hash_of(*id), |_| true);
                places.push(guess.copied().unwrap_or(NOWHERE));
                self.expect(&places, places.len() - 1);
            }
            for (place, id) in places[first..].iter_mut().zip(run) {
                if *place != NOWHERE && self.arena.mark(*place).id != *id {
                    *place = self.find(*id).unwrap_or(NOWHERE);
                }
            }
        }
        places
    }

    /// Says that the row of one of these places is used soon, if there is such a one.
    fn expect(&self, places: &[u32], at: usize) {
        if let Some(place) = places.get(at) {
            self.arena.expect(*place);
        }
    }

    /// Where the rows of these ids are, which are marked as used by this use.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an id that comes twice.
    fn places_once(&mut self, ids: &[u64]) -> Result<Vec<u32>> {
        self.uses = self.uses.wrapping_add(1);
        let (uses, places) = (self.uses, self.places_of(ids));
        let mut without_row = Vec::new();
        for (id, place) in ids.iter().zip(&places) {
            if *place == NOWHERE {
                without_row.push(*id);
            } else if self.arena.note_use(*place, uses) == uses {
                return Err(bad("id", format!("{id} comes twice")));
            }
        }
        without_row.sort_unstable();
        match without_row.windows(2).find(|two| two[0] == two[1]) {
            None => Ok(places),
            Some(two) => Err(bad("id", format!("{} comes twice", two[0]))),
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
        let dim = self.dim();
        let (row, _) = self.arena.change(place, self.version + 1);
        self.stored.begin(row, |numbers| {
            self.spec.begin(id, &mut numbers[..dim]);
            self.rule.begin(numbers);
        });
        let arena = &self.arena;
        self.index.insert_unique(TableSpec::hash_of(id), place, |place| TableSpec::hash_of(arena.mark(*place).id));
        place
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
mod half_tests;
#[cfg(test)]
mod tests;
