//! The key-value store of the job.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::driver::{Engine, locked};
use super::handle::Handle;
use crate::error::Result;
use crate::types::{Done, StoreAnswer, StoreAsk};

impl Engine {
    /// Asks the store of the job, which the coordinator keeps for as long as it lives, and waits for the answer. A read that waits for its
    /// key, and any wait for a coordinator that does not answer, end after `timeout`, or the job's step timeout. The latter does
    /// not pass while a coordinator is out of contact that has to say who is lost.
    ///
    /// # Errors
    /// As [`Entries::ask`](crate::cluster::Entries::ask); [`Error::Timeout`](crate::Error::Timeout) if nobody has put the key in time, or
    /// the coordinator did not answer (a change may then have been made or not); [`Error::Exhausted`](crate::Error::Exhausted) if this
    /// worker or the job waits for too many answers; or why the job ended.
    pub fn ask_store(&self, ask: StoreAsk, timeout: Option<Duration>) -> Result<StoreAnswer> {
        if let Some(error) = self.shared.look(|state| state.worker.ended().cloned()) {
            return Err(error);
        }
        let patience = self.patience(timeout);
        let (limit, backend) = self.limit_of_request(patience, "key", ask.key());
        let (handle, done) = Handle::new(0, backend, Arc::default(), |_| {});
        let answer = Arc::new(Mutex::new(None));
        let there = Arc::clone(&answer);
        let answered = Done::new(move |outcome: Result<StoreAnswer>| {
            done.report(outcome.map(|answer| *locked(&there) = Some(answer)));
        });
        // If the engine is shut down, the token is dropped, which reports an error.
        if let Some(membership) = &*locked(&self.shared.membership) {
            membership.ask_store(ask, patience, answered);
        }
        handle.limited(limit).wait(None)?;
        Ok(locked(&answer).take().expect("the answer came before the end"))
    }
}
