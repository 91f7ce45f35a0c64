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

    /// It is taken from the queue to which it came at `since`. `comes_to_push` says whether its header will tell of this wait. Returns how long it
    /// waited without and with credit missing.
    pub(super) fn handle_taken(
        &mut self,
        now: Time,
        since: Time,
        starved: Duration,
        comes_to_push: bool,
    ) -> (Duration, Duration) {
        let waited = now.since(since);
        let starved = starved.saturating_sub(self.starved_before).min(waited);
        let queued = waited - starved;
        if comes_to_push {
            self.credit += starved;
            self.queue += queued;
        }
        self.taken = now;
        (queued, starved)
    }

    /// The stage ends for which it was taken. Returns how long the stage took.
    pub(super) fn handle_stage_ended(&mut self, now: Time, precedes_push: bool) -> Duration {
        let took = now.since(self.taken);
        if precedes_push {
            self.device += took;
        }
        took
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
