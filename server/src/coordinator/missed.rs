//! The workers that a job misses, which goes over to its next formation.

use super::journal::Entry;

/// The most lost workers that are remembered, the latest of them.
const LOST_MAX: usize = 16;

/// Workers that are missed.
#[derive(Clone, Debug, Default)]
pub(super) struct Missed {
    /// How many had left in order before the job formed as it is.
    pub(super) left: u32,
    /// Those that were lost since there were enough, and why, as people are told.
    pub(super) lost: Vec<String>,
}

impl Missed {
    pub(super) fn note(&mut self, lost: String) {
        if self.lost.len() >= LOST_MAX {
            self.lost.remove(0);
        }
        self.lost.push(lost);
    }

    /// What a later coordinator must know, if there is anything.
    pub(super) fn entry(&self) -> Option<Entry> {
        let Self { left, lost } = self;
        (*left > 0 || !lost.is_empty()).then(|| Entry::Before { left: *left, lost: lost.clone() })
    }
}
