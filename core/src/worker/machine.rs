//! The worker's state machine: its state, its inputs and their effects on all its modules, and how to drive it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::command::Command;
use super::formation::Formation;
use super::links::{Changes, Links};
use super::notices::Notices;
use super::outstanding::{Numbers, Outstanding};
use super::parking::Parking;
use super::reads::Read;
use super::records::{Ending, Record, Submission};
use super::recovery::Recovery;
use super::residuals::Residuals;
use super::team::Team;
use crate::cluster::{Contact, ContactTerms};
use crate::config::Bounds;
use crate::error::{Error, Result};
use crate::metrics::StageTimes;
use crate::pipeline::Pipeline;
use crate::pipeline::registry::{ReadyPart, Registry};
use crate::sched::{self, GroupId, Scheduler, SchedulerConfig, SideTable, StallDetector, TaskId};
use crate::types::{
    DType, Defect, DeviceKind, LinkId, PartId, Phase, Piece, Priority, Round, ServerId, Time, View, WorkerId, planted,
};
use crate::wire::frame::Progress;

/// Makes every decision of a worker.
///
/// It has no thread, socket, clock or memory. It knows how long a tensor is and on which device it lies, never its address.
///
/// # Driving it
/// Call one input at a time, each with the current time. **After every input**, before the next one:
///
/// 1. call [`next_command`](Self::next_command) until it answers `None`, and carry each command out;
/// 2. set a timer to [`poll_timeout`](Self::poll_timeout), and call [`handle_timeout`](Self::handle_timeout) when it fires.
///
/// | the driver | calls |
/// |---|---|
/// | joined the job | [`handle_joined`](Self::handle_joined), once, before anything else |
/// | hears that the coordinator is out of contact, or back | [`handle_contact`](Self::handle_contact) |
/// | got another view | [`handle_view`](Self::handle_view) |
/// | carried out [`Command::Follow`] | [`handle_equipped`](Self::handle_equipped) |
/// | hears that a tensor, or the job, failed | [`handle_forget`](Self::handle_forget), [`handle_failed`](Self::handle_failed) |
/// | hears that it is to restore sums | [`handle_restore`](Self::handle_restore) |
/// | has a tensor to reduce | [`submit`](Self::submit), [`submit_all`](Self::submit_all), [`declare`](Self::declare), [`cancel`](Self::cancel) |
/// | has names that are used no more, and carried out [`Command::Undeclare`] | [`undeclare`](Self::undeclare), [`handle_undeclared`](Self::handle_undeclared) |
/// | carried out [`Command::Declare`] | [`handle_declared`](Self::handle_declared) |
/// | carried out [`Command::Dial`] | [`handle_dialled`](Self::handle_dialled), and [`handle_link_lost`](Self::handle_link_lost) later |
/// | was woken for a stage by [`Command::Wake`] | [`take`](Self::take) until it answers `None`, and executes each [`Step`](super::Step) |
/// | executed a step | the `handle_*` that the step's [`Action`](super::Action) names, whatever happened, once each |
/// | put the work of a task's last step on a device | [`handle_issued`](Self::handle_issued), before the step's own report |
/// | wants to leave the job | [`handle_leave`](Self::handle_leave), and leaves at [`Command::Leave`] |
///
/// # Memory
/// The driver keeps the memory of submission `id` from `submit` to [`Command::Resolve`], and the data that a task moves from
/// [`Command::Carry`] to [`Command::Release`]. [`pieces`](Self::pieces) says which bytes of which submission a task moves. A task is
/// released only when no step of it runs. A submission is resolved only when none of its tasks is left.
///
/// A part whose codec has error feedback has a residual as well: an f32 for each element, from its first
/// [`Action::Encode`](super::Action::Encode) to [`Command::DropResidual`]. So their memory is bounded by the tensors that are declared.
///
/// # What it promises
/// Each accepted submission ends in exactly one `Resolve`. Each task that is taken and reported goes on or is released. If this worker will
/// not contribute to a round, it withdraws from it at the round's server, because the other workers would wait for it.
#[derive(Debug)]
pub struct Worker {
    pub(super) settings: WorkerSettings,
    /// Absent before the worker joined.
    formation: Option<Formation>,
    pub(super) team: Team,
    /// Parts in which this rank will not take part, of which it tells the others of its machine when they have met.
    pub(super) undeclined: Vec<(ReadyPart, DeviceKind)>,
    pub(super) registry: Registry,
    pub(super) scheduler: Scheduler,
    pub(super) links: Links,
    pub(super) stalls: StallDetector,
    /// Absent if the job ends when it loses a worker.
    pub(super) contact: Option<Contact>,
    /// Why nothing is accepted any more, if it is not.
    pub(super) ended: Option<Error>,
    leaving: Leaving,
    pub(super) numbers: Numbers,
    pub(super) outstanding: Outstanding,
    pub(super) submissions: BTreeMap<u64, Submission>,
    pub(super) parking: Parking,
    pub(super) groups: SideTable<GroupId, u64>,
    pub(super) tasks: SideTable<TaskId, Record>,
    pub(super) residuals: Residuals,
    pub(super) read: Read,
    pub(super) recovery: Recovery,
    /// Whether it has used a parameter, so that it needs servers whatever its sums need.
    pub(super) uses_parameters: bool,
    /// By request.
    pub(super) endings: BTreeMap<u64, Ending>,
    /// The number of tasks that tell a server that this worker withdraws.
    pub(super) withdrawals: usize,
    /// The highest priority seen. The few classes of the transport are spread below it.
    pub(super) most_urgent: Priority,
    pub(super) timeline: bool,
    pub(super) notices: Notices,
    /// When a device was last seen that had not come to the operations of this worker.
    pub(super) device_behind: Time,
    /// These go before the scheduler's own commands.
    pub(super) commands: VecDeque<Command>,
}

