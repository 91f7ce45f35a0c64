//! Putting rows back: as they were saved, with all that is kept of them.

use gradlane_core::error::Result;

use super::{Rows, bad};

/// What is known of a row beside its numbers, as it travels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct SavedMark {
    /// The step of its last use.
    pub(in super::super) touched: u32,
    /// Its score; NaN for a row that is to go.
    pub(in super::super) score: f32,
}

impl Rows {
    /// Puts rows back, each with all of its numbers, and removes those whose score is NaN. Ids are not asked whether they are admitted. `step` is
    /// the latest one of the training, as in a push.
    ///
    /// # Errors
    /// [`Error::Protocol`](gradlane_core::Error::Protocol) for an id of other shards, an id that comes twice, or a score below 0;
    /// [`Error::FailedPrecondition`](gradlane_core::Error::FailedPrecondition) if the table is full. Nothing is changed then.
    ///
    /// # Panics
    /// If there is not a mark and a row for each id.
    pub(in super::super) fn restore(
        &mut self,
        ids: &[u64],
        step: u64,
        marks: &[SavedMark],
        numbers: &[f32],
    ) -> Result<()> {
        self.check_ids(ids)?;
        let len = self.rule.len();
        assert_eq!((marks.len(), numbers.len()), (ids.len(), ids.len() * len), "a mark and a row for each id");
        if let Some(mark) = marks.iter().find(|mark| mark.score < 0.0 || mark.score.is_infinite()) {
            return Err(bad("score", format!("is {}", mark.score)));
        }
        let places = self.places_once(ids)?;
        let is_there = |(_, mark): &(&u64, &SavedMark)| !mark.score.is_nan();
        let rows = ids.iter().zip(places).zip(marks).filter(|(_, mark)| !mark.score.is_nan());
        let (there, places): (Vec<u64>, Vec<u32>) = rows.map(|((id, place), _)| (*id, place)).unzip();
        self.check_room(&there, &places, |_, _, _| true)?;
        let latest = marks.iter().filter(|mark| !mark.score.is_nan()).map(|mark| u64::from(mark.touched)).max();
        self.step = self.step.max(step).max(latest.unwrap_or(0));
        for (id, _) in ids.iter().zip(marks).filter(|row| !is_there(row)) {
            if let Some(place) = self.find(*id) {
                self.remove(place);
            }
        }
        for ((id, mark), row) in ids.iter().zip(marks).zip(numbers.chunks_exact(len)) {
            if mark.score.is_nan() {
                continue;
            }
            self.wait_no_more(*id);
            let place = self.find(*id).unwrap_or_else(|| self.make(*id));
            let (numbers, kept) = self.arena.change(place, self.version + 1);
            numbers.copy_from_slice(row);
            (kept.touched, kept.used_by, kept.score) = (mark.touched, self.uses, mark.score);
        }
        self.version += 1;
        Ok(())
    }
}
