//! Putting rows back: as they were saved, with all that is kept of them.

use gradlane_core::error::Result;

use super::{NOWHERE, Rows, bad};

/// What is known of a row beside its numbers, as it travels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in super::super) struct SavedMark {
    /// The step of its last use.
    pub(in super::super) touched: u32,
    /// Its score; NaN for a row that is to go.
    pub(in super::super) score: f32,
}

impl Rows {
    /// Puts rows back, each with all of its numbers, values as near as they can be kept, and removes those whose score is NaN. Ids are not asked
    /// whether they are admitted. `step` is the latest one of the training, as in a push.
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
        let stays = |at: &usize| !marks[*at].score.is_nan();
        let (stay, go): (Vec<usize>, Vec<usize>) = (0..ids.len()).partition(stays);
        let (there, at): (Vec<u64>, Vec<u32>) = stay.iter().map(|at| (ids[*at], places[*at])).unzip();
        self.check_room(&there, &at, |_, _, _| true)?;
        let latest = stay.iter().map(|at| u64::from(marks[*at].touched)).max();
        self.step = self.step.max(step).max(latest.unwrap_or(0));
        go.iter().map(|at| places[*at]).filter(|place| *place != NOWHERE).for_each(|place| self.remove(place));
        for at in stay {
            self.wait_no_more(ids[at]);
            let place = if places[at] == NOWHERE { self.make(ids[at]) } else { places[at] };
            let (row, mark) = self.arena.change(place, self.version + 1);
            self.stored.write(&numbers[at * len..][..len], row);
            (mark.touched, mark.used_by, mark.score) = (marks[at].touched, self.uses, marks[at].score);
        }
        self.version += 1;
        Ok(())
    }
}
