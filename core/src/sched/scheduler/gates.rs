//! Queues and gates: how a task comes to a stage, and the reasons for which it waits there.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Scheduler, Timer};
use crate::error::Error;
use crate::pipeline::Stage;
use crate::sched::ids::TaskId;
use crate::sched::queue::StageQueue;
use crate::sched::rules::{goes_to_server, is_client, needs_credit, waits_for_the_round_before};
use crate::sched::task::{Gates, Place, Purpose, Task, TaskSpec, Work};
use crate::sched::waits::{Lacking, Starvation};
use crate::types::{Defect, ServerId, Time, Waited, planted};

impl Scheduler {
    /// Queues a task before `stage`, which it enters now. PULL begins at once: its exchange is open, and knows where the sum lands.
    pub(super) fn enter(&mut self, now: Time, id: TaskId, stage: Stage, pause: Option<Time>) {
        let work = self.tasks.get_mut(id.0).expect("a task that moves exists");
        if stage == Stage::Pull {
            (work.stage, work.since) = (stage, now);
            self.start(now, id);
            return;
        }
        let mut gates = Gates { round: false, link: false, pause };
        if waits_for_the_round_before(stage) {
            let first = self.rounds.get(&work.spec.part).and_then(VecDeque::front);
            let overlaps = is_client(work.spec.route) && planted(self.config.defect, Defect::UsesOverlap);
            gates.round = first != Some(&id) && !planted(self.config.defect, Defect::RoundGateOpen) && !overlaps;
            gates.link =
                goes_to_server(&self.pipeline, stage, work.spec.route) && self.down.contains(&work.spec.server);
        }
        work.stage = stage;
        work.since = now;
        work.place = Place::Queued(gates);
        let lacking = lacking(&self.starvation, &self.full, now, stage);
        work.waits.handle_queued(now, lacking, gates.reason());
        let (entry, is_withdrawal) = (work.entry(id), work.purpose.is_withdrawal());
        let queue = self.queue(stage, is_withdrawal);
        if gates.open() {
            queue.submit(entry);
            self.wake_if_ready(stage);
        } else {
            queue.submit_gated(entry);
        }
    }

    /// Makes a task that is in no queue a running one.
    pub(super) fn start(&mut self, now: Time, id: TaskId) -> Task {
        let work = self.tasks.get_mut(id.0).expect("a task that begins a stage exists");
        if !work.purpose.is_withdrawal() {
            self.moved = now;
        }
        self.running[work.stage.index()] += 1;
        work.place = Place::Running;
        let lacking = lacking(&self.starvation, &self.full, now, work.stage);
        let comes_to_push = work.comes_to_push();
        let waited = work.waits.handle_taken(now, work.since, lacking, comes_to_push);
        self.times.began((work.stage.index(), work.stage.name()), waited);
        let is_unwanted = work.purpose.is_unwanted() || work.purpose == Purpose::Dropped;
        let TaskSpec { part, server, bytes, round, .. } = work.spec;
        let others_ask = work.stage == Stage::Push || work.stage.opens_collective();
        let waited = if others_ask { work.waits.waited() } else { Waited::default() };
        let task = Task { id, part, server, bytes, round, attempt: work.attempt(), waited };
        let stage = work.stage;
        if stage.is_copy() {
            self.note_room(now, stage);
        }
        if is_unwanted {
            self.end_early(now, id);
        }
        task
    }

    /// The queue in which a task waits for `stage`.
    pub(super) fn queue(&mut self, stage: Stage, is_withdrawal: bool) -> &mut StageQueue {
        match (is_withdrawal, stage) {
            (true, Stage::Push) => &mut self.withdrawals,
            (_, stage) => &mut self.queues[stage.index()],
        }
    }

    /// Sends a task back to PUSH, after a pause that doubles with each failure.
    pub(super) fn repeat(&mut self, now: Time, id: TaskId, error: Error, landed: u64) {
        let work = self.tasks.get_mut(id.0).expect("a task that moves exists");
        let doubled = self.config.retry_min.saturating_mul(2u32.saturating_pow(work.tries.failures));
        let is_short = matches!(error, Error::Exhausted { .. });
        self.times.repeats(&error);
        // Memory is free again as soon as another sum ends, which takes milliseconds. Longer pauses would make the sum take many times
        // as long as the memory is short.
        let longest =
            if is_short { self.config.retry_max.min(self.config.retry_min * 4) } else { self.config.retry_max };
        let at = now + doubled.min(longest);
        let tries = &mut work.tries;
        tries.since.get_or_insert(now);
        tries.short_since = if is_short { tries.short_since.or(Some(now)) } else { None };
        tries.failures = tries.failures.saturating_add(1);
        tries.last_failure = Some(error);
        if !planted(self.config.defect, Defect::LandingForgotten) {
            tries.landed = tries.landed.max(landed);
        }
        self.timers.insert((at, Timer::Repeat(id)));
        let is_encoded_again = work.spec.route.compressed && planted(self.config.defect, Defect::EncodedAgain);
        self.enter(now, id, if is_encoded_again { Stage::Compress } else { Stage::Push }, Some(at));
    }

