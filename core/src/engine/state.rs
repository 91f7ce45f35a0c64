//! The engine's state under its one lock: the machine, and the memory behind the machine's ids.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::handle::Issue;
use super::loans::{InUse, Loans, User};
use super::memory::Memory;
use super::metrics::Metrics;
use super::payload::Payload;
use super::recorder::{Flight, Operation, Subject as Recorded};
use super::residuals::Residuals;
use super::trace::{Subject, TaskTrace, Timeline, Window};
use crate::cluster::left_at;
use crate::cuda::{Mark, Marks};
use crate::error::{Code, Error, Result};
use crate::mem::Region;
use crate::pipeline::Stage;
use crate::sched::{SideTable, TaskId};
use crate::types::{
    Declined, Demand, Done, Epoch, Holdings, LinkId, PartId, Passage, Round, TensorKey, TensorSpec, Time,
};
use crate::worker::{Command, Dial, Held, Load, Stuck, Worker};

/// The machine and what belongs to its ids.
pub(super) struct State {
    pub(super) worker: Worker,
    pub(super) loans: Loans,
    pub(super) payloads: SideTable<TaskId, Payload>,
    pub(super) residuals: Residuals,
    /// The latest sums of parts, as they came, for workers that may lose theirs.
    kept: BTreeMap<PartId, Region>,
    /// By request: callers that wait for a declaration.
    waiters: BTreeMap<u64, Vec<Done<()>>>,
    /// The time for which the timer is set.
    armed: Option<Time>,
    /// Present while a timeline is recorded.
    pub(super) trace: Option<TaskTrace>,
    /// The highest round of a sum that has begun: the step of this worker.
    pub(super) step: Option<Round>,
    /// When it began.
    step_began: Time,
    flight: Arc<Flight>,
    metrics: Arc<Metrics>,
    /// Whether this worker leaves in order, so that the operations that it leaves behind fail as its caller wants.
    leaves: bool,
    /// Whether parts wait for credit, as it told the metrics last.
    is_starved: bool,
    /// Whether the threads must end, because no task will come to their stages any more.
    pub(super) closed: bool,
    /// Carried out after the lock is released.
    effects: Vec<Effect>,
}

/// The end of a submission.
pub(super) struct Resolved {
    pub(super) outcome: Result<()>,
    /// How many tensors it has.
    pub(super) tensors: u64,
    /// How long it took.
    pub(super) took: Duration,
}

/// The work to do after the lock is released.
pub(super) enum Effect {
    Wake(Stage),
    Abandon(Held),
    Decline(Declined),
    Resolve(Done<()>, Resolved),
    /// Tell a handle that all work is on devices, before these marks.
    Issue(Issue, Marks),
    Declare {
        request: u64,
        tensors: Vec<TensorSpec>,
        fuse: bool,
    },
    Undeclare {
        request: u64,
        names: Vec<String>,
    },
    /// Tell the coordinator what this worker has and wants of the parts whose servers were lost.
    Report(Holdings),
    /// Tell it that the sums are restored.
    Restored(Epoch),
    Dial(Dial),
    Disconnect(LinkId),
    Warn(Box<Stuck>),
    Abort(Error),
    BreakDown(Error),
    Follow,
    Leave,
    /// Set the timer to this time, or an earlier one.
    Arm(Time),
}

/// Everything for which callers wait, taken out of a state whose machine panicked.
pub(super) struct Unfinished {
    loans: Loans,
    payloads: SideTable<TaskId, Payload>,
    waiters: BTreeMap<u64, Vec<Done<()>>>,
}

impl Unfinished {
    /// Ends every handle with `error`. Nothing may use the callers' memory any more.
    pub(super) fn report(mut self, error: &Error) {
        drop(self.payloads);
        self.loans
            .end_all()
            .into_iter()
            .chain(self.waiters.into_values().flatten())
            .for_each(|done| done.err(error.clone()));
    }
}

