//! What a task waits for before each stage, for the metrics of its worker, and until its push, for those of its server. From times that the
//! scheduler is given anyway.

use std::time::Duration;

use crate::metrics::{WaitReason, WaitTimes};
use crate::types::{Time, Wait, Waited};

/// The waits of a task.
#[derive(Default, Debug)]
pub(super) struct Waits {
    /// Until its first push: time in the stages before the push.
    device: Duration,
    /// Until its first push: time in queues, without the time for which credit was missing.
    queue: Duration,
    /// Until its first push: time in queues for which credit was missing.
    credit: Duration,
    /// When it was last taken from a queue.
    taken: Time,
    /// What it has waited for so far in the queue in which it is.
    here: WaitTimes,
    /// What its gates wait for, and since when; `None` while they are open.
    gate: Option<(WaitReason, Time)>,
    /// What was lacking so far when its gates opened.
    lacked: Lacking,
}

/// For how long something was lacking so far that all tasks of a stage need.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Lacking {
    /// Credit.
    pub(super) credit: Duration,
    /// Room for another copy.
    pub(super) device: Duration,
}

impl Waits {
    /// It comes to a queue, where its gates wait for this, if they are closed.
    pub(super) fn handle_queued(&mut self, now: Time, lacking: Lacking, gate: Option<WaitReason>) {
        (self.here, self.gate, self.lacked) = (WaitTimes::default(), gate.map(|reason| (reason, now)), lacking);
    }

    /// From now on its gates wait for this, if they are closed.
    pub(super) fn handle_gates(&mut self, now: Time, lacking: Lacking, gate: Option<WaitReason>) {
        match self.gate {
            Some((reason, since)) => self.here[reason as usize] += now.since(since),
            None => {
                self.here[WaitReason::Credit as usize] += lacking.credit.saturating_sub(self.lacked.credit);
                self.here[WaitReason::Device as usize] += lacking.device.saturating_sub(self.lacked.device);
            }
        }
        (self.gate, self.lacked) = (gate.map(|reason| (reason, now)), lacking);
    }

    /// It is taken from the queue to which it came at `since`. `comes_to_push` says whether its header will tell of this wait. Returns how long it
    /// waited for what.
    pub(super) fn handle_taken(&mut self, now: Time, since: Time, lacking: Lacking, comes_to_push: bool) -> WaitTimes {
        self.handle_gates(now, lacking, None);
        let mut left = now.since(since);
        for reason in [WaitReason::Order, WaitReason::Link, WaitReason::Device, WaitReason::Credit] {
            let time = &mut self.here[reason as usize];
            *time = left.min(*time);
            left -= *time;
        }
        self.here[WaitReason::Queue as usize] = left;
        if comes_to_push {
            let credit = self.here[WaitReason::Credit as usize];
            self.credit += credit;
            self.queue += now.since(since) - credit;
        }
        self.taken = now;
        self.here
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

/// The time in which tasks could have been taken if there had been credit, or room for a copy.
#[derive(Default, Debug)]
pub(super) struct Starvation {
    since: Option<Time>,
    ended: Duration,
}

impl Starvation {
    /// Nothing can be taken from now on.
    pub(super) fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// A task was taken, or could be.
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
