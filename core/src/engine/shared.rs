//! What the engine's threads share: the machines under one lock, and what must happen after the lock is released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::bell::Bell;
use super::executors::executor;
use super::links::Links;
use super::payload::{Cargo, Hold, Payload};
use super::trace::{TaskTrace, Timeline};
use super::{Memory, Metrics};
use crate::collective::Collective;
use crate::collective::order::Slot;
use crate::config::Checksum;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::pipeline::registry::{ReadyPart, Registry, Submitted};
use crate::pipeline::{Route, Stage};
use crate::runtime::{Clock, Timer};
use crate::sched::{Command, GroupId, Outcome, Scheduler, StallDetector, Task, TaskId, TaskSpec};
use crate::transport::Transport;
use crate::types::{Done, Epoch, ExchangeId, Machines, Op, Priority, Round, TensorKey, Time, View, WorkerId};
use crate::wire::frame::Progress;

/// The engine as its threads see it.
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) device: Option<Arc<dyn Device>>,
    pub(super) metrics: Metrics,
    pub(super) settings: Settings,
    /// One bell a stage.
    pub(super) bells: BTreeMap<Stage, Bell>,
    pub(super) exchanges: AtomicU64,
    /// Set once, right after start: the timer's callback needs this struct.
    pub(super) timer: Mutex<Option<Timer>>,
    /// Set before anything is submitted, if the workers of this machine reduce among themselves.
    pub(super) collective: OnceLock<Arc<dyn Collective>>,
    /// Of the stages whose tasks are executed by whoever finds that there are some.
    reducing: HandingOver,
    pulling: HandingOver,
    state: Mutex<State>,
}

/// Keeps the tasks of a stage in the order in which the scheduler gives them, whoever executes them.
#[derive(Default)]
struct HandingOver {
    /// Whoever holds it executes.
    turn: Mutex<()>,
    /// Whether there may be some.
    waiting: AtomicBool,
}

/// The settings that the threads need.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Which contributions carry a checksum.
    pub(super) checksum: Checksum,
    /// How long to try to reach a server before the next attempt.
    pub(super) dial_patience: Duration,
    /// A task that is older is reported.
    pub(super) stall_warn: Duration,
}

/// The machines and what belongs to their tasks.
pub(super) struct State {
    pub(super) registry: Registry,
    pub(super) scheduler: Scheduler,
    pub(super) links: Links,
    pub(super) rank: WorkerId,
    pub(super) view: Option<View>,
    /// Who reduces with whom; the same as long as the engine lives.
    pub(super) machines: Machines,
    /// Why nothing is accepted any more.
    pub(super) ended: Option<Error>,
    /// The engine has begun to leave.
    pub(super) leaving: bool,
    /// The threads are to end: nothing will come to their stages any more.
    pub(super) closed: bool,
    /// By ticket: submissions whose tensor is declared.
    pub(super) tickets: BTreeMap<u64, Ticket>,
    /// By tensor: submissions that wait for the answer to their declaration, oldest first.
    parked: BTreeMap<TensorKey, Vec<Parked>>,
    /// When those of them that have a deadline give up.
    parked_until: BTreeSet<(Time, u64)>,
    pub(super) payloads: BTreeMap<TaskId, Payload>,
    /// Resolves when the servers know what this worker gave up.
    pub(super) when_told: Option<Done<()>>,
    pub(super) groups: BTreeMap<GroupId, u64>,
    pub(super) last: Option<(TensorKey, Round)>,
    /// The highest priority seen: the transport's few classes are spread below it.
    pub(super) most_urgent: Priority,
    pub(super) bytes_pending: u64,
    pub(super) stalls: StallDetector,
    /// When the timer will call, as far as it was told.
    armed: Option<Time>,
    /// Present while a timeline is recorded.
    trace: Option<TaskTrace>,
    /// Dropped by effects after the lock is released.
    pub(super) effects: Vec<Effect>,
}