/// Settings of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerSettings {
    /// The settings of its scheduler.
    pub scheduler: SchedulerConfig,
    /// A submission that stays in one stage for longer than this causes a warning; zero means never.
    pub stall_warn: Duration,
    /// How long each wait lasts at most.
    pub bounds: Bounds,
    /// In a job that goes on without lost workers: how patient this worker is without a coordinator.
    pub contact: Option<ContactTerms>,
    /// The device that may hold tensors, besides host memory.
    pub device: DeviceKind,
    /// Whether each contribution stays as it is until its sum is whole, so that it can be sent again if the job loses another worker.
    pub keeps: bool,
    /// Whether the latest sum of each part is kept as well, so that others can have it if the job loses its server. Needs
    /// [`keeps`](Self::keeps).
    pub keeps_sums: bool,
}

/// ```text
/// Staying ──handle_leave──► Withdrawing ──no withdrawal is left, or the time has passed──► Left
/// ```
#[derive(Clone, PartialEq, Debug)]
enum Leaving {
    Staying,
    /// Servers are told which rounds this worker will not contribute to, at the latest until `until`.
    Withdrawing {
        until: Time,
    },
    Left,
}

impl Worker {
    /// A worker that has not joined.
    pub fn new(now: Time, settings: WorkerSettings) -> Self {
        Self {
            settings,
            formation: None,
            team: Team::default(),
            undeclined: Vec::new(),
            registry: Registry::new(WorkerId(0)),
            // An empty pipeline until the view says where each process is. Nothing is submitted before.
            scheduler: Scheduler::new(settings.scheduler, Pipeline::of(Vec::new())),
            links: Links::new(settings.bounds),
            stalls: StallDetector::new(now, settings.stall_warn),
            contact: settings.contact.map(Contact::new),
            ended: None,
            leaving: Leaving::Staying,
            numbers: Numbers::default(),
            outstanding: Outstanding::default(),
            submissions: BTreeMap::new(),
            parking: Parking::default(),
            groups: SideTable::new(),
            tasks: SideTable::new(),
            residuals: Residuals::new(settings.scheduler.defect),
            read: Read::default(),
            recovery: Recovery::default(),
            uses_parameters: false,
            endings: BTreeMap::new(),
            withdrawals: 0,
            most_urgent: Priority(i32::MIN),
            timeline: false,
            notices: Notices::default(),
            device_behind: Time::ZERO,
            commands: VecDeque::new(),
        }
    }

