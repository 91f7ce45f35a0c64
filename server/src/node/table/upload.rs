//! The body of a use, and what it says.

use gradlane_core::codec::RowCodec;
use gradlane_core::error::{Error, Result};
use gradlane_core::mem::{Copies, Lease, Pool};
use gradlane_core::types::{RowAction, ShrinkBounds};
use gradlane_core::wire::Rows as Header;

use super::rows::{Gradients, SavedMark};
use crate::node::command::AskedRows;

/// The body of a use, as far as it came.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) asked: Box<AskedRows>,
    pub(super) body: Lease,
    came: usize,
}

/// Gradients as they came.
pub(super) struct Came<'a> {
    codec: RowCodec,
    /// Of each its score, if there are any.
    scores: &'a [u8],
    bytes: &'a [u8],
}

impl Upload {
    /// That of a use of which nothing has come.
    pub(super) fn of(asked: Box<AskedRows>, pool: &Pool) -> Self {
        let body = pool.lease(usize::try_from(asked.header.body_bytes()).expect("PART_BYTES_MAX"));
        Self { asked, body, came: 0 }
    }

    /// The next bytes came.
    pub(super) fn take(&mut self, copies: &Copies, bytes: &[u8]) {
        let taken = bytes.len().min(self.body.len() - self.came);
        copies.copy(&bytes[..taken], &mut self.body[self.came..][..taken]);
        self.came += taken;
    }

    /// Whether all of it came.
    pub(super) fn is_whole(&self) -> bool {
        self.came == self.body.len()
    }

    /// The ids.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.body[..self.bytes_of_ids()].as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
    }

    /// Of a push: the gradients.
    pub(super) fn gradients(&self, codec: RowCodec) -> Came<'_> {
        let Header { action, ids, .. } = self.asked.header;
        let scores = if action == RowAction::PushScored { ids * RowAction::SCORE_BYTES } else { 0 };
        let (scores, bytes) = self.body[self.bytes_of_ids()..].split_at(usize::try_from(scores).expect("IDS_MAX"));
        Came { codec, scores, bytes }
    }

    /// Of a restore: what is known of each row, and the numbers of all rows.
    pub(super) fn saved(&self) -> (Vec<SavedMark>, Vec<f32>) {
        let bytes = &self.body[self.bytes_of_ids()..];
        let count = usize::try_from(self.asked.header.ids).expect("IDS_MAX");
        let (marks, numbers) = bytes.split_at(count * RowAction::MARK_BYTES as usize);
        let mark = |bytes: &[u8; 8]| {
            let [touched, score] = [0, 1].map(|half| bytes.as_chunks().0[half]);
            SavedMark { touched: u32::from_le_bytes(touched), score: f32::from_le_bytes(score) }
        };
        let number = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        (marks.as_chunks().0.iter().map(mark).collect(), numbers.as_chunks().0.iter().map(number).collect())
    }

    /// Of a shrink: its bounds.
    ///
    /// # Errors
    /// [`Error::Protocol`] for bounds that have no meaning.
    pub(super) fn bounds(&self) -> Result<ShrinkBounds> {
        let numbers: Vec<u64> = self.body.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let &[decay, min_score, max_idle, floor] = &*numbers else { unreachable!("its header was checked") };
        let [decay, min_score] = [decay, min_score].map(f64::from_bits);
        if !(0.0..=1.0).contains(&decay) || !min_score.is_finite() {
            let problem = format!("are a decay of {decay} and a score of {min_score}");
            return Err(Error::Protocol { peer: "the worker".to_owned(), field: "bounds".to_owned(), problem });
        }
        Ok(ShrinkBounds { decay, min_score, max_idle, floor })
    }

    fn bytes_of_ids(&self) -> usize {
        usize::try_from(8 * self.asked.header.ids).expect("IDS_MAX")
    }
}

impl Gradients for Came<'_> {
    fn numbers(&self) -> usize {
        self.bytes.len() / self.codec.row_bytes() * self.codec.dim()
    }

    fn all_finite(&self) -> bool {
        self.codec.all_finite(self.bytes)
    }

    fn read(&self, at: usize, gradient: &mut [f32]) {
        let row_bytes = self.codec.row_bytes();
        self.codec.read(&self.bytes[at * row_bytes..][..row_bytes], gradient);
    }

    fn score(&self, at: usize) -> f32 {
        self.scores.as_chunks().0.get(at).map_or(1.0, |score| f32::from_le_bytes(*score))
    }
}