impl State {
    /// `metrics` count the memory of residuals and the time of stages and steps, and tell whether parts wait for credit.
    pub(super) fn new(mut worker: Worker, metrics: &Arc<Metrics>, flight: Arc<Flight>) -> Self {
        worker.set_timeline(flight.is_on());
        worker.count_in(metrics.stage_times());
        Self {
            worker,
            loans: Loans::default(),
            payloads: SideTable::new(),
            residuals: Residuals::counted_in(Arc::clone(&metrics.residual_bytes)),
            metrics: Arc::clone(metrics),
            is_starved: false,
            kept: BTreeMap::new(),
            waiters: BTreeMap::new(),
            armed: None,
            trace: None,
            step: None,
            step_began: Time::ZERO,
            flight,
            leaves: false,
            closed: false,
            effects: Vec::new(),
        }
    }

    /// What the caller is told whose tensors cannot be lent.
    pub(super) fn refusal(&self, InUse { tensor, by }: InUse, specs: &[TensorSpec]) -> Error {
        let by = match by {
            User::Tensor(submission, at) => {
                format!("tensor {}", self.worker.name_in(submission, at).unwrap_or_default())
            }
            User::Batch => "a batch".to_owned(),
            User::ThisCall => "another tensor of this call".to_owned(),
        };
        let name = &specs[tensor].name;
        Error::InvalidArgument {
            what: format!("tensor {name}: its memory is in use for {by}, whose operation has not ended"),
            hint: "wait for that operation first; if two wrappers or optimizers reduce the same gradients, keep one"
                .to_owned(),
        }
    }

    /// Reports the answer to this request, or that it is done, to `done`.
    pub(super) fn await_answer(&mut self, request: u64, done: Done<()>) {
        self.waiters.entry(request).or_default().push(done);
    }

    /// The callers that wait for this request.
    pub(super) fn take_waiters(&mut self, request: u64) -> Vec<Done<()>> {
        self.waiters.remove(&request).unwrap_or_default()
    }

    /// Turns the machine's commands into effects.
    pub(super) fn settle(&mut self, now: Time) -> Vec<Effect> {
        while let Some(command) = self.worker.next_command(now) {
            let effect = match command {
                Command::Carry { task, load } => {
                    self.carry(now, task, load);
                    continue;
                }
                Command::Release(task) => {
                    self.payloads.remove(task);
                    if let Some(trace) = &mut self.trace {
                        trace.released(task);
                        self.end_trace();
                    }
                    continue;
                }
                Command::StartOver(task) => {
                    self.payloads.get_mut(task).expect("a task has a payload until it is released").start_over();
                    continue;
                }
                Command::Keep { task, part } => {
                    let payload = self.payloads.get(task).expect("a task has a payload until it is released");
                    self.kept.insert(part, payload.arrived());
                    continue;
                }
                Command::DropKept(part) => {
                    self.kept.remove(&part);
                    continue;
                }
                Command::DropResidual(part) => {
                    self.residuals.drop_of(part);
                    continue;
                }
                Command::Finished { task, stage, outcome } => {
                    self.flight.recorder.finished(now, stage, &outcome, recorded(&self.worker, task));
                    if let Some(trace) = &mut self.trace {
                        trace.finished(now, task, stage, &outcome);
                    }
                    continue;
                }
                Command::Resolve { submission, tensors, submitted, effect, outcome } => {
                    if let Err(error) = &outcome {
                        self.failed(now, submission, error);
                    }
                    self.flight.recorder.resolved(now, submission, tensors, &outcome);
                    if let Some(effect) = effect {
                        self.loans.used(submission, effect);
                    }
                    let ended = Resolved { outcome, tensors, took: now.since(submitted) };
                    Effect::Resolve(self.loans.end(submission), ended)
                }
                Command::Issued { submission } => {
                    let Some((issue, marks)) = self.loans.issued(submission) else { continue };
                    Effect::Issue(issue, marks)
                }
                Command::Wake(stage) => Effect::Wake(stage),
                Command::Abandon(held) => Effect::Abandon(held),
                Command::Decline(declined) => Effect::Decline(declined),
                Command::Declare { request, tensors, fuse } => {
                    self.flight.recorder.name(&tensors);
                    Effect::Declare { request, tensors, fuse }
                }
                Command::Undeclare { request, names } => {
                    self.flight.recorder.forget(&names);
                    Effect::Undeclare { request, names }
                }
                Command::Report(holdings) => Effect::Report(holdings),
                Command::Restored(epoch) => Effect::Restored(epoch),
                Command::Dial(dial) => Effect::Dial(dial),
                Command::Disconnect(link) => Effect::Disconnect(link),
                Command::Warn(stuck) => {
                    self.flight.recorder.stalled(now, &stuck);
                    Effect::Warn(stuck)
                }
                Command::Abort(cause) => Effect::Abort(cause),
                Command::BreakDown(cause) => Effect::BreakDown(cause),
                Command::Follow => {
                    if let Some(formation) = self.worker.formation() {
                        self.flight.recorder.formed(now, &formation.view);
                        self.flight.formed(&formation.view);
                    }
                    Effect::Follow
                }
                Command::Leave => Effect::Leave,
            };
            self.effects.push(effect);
        }
        self.arm();
        let is_starved = self.worker.is_starved();
        if is_starved != self.is_starved {
            self.is_starved = is_starved;
            Metrics::set(&self.metrics.starved, is_starved.into());
        }
        std::mem::take(&mut self.effects)
    }

