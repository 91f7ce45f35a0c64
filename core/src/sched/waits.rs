//! What a task waits for between its submission and its push, for the metrics of its server. From times that the scheduler is given anyway.

use std::time::Duration;

use crate::types::{Time, Wait, Waited};

/// The waits of a task until its first push.
#[derive(Default, Debug)]
pub(super) struct Waits {
    /// Time in the stages before the push.
    device: Duration,
    /// Time in queues, without the time for which credit was missing.
    queue: Duration,
    /// Time in queues for which credit was missing.
    credit: Duration,
    /// When it was last taken from a queue.
    taken: Time,
    /// What [`Starvation::total`] was when it came to its queue.
    starved_before: Duration,
}

impl Waits {
    /// It comes to a queue; `starved` is [`Starvation::total`].
    pub(super) fn handle_queued(&mut self, starved: Duration) {
        self.starved_before = starved;
    }

    /// It is taken from the queue to which it came at `since`.
    pub(super) fn handle_taken(&mut self, now: Time, since: Time, starved: Duration) {
        let queued = now.since(since);
        let starved = starved.saturating_sub(self.starved_before).min(queued);
        self.credit += starved;
        self.queue += queued - starved;
        self.taken = now;
    }

    /// A stage before the push ends for which it was taken.
    pub(super) fn handle_stage_ended(&mut self, now: Time) {
        self.device += now.since(self.taken);
    }

    /// What its header says.
    pub(super) fn waited(&self) -> Waited {
        let [device, queue, credit] = [self.device, self.queue, self.credit].map(Wait::of);
        Waited { device, queue, credit }
    }
}

/// The time in which tasks could have been taken if there had been credit.
#[derive(Default, Debug)]
pub(super) struct Starvation {
    since: Option<Time>,
    ended: Duration,
}

impl Starvation {
    /// Nothing could be taken, because credit is missing.
    pub(super) fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// A task was taken that needs credit.
    pub(super) fn end(&mut self, now: Time) {
        if let Some(since) = self.since.take() {
            self.ended += now.since(since);
        }
    }

    /// Whether it began and has not ended.
    pub(super) fn goes_on(&self) -> bool {
        self.since.is_some()
    }

    /// How long it lasted so far, in all.
    pub(super) fn total(&self, now: Time) -> Duration {
        self.ended + self.since.map(|since| now.since(since)).unwrap_or_default()
    }
}
