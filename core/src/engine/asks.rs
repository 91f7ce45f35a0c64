//! What a worker asks the coordinator: the key-value store of the job, clocks, and checkpoints.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::driver::{Engine, locked};
use super::metrics::Metrics;
use crate::error::Result;
use crate::types::{
    Answer, Ask, CheckpointAsk, Checkpointed, Done, Fate, LoadAsk, SaveAsk, StoreAnswer, StoreAsk, Tick, Ticked,
};

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
        let key = ask.key().to_owned();
        match self.ask(Ask::Store(ask), "key", &key, timeout)? {
            Answer::Store(answer) => Ok(answer),
            Answer::Ticked(_) | Answer::Checkpointed(_) => {
                unreachable!("the membership checks that an answer fits what was asked")
            }
        }
    }

    /// Finishes a round of a clock, and waits until this worker may begin the next one, at most for `timeout`, or the job's step timeout.
    /// Saying the same round again is the same tick.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout) that names the workers for which it has waited;
    /// [`Error::FailedPrecondition`](crate::Error::FailedPrecondition) for a round that does not follow the last one of this worker, or if
    /// more workers are to close a round than there are; [`Error::Mismatch`](crate::Error::Mismatch) if another worker has given the clock
    /// another mode; or why the job ended.
    pub fn tick(&self, tick: Tick, timeout: Option<Duration>) -> Result<Ticked> {
        let clock = tick.clock.clone();
        match self.ask(Ask::Tick(tick), "clock", &clock, timeout)? {
            Answer::Ticked(ticked) => {
                Metrics::add(&self.shared.metrics.rounds_late, u64::from(ticked.fate == Fate::DroppedLate));
                Ok(ticked)
            }
            Answer::Store(_) | Answer::Checkpointed(_) => {
                unreachable!("the membership checks that an answer fits what was asked")
            }
        }
    }

    /// Saves the parameters of the job, or loads them, and waits until the servers have done it. No value is changed unless all servers have
    /// read and checked all of the checkpoint.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`](crate::Error::FailedPrecondition) if another worker saves or loads, a parameter has no value, or the
    /// directory is of another job; [`Error::NotFound`](crate::Error::NotFound) for a checkpoint or a tensor that is not there;
    /// [`Error::Mismatch`](crate::Error::Mismatch) if a tensor was saved with another element type or shape;
    /// [`Error::Io`](crate::Error::Io) and [`Error::Checksum`](crate::Error::Checksum) from the files;
    /// [`Error::Timeout`](crate::Error::Timeout) if it takes longer than the request says; or why the job ended.
    pub fn checkpoint(&self, ask: CheckpointAsk) -> Result<Checkpointed> {
        let (CheckpointAsk::Save(SaveAsk { path, wait, .. }) | CheckpointAsk::Load(LoadAsk { path, wait, .. })) = &ask;
        let (path, wait) = (path.clone(), *wait);
        match self.ask(Ask::Checkpoint(ask), "checkpoint", &path, Some(wait))? {
            Answer::Checkpointed(checkpointed) => Ok(checkpointed),
            Answer::Store(_) | Answer::Ticked(_) => {
                unreachable!("the membership checks that an answer fits what was asked")
            }
        }
    }

    fn ask(&self, ask: Ask, what: &'static str, name: &str, timeout: Option<Duration>) -> Result<Answer> {
        if let Some(error) = self.shared.look(|state| state.worker.ended().cloned()) {
            return Err(error);
        }
        let patience = self.patience(timeout);
        let (handle, done) = self.request(0, patience, what, name);
        let answer = Arc::new(Mutex::new(None));
        let there = Arc::clone(&answer);
        let answered = Done::new(move |outcome: Result<Answer>| {
            done.report(outcome.map(|answer| *locked(&there) = Some(answer)));
        });
        // If the engine is shut down, the token is dropped, which reports an error.
        if let Some(membership) = &*locked(&self.shared.membership) {
            membership.ask(ask, patience, answered);
        }
        handle.wait(None)?;
        Ok(locked(&answer).take().expect("the answer came before the end"))
    }
}
