//! A futex of the model: a word, and the threads that sleep on it. It never times out, so that a lost wake-up is a deadlock.

use std::time::Duration;

use shuttle::sync::atomic::{AtomicU32, Ordering};

/// Sleeps while `word` is `expected`: it is looked at again whenever another thread has run.
pub fn wait(word: &AtomicU32, expected: u32, _timeout: Duration) -> bool {
    // A word that is looked at again and again would hide a wake-up that does not come, so the caller of `wake` must have changed it.
    let mut sleeps = 0;
    while word.load(Ordering::SeqCst) == expected {
        sleeps += 1;
        assert!(sleeps < SLEEPS_MAX, "a thread sleeps for ever, because nobody changes its word");
        shuttle::thread::yield_now();
    }
    true
}

/// Wakes all threads that sleep on `word`.
pub fn wake(_word: &AtomicU32) {
    shuttle::thread::yield_now();
}

/// More often than other threads of a model run.
const SLEEPS_MAX: u32 = 5_000;