    /// All work of a task's last step is on its device, before `mark`.
    pub(super) fn issued(&mut self, task: TaskId, mark: &Mark) {
        for submission in self.worker.submissions_of(task) {
            self.loans.add_mark(*submission, mark.clone());
        }
        self.worker.handle_issued(task);
    }

    /// The timer called.
    pub(super) fn handle_timer(&mut self, now: Time) {
        self.armed = None;
        self.worker.handle_timeout(now);
    }

    /// Records all tasks on a timeline from now on, in the steps of a window, or none any more.
    pub(super) fn trace(&mut self, now: Time, timeline: Option<(Arc<Timeline>, Window)>) {
        self.trace = timeline.map(|(timeline, window)| TaskTrace::new(timeline, window));
        self.worker.set_timeline(self.trace.is_some() || self.flight.is_on());
        if let Some(trace) = &mut self.trace {
            for task in self.worker.tasks() {
                trace.found(now, task, subject(&self.worker, task), || self.worker.names(task));
            }
        }
    }

    /// Ends the timeline if all its steps are over.
    fn end_trace(&mut self) {
        if self.trace.as_ref().is_some_and(TaskTrace::ends) {
            self.trace = None;
            self.worker.set_timeline(self.flight.is_on());
        }
    }

    /// Dumps a failure before its operations end, so that the dump has them.
    fn failed(&self, now: Time, submission: u64, error: &Error) {
        self.flight.recorder.failed(now, submission, error);
        if error.code() != Code::Cancelled && !self.leaves {
            self.flight.failed(error);
        }
    }

    /// The caller wants to leave the job. See [`Worker::handle_leave`].
    pub(super) fn leave(&mut self, now: Time, patience: Duration) {
        self.leaves = true;
        self.worker.handle_leave(now, patience);
    }

    /// This worker has left the job at the boundary behind a step.
    pub(super) fn left_at(&mut self, now: Time, passage: &Passage) {
        self.leaves = true;
        self.worker.handle_failed(now, left_at(passage));
    }

    /// Whether the flight recorder is on.
    pub(super) fn is_recorded(&self) -> bool {
        self.flight.is_on()
    }