    /// From now on a task goes to this server.
    pub fn reroute(&mut self, now: Time, id: TaskId, server: ServerId) {
        let Some(work) = self.tasks.get_mut(id.0).filter(|work| work.spec.server != server) else { return };
        work.spec.server = server;
        let (stage, route) = (work.stage, work.spec.route);
        if waits_for_the_round_before(stage) && goes_to_server(&self.pipeline, stage, route) {
            let is_down = self.down.contains(&server);
            self.gate(now, id, |gates| gates.link = is_down);
        }
    }

    /// Repeats at once what waits to be repeated: what failed may work now.
    pub fn end_pauses(&mut self, now: Time) {
        let paused = |(at, timer): &(Time, Timer)| match timer {
            Timer::Repeat(id) => Some((*at, *id)),
            _ => None,
        };
        for (at, id) in self.timers.iter().filter_map(paused).collect::<Vec<_>>() {
            self.timers.remove(&(at, Timer::Repeat(id)));
            self.gate(now, id, |gates| gates.pause = None);
        }
    }

    /// Sees whether another copy may begin.
    pub(super) fn note_room(&mut self, now: Time, stage: Stage) {
        let has_room = self.has_room(stage);
        let full = &mut self.full[direction(stage)];
        if has_room { full.end(now) } else { full.begin(now) }
    }

    /// Whether another task may run in `stage`.
    pub(super) fn has_room(&self, stage: Stage) -> bool {
        !stage.is_copy() || self.running[stage.index()] < self.config.copies_max
    }

    /// Changes the gates of a task that waits for its stage.
    pub(super) fn gate(&mut self, now: Time, id: TaskId, change: impl FnOnce(&mut Gates)) {
        let Some(work) = self.tasks.get_mut(id.0) else {
            return;
        };
        let Place::Queued(before) = work.place else {
            return;
        };
        let mut gates = before;
        change(&mut gates);
        work.place = Place::Queued(gates);
        let (stage, entry, is_withdrawal) = (work.stage, work.entry(id), work.purpose.is_withdrawal());
        work.waits.handle_gates(now, lacking(&self.starvation, &self.full, now, stage), gates.reason());
        let queue = self.queue(stage, is_withdrawal);
        match (before.open(), gates.open()) {
            (false, true) => {
                queue.open(id);
                let forgotten = before.pause.is_some() && planted(self.config.defect, Defect::RetryForgotten);
                if !forgotten {
                    self.wake_if_ready(stage);
                }
            }
            (true, false) => {
                queue.close(entry);
                self.wake_if_ready(stage);
            }
            (true, true) | (false, false) => {}
        }
    }

    /// Call after the credit or the head of the queue has changed, because the first task may fit now.
    pub(super) fn wake_if_ready(&mut self, stage: Stage) {
        if self.has_ready(stage) {
            self.wakes |= 1 << stage.index();
        }
    }

    /// Lets the next round of the task's part be pushed.
    pub(super) fn leave_rounds(&mut self, now: Time, id: TaskId) {
        let work = self.tasks.get_mut(id.0).expect("a task that moves exists");
        if !std::mem::take(&mut work.holds_round) {
            return;
        }
        let part = work.spec.part;
        let waiting = self.rounds.get_mut(&part).expect("the task is in it");
        waiting.retain(|other| *other != id);
        match waiting.front().copied() {
            Some(next) => self.gate_round(now, next),
            None => drop(self.rounds.remove(&part)),
        }
    }

    fn gate_round(&mut self, now: Time, next: TaskId) {
        if self.tasks.get(next.0).is_some_and(|work| waits_for_the_round_before(work.stage)) {
            self.gate(now, next, |gates| gates.round = false);
        }
    }

    /// The queued tasks whose server is `server`. Scans all tasks, because connections change rarely and an index would slow down every
    /// move.
    pub(super) fn waiting_to_go_to(&self, server: ServerId) -> Vec<TaskId> {
        let goes = |work: &Work| goes_to_server(&self.pipeline, work.stage, work.spec.route);
        let waits = |work: &Work| goes(work) && matches!(work.place, Place::Queued(_));
        let tasks = self.tasks.iter().filter(|(_, work)| work.spec.server == server && waits(work));
        tasks.map(|(id, _)| TaskId(id)).collect()
    }
}

/// For how long so far something was lacking that every task of `stage` needs.
fn lacking(starvation: &Starvation, full: &[Starvation; 2], now: Time, stage: Stage) -> Lacking {
    let credit = if needs_credit(stage) { starvation.total(now) } else { Duration::ZERO };
    let device = if stage.is_copy() { full[direction(stage)].total(now) } else { Duration::ZERO };
    Lacking { credit, device }
}

/// The index of the direction in which a stage copies.
fn direction(stage: Stage) -> usize {
    usize::from(stage == Stage::CopyH2D)
}