/// One submission: of a tensor, or of all that share a part.
pub(super) struct Ticket {
    /// One at least; in piece order if they are several.
    pub(super) tensors: Vec<Lent>,
    pub(super) bytes: u64,
    pub(super) op: Op,
    pub(super) weight: f64,
    pub(super) priority: Priority,
    pub(super) submitted: Time,
    pub(super) deadline: Option<Time>,
    /// Absent while parked.
    pub(super) group: Option<GroupId>,
    pub(super) done: Done<()>,
}

/// A tensor whose memory is lent.
pub(super) struct Lent {
    pub(super) key: TensorKey,
    pub(super) source: Memory,
    pub(super) destination: Memory,
}

/// A submission that waits for the answer to its tensor's declaration. It keeps its place if it is given up meanwhile: its round counts,
/// because the other workers count it.
pub(super) struct Parked {
    pub(super) ticket: u64,
    pub(super) op: Op,
    pub(super) weight: f64,
}

pub(super) enum Effect {
    Ring(Stage),
    Abandon(ExchangeId),
    Withdraw(Slot),
    /// With how many tensors it is about.
    Resolve(Done<()>, Result<()>, u64),
    Arm(Time),
    Dial(crate::transport::Peer, crate::types::ServerId),
}

impl Shared {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        device: Option<Arc<dyn Device>>,
        metrics: Metrics,
        clock: Clock,
        settings: Settings,
        scheduler: Scheduler,
    ) -> Self {
        let state = State {
            registry: Registry::new(WorkerId(0)),
            scheduler,
            links: Links::default(),
            rank: WorkerId(0),
            view: None,
            machines: Machines::default(),
            ended: None,
            leaving: false,
            closed: false,
            tickets: BTreeMap::new(),
            parked: BTreeMap::new(),
            parked_until: BTreeSet::new(),
            payloads: BTreeMap::new(),
            when_told: None,
            groups: BTreeMap::new(),
            last: None,
            most_urgent: Priority(i32::MIN),
            bytes_pending: 0,
            stalls: StallDetector::new(clock.now(), settings.stall_warn),
            armed: None,
            trace: None,
            effects: Vec::new(),
        };
        Self {
            clock,
            transport,
            device,
            metrics,
            settings,
            bells: Stage::ALL.into_iter().map(|stage| (stage, Bell::default())).collect(),
            exchanges: AtomicU64::new(1),
            timer: Mutex::new(None),
            collective: OnceLock::new(),
            reducing: HandingOver::default(),
            pulling: HandingOver::default(),
            state: Mutex::new(state),
        }
    }

    /// Runs `change` on the machines, then carries out what they decided, with the lock released.
    pub(super) fn with<T>(self: &Arc<Self>, change: impl FnOnce(&mut State, Time) -> T) -> T {
        self.with_pushing(0, change)
    }

    /// As [`with`](Self::with); tasks of at most `here_bytes_max` bytes that can be pushed now are pushed by the calling thread.
    pub(super) fn with_pushing<T>(
        self: &Arc<Self>,
        here_bytes_max: u64,
        change: impl FnOnce(&mut State, Time) -> T,
    ) -> T {
        let now = self.clock.now();
        let (result, effects) = {
            let mut state = self.state.lock().expect("the machines do not panic");
            let result = change(&mut state, now);
            state.drain();
            state.arm();
            (result, std::mem::take(&mut state.effects))
        };
        let mut effects = effects.into_iter().peekable();
        while let Some(effect) = effects.next() {
            let resolves = matches!(effect, Effect::Resolve(..));
            match effect {
                Effect::Ring(Stage::Push) if here_bytes_max > 0 => self.push_here(here_bytes_max),
                effect => self.carry_out(effect),
            }
            // After a thousand small ones it is woken once.
            if resolves && !matches!(effects.peek(), Some(Effect::Resolve(..))) {
                self.nudge();
            }
        }
        result
    }

    /// What the coordinator is told with each heartbeat.
    pub(super) fn progress(&self) -> Progress {
        let state = self.state.lock().expect("the machines do not panic");
        Progress {
            last: state.last,
            pending: u32::try_from(state.tensors_pending()).unwrap_or(u32::MAX),
            bytes_in_flight: state.bytes_pending,
        }
    }

    /// Executes what is ready for `stages`, here and now: a change of thread would cost more than it does. One thread at a time, which
    /// looks again after every other that came meanwhile, so that nothing is handed over out of order.
    fn hand_over(self: &Arc<Self>, stages: &[Stage], handing_over: &HandingOver) {
        handing_over.waiting.store(true, Ordering::SeqCst);
        while handing_over.waiting.load(Ordering::SeqCst) {
            let Ok(turn) = handing_over.turn.try_lock() else { return };
            while handing_over.waiting.swap(false, Ordering::SeqCst) {
                for stage in stages {
                    let execute = executor(*stage).expect("it has an executor");
                    while let Some(task) = self.with(|state, now| state.take(now, *stage)) {
                        execute(self, task);
                    }
                }
            }
            drop(turn);
        }
    }

    /// Pushes what is next as long as it is short, and leaves the rest to the stage's thread.
    fn push_here(self: &Arc<Self>, bytes_max: u64) {
        let execute = executor(Stage::Push).expect("it has an executor");
        while let Some(task) = self.with(|state, now| state.take_short(now, Stage::Push, bytes_max)) {
            execute(self, task);
        }
        if self.with(|state, _| state.scheduler.has_ready(Stage::Push)) {
            self.bells[&Stage::Push].ring();
        }
    }

    fn nudge(&self) {
        match self.collective.get() {
            Some(collective) => collective.nudge(),
            None => self.transport.nudge(),
        }
    }

    fn carry_out(self: &Arc<Self>, effect: Effect) {
        match effect {
            Effect::Ring(stage) if stage.is_collective() => self.hand_over(&Stage::COLLECTIVE, &self.reducing),
            Effect::Ring(Stage::Pull) => self.hand_over(&[Stage::Pull], &self.pulling),
            Effect::Ring(stage) => self.bells[&stage].ring(),
            Effect::Abandon(exchange) => self.transport.abandon(exchange),
            Effect::Withdraw(slot) => {
                if let Some(collective) = self.collective.get() {
                    collective.abandon(slot);
                }
            }
            Effect::Resolve(done, outcome, tensors) => {
                Metrics::add(&self.metrics.resolved, tensors);
                Metrics::add(&self.metrics.failed, if outcome.is_err() { tensors } else { 0 });
                done.report(outcome);
            }
            Effect::Arm(due) => {
                if let Some(timer) = &*self.timer.lock().expect("nobody panics while holding the timer") {
                    timer.arm(Some(due));
                }
            }
            Effect::Dial(peer, server) => super::links::dial(self, peer, server),
        }
    }
}

