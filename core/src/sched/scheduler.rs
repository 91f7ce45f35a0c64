//! Moves tasks from stage to stage, and decides which task goes next. The heart of a worker.
//!
//! # Driving it
//! Call `open_group` for each submission, then `submit` a task for each part of it that is ready. The loop thread of each stage calls
//! [`take`](Scheduler::take) until it answers `None` and then sleeps until [`Command::Wake`]. The thread that executed a task always calls
//! [`finish`](Scheduler::finish). PULL has no loop: a task runs in it from the end of its PUSH on, which has opened the exchange and said
//! where the sum lands. After *every* call that changes something, drain [`next_command`](Scheduler::next_command) and set a
//! timer to [`poll_timeout`](Scheduler::poll_timeout).
//!
//! # The life of a task
//! ```text
//!           submit              take                  finish(Done)
//!  (new) ─────────► Queued(s) ────────► Running(s) ─────────────────► Queued(next s), or gone after the last
//!                     ▲   │                 │
//!                     │   │ unwanted        ├─ finish(Done) of PUSH ► Running(PULL)
//!                     │   │                 ├─ finish(Retry) ───────► Queued(PUSH) behind a pause
//!                     │   ▼                 ├─ finish(Failed) ──────► gone; its groups fail
//!                     │  gone               └─ unwanted: Abandon ───► still Running; gone at the next finish
//!                     └────── Retry
//! ```
//! If this worker will not contribute to a round, other workers may wait for it. A separate task then tells the server
//! ([`Command::Withdraw`]).
//!
//! A task is *unwanted* when all its groups failed. If it is queued it is released at once, if it runs at its next `finish`, with two
//! exceptions. The first keeps memory safe. After PUSH the exchange of a task is open, so an unwanted task still goes to PULL. There it is
//! abandoned, and it is released when the transport reports that the memory is free. The second keeps the ranks of a machine in step. After
//! REDUCE the other ranks wait for the part at their next common stage: BROADCAST or, if there are several PCIe groups, PCIE_REDUCE or
//! PCIE_BROADCAST. So a task that failed or is unwanted goes there too. If this rank had to bring the sum, it tells the others why there is
//! none ([`failure`](Scheduler::failure)). If the failure concerns this rank alone, the task is abandoned there.
//!
//! # Rules
//! - Credit counts bytes on the wire and tasks; urgent tasks have a second budget ([`Credit`]). A task in host memory draws credit when it
//!   is taken for PUSH, and returns it when its PULL ends or either stage fails. A task in device memory draws it in COPYD2H, and a task
//!   that the host encodes in COMPRESS. These, and tasks that pass LAND, hold it as long as they have memory of the engine, until COPYH2D,
//!   DECOMPRESS or LAND ends, also through repeats (`lending`). A sum may be late because another worker's credit is held by tasks that
//!   wait for this worker. So if a task needs credit and none came back for `credit_patience`, the credit of tasks that have waited that
//!   long for their sums is lent on. Therefore workers may submit in different orders.
//! - A task waits for the sum of the part's round before, because a server keeps two rounds of a part alive. Until then it is not pushed,
//!   reduced among the ranks of a machine, staged or encoded.
//! - Nothing is staged for or pushed to a server that is not connected. Servers count as connected until
//!   [`handle_link_down`](Scheduler::handle_link_down).
//! - At most `copies_max` copies are under way in each direction. A device makes copies in the order of their submission, so an urgent task
//!   waits only for these.
//! - A group succeeds when all its parts are done. It fails once, with the first cause, and only when no task holds its memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::arena::Arena;
use super::credit::Credit;
use super::group::Group;
use super::ids::{GroupId, TaskId};
use super::queue::{Entry, StageQueue};
use super::rules::{is_client, is_staged, needs_credit, waits_for_the_round_before};
use super::task::{Outcome, Place, Purpose, Task, TaskSpec, Work};
use super::waits::Starvation;
use crate::error::{Error, Result};
use crate::metrics::StageTimes;
use crate::pipeline::{Pipeline, Stage};
use crate::types::{Defect, PartId, Round, ServerId, Time};

/// Settings of a scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulerConfig {
    /// The most bytes in flight, over all servers. More urgent tasks may have as many again; see [`Credit`].
    pub credit_bytes: u64,
    /// The most tasks in flight, over all servers, because every exchange costs a stream, queue places and an answer, whatever its size.
    pub credit_tasks: u32,
    /// The most tasks in COPYD2H, and in COPYH2D.
    pub copies_max: u32,
    /// Every `oldest_every`-th take of a stage gets the oldest task; 0 for never.
    pub oldest_every: u32,
    /// The pause before the first repeat. It doubles with each further repeat.
    pub retry_min: Duration,
    /// The longest pause.
    pub retry_max: Duration,
    /// If no credit came back for this long, the credit of tasks that wait for their sums is lent on.
    pub credit_patience: Duration,
    /// How long a worker waits for a round. After this time it stops trying to tell a server of a withdrawal, and a shared part fails if
    /// some of its tensors were not submitted.
    pub step_timeout: Duration,
    /// A defect to plant, for the simulation.
    pub defect: Option<Defect>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            credit_bytes: 64 << 20,
            // More than the parts of most models, whose workers may then submit in any order without a pause for lending.
            credit_tasks: 1024,
            // Two parts of a few MiB keep a copy engine busy. Four leave room for shorter ones, and an urgent task waits for at most 16
            // MiB, a third of a millisecond.
            copies_max: 4,
            oldest_every: 16,
            retry_min: Duration::from_millis(20),
            retry_max: Duration::from_secs(2),
            // Longer than the sum of a part takes on a slow link, and too short for a user to notice.
            credit_patience: Duration::from_millis(100),
            step_timeout: Duration::from_secs(60),
            defect: None,
        }
    }
}

