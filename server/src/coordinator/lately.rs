//! What servers were told lately, for those that have connected again and may have missed it.

use std::collections::VecDeque;
use std::time::Duration;

use gradlane_core::types::Time;

/// News, the oldest first.
#[derive(Debug)]
pub(super) struct Lately<T> {
    news: VecDeque<(Time, T)>,
    /// How long a server may be away before it is given up.
    remember: Duration,
}

impl<T> Lately<T> {
    /// No news. A server that was away for `remember` is given up.
    pub(super) fn new(remember: Duration) -> Self {
        Self { news: VecDeque::new(), remember }
    }

    /// Remembers what is told now, and forgets what is too old.
    pub(super) fn push(&mut self, now: Time, told: T) {
        while self.news.front().is_some_and(|(at, _)| *at + self.remember <= now) {
            self.news.pop_front();
        }
        self.news.push_back((now, told));
    }

    /// What a server may have missed, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.news.iter().map(|(_, told)| told)
    }
}