    /// Records that this worker submits a tensor, as one of a submission that may have several. `is_first` says whether it is the first one.
    pub(super) fn record(
        &self,
        now: Time,
        submission: u64,
        tensor: (TensorKey, Option<Round>),
        (demand, bytes): (&Demand, u64),
        is_first: bool,
    ) {
        let what = (Operation::of_demand(demand), bytes);
        self.flight.recorder.submitted(now, submission, tensor, what, is_first);
    }

    /// Records that a stage of a task begins.
    pub(super) fn record_taken(&self, now: Time, task: TaskId, stage: Stage) {
        self.flight.recorder.taken(now, stage, recorded(&self.worker, task));
    }

    /// Takes out everything for which a caller waits, because the machine cannot be trusted any more.
    pub(super) fn take_unfinished(&mut self) -> Unfinished {
        self.closed = true;
        self.effects.clear();
        Unfinished {
            loans: std::mem::take(&mut self.loans),
            payloads: std::mem::take(&mut self.payloads),
            waiters: std::mem::take(&mut self.waiters),
        }
    }

    /// Keeps the payload of a new task.
    fn carry(&mut self, now: Time, task: TaskId, load: Load) {
        let payload = match load {
            Load::Message(bytes) => Payload::message(bytes),
            Load::Kept { part, bytes } => {
                let kept = self.kept.get(&part).expect("the machine knows what is kept").again();
                let bytes = usize::try_from(bytes).expect("it came here");
                Payload::kept(kept.split_at(bytes).0)
            }
            Load::Pieces => {
                self.flight.recorder.queued(now, recorded(&self.worker, task));
                let part = self.worker.part(task);
                let round = matches!(part.demand, Demand::Reduce { .. }).then_some(part.round);
                self.follow_step(now, round);
                if let Some(trace) = &mut self.trace {
                    round.into_iter().for_each(|round| trace.begins(round));
                    trace.submitted(now, task, subject(&self.worker, task), || self.worker.names(task));
                    self.end_trace();
                }
                let mut of: Option<(u64, &[(Memory, Memory)])> = None;
                let memory = self.worker.pieces(task).map(|piece| {
                    // Neighbours mostly are of one submission.
                    let memory = match of {
                        Some((submission, memory)) if submission == piece.submission => memory,
                        Some(_) | None => self.loans.of(piece.submission),
                    };
                    of = Some((piece.submission, memory));
                    let (source, destination) = &memory[piece.tensor];
                    (source.part(piece.span), destination.part(piece.into))
                });
                Payload::load(memory)
            }
        };
        self.payloads.insert(task, payload);
    }

    /// A sum of this round begins. If none of it has begun before, the step before ends.
    pub(super) fn follow_step(&mut self, now: Time, round: Option<Round>) {
        if self.step < round {
            if self.step.is_some() {
                self.metrics.step_duration_nanoseconds.add(now.since(self.step_began));
            }
            (self.step, self.step_began) = (round, now);
        }
    }

    /// Sets the timer, if the new time is earlier.
    fn arm(&mut self) {
        let due = self.worker.poll_timeout();
        if let Some(due) = due.filter(|due| self.armed.is_none_or(|armed| *due < armed)) {
            self.armed = Some(due);
            self.effects.push(Effect::Arm(due));
        }
    }
}

/// The description of a task for the flight recorder.
fn recorded(worker: &Worker, task: TaskId) -> Recorded<'_> {
    let part = worker.part(task);
    Recorded {
        part: part.layout.part,
        round: part.round,
        bytes: part.layout.bytes(),
        server: part.layout.server,
        operation: Operation::of_demand(&part.demand),
        submissions: &part.tickets,
    }
}

/// The description of a task in the timeline.
fn subject(worker: &Worker, task: TaskId) -> Subject {
    let part = worker.part(task);
    Subject {
        part: part.layout.part,
        round: part.round,
        bytes: part.layout.bytes(),
        priority: worker.priority(task),
        server: worker.server(task),
        is_residual: part.demand.is_of_residual(),
    }
}