/// An order to the driver.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    /// Wake the loop of this stage, because a take may succeed now.
    Wake(Stage),
    /// End this running task early. Its executor still calls `finish`. The command may come before the executor has begun.
    Abandon(TaskId),
    /// Tell the other ranks of the machine that a task ends with which they cannot begin without this rank, because they may wait for it.
    Decline(TaskId),
    /// Prepare `task`, which tells the server of task `of` that `of` ends without a contribution, because other workers may wait for it.
    /// `task` carries no memory; its PUSH sends `error` instead of a contribution.
    Withdraw {
        /// A new task, for PUSH and PULL.
        task: TaskId,
        /// The task that ends without a contribution.
        of: TaskId,
        /// Why.
        error: Error,
    },
    /// Drop the memory of this task, which has ended.
    Release(TaskId),
    /// Report the end of a submission; all its memory is free. Comes once for each group.
    Resolved {
        /// The submission.
        group: GroupId,
        /// Its outcome.
        outcome: Result<()>,
    },
}

/// The machine; see the module's documentation.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pipeline: Pipeline,
    queues: [StageQueue; Stage::COUNT],
    /// Withdrawals that wait for PUSH; they go before all other tasks.
    withdrawals: StageQueue,
    credit: Credit,
    /// The tasks that hold credit; each knows its index here.
    holders: Vec<TaskId>,
    /// Whether any task so far drew credit before PUSH.
    has_staged: bool,
    /// When credit is lent on, if a task waits for some.
    credit_due: Option<Time>,
    starvation: Starvation,
    /// The time for which there was no room for another copy, in each direction.
    full: [Starvation; 2],
    times: StageTimes,
    /// Running tasks, by stage.
    running: [u32; Stage::COUNT],
    tasks: Arena<Work>,
    groups: Arena<Group>,
    /// The tasks of each part whose sums have not arrived, by round; only the first may push.
    rounds: BTreeMap<PartId, VecDeque<TaskId>>,
    down: BTreeSet<ServerId>,
    /// Whether the ranks of this machine cannot work together now.
    apart: bool,
    /// Before that, no task fails because its server has no memory.
    patient_until: Time,
    timers: BTreeSet<(Time, Timer)>,
    commands: VecDeque<Command>,
    /// Stages to wake, one bit each.
    wakes: u16,
    submitted: u64,
    /// When a step of any task last began or ended, except those that tell a server of a withdrawal.
    moved: Time,
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
            starvation: Starvation::default(),
            full: Default::default(),
            times: StageTimes::default(),
            running: [0; Stage::COUNT],
            tasks: Arena::new(),
            groups: Arena::new(),
            rounds: BTreeMap::new(),
            down: BTreeSet::new(),
            apart: false,
            patient_until: Time::ZERO,
            timers: BTreeSet::new(),
            commands: VecDeque::new(),
            wakes: 0,
            submitted: 0,
            moved: Time::ZERO,
            ended: None,
        }
    }

    /// Opens a submission of tensor `name`, which lies in `shares` parts; without parts it succeeds at once. After
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
        if waits_for_the_round_before(stage) || self.pipeline.pushes() || is_client(work.spec.route) {
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

    /// Whether tasks with open gates wait for `stage`. They may still lack credit.
    pub fn has_ready(&self, stage: Stage) -> bool {
        let is_closed = self.apart && stage.is_collective();
        !is_closed && (self.queues[stage.index()].has_ready() || stage == Stage::Push && self.withdrawals.has_ready())
    }

    /// As [`take`](Self::take) if the next task has at most `bytes_max` bytes. Otherwise takes nothing, and the caller must wake the
    /// stage's thread.
    pub fn take_short(&mut self, now: Time, stage: Stage, bytes_max: u64) -> Option<Task> {
        if !self.has_room(stage) || self.apart && stage.is_collective() {
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
            self.starvation.end(now);
        }
        Some(self.start(now, entry.task))
    }

    /// Reports how a stage of a task ended.
    ///
    /// # Panics
    /// If the task is not running.
    pub fn finish(&mut self, now: Time, id: TaskId, outcome: Outcome) {
        let work = self.tasks.get_mut(id.0).expect("a running task exists");
        if !work.purpose.is_withdrawal() {
            self.moved = now;
        }
        assert_eq!(work.place, Place::Running, "only a running task is finished");
        let stage = work.stage;
        let took = work.waits.handle_stage_ended(now, stage.precedes_push());
        self.times.ended((stage.index(), stage.name()), took);
        self.running[stage.index()] -= 1;
        match work.purpose {
            Purpose::Withdrawing { .. } | Purpose::Dropped => self.finish_withdrawal(now, id, outcome),
            Purpose::Wanted => self.finish_wanted(now, id, outcome),
            Purpose::Unwanted | Purpose::Explaining(_) => self.finish_unwanted(now, id, outcome),
        }
        if stage.is_copy() {
            self.note_room(now, stage);
            self.wake_if_ready(stage);
        }
    }

    /// Cancels a submission. It resolves with [`Error::Cancelled`] when its memory is free. Does nothing if it has been resolved.
    pub fn cancel(&mut self, now: Time, group: GroupId) {
        self.fail_group(now, group, Error::Cancelled);
    }

    /// Fails all submissions, present and future, with the cause of the first such call.
    pub fn fail_all(&mut self, now: Time, error: Error) {
        let error = self.ended.get_or_insert(error).clone();
        let groups: Vec<GroupId> = self.groups.iter().map(|(id, _)| GroupId(id)).collect();
        for group in groups {
            self.fail_group(now, group, error.clone());
        }
        for task in self.open_withdrawals() {
            self.drop_withdrawal(now, task);
        }
    }

    /// Stops pushing to `server`. Exchanges under way end by themselves.
    pub fn handle_link_down(&mut self, now: Time, server: ServerId) {
        if self.down.insert(server) {
            for id in self.waiting_to_go_to(server) {
                self.gate(now, id, |gates| gates.link = true);
            }
        }
    }

    /// Pushes to `server` again.
    pub fn handle_link_up(&mut self, now: Time, server: ServerId) {
        if self.down.remove(&server) {
            for id in self.waiting_to_go_to(server) {
                self.gate(now, id, |gates| gates.link = false);
            }
        }
    }

    /// Acts on the pauses and deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Repeat(id) => self.gate(now, id, |gates| gates.pause = None),
                Timer::Credit => self.lend_credit_on(now),
                Timer::Withdrawal(id) => self.drop_withdrawal(now, id),
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

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The stage of a task that was not released.
    pub fn stage(&self, id: TaskId) -> Option<Stage> {
        self.tasks.get(id.0).map(|work| work.stage)
    }

    /// The server of a task that was not released.
    pub fn server(&self, id: TaskId) -> Option<ServerId> {
        self.tasks.get(id.0).map(|work| work.spec.server)
    }

    /// Whether somebody waits for the result of a task.
    pub fn is_wanted(&self, id: TaskId) -> bool {
        self.tasks.get(id.0).is_some_and(|work| work.purpose == Purpose::Wanted)
    }

    /// Whether a task is in its last stage.
    pub fn is_last(&self, id: TaskId) -> bool {
        let (stage, route) = self.whereabouts(id);
        self.pipeline.after(stage, route).is_none()
    }

    /// The next command. Drain all commands after every input.
    pub fn next_command(&mut self) -> Option<Command> {
        if let Some(command) = self.commands.pop_front() {
            return Some(command);
        }
        let stage = Stage::ALL.into_iter().find(|stage| self.wakes & (1 << stage.index()) != 0)?;
        self.wakes &= !(1 << stage.index());
        Some(Command::Wake(stage))
    }

    /// When a step of any task last began or ended.
    pub fn moved(&self) -> Time {
        self.moved
    }

    /// When a task of this submission last came to another stage, or the submission was opened.
    pub fn moved_of(&self, group: GroupId) -> Option<Time> {
        let group = self.group(group)?;
        let tasks = group.tasks.iter().filter_map(|task| self.tasks.get(task.0));
        Some(tasks.map(|work| work.since).fold(group.opened, Time::max))
    }

    /// Why a task brings no sum to the other ranks of its machine; `None` if it brings one.
    pub fn failure(&self, id: TaskId) -> Option<&Error> {
        self.tasks.get(id.0)?.purpose.failure()
    }

    /// Bytes in flight.
    pub fn credit_in_flight(&self) -> u64 {
        self.credit.in_flight()
    }

    /// How many tasks wait for `stage`.
    pub fn waiting(&self, stage: Stage) -> usize {
        self.queues[stage.index()].len() + if stage == Stage::Push { self.withdrawals.len() } else { 0 }
    }

    /// Whether no group is open, and no task waits or runs.
    pub fn is_idle(&self) -> bool {
        self.tasks.len() == 0 && self.groups.len() == 0
    }

    /// Follows a new formation, whose tasks pass the stages of `pipeline`. Tasks under way pass the remaining stages of it. If the ranks that
    /// reduce together on this machine are others, [`halfway`](Self::halfway) says before which tasks cannot go on.
    pub fn follow(&mut self, pipeline: &Pipeline) {
        if self.pipeline != *pipeline {
            self.pipeline = pipeline.clone();
        }
    }

    /// The stages of new tasks.
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
mod teams;
mod unanswered;
mod withdrawals;

#[cfg(test)]
mod tests;