impl State {
    /// The membership that outgoing headers carry.
    pub(super) fn epoch(&self) -> Epoch {
        self.view.as_ref().map(|view| view.epoch).unwrap_or_default()
    }

    /// The transport's class, 0 to 7, of `priority`: the most urgent tensors have a class of their own, and each class below is twice as
    /// wide as the one above. Many distinct levels would cost the transport more than they gain.
    pub(super) fn urgency(&self, priority: Priority) -> u8 {
        let distance = i64::from(self.most_urgent.0) - i64::from(priority.0);
        let class = u64::try_from(distance).map_or(0, |distance| (distance + 1).ilog2().min(7));
        7 - u8::try_from(class).expect("at most 7")
    }

    /// The next task for `stage`; see [`Scheduler::take`].
    pub(super) fn take(&mut self, now: Time, stage: Stage) -> Option<Task> {
        let task = self.scheduler.take(now, stage);
        self.taken(now, stage, task)
    }

    /// As [`take`](Self::take), if it is short; see [`Scheduler::take_short`].
    fn take_short(&mut self, now: Time, stage: Stage, bytes_max: u64) -> Option<Task> {
        let task = self.scheduler.take_short(stage, bytes_max);
        self.taken(now, stage, task)
    }

    fn taken(&mut self, now: Time, stage: Stage, task: Option<Task>) -> Option<Task> {
        if let Some(payload) = task.and_then(|task| self.payloads.get_mut(&task.id)) {
            // What was given up is the stage before. Whether this one is follows, as a command.
            payload.abandoned = false;
        }
        if let (Some(trace), Some(task)) = (&mut self.trace, &task) {
            trace.taken(now, task, stage);
        }
        task
    }

