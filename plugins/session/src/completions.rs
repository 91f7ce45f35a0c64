//! The numbers of operations that are ready, for a framework's completion thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use gradlane_core::engine::Handle;

/// Collects the numbers of operations that are ready, from the first call of [`next`](Self::next) on: their handles can be
/// [followed](gradlane_core::engine::Handle::follow) at once, because all their work is on devices, or has ended.
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
    /// Tells of an operation that was just submitted, once it is ready.
    pub fn watch(&self, handle: &Handle) {
        if self.wanted.load(Ordering::Relaxed) {
            let (sender, id) = (self.sender.clone(), handle.id());
            handle.when_issued(move || {
                // Nobody asks any more.
                let _ = sender.send(id);
            });
        }
    }

    /// The numbers of operations that became ready since the last call. Waits up to `patience` for the first one.
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
    fn only_what_is_submitted_after_the_first_question_is_told() {
        let completions = Completions::default();
        let submitted = |id| completions.watch(&Handle::resolved(id, Ok(())));
        submitted(1);
        assert!(completions.next(Duration::ZERO).is_empty());
        submitted(2);
        submitted(3);
        assert_eq!(completions.next(Duration::ZERO), [2, 3]);
    }
}