    /// The job formed, and this worker has the rank `rank` in it.
    pub fn handle_joined(&mut self, now: Time, rank: WorkerId, view: View) {
        self.registry = Registry::new(rank);
        self.form(now, rank, view);
    }

    /// The membership changed.
    pub fn handle_view(&mut self, now: Time, view: View) {
        match view.phase.clone() {
            Phase::Aborted(cause) | Phase::Restores(cause) => self.handle_failed(now, cause),
            Phase::Forming | Phase::Running | Phase::Ended | Phase::FormsAgain => self.form(now, self.rank(), view),
        }
    }

    /// The coordinator says what the workers did last for which this round waits. The round's error will say it, too.
    pub fn handle_stall_notice(&mut self, now: Time, part: PartId, round: Round, detail: String) {
        if !planted(self.settings.scheduler.defect, Defect::StallNoticeLost) {
            self.notices.add(now, part, round, detail);
        }
    }

    /// The job failed: everything fails with this cause, now and later.
    pub fn handle_failed(&mut self, now: Time, cause: Error) {
        self.end(now, &cause);
        self.commands.push_back(Command::Abort(cause));
    }

    /// A dial ended. A late report of an attempt that was replaced is ignored.
    pub fn handle_dialled(&mut self, now: Time, server: ServerId, attempt: u64, outcome: Result<LinkId>) {
        match outcome {
            Ok(link) if self.links.established(now, server, attempt, link) => {
                self.scheduler.handle_link_up(now, server);
            }
            Ok(link) => self.commands.push_back(Command::Disconnect(link)),
            Err(cause) => self.handle_link_lost(now, server, attempt, cause),
        }
    }

    /// A link that came up is gone, because of `cause`.
    pub fn handle_link_lost(&mut self, now: Time, server: ServerId, attempt: u64, cause: Error) {
        if self.links.lost(now, server, attempt, cause) {
            self.scheduler.handle_link_down(now, server);
            if self.ended.is_some() {
                self.links.stop();
            }
        }
    }

    /// Whether this worker leaves or the job has ended, so that servers close their connections.
    pub fn is_leaving(&self) -> bool {
        self.leaving != Leaving::Staying || self.ended.is_some()
    }

    /// The caller wants to leave the job. Operations under way fail. Servers are told about them, because the other workers would wait.
    /// [`Command::Leave`] follows, after `patience` at the latest.
    pub fn handle_leave(&mut self, now: Time, patience: Duration) {
        if self.leaving != Leaving::Staying {
            return;
        }
        self.leaving = Leaving::Withdrawing { until: now + patience.min(WITHDRAWING_MAX) };
        let open: Vec<GroupId> = self.groups.iter().map(|(group, _)| group).collect();
        for group in open {
            self.scheduler.fail_group(now, group, left());
        }
        if patience.is_zero() {
            self.leave(now);
        }
    }

    /// Does the work that is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.scheduler.handle_timeout(now);
        let reports = self.stalls.handle_timeout(now, &self.scheduler);
        self.warn_of(now, reports);
        self.fail_overdue(now);
        self.commands.extend(self.links.due(now).into_iter().map(Command::Dial));
        if matches!(self.leaving, Leaving::Withdrawing { until } if until <= now) {
            self.leave(now);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        // Nothing can stall while no work is under way, so an idle worker does not wake up to check.
        let stalls = self.stalls.poll_timeout().filter(|_| !self.scheduler.is_idle());
        let leaving = match self.leaving {
            Leaving::Withdrawing { until } => Some(until),
            Leaving::Staying | Leaving::Left => None,
        };
        let due = [self.scheduler.poll_timeout(), self.links.poll_timeout(), stalls, leaving, self.overdue_at()];
        due.into_iter().flatten().min()
    }

