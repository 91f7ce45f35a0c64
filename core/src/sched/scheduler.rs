//! Moves tasks from stage to stage and decides what goes next; the heart of a worker.
//!
//! # Driving it
//! `open_group` for each submission, then `submit` a task for each part of it that is ready. A loop thread a stage calls
//! [`take`](Scheduler::take) until it answers `None` and then sleeps until [`Command::Wake`]. The thread that executed a task always calls
//! [`finish`](Scheduler::finish). After *every* call that changes something, drain [`next_command`](Scheduler::next_command)
//! and set a timer to [`poll_timeout`](Scheduler::poll_timeout).
//!
//! # The life of a task
//! ```text
//!           submit              take                  finish(Done)
//!  (new) ─────────► Queued(s) ────────► Running(s) ─────────────────► Queued(next s), or gone after the last
//!                     ▲   │                 │
//!                     │   │ unwanted        ├─ finish(Retry) ───────► Queued(PUSH) behind a pause
//!                     │   ▼                 ├─ finish(Failed) ──────► gone; its groups fail
//!                     │  gone               └─ unwanted: Abandon ───► still Running; gone at the next finish
//!                     └────── Retry
//! ```
//! A worker that will not contribute to a round that others may wait for has its server told so, by a task of its own
//! ([`Command::Withdraw`]).
//!
//! A task is *unwanted* when all its groups failed. One exception keeps memory safe: after PUSH its exchange is open, and whatever
//! waits for PULL goes there even if unwanted, is abandoned on arrival, and is gone when the executor says that the memory is free.
//! Another keeps the ranks of a machine together: after REDUCE the others wait for what becomes of the part where they meet next (in
//! BROADCAST, or on the host where they are several PCIe groups), so a task that failed or is unwanted goes there too, and who should have
//! brought something tells them why there is nothing ([`failure`](Scheduler::failure)). It is abandoned on arrival if that concerns this
//! rank alone.
//!
//! # Rules
//! - Credit counts bytes on the wire and tasks, and what is urgent has its own beside that of the least urgent ([`Credit`]). It is drawn
//!   when a task in host memory is taken for PUSH, and given back when its PULL ends or either of them fails. A task in memory of a device
//!   draws it in COPYD2H, and one that the host encodes in COMPRESS. It holds it, whatever is repeated, until COPYH2D or DECOMPRESS ends:
//!   as long as it is staged (`lending`). A sum that does not come may wait
//!   for another worker, whose credit waits for this one: when no credit came back for `credit_patience` while a task needs some, that of
//!   the tasks which wait for their sums for so long is lent on. So workers may submit in different orders.
//! - A task is not pushed before the sum of the round before of the same part arrived: a server keeps two rounds of a part alive.
//!   Nor does it begin to be reduced among the ranks of a machine, or to be staged or encoded, before that.
//! - Nothing is pushed to a server that is not connected, nor staged for it. Servers count as connected until
//!   [`handle_link_down`](Scheduler::handle_link_down).
//! - A few copies are under way at a time in each direction (`copies_max`): a device makes them in the order in which it was told, so that
//!   what is urgent waits for those only.
//! - A group succeeds when all its parts are done. It fails once, with the first cause, and only when no task holds its memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::arena::Arena;
use super::credit::Credit;
use super::group::Group;
use super::ids::{GroupId, TaskId};
use super::queue::{Entry, StageQueue};
use super::rules::{is_staged, needs_credit, waits_for_the_round_before};
use super::task::{Outcome, Place, Purpose, Task, TaskSpec, Work};
use crate::error::{Error, Result};
use crate::pipeline::{Pipeline, Stage};
use crate::types::{Defect, PartId, Round, ServerId, Time};

