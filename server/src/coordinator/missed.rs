//! The workers that a job misses, which goes over to its next formation.

use gradlane_core::wire::limits::MEMBER_BYTES_MAX;

use super::journal::Entry;

/// The most lost workers that are remembered, the latest of them.
const LOST_MAX: usize = 16;

/// Ends a text of which something was left out.
const CUT: &str = "...";

/// Workers that are missed.
#[derive(Clone, Debug, Default)]
pub(super) struct Missed {
    /// How many had left in order before the job formed as it is.
    pub(super) left: u32,
    /// Those that were lost since there were enough, and why, as people are told.
    pub(super) lost: Vec<String>,
}

impl Missed {
    /// One more was lost. Text that an error cannot take to the members is left out, so that all of them and the coordinator say the same.
    pub(super) fn note(&mut self, mut lost: String) {
        if lost.len() > MEMBER_BYTES_MAX {
            let most = MEMBER_BYTES_MAX - CUT.len();
            lost.truncate((0..=most).rev().find(|end| lost.is_char_boundary(*end)).unwrap_or(0));
            lost.push_str(CUT);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_lost_worker_is_no_longer_than_what_an_error_brings_to_the_members() {
        let mut missed = Missed::default();
        let (short, long) = ("worker 0 on a: killed".to_owned(), "é".repeat(100));
        missed.note(short.clone());
        missed.note(long);
        assert_eq!(missed.lost, [short, format!("{}...", "é".repeat(60))]);
    }
}
