//! The numbers of operations that have ended, for a framework's completion thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

/// Collects the numbers of operations that have ended, from the first call of [`next`](Self::next) on.
#[derive(Debug)]
pub struct Completions {
    wanted: Arc<AtomicBool>,
    sender: Sender<u64>,
    receiver: Receiver<u64>,
}

impl Default for Completions {
    fn default() -> Self {
        let (sender, receiver) = unbounded();
        Self { wanted: Arc::default(), sender, receiver }
    }
}

impl Completions {
    /// A function that records the end of an operation; the engine's thread that resolves it calls it.
    pub fn notifier(&self) -> impl Fn(u64) + Send + use<> {
        let (wanted, sender) = (Arc::clone(&self.wanted), self.sender.clone());
        move |id| {
            if wanted.load(Ordering::Relaxed) {
                let _ = sender.send(id);
            }
        }
    }

    /// The numbers of operations that ended since the last call. Waits up to `patience` for the first one.
    pub fn next(&self, patience: Duration) -> Vec<u64> {
        self.wanted.store(true, Ordering::Relaxed);
        let first = self.receiver.recv_timeout(patience);
        first.into_iter().chain(std::iter::from_fn(|| self.receiver.try_recv().ok())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ends_after_the_first_question_are_told() {
        let completions = Completions::default();
        let ended = completions.notifier();
        ended(1);
        assert!(completions.next(Duration::ZERO).is_empty());
        ended(2);
        ended(3);
        assert_eq!(completions.next(Duration::ZERO), [2, 3]);
    }
}