/// Settings of a scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulerConfig {
    /// Bytes in flight at most, over all servers; as many again for what is more urgent than those.
    pub credit_bytes: u64,
    /// Tasks in flight at most, over all servers: an exchange costs its stream, its queue places and an answer, whatever its size.
    pub credit_tasks: u32,
    /// Tasks in COPYD2H at most, and as many in COPYH2D.
    pub copies_max: u32,
    /// Every so many takes of a stage, the oldest task goes first; 0 never.
    pub oldest_every: u32,
    /// The pause before the first repeat; each further one doubles it.
    pub retry_min: Duration,
    /// The longest pause.
    pub retry_max: Duration,
    /// After so long without any credit coming back, what waits for its sum no longer counts.
    pub credit_patience: Duration,
    /// How long a worker waits for a round. After so long it stops trying to tell a server of a withdrawal, and a shared part fails whose
    /// tensors were not all submitted.
    pub step_timeout: Duration,
    /// A mistake to make, for the simulation.
    pub defect: Option<Defect>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            credit_bytes: 64 << 20,
            // More than most models have parts: their workers may submit in any order without a pause for lending.
            credit_tasks: 1024,
            // Of parts of a few MiB, two keep a copy engine busy. Four leave room for shorter ones, and what is urgent waits for 16 MiB, a
            // third of a millisecond.
            copies_max: 4,
            oldest_every: 16,
            retry_min: Duration::from_millis(20),
            retry_max: Duration::from_secs(2),
            // Longer than the sum of a part takes on a slow link, shorter than anybody notices.
            credit_patience: Duration::from_millis(100),
            step_timeout: Duration::from_secs(60),
            defect: None,
        }
    }
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// A take on this stage may succeed now.
    Wake(Stage),
    /// A running task should end early. Its executor still calls `finish`. A task can be abandoned before its executor began.
    Abandon(TaskId),
    /// A task ended before the other ranks of its machine could begin with it. They are to be told, because they may wait for this rank.
    Decline(TaskId),
    /// The server of the task `of`, which ends without a sum, is to be told so, because others may wait for its contribution. `task` does
    /// it: it carries no memory, and its PUSH sends `error` instead of a contribution.
    Withdraw {
        /// A new task, for PUSH and PULL.
        task: TaskId,
        /// The task that will have no sum.
        of: TaskId,
        /// Why.
        error: Error,
    },
    /// The task is gone: drop what it carries.
    Release(TaskId),
    /// The submission ended; all its memory is free. Comes once for each group.
    Resolved {
        /// Which submission.
        group: GroupId,
        /// How.
        outcome: Result<()>,
    },
}

/// The machine; see the module's documentation.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pipeline: Pipeline,
    queues: [StageQueue; Stage::COUNT],
    /// Withdrawals that wait for PUSH; they go before everything else.
    withdrawals: StageQueue,
    credit: Credit,
    /// The tasks that drew credit and did not give it back; each knows its place here.
    holders: Vec<TaskId>,
    /// Whether there was ever a task that holds credit before it comes to PUSH.
    has_staged: bool,
    /// When credit is lent on, if a task waits for some.
    credit_due: Option<Time>,
    /// Running tasks, by stage.
    running: [u32; Stage::COUNT],
    tasks: Arena<Work>,
    groups: Arena<Group>,
    /// The tasks of a part whose sums have not arrived, by round; only the first may push.
    rounds: BTreeMap<PartId, VecDeque<TaskId>>,
    down: BTreeSet<ServerId>,
    timers: BTreeSet<(Time, Timer)>,
    commands: VecDeque<Command>,
    /// Stages to wake, one bit each.
    wakes: u16,
    submitted: u64,
    ended: Option<Error>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Repeat(TaskId),
    Deadline(GroupId),
    Withdrawal(TaskId),
    Hearing(TaskId),
    Credit,
}

impl Scheduler {
    /// An idle scheduler whose tasks pass the stages of `pipeline`.
    pub fn new(config: SchedulerConfig, pipeline: Pipeline) -> Self {
        Self {
            config,
            pipeline,
            queues: [const { StageQueue::new(0) }; Stage::COUNT].map(|_| StageQueue::new(config.oldest_every)),
            withdrawals: StageQueue::new(0),
            credit: Credit::new(config.credit_bytes, config.credit_tasks),
            holders: Vec::new(),
            has_staged: false,
            credit_due: None,
            running: [0; Stage::COUNT],
            tasks: Arena::new(),
            groups: Arena::new(),
            rounds: BTreeMap::new(),
            down: BTreeSet::new(),
            timers: BTreeSet::new(),
            commands: VecDeque::new(),
            wakes: 0,
            submitted: 0,
            ended: None,
        }
    }

    /// Opens a submission of tensor `name` that takes part in `shares` parts; with none it succeeds at once. After
    /// [`fail_all`](Self::fail_all) it fails at once.
    pub fn open_group(
        &mut self,
        now: Time,
        name: Arc<str>,
        round: Round,
        shares: u32,
        deadline: Option<Time>,
    ) -> GroupId {
        let id = GroupId(self.groups.insert(Group::new(name, round, shares, now, deadline)));
        if let Some(deadline) = deadline {
            self.timers.insert((deadline, Timer::Deadline(id)));
        }
        match self.ended.clone() {
            Some(error) => self.fail_group(now, id, error),
            None => self.resolve_if_settled(id),
        }
        id
    }

