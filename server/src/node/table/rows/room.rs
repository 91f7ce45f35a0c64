//! Which ids get a row, and which rows go: admission, the room of a table that has a bound, and rows that nobody uses for long.

use gradlane_core::error::{Error, Result};
use gradlane_core::types::{Admission, Full, TableSpec};

use super::{CANDIDATES, NOWHERE, Rows, Waiting};

impl Rows {
    /// The training has come to this step. Rows that have expired go: those of these ids, and some others, so that all of them are looked at
    /// while as many ids are used.
    pub(super) fn expire(&mut self, step: u64, ids: &[u64]) {
        self.step = self.step.max(step);
        if self.spec.ttl == 0 {
            return;
        }
        let (places, before) = (self.arena.places(), self.evicted);
        for id in ids {
            if let Some(place) = self.find(*id).filter(|place| self.has_expired(*place)) {
                self.remove(place);
            }
        }
        for _ in 0..places.min(ids.len() as u32) {
            self.swept = (self.swept + 1) % places;
            if self.arena.is_taken(self.swept) && self.has_expired(self.swept) {
                self.remove(self.swept);
            }
        }
        // A change of its own: the use that follows may fail.
        self.version += u64::from(self.evicted > before);
    }

    /// Whether a row is gone because nobody has used it for long.
    pub(super) fn has_expired(&self, place: u32) -> bool {
        self.spec.ttl > 0 && self.step - u64::from(self.arena.mark(place).touched) > self.spec.ttl
    }

    /// Refuses a use for whose new rows there is no room, if rows do not make room or all are of this use.
    pub(super) fn check_room(
        &mut self,
        ids: &[u64],
        places: &[u32],
        gets_row: impl Fn(&Self, usize, u64) -> bool,
    ) -> Result<()> {
        let Some(rows_max) = self.rows_max() else { return Ok(()) };
        let uses = self.uses;
        let (mut new, mut of_this_use) = (Vec::new(), 0);
        for (at, (id, place)) in ids.iter().zip(places).enumerate() {
            if *place != NOWHERE {
                // What this use has is not what makes room for it.
                self.arena.note_use(*place, uses);
                of_this_use += 1;
            } else if gets_row(self, at, *id) {
                new.push(*id);
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
    pub(super) fn rows_max(&self) -> Option<u64> {
        (self.spec.rows_max > 0).then(|| self.share_of(self.spec.rows_max))
    }

    /// What these shards have of so many rows of the whole table.
    pub(super) fn share_of(&self, rows: u64) -> u64 {
        (u128::from(rows) * u128::from(self.shards.count)).div_ceil(u128::from(TableSpec::SHARDS)) as u64
    }

    /// Whether an id without a row gets one by a push with this score.
    pub(super) fn gets_row_by_push(&self, id: u64, score: f32) -> bool {
        let is_due = match self.spec.admission.score() {
            Some(due) => self.waited(id).map_or(0.0, |waiting| waiting.score) + score >= due,
            None => self.spec.admission.after == 1,
        };
        is_due && self.spec.admits(id)
    }

    /// Whether it gets one by a pull for training.
    pub(super) fn gets_row_by_pull(&self, id: u64) -> bool {
        let Admission { after, .. } = self.spec.admission;
        let is_due = || self.waited(id).map_or(0, |waiting| waiting.pulls) + 1 >= after;
        self.spec.admission.score().is_none() && is_due() && self.spec.admits(id)
    }

    /// An id without a row is pulled for training. Returns the place of its row, if it has one now.
    pub(super) fn admit(&mut self, id: u64) -> Option<u32> {
        if self.gets_row_by_pull(id) {
            self.wait_no_more(id);
            return Some(self.make(id));
        }
        if self.spec.admission.score().is_none() && self.spec.admits(id) {
            self.waiting_of(id).pulls += 1;
        }
        None
    }

    /// An id without a row is pushed to with this score. Returns the place of its row, if it has one now.
    pub(super) fn admit_by_push(&mut self, id: u64, score: f32) -> Option<u32> {
        if self.gets_row_by_push(id, score) {
            self.wait_no_more(id);
            return Some(self.make(id));
        }
        if self.spec.admission.score().is_some() && self.spec.admits(id) {
            self.waiting_of(id).score += score;
        }
        None
    }

    fn waited(&self, id: u64) -> Option<&Waiting> {
        self.waiting.find(TableSpec::hash_of(id), |waiting| waiting.id == id)
    }

    fn waiting_of(&mut self, id: u64) -> &mut Waiting {
        let hash = TableSpec::hash_of(id);
        let entry = self.waiting.entry(hash, |waiting| waiting.id == id, |waiting| TableSpec::hash_of(waiting.id));
        entry.or_insert(Waiting { id, pulls: 0, score: 0.0 }).into_mut()
    }

    /// Forgets what an id waited for.
    pub(super) fn wait_no_more(&mut self, id: u64) {
        if let Ok(entry) = self.waiting.find_entry(TableSpec::hash_of(id), |waiting| waiting.id == id) {
            entry.remove();
        }
    }

    /// Of the next rows behind the hand that are not of this use, the one that was used longest ago.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn least_used(&mut self) -> u32 {
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
}