    /// Takes a task back from its executor; see [`Scheduler::finish`].
    pub(super) fn finish(&mut self, now: Time, id: TaskId, outcome: Outcome) {
        if let Some(trace) = &mut self.trace {
            trace.finished(now, id, &outcome);
        }
        self.scheduler.finish(now, id, outcome);
    }

    /// Records all tasks on `timeline` from now on, or none any more.
    pub(super) fn trace(&mut self, now: Time, timeline: Option<Arc<Timeline>>) {
        self.trace = timeline.map(TaskTrace::new);
        if let Some(trace) = &mut self.trace {
            for (id, payload) in &self.payloads {
                trace.found(now, *id, payload.subject(), || names(&self.registry, &payload.part));
            }
        }
    }

    /// Hands a submission of a declared tensor to the scheduler.
    pub(super) fn begin(&mut self, now: Time, ticket: u64) {
        let submission = &self.tickets[&ticket];
        match self.registry.submit(submission.tensors[0].key, submission.op, submission.weight, ticket) {
            Ok(submitted) => self.start(now, ticket, submitted),
            Err(error) => self.resolve(ticket, Err(error)),
        }
    }

    /// Hands a submission that the registry took to the scheduler.
    pub(super) fn start(&mut self, now: Time, ticket: u64, submitted: Submitted) {
        let submission = self.tickets.get_mut(&ticket).expect("begun once, before it resolves");
        self.last = submission.tensors.last().map(|tensor| (tensor.key, submitted.round));
        let group =
            self.scheduler.open_group(now, submitted.name, submitted.round, submitted.shares, submission.deadline);
        submission.group = Some(group);
        self.groups.insert(group, ticket);
        for part in submitted.ready {
            self.enqueue(now, part);
        }
    }

    fn enqueue(&mut self, now: Time, part: ReadyPart) {
        let mut groups = Vec::with_capacity(part.tickets.len());
        let mut pieces = Vec::with_capacity(part.layout.pieces.len());
        let mut priority = Priority(i32::MIN);
        let mut layout = part.layout.pieces.iter();
        for ticket in &part.tickets {
            // A piece whose submission was given up before the part was complete still has its memory lent: a ticket stays until its
            // group resolves, and a group resolves only when its shares are done.
            let Some(submission) = self.tickets.get(ticket) else {
                return self.give_up_incomplete(now, &part);
            };
            groups.push(submission.group.expect("its submission opened a group"));
            let lent = submission.tensors.iter().zip(layout.by_ref());
            pieces.extend(lent.map(|(lent, piece)| (lent.source.part(piece.span), lent.destination.part(piece.span))));
            priority = priority.max(submission.priority);
        }
        let cargo = match Cargo::load(pieces) {
            Ok(cargo) => cargo,
            Err(apart) => return self.give_up_scattered(now, &part, apart),
        };
        let task = self.scheduler.submit(
            now,
            TaskSpec {
                part: part.layout.part,
                server: part.layout.server,
                bytes: part.layout.bytes(),
                round: part.round,
                priority,
                route: Route { duty: self.duty(&part), memory: cargo.kind() },
                groups,
            },
        );
        self.most_urgent = self.most_urgent.max(priority);
        let payload = Payload::new(part, cargo, priority);
        if let Some(trace) = &mut self.trace {
            trace.submitted(now, task, payload.subject(), || names(&self.registry, &payload.part));
        }
        self.payloads.insert(task, payload);
    }