    /// Starts a task. If one of its groups has failed already, the part cannot be sent, because the memory of that group may be gone: the
    /// task is released at once and its other groups fail.
    ///
    /// # Panics
    /// If it has no group or one with all its shares submitted, or if the pipeline has no stages.
    pub fn submit(&mut self, now: Time, spec: TaskSpec) -> TaskId {
        assert!(!spec.groups.is_empty(), "a task serves a group");
        let stage = self.pipeline.first(spec.route).expect("a pipeline without stages has no tasks");
        let open = |group: &GroupId| self.groups.get(group.0).is_some_and(|group| group.fate.is_none());
        let wanted = spec.groups.iter().all(open);
        self.has_staged |= is_staged(spec.route);
        let id = TaskId(self.tasks.insert(Work { stage, ..Work::new(spec, self.submitted, now) }));
        self.submitted += 1;
        if !wanted {
            self.refuse(now, id);
            return id;
        }
        let work = self.tasks.get_mut(id.0).expect("inserted above");
        for group in &work.spec.groups {
            let group = self.groups.get_mut(group.0).expect("open");
            assert!(group.incomplete(), "tensor {}: more parts than shares", group.name);
            group.tasks.push(id);
            group.live += 1;
        }
        if waits_for_the_round_before(stage) || self.pipeline.pushes() {
            work.holds_round = true;
            self.rounds.entry(work.spec.part).or_default().push_back(id);
        }
        self.enter(now, id, stage, None);
        id
    }

    /// The next task for `stage`, which the caller must execute and [`finish`](Self::finish); `None` if there is none now.
    pub fn take(&mut self, now: Time, stage: Stage) -> Option<Task> {
        let taken = self.take_short(now, stage, u64::MAX);
        if taken.is_none() {
            self.expect_credit(now, stage);
        }
        taken
    }

    /// Whether tasks wait for `stage` that nothing but their turn or their credit holds up.
    pub fn has_ready(&self, stage: Stage) -> bool {
        self.queues[stage.index()].has_ready() || stage == Stage::Push && self.withdrawals.has_ready()
    }

    /// As [`take`](Self::take) if the next task has at most `bytes_max` bytes, and otherwise nothing. The caller must then wake the stage's thread.
    pub fn take_short(&mut self, now: Time, stage: Stage, bytes_max: u64) -> Option<Task> {
        if !self.has_room(stage) {
            return None;
        }
        if stage == Stage::Push
            && let Some(Entry { task, .. }) = self.withdrawals.take(|_| true)
        {
            return Some(self.start(now, task));
        }
        let (credit, tasks) = (&self.credit, &self.tasks);
        let draws = |entry: &Entry| {
            needs_credit(stage) && tasks.get(entry.task.0).is_some_and(|work| work.credit_place.is_none())
        };
        let fits =
            |entry: &Entry| entry.bytes <= bytes_max && (!draws(entry) || credit.fits(entry.priority, entry.bytes));
        let entry = match self.queues[stage.index()].take(fits) {
            Some(entry) => entry,
            None if matches!(stage, Stage::Compress | Stage::Push) => self.take_funded(stage, bytes_max)?,
            None => return None,
        };
        if needs_credit(stage) {
            self.draw_credit(entry.task);
        }
        Some(self.start(now, entry.task))
    }

    /// Hands a task that was taken out of its queue to its executor.
    fn start(&mut self, now: Time, id: TaskId) -> Task {
        let work = self.tasks.get_mut(id.0).expect("queued tasks exist");
        self.running[work.stage.index()] += 1;
        work.place = Place::Running;
        let is_unwanted = work.purpose.is_unwanted() || work.purpose == Purpose::Dropped;
        let TaskSpec { part, server, bytes, round, .. } = work.spec;
        let task = Task { id, part, server, bytes, round, attempt: work.attempt() };
        if is_unwanted {
            self.end_early(now, id);
        }
        task
    }

