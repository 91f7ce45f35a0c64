//! The words of announcements and orders, for the fuzzer.

use super::record::{order_of, order_words, take_more};
use crate::collective::agreement::Announcement;
use crate::collective::order::Decision;
use crate::types::Time;

pub(in crate::collective) fn announcement_of(words: [u64; 8]) -> Option<Announcement> {
    Announcement::of(Time::ZERO, words)
}

pub(in crate::collective) fn announcement_words(announcement: Announcement) -> [u64; 8] {
    announcement.words()
}

/// As a rank reads an order: whether more follow is taken from it first.
pub(in crate::collective) fn decision_of(words: &[u64], ranks: usize) -> Option<Decision> {
    let mut words = words.to_vec();
    if !words.is_empty() {
        take_more(&mut words);
    }
    order_of(&words, ranks)
}

pub(in crate::collective) fn decision_words(decision: &Decision, ranks: usize) -> Vec<u64> {
    order_words(decision, ranks)
}