    /// Follows a new membership: its servers are dialled, its epoch goes into headers.
    pub(super) fn follow(&mut self, now: Time, view: View) {
        // Where nothing is pushed, servers stay idle.
        let dials = if self.scheduler.pipeline().pushes() { self.links.follow(&view, self.rank) } else { Vec::new() };
        for (peer, server) in dials {
            self.scheduler.handle_link_down(now, server);
            self.effects.push(Effect::Dial(peer, server));
        }
        self.view = Some(view);
    }

    /// An error of a server, which knows tensors by key only, with all names of the part, unless a worker said which tensor it is about.
    pub(super) fn with_name(&self, task: TaskId, error: Error) -> Error {
        let Some(payload) = self.payloads.get(&task) else { return error };
        let names = names(&self.registry, &payload.part);
        let named = |tensor: String| if names.contains(&tensor) { tensor } else { names.join(" + ") };
        match error {
            Error::Mismatch { tensor, field, first, second } => {
                Error::Mismatch { tensor: named(tensor), field, first, second }
            }
            Error::Stalled { tensor, round, missing, waited, detail } => {
                Error::Stalled { tensor: named(tensor), round, missing, waited, detail }
            }
            Error::Checksum { tensor, round, from } => Error::Checksum { tensor: named(tensor), round, from },
            other => other,
        }
    }

    /// Ends a submission.
    pub(super) fn resolve(&mut self, ticket: u64, outcome: Result<()>) {
        if let Some(submission) = self.tickets.remove(&ticket) {
            self.bytes_pending -= submission.bytes;
            if let (None, Some(due)) = (submission.group, submission.deadline) {
                self.parked_until.remove(&(due, ticket));
            }
            if let Some(group) = submission.group {
                self.groups.remove(&group);
            }
            self.effects.push(Effect::Resolve(submission.done, outcome, submission.tensors.len() as u64));
        }
    }

    /// Keeps a submission until its declaration is answered.
    pub(super) fn park(&mut self, key: TensorKey, parked: Parked) {
        if let Some(due) = self.tickets.get(&parked.ticket).and_then(|submission| submission.deadline) {
            self.parked_until.insert((due, parked.ticket));
        }
        self.parked.entry(key).or_default().push(parked);
    }

    /// Submissions whose declaration was answered go on.
    pub(super) fn unpark(&mut self, now: Time, key: TensorKey) {
        for Parked { ticket, op, weight } in self.parked.remove(&key).unwrap_or_default() {
            if let Some(due) = self.tickets.get(&ticket).and_then(|submission| submission.deadline) {
                self.parked_until.remove(&(due, ticket));
            }
            if self.tickets.contains_key(&ticket) {
                self.begin(now, ticket);
            } else if let Ok(given_up) = self.registry.submit(key, op, weight, ticket) {
                for part in given_up.ready {
                    self.give_up_incomplete(now, &part);
                }
            }
        }
    }

    /// A tensor failed for good: so do its submissions, whether they wait for the declaration, for other tensors of a shared part, or
    /// are under way.
    pub(super) fn fail_tensor(&mut self, now: Time, key: TensorKey, error: &Error) {
        self.parked.remove(&key);
        let has = |submission: &Ticket| submission.tensors.iter().any(|tensor| tensor.key == key);
        let tickets: Vec<u64> =
            self.tickets.iter().filter(|(_, submission)| has(submission)).map(|(ticket, _)| *ticket).collect();
        for ticket in tickets {
            match self.tickets[&ticket].group {
                Some(group) => self.scheduler.fail_group(now, group, error.clone()),
                None => self.resolve(ticket, Err(error.clone())),
            }
        }
    }