    /// The next thing to do. Take all of them after every input, at the input's time.
    pub fn next_command(&mut self, now: Time) -> Option<Command> {
        loop {
            if let Some(command) = self.commands.pop_front() {
                return Some(command);
            }
            match self.scheduler.next_command() {
                Some(command) => {
                    if let Some(command) = self.translate(command) {
                        return Some(command);
                    }
                }
                None if self.withdrawals == 0 && matches!(self.leaving, Leaving::Withdrawing { .. }) => self.leave(now),
                None => return None,
            }
        }
    }

    /// Translates a command of the scheduler for the driver.
    fn translate(&mut self, command: sched::Command) -> Option<Command> {
        match command {
            sched::Command::Wake(stage) => Some(Command::Wake(stage)),
            sched::Command::Abandon(task) => {
                let record = self.tasks.get_mut(task)?;
                record.abandoned = true;
                record.held.map(Command::Abandon)
            }
            sched::Command::Decline(task) => {
                let Record { part, memory, .. } = self.record(task);
                let (part, memory) = (part.clone(), *memory);
                self.decline(&part, memory);
                None
            }
            sched::Command::Withdraw { task, of, error } => {
                self.handle_withdrawal(task, of, error);
                None
            }
            sched::Command::Release(task) => {
                let record = self.tasks.remove(task)?;
                self.withdrawals -= usize::from(record.errand.is_some());
                self.release_ending(task);
                Some(Command::Release(task))
            }
            sched::Command::Resolved { group, outcome } => {
                let submission = *self.groups.get(group).expect("a group resolves once");
                self.resolved(submission, outcome)
            }
        }
    }

    /// This worker's rank; 0 before it joined.
    pub fn rank(&self) -> WorkerId {
        self.formation.as_ref().map_or(WorkerId(0), |formation| formation.rank)
    }

    /// The job as this worker sees it; `None` before it joined.
    pub fn formation(&self) -> Option<&Formation> {
        self.formation.as_ref()
    }

    /// Why nothing is accepted any more, if it is not.
    pub fn ended(&self) -> Option<&Error> {
        self.ended.as_ref()
    }

    /// The progress that each heartbeat tells the coordinator.
    pub fn progress(&self) -> Progress {
        self.outstanding.progress()
    }

    /// How many rounds the tensor with the most has begun.
    pub fn rounds(&self) -> u64 {
        self.outstanding.rounds()
    }

    /// The part of a task, with the submissions that it serves.
    pub fn part(&self, task: TaskId) -> &ReadyPart {
        &self.record(task).part
    }

    /// The server to which a task goes.
    pub fn server(&self, task: TaskId) -> ServerId {
        self.scheduler.server(task).expect("a task has a server until it is released")
    }

    /// How urgent a task is.
    pub fn priority(&self, task: TaskId) -> Priority {
        self.record(task).priority
    }

    /// The names of the tensors whose parts a task moves.
    pub fn names(&self, task: TaskId) -> Vec<String> {
        self.names_of(self.part(task))
    }

    /// The name of a tensor by its position in a submission that has not ended.
    pub fn name_in(&self, submission: u64, position: usize) -> Option<&str> {
        let tensor = self.submissions.get(&submission)?.tensors.as_slice().get(position)?;
        self.registry.name_of(tensor.key)
    }

