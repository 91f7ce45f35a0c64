//! What the fuzzer reaches of this module: the words that ranks of a machine write into shared memory.

use super::agreement::Announcement;
use super::host::fuzzing::{announcement_of, announcement_words, decision_of, decision_words};
use super::order::Decision;

/// The announcement in the words of a rank, which may have written anything.
///
/// # Panics
/// If it reads back as another one.
pub fn announcement(words: [u64; 8]) -> Option<Announcement> {
    let read = announcement_of(words)?;
    let written = announcement_words(read);
    let again = announcement_of(written).expect("what was read can be written");
    assert_eq!(announcement_words(again), written, "{read:?}");
    Some(read)
}

/// The decision in the words of a leader, which may have written anything.
///
/// # Panics
/// If it reads back as another one.
pub fn decision(words: &[u64], ranks: usize) -> Option<Decision> {
    let read = decision_of(words, ranks)?;
    let written = decision_words(&read, ranks);
    let again = decision_of(&written, ranks).expect("what was read can be written");
    assert_eq!(decision_words(&again, ranks), written, "{read:?}");
    Some(read)
}