    /// Tensors whose submissions are not resolved.
    fn tensors_pending(&self) -> usize {
        self.tickets.values().map(|submission| submission.tensors.len()).sum()
    }

    /// Fails everything, now and later.
    pub(super) fn end(&mut self, now: Time, error: &Error) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(error.clone());
        self.scheduler.fail_all(now, error.clone());
        for Parked { ticket, .. } in std::mem::take(&mut self.parked).into_values().flatten() {
            self.resolve(ticket, Err(error.clone()));
        }
    }

    /// Gives up a submission at the caller's wish.
    pub(super) fn cancel(&mut self, now: Time, ticket: u64) {
        match self.tickets.get(&ticket).map(|submission| submission.group) {
            None => {}
            Some(Some(group)) => self.scheduler.cancel(now, group),
            Some(None) => self.resolve(ticket, Err(Error::Cancelled)),
        }
    }

    /// The timer called.
    pub(super) fn handle_timer(&mut self, now: Time) {
        self.armed = None;
        self.scheduler.handle_timeout(now);
        for report in self.stalls.handle_timeout(now, &self.scheduler) {
            self.warn(&report);
        }
        for (peer, server) in self.links.due(now) {
            self.effects.push(Effect::Dial(peer, server));
        }
        while let Some((_, ticket)) = self.parked_until.first().copied().filter(|(due, _)| *due <= now) {
            let submission = self.tickets.get(&ticket).expect("it leaves with its submission");
            let name = self.registry.name_of(submission.tensors[0].key).expect("it was declared here");
            let what = format!("tensor {name}: waiting for its declaration");
            let waited = now.since(submission.submitted);
            self.resolve(ticket, Err(Error::Timeout { what, waited }));
        }
    }

    /// Tells the timer when to call, if that is sooner than it knows.
    fn arm(&mut self) {
        let due = self.next_due();
        if let Some(due) = due.filter(|due| self.armed.is_none_or(|armed| *due < armed)) {
            self.armed = Some(due);
            self.effects.push(Effect::Arm(due));
        }
    }

    fn next_due(&self) -> Option<Time> {
        let parked = self.parked_until.first().map(|(due, _)| *due);
        // Nothing can stall while nothing is under way: an idle engine does not wake to look.
        let stalls = self.stalls.poll_timeout().filter(|_| !self.scheduler.is_idle());
        [self.scheduler.poll_timeout(), self.links.next_due(), parked, stalls].into_iter().flatten().min()
    }

    pub(super) fn drain(&mut self) {
        while let Some(command) = self.scheduler.next_command() {
            match command {
                Command::Wake(stage) => self.effects.push(Effect::Ring(stage)),
                Command::Abandon(task) => {
                    let Some(payload) = self.payloads.get_mut(&task) else { continue };
                    payload.abandoned = true;
                    match payload.hold {
                        Hold::Nobody => {}
                        Hold::Transport(exchange) => self.effects.push(Effect::Abandon(exchange)),
                        Hold::Collective(slot) => self.effects.push(Effect::Withdraw(slot)),
                    }
                }
                Command::GiveUp { task, of, error } => self.tell_server(task, of, error),
                Command::Release(task) => {
                    self.payloads.remove(&task);
                    self.look_whether_told();
                    if let Some(trace) = &mut self.trace {
                        trace.released(task);
                    }
                }
                Command::Resolved { group, outcome } => {
                    let ticket = self.groups.remove(&group).expect("a group resolves once");
                    self.resolve(ticket, outcome);
                }
            }
        }
    }
}

/// The tensors of a part.
pub(super) fn names(registry: &Registry, part: &ReadyPart) -> Vec<String> {
    part.layout.pieces.iter().filter_map(|piece| registry.name_of(piece.tensor)).map(str::to_owned).collect()
}
