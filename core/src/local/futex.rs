//! Sleeping until a word of shared memory changes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{Flags, wait as wait_word, wake as wake_word};

use super::socket::timespec;

/// Sleeps while `word` is `expected`, at most for `timeout`. Returns whether it was woken or found another value. May also return early for
/// no reason, so the caller must read the word again.
///
/// The word may lie in a [`Segment`](super::Segment); sleepers of all processes that map it are woken.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> bool {
    // After any result but a timeout the caller reads the word again: it changed, a signal came, or another thread woke this one.
    !matches!(wait_word(word, Flags::empty(), expected, Some(&timespec(timeout))), Err(Errno::TIMEDOUT))
}

/// Wakes all threads that sleep on `word`. Change the word first, or they sleep again.
pub fn wake(word: &AtomicU32) {
    let everybody = i32::MAX.unsigned_abs();
    // Fails only for unmapped addresses, and a reference is mapped.
    let _ = wake_word(word, Flags::empty(), everybody);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::Segment;
    use super::*;

    #[test]
    fn a_sleeper_wakes_through_another_mapping_of_the_word() {
        let ours = Segment::create(4096).unwrap();
        let theirs = Segment::map(ours.fd().try_clone_to_owned().unwrap(), 4096).unwrap();
        let sleeper = std::thread::spawn(move || {
            while theirs.u32(64).load(Ordering::Acquire) == 0 {
                assert!(wait(theirs.u32(64), 0, Duration::from_secs(60)), "never woken");
            }
        });
        ours.u32(64).store(1, Ordering::Release);
        wake(ours.u32(64));
        sleeper.join().unwrap();
    }

    #[test]
    fn a_sleep_ends_at_its_deadline_and_never_begins_on_another_value() {
        let word = AtomicU32::new(7);
        assert!(!wait(&word, 7, Duration::from_millis(1)));
        assert!(wait(&word, 8, Duration::from_secs(3600)));
    }
}
