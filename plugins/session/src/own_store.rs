//! The key-value store of a job of one worker without servers: this process keeps it, as the coordinator of a larger job would.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gradlane_core::cluster::Entries;
use gradlane_core::types::{StoreAnswer, StoreAsk};
use gradlane_core::{Error, Result};

/// The store, which threads of this process share.
pub(crate) struct OwnStore {
    state: Mutex<State>,
    /// Something was put, or the job ended.
    changed: Condvar,
    step_timeout: Duration,
}

#[derive(Default)]
struct State {
    entries: Entries,
    /// Why the job is over.
    closed: Option<Error>,
}

impl OwnStore {
    /// An empty store, in which a read waits for `step_timeout` if it names no time.
    pub(crate) fn new(step_timeout: Duration) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), step_timeout }
    }

    /// Carries out a request. A read that waits for its key waits for `timeout`.
    pub(crate) fn ask(&self, ask: StoreAsk, timeout: Option<Duration>) -> Result<StoreAnswer> {
        let mut state = self.lock();
        if let StoreAsk::Get { key, wait: Some(_) } = &ask {
            let patience = timeout.unwrap_or(self.step_timeout);
            let is_absent = |state: &mut State| {
                let found = state.entries.ask(StoreAsk::Get { key: key.clone(), wait: None });
                state.closed.is_none() && found == Ok(StoreAnswer::Value(None))
            };
            let waited = self.changed.wait_timeout_while(state, patience, is_absent);
            let (guard, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
            if outcome.timed_out() {
                return Err(Entries::absent(key, patience));
            }
            state = guard;
        }
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        let is_change = ask.is_change();
        let answer = state.entries.ask(ask);
        if is_change {
            self.changed.notify_all();
        }
        answer
    }

    /// Ends the reads that wait, and refuses every later request, because of `cause`.
    pub(crate) fn close(&self, cause: Error) {
        self.lock().closed.get_or_insert(cause);
        self.changed.notify_all();
    }

    /// A thread that panics with the lock leaves a consistent store.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_read_waits_for_what_another_thread_puts() {
        let store = Arc::new(OwnStore::new(Duration::from_secs(30)));
        let there = Arc::clone(&store);
        let reader = thread::spawn(move || there.ask(get("a", true), None));
        store.ask(put("b"), None).unwrap();
        store.ask(put("a"), None).unwrap();
        assert_eq!(reader.join().unwrap(), Ok(StoreAnswer::Value(Some(b"v".to_vec()))));
        assert_eq!(store.ask(get("c", false), None), Ok(StoreAnswer::Value(None)));
    }

    #[test]
    fn a_read_that_waits_ends_in_time_and_with_the_job() {
        let store = Arc::new(OwnStore::new(Duration::from_millis(1)));
        let text = store.ask(get("a", true), None).unwrap_err().to_string();
        assert_eq!(text, "waiting for key \"a\" of the store, which nobody has put: not done after 0.0 s");
        let there = Arc::clone(&store);
        let reader = thread::spawn(move || there.ask(get("a", true), Some(Duration::from_secs(30))));
        store.close(Error::Cancelled);
        assert_eq!(reader.join().unwrap(), Err(Error::Cancelled));
        assert_eq!(store.ask(put("a"), None), Err(Error::Cancelled));
    }

    fn put(key: &str) -> StoreAsk {
        StoreAsk::Put { key: key.to_owned(), value: b"v".to_vec(), expected: None }
    }

    fn get(key: &str, waits: bool) -> StoreAsk {
        StoreAsk::Get { key: key.to_owned(), wait: waits.then_some(Duration::ZERO) }
    }
}