    /// Every task that is not released.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.tasks.iter().map(|(task, _)| task)
    }

    /// Whether no submission, task or exchange is left.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.submissions.is_empty() && self.tasks.is_empty()
    }

    /// Whether parts wait because the credit is used up.
    pub fn is_starved(&self) -> bool {
        self.scheduler.is_starved()
    }

    /// Bytes in flight that count against the credit.
    pub fn credit_in_flight(&self) -> u64 {
        self.scheduler.credit_in_flight()
    }

    /// The parts of every declared tensor, one per line, for people to read.
    pub fn describe_layout(&self) -> String {
        self.registry.parts().map(|part| format!("{}\n", self.registry.describe(part))).collect()
    }

    /// The names of tensors that share a part, a list for each such part. No byte of it is sent before all of them were submitted.
    pub fn companions(&self) -> Vec<Vec<String>> {
        let name = |piece: &Piece| self.registry.name_of(piece.tensor).map(str::to_owned);
        let shared = self.registry.parts().filter(|part| part.pieces.len() > 1);
        shared.map(|part| part.pieces.iter().filter_map(name).collect()).collect()
    }

    /// Counts in `times` how long stages take, and what parts wait for.
    pub fn count_in(&mut self, times: StageTimes) {
        self.scheduler.count_in(times);
    }

    /// Sets whether the driver gets [`Command::Finished`].
    pub fn set_timeline(&mut self, on: bool) {
        self.timeline = on;
    }

    /// The formation of a worker that has joined.
    pub(super) fn here(&self) -> &Formation {
        self.formation.as_ref().expect("a worker joins before it has tasks")
    }

    pub(super) fn record(&self, task: TaskId) -> &Record {
        self.tasks.get(task).expect("a task has its record until it is released")
    }

    pub(super) fn record_mut(&mut self, task: TaskId) -> &mut Record {
        self.tasks.get_mut(task).expect("a task has its record until it is released")
    }

    pub(super) fn names_of(&self, part: &ReadyPart) -> Vec<String> {
        let names = part.layout.pieces.iter().filter_map(|piece| self.registry.name_of(piece.tensor));
        names.map(str::to_owned).collect()
    }

    /// Replaces the formation by that of a new view.
    fn form(&mut self, now: Time, rank: WorkerId, view: View) {
        let formation = Formation::of(rank, view, self.settings.device);
        let is_other_team = self.team.follow(&formation.view, &formation.team);
        let halfway = if is_other_team { self.scheduler.halfway() } else { Vec::new() };
        self.scheduler.follow(&formation.pipeline);
        // A server that did not know this view yet, or waited for a worker that is lost, has another answer now.
        self.scheduler.end_pauses(now);
        // Only f32 has error feedback. A part that another rank encodes from now on begins at zero there.
        let moved = self.residuals.follow(|part| formation.machines.owner(part, DType::F32, rank) == rank);
        self.commands.extend(moved.into_iter().map(Command::DropResidual));
        self.formation = Some(formation);
        if is_other_team {
            self.change_team(now, halfway);
        }
        if self.ended.is_none() {
            self.commands.push_back(Command::Follow);
            self.follow_links(now);
            self.follow_servers(now);
        }
    }

    /// Connects to the servers that this worker needs, and closes its other links.
    pub(super) fn follow_links(&mut self, now: Time) {
        let Formation { pipeline, servers, .. } = self.formation.as_ref().expect("it has joined");
        let nothing = BTreeMap::new();
        let needed = if pipeline.pushes() || self.uses_parameters { servers } else { &nothing };
        let Changes { dials, gone, closed } = self.links.follow(now, needed);
        for server in dials.iter().map(|dial| dial.server).chain(gone) {
            self.scheduler.handle_link_down(now, server);
        }
        self.commands.extend(closed.into_iter().map(Command::Disconnect));
        self.commands.extend(dials.into_iter().map(Command::Dial));
    }

    /// Fails everything, now and later. Only the first such cause counts.
    fn end(&mut self, now: Time, error: &Error) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(error.clone());
        self.links.stop();
        self.scheduler.fail_all(now, error.clone());
        self.fail_all_parked(error);
        self.commands.extend(self.residuals.end_all().into_iter().map(Command::DropResidual));
    }

    fn leave(&mut self, now: Time) {
        self.leaving = Leaving::Left;
        self.end(now, &left());
        self.commands.push_back(Command::Leave);
    }
}

/// The error of submissions that are under way when their worker leaves.
fn left() -> Error {
    Error::FailedPrecondition {
        what: "the engine was shut down while the operation was under way".to_owned(),
        hint: "wait for the handles before shutdown()".to_owned(),
    }
}

/// How long a leaving worker stays to tell servers from which rounds it withdraws. A server that does not answer does not keep it longer.
/// Then a worker that waits for this one waits for its step timeout.
const WITHDRAWING_MAX: Duration = Duration::from_secs(2);
