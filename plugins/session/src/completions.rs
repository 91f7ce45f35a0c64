//! The numbers of operations that are ready, for a framework's completion thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use gradlane_core::engine::Handle;
use gradlane_core::runtime::Clock;
use gradlane_core::types::Time;

/// Collects the numbers of operations that are ready, from the first call of [`next`](Self::next) on: their handles can be
/// [followed](gradlane_core::engine::Handle::follow) at once, because all their work is on devices, or has ended, or is
/// [given up](gradlane_core::engine::Handle::is_given_up).
#[derive(Debug)]
pub struct Completions {
    wanted: AtomicBool,
    calls: AtomicU32,
    /// The operations that are not told yet. An engine that is stuck tells of none of them.
    open: Arc<Mutex<BTreeMap<u64, Handle>>>,
    sender: Sender<u64>,
    receiver: Receiver<u64>,
}

impl Default for Completions {
    fn default() -> Self {
        let (sender, receiver) = unbounded();
        Self { wanted: AtomicBool::new(false), calls: AtomicU32::new(1), open: Arc::default(), sender, receiver }
    }
}

impl Completions {
    /// Tells of an operation that was just submitted, once it is ready.
    pub fn watch(&self, handle: &Handle) {
        if self.wanted.load(Ordering::Relaxed) {
            let (open, sender, id) = (Arc::clone(&self.open), self.sender.clone(), handle.id());
            lock(&self.open).insert(id, handle.clone());
            handle.when_issued(move || {
                // An operation that was given up is told already.
                if lock(&open).remove(&id).is_some() {
                    // Nobody asks any more.
                    let _ = sender.send(id);
                }
            });
        }
    }

    /// The numbers of operations that became ready since the last call. Waits up to `patience` for the first one.
    pub fn next(&self, patience: Duration) -> Vec<u64> {
        self.wanted.store(true, Ordering::Relaxed);
        let clock = Clock::start();
        let waited = || clock.now().since(Time::ZERO);
        loop {
            let first = self.receiver.recv_timeout(patience.saturating_sub(waited()).min(LOOK_EVERY));
            // To look costs a moment for each open operation, so mostly only while the engine is silent.
            if first.is_err() || self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(CALLS_PER_LOOK) {
                self.tell_of_given_up();
            }
            let ready: Vec<u64> =
                first.into_iter().chain(std::iter::from_fn(|| self.receiver.try_recv().ok())).collect();
            if !ready.is_empty() || patience <= waited() {
                return ready;
            }
        }
    }

    fn tell_of_given_up(&self) {
        let handles: Vec<Handle> = lock(&self.open).values().cloned().collect();
        for handle in handles.iter().filter(|handle| handle.is_given_up()) {
            if lock(&self.open).remove(&handle.id()).is_some() {
                let _ = self.sender.send(handle.id());
            }
        }
    }
}

/// How often a call looks for operations that were given up while it waits.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many calls that found something pass between two looks for operations that were given up.
const CALLS_PER_LOOK: u32 = 64;

/// A thread that panics with this lock leaves a consistent map.
fn lock(open: &Mutex<BTreeMap<u64, Handle>>) -> MutexGuard<'_, BTreeMap<u64, Handle>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert!(lock(&completions.open).is_empty(), "nothing is kept of what was told");
    }
}