    /// Takes a task back from its executor.
    ///
    /// # Panics
    /// If the task is not running.
    pub fn finish(&mut self, now: Time, id: TaskId, outcome: Outcome) {
        let work = self.tasks.get(id.0).expect("a running task exists");
        assert_eq!(work.place, Place::Running, "only a running task is finished");
        self.running[work.stage.index()] -= 1;
        let stage = work.stage;
        match work.purpose {
            Purpose::Withdrawing { .. } | Purpose::Dropped => self.finish_withdrawal(now, id, outcome),
            Purpose::Wanted => self.finish_wanted(now, id, outcome),
            Purpose::Unwanted | Purpose::Explaining(_) => self.finish_unwanted(now, id, outcome),
        }
        if stage.is_copy() {
            self.wake_if_ready(stage);
        }
    }

    /// Gives a submission up. It resolves with [`Error::Cancelled`] when its memory is free; too late, it is ignored.
    pub fn cancel(&mut self, now: Time, group: GroupId) {
        self.fail_group(now, group, Error::Cancelled);
    }

    /// Fails everything, now and from now on, with the first such cause.
    pub fn fail_all(&mut self, now: Time, error: Error) {
        let error = self.ended.get_or_insert(error).clone();
        let groups: Vec<GroupId> = self.groups.iter().map(|(id, _)| GroupId(id)).collect();
        for group in groups {
            self.fail_group(now, group, error.clone());
        }
        for task in self.open_withdrawals() {
            self.drop_withdrawal(task);
        }
    }

    /// Stops pushing to `server`. Exchanges under way end by themselves.
    pub fn handle_link_down(&mut self, _now: Time, server: ServerId) {
        if self.down.insert(server) {
            for id in self.waiting_to_go_to(server) {
                self.gate(id, |gates| gates.link = true);
            }
        }
    }

    /// Pushes to `server` again.
    pub fn handle_link_up(&mut self, _now: Time, server: ServerId) {
        if self.down.remove(&server) {
            for id in self.waiting_to_go_to(server) {
                self.gate(id, |gates| gates.link = false);
            }
        }
    }

    /// Ends the pauses and deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Repeat(id) => self.gate(id, |gates| gates.pause = None),
                Timer::Credit => self.lend_credit_on(now),
                Timer::Withdrawal(id) => self.drop_withdrawal(id),
                Timer::Hearing(id) => self.abandon_unwanted(id),
                Timer::Deadline(id) => {
                    let group = self.groups.get(id.0).expect("a resolved group has no timer");
                    let what = format!("tensor {}, {}: {}", group.name, group.round, self.stand(group));
                    let waited = now.since(group.opened);
                    self.fail_group(now, id, Error::Timeout { what, waited });
                }
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The next thing to do; drain it after every input.
    pub fn next_command(&mut self) -> Option<Command> {
        if let Some(command) = self.commands.pop_front() {
            return Some(command);
        }
        let stage = Stage::ALL.into_iter().find(|stage| self.wakes & (1 << stage.index()) != 0)?;
        self.wakes &= !(1 << stage.index());
        Some(Command::Wake(stage))
    }

    /// Why a task that others of its machine wait for brings them nothing; `None` if it brings what it should.
    pub fn failure(&self, id: TaskId) -> Option<&Error> {
        self.tasks.get(id.0)?.purpose.failure()
    }

    /// Bytes in flight.
    pub fn credit_in_flight(&self) -> u64 {
        self.credit.in_flight()
    }

    /// How many tasks wait for `stage`.
    pub fn waiting(&self, stage: Stage) -> usize {
        let withdrawals = if stage == Stage::Push { self.withdrawals.len() } else { 0 };
        self.queues[stage.index()].len() + withdrawals
    }

    /// Whether nothing is open, waiting or running.
    pub fn is_idle(&self) -> bool {
        self.tasks.len() == 0 && self.groups.len() == 0
    }

    /// Follows a new formation, whose tasks pass the stages of `pipeline`. Tasks under way pass those of them that they have before them.
    pub fn follow(&mut self, pipeline: &Pipeline) {
        if self.pipeline != *pipeline {
            self.pipeline = pipeline.clone();
        }
    }

    /// The stages that its tasks pass.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    pub(super) fn tasks(&self) -> impl Iterator<Item = &Work> {
        self.tasks.iter().map(|(_, work)| work)
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter().map(|(id, group)| (GroupId(id), group))
    }

    pub(super) fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id.0)
    }
}

mod endings;
mod gates;
mod lending;
mod outcomes;
mod withdrawals;

#[cfg(test)]
mod tests;
