//! A worker process: the production machine [`Worker`], a training loop as its user, and a transport in one struct. Keeps the memory that
//! the machine's ids stand for, checks every result, and that memory is touched only while it is lent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gradlane_core::cluster::{MemberEvent, Steps};
use gradlane_core::codec::feedback::Residual;
use gradlane_core::config::Bounds;
use gradlane_core::error::{Error, Result};
use gradlane_core::sched::{SchedulerConfig, TaskId};
use gradlane_core::types::{ExchangeId, LinkId, PartId, Round, Scheme, Time, WorkerId};
use gradlane_core::worker::{Command, Dial, Held, Load, Piece, Worker, WorkerSettings};

use super::checkers::Checker;
use super::member::MemberDriver;
use super::transport::Transport;
use super::workload::{Plan, timing};
use super::world::{Address, Context, Input, Process, Who};

mod asks;
mod coding;
mod links;
mod memory;
mod neighbours;
mod results;
mod stages;
mod stepping;
mod training;
mod unused;
mod uses;

pub(super) use self::memory::{Buffer, Region, check};
pub(super) use self::neighbours::{Boards, Note};

use self::coding::FedBack;
use self::links::Dialled;
use self::memory::Payload;
use self::neighbours::Neighbours;
use self::stages::Copying;
use self::training::{Awaited, Script};
use self::unused::Unused;

/// A running worker.
pub(super) struct WorkerProcess {
    me: Address,
    member: MemberDriver,
    worker: Worker,
    transport: Transport,
    memory: Vec<Buffer>,
    /// By submission: of each of its tensors the buffers of the contribution and of the result, which may be the same.
    lent: BTreeMap<u64, Vec<[usize; 2]>>,
    payloads: BTreeMap<TaskId, Payload>,
    /// What bodies with error feedback have lost.
    residuals: BTreeMap<PartId, Residual>,
    /// The latest sums, as they came.
    kept: BTreeMap<PartId, Vec<u8>>,
    /// What is known of the parts with error feedback, to check when their residuals begin at zero.
    fed_back: BTreeMap<PartId, FedBack>,
    unused: Unused,
    /// Tasks whose sum has come.
    summed: BTreeSet<TaskId>,
    /// Tasks that a device copies.
    copying: BTreeMap<TaskId, Copying>,
    /// The other ranks of this machine, once they have met.
    neighbours: Option<Neighbours>,
    /// The ranks with which it parted.
    former: Vec<Neighbours>,
    /// The team for which it is equipped once it has parted from the former one.
    equips: Option<u32>,
    /// What they said before.
    early: Vec<(Address, Arc<[Address]>, Note)>,
    /// Links that were dialled and are not gone.
    links: BTreeMap<LinkId, Dialled>,
    /// The streams of the network that carry the machine's exchanges.
    streams: BTreeMap<ExchangeId, ExchangeId>,
    /// The latest one of each task.
    summing: BTreeMap<TaskId, ExchangeId>,
    script: Script,
    steps: Steps,
    /// How many steps it has begun.
    begun: u64,
    /// The coordinator has let it leave at a boundary.
    released: bool,
    /// Requests of the membership, and what they mean to the machine.
    declarations: BTreeMap<u64, u64>,
    barriers: BTreeMap<u64, String>,
    /// Requests to the store, and their numbers.
    asked: BTreeMap<u64, usize>,
    /// What the coordinator said of rounds that wait, the latest last.
    notices: Vec<(PartId, Round, String)>,
    /// Errors that servers gave for such rounds, by submission: they must not end it without what the coordinator said.
    unexplained: BTreeMap<u64, Vec<Error>>,
    /// Submissions that have an error already. It ends them, whatever comes later.
    failing: BTreeSet<u64>,
    ended: Option<Result<()>>,
}

impl WorkerProcess {
    /// A worker that joins.
    pub(super) fn new(context: &mut Context, me: Address) -> Self {
        let mut this = Self {
            me,
            member: MemberDriver::new(context, me),
            worker: Worker::new(context.now, settings(&context.plan)),
            transport: Transport::new(me),
            memory: Vec::new(),
            lent: BTreeMap::new(),
            payloads: BTreeMap::new(),
            residuals: BTreeMap::new(),
            kept: BTreeMap::new(),
            fed_back: BTreeMap::new(),
            unused: Unused::default(),
            summed: BTreeSet::new(),
            copying: BTreeMap::new(),
            neighbours: None,
            former: Vec::new(),
            equips: None,
            early: Vec::new(),
            links: BTreeMap::new(),
            streams: BTreeMap::new(),
            summing: BTreeMap::new(),
            script: Script::default(),
            steps: Steps::new(context.plan.defect),
            begun: 0,
            released: false,
            declarations: BTreeMap::new(),
            barriers: BTreeMap::new(),
            asked: BTreeMap::new(),
            notices: Vec::new(),
            unexplained: BTreeMap::new(),
            failing: BTreeSet::new(),
            ended: None,
        };
        this.settle(context);
        this
    }

    /// What must hold at the end.
    pub(super) fn inspect(&self, context: &mut Context, cause: Option<&Result<()>>) {
        let now = context.now;
        context.witness.process_ended(self.me, self.ended.as_ref(), cause);
        if self.ended.is_none() {
            return;
        }
        if let Some(operation) = self.script.operations.values().find(|operation| operation.outcome.is_none()) {
            context.witness.fail(now, Checker::Handle, format!("{}: {operation} never resolved", self.me.who));
        }
        if let Some(used) = self.script.uses.values().find(|used| used.outcome.is_none()) {
            context.witness.fail(now, Checker::Handle, format!("{}: {used} never resolved", self.me.who));
        }
        if !self.asked.is_empty() {
            context.witness.fail(now, Checker::Store, format!("{}: a request was never answered", self.me.who));
        }
        if !self.script.batches.is_empty() {
            context.witness.fail(now, Checker::Handle, format!("{}: a batch never ended", self.me.who));
        }
        let (credit, idle) = (self.worker.credit_in_flight(), self.worker.is_idle());
        if credit != 0 {
            context.witness.fail(now, Checker::Credit, format!("{}: {credit} bytes are still drawn", self.me.who));
        }
        let left = (self.payloads.len(), self.lent.len(), self.transport.open());
        if !idle || left != (0, 0, 0) {
            let text = format!("{}: payloads, submissions and exchanges left are {left:?}, idle {idle}", self.me.who);
            context.witness.fail(now, Checker::Memory, text);
        }
    }

    /// Lets every machine have its way, until none wants anything.
    fn settle(&mut self, context: &mut Context) {
        loop {
            context.go_on();
            let events = self.member.drain(context);
            let commands: Vec<Command> = std::iter::from_fn(|| self.worker.next_command(context.now)).collect();
            let endings = self.transport.endings(context);
            let broken = self.transport.broken();
            let quiet = events.is_empty() && commands.is_empty() && endings.is_empty() && broken.is_empty();
            for command in commands {
                self.carry_out(context, command);
            }
            for event in events {
                self.follow(context, event);
                self.obey(context);
            }
            for ending in endings {
                self.finish(context, ending);
                self.obey(context);
            }
            for (link, error) in broken {
                self.lose_link(context, link, &error);
                self.obey(context);
            }
            if !self.confer(context) && quiet {
                return;
            }
        }
    }

    /// Carries out what the machine decided by its last input.
    fn obey(&mut self, context: &mut Context) {
        while let Some(command) = self.worker.next_command(context.now) {
            self.carry_out(context, command);
        }
    }

    fn follow(&mut self, context: &mut Context, event: MemberEvent) {
        let now = context.now;
        context.log.note(now, self.me.who, "member", &[], || format!("{event:?}"));
        match event {
            MemberEvent::Joined { index, view } => {
                self.worker.handle_joined(now, WorkerId(index), view);
                self.script.running = true;
                self.wake(context);
            }
            MemberEvent::View(view) => self.worker.handle_view(now, view),
            MemberEvent::Contact { at, is_lost } => self.worker.handle_contact(at, is_lost),
            MemberEvent::Declared { request, outcome } => {
                let asked = self.declarations.remove(&request).expect("asked once");
                self.worker.handle_declared(now, asked, outcome);
                self.wake_if_waiting(context, Awaited::Declaration(asked));
            }
            MemberEvent::BarrierDone { request, outcome } => {
                let name = self.barriers.remove(&request).expect("asked once");
                context.witness.passes(self.me.who, &name, &outcome);
                self.wake_if_waiting(context, Awaited::Barrier(request));
            }
            MemberEvent::Forget { key, error } => self.worker.handle_forget(now, key, &error),
            MemberEvent::StallNotice { stall, detail, .. } => {
                self.notices.retain(|(part, round, _)| (*part, *round) != (stall.part, stall.round));
                self.notices.push((stall.part, stall.round, detail.clone()));
                self.worker.handle_stall_notice(now, stall.part, stall.round, detail);
            }
            MemberEvent::Boundary { change, limit, hold: _ } => self.hear_boundary(context, change, limit),
            MemberEvent::Passed { change, outcome } => self.hear_passed(context, change, outcome),
            MemberEvent::Restore { epoch, sums, lost } => self.worker.handle_restore(now, epoch, sums, &lost),
            MemberEvent::Answered { request, outcome } => self.hear_answer(context, request, outcome),
            MemberEvent::Ended { .. }
            | MemberEvent::Close(_)
            | MemberEvent::Order(_)
            | MemberEvent::Command { .. }
            | MemberEvent::Renewed { .. }
            | MemberEvent::WorkersKey(_) => {}
            MemberEvent::Failed(error) => {
                self.worker.handle_failed(now, error.clone());
                self.fail_steps(error.clone());
                self.ended = Some(Err(error));
                self.script.done = true;
            }
            MemberEvent::Left => {
                self.leave_neighbours(context, None);
                self.ended = Some(Ok(()));
                // One that leaves at a boundary hears of it there.
                self.script.done |= !self.released;
            }
        }
    }

    fn carry_out(&mut self, context: &mut Context, command: Command) {
        match command {
            // The thread that submits takes what is short, beside the thread of the stage.
            Command::Wake(stage) if !stage.is_collective() && context.random.chance(25) => {
                let bytes_max = context.random.pick(&[64, 256, 1024]);
                context.post(self.me, Duration::ZERO, Input::Caller { stage, bytes_max });
            }
            Command::Wake(stage) => {
                let after = context.random.millis(0, 2);
                context.post(self.me, after, Input::Bell { stage });
            }
            Command::Carry { task, load } => {
                let payload = match load {
                    Load::Message(bytes) => Payload::Message(bytes),
                    Load::Pieces => self.pieces(task),
                    Load::Kept { part, bytes } => Payload::Kept(self.kept[&part][..bytes as usize].to_vec()),
                };
                self.payloads.insert(task, payload);
            }
            Command::Release(task) => {
                self.unstage(task);
                self.drop_body(task);
                self.drop_beside(task);
                self.drop_aside(task);
                self.summed.remove(&task);
                self.summing.remove(&task);
                self.payloads.remove(&task);
            }
            Command::StartOver(task) => {
                self.drop_body(task);
                self.drop_beside(task);
                self.drop_aside(task);
                self.summed.remove(&task);
                if let Some(seen) = self.fed_back.get_mut(&self.worker.part(task).layout.part) {
                    *seen = FedBack::of_nobody();
                }
            }
            Command::BreakDown(cause) => self.member.member.break_down(cause),
            Command::Keep { task, part } => self.keep(context, task, part),
            Command::DropKept(part) => drop(self.kept.remove(&part)),
            Command::Report(holdings) => self.member.member.report_holdings(holdings),
            Command::Restored(epoch) => self.member.member.report_restored(epoch),
            Command::DropResidual(part) => {
                self.residuals.remove(&part);
                self.fed_back.remove(&part);
                self.unused.forget(part);
            }
            Command::Abandon(Held::Exchange { exchange, .. }) => {
                if let Some(stream) = self.streams.get(&exchange) {
                    self.transport.abandon(context, *stream);
                }
            }
            Command::Dial(Dial { server, attempt, to, .. }) => {
                let process = Who::Server(
                    to.at(Scheme::Quic).ok().and_then(|at| at.parse().ok()).expect("the number of a server process"),
                );
                let link = context.dial_link(self.me, process);
                self.links.insert(link, Dialled { server, attempt, is_up: false });
            }
            Command::Disconnect(link) => {
                let error = Error::Cancelled;
                self.links.remove(&link);
                // What has come before may still be read.
                let after = context.random.millis(0, 5);
                let lost = Input::LinkLost { link, error: error.clone() };
                match context.random.chance(50) {
                    true => self.transport.lose(context, link, &error),
                    false => context.post(self.me, after, lost),
                }
                context.send_link(self.me, link, Input::LinkLost { link, error });
            }
            Command::Resolve { submission, effect, outcome, .. } if self.script.uses.contains_key(&submission) => {
                self.resolve_use(context, submission, effect, outcome);
            }
            Command::Resolve { submission, outcome, .. } => self.resolve(context, submission, outcome),
            Command::Declare { request, tensors, fuse } => {
                let number = self.member.member.declare(tensors, fuse);
                self.declarations.insert(number, request);
            }
            Command::Undeclare { request, names } => {
                self.member.member.undeclare(names);
                self.worker.handle_undeclared(request);
                self.wake_if_waiting(context, Awaited::Ending(request));
            }
            Command::Follow => {
                self.follow_formation(context);
            }
            Command::Leave => {
                // The others of its machine go on, and can meet again only once this one leads them no more.
                if context.plan.classes.survivors {
                    self.leave_neighbours(context, None);
                }
                self.member.member.leave();
            }
            Command::Abandon(Held::Operation(slot)) => self.abandon_meeting(context, slot),
            Command::Decline(declined) => self.decline_meeting(declined),
            Command::Abort(cause) => self.leave_neighbours(context, Some(cause)),
            Command::Warn(_) => {}
            Command::Finished { .. } => unreachable!("nothing is traced"),
            Command::Issued { .. } => unreachable!("no device has streams"),
        }
    }

    /// What a new task moves.
    fn pieces(&self, task: TaskId) -> Payload {
        let region = |place: usize| {
            move |Piece { submission, tensor, span, into: _ }: Piece| Region {
                buffer: self.lent[&submission][tensor][place],
                span,
            }
        };
        let [source, destination] = [0, 1].map(|place| self.worker.pieces(task).map(region(place)).collect());
        Payload::Pieces { source, destination, staging: None, body: None, beside: None, aside: None }
    }
}

/// The settings of the machine.
fn settings(plan: &Plan) -> WorkerSettings {
    let (credit_bytes, step_timeout) = (plan.settings.credit_bytes, timing::STEP);
    let scheduler = SchedulerConfig { credit_bytes, step_timeout, defect: plan.defect, ..SchedulerConfig::default() };
    let steady = plan.settings.idle_timeout * 3;
    let bounds = Bounds { steady, ..Bounds::new(timing::STEP, timing::DEAD) };
    let contact = timing::contact(plan.classes.survivors, timing::verdicts());
    let (device, keeps, keeps_sums) = (plan.topology.device, plan.classes.survivors, plan.classes.outlives);
    WorkerSettings { scheduler, stall_warn: Duration::from_secs(10), bounds, contact, device, keeps, keeps_sums }
}

impl Process for WorkerProcess {
    fn handle(&mut self, context: &mut Context, input: Input) {
        match input {
            Input::Timer => {
                self.worker.handle_timeout(context.now);
                self.handle_meetings_due(context);
                let progress = self.worker.progress();
                self.member.handle(context, Input::Timer, progress);
            }
            Input::ControlDialled { .. }
            | Input::ControlUp { .. }
            | Input::ControlFailed { .. }
            | Input::ControlClosed { .. }
            | Input::Frame { .. } => {
                let progress = self.worker.progress();
                self.member.handle(context, input, progress);
            }
            Input::LinkReady { .. } | Input::LinkFailed { .. } | Input::LinkLost { .. } => {
                self.handle_link(context, input);
            }
            Input::Pushed { exchange } => self.transport.pushed(exchange),
            Input::Returned { exchange } => self.transport.returned(context, exchange),
            Input::Stopped { exchange } => self.transport.stopped(context, exchange),
            Input::Answer { exchange, bytes, end } => self.transport.arrived(context, exchange, bytes, end),
            Input::ExchangeTorn { exchange, error } => self.transport.torn(context, exchange, error),
            Input::Bell { stage } => self.run_stage(context, stage),
            Input::Caller { stage, bytes_max } => self.run_here(context, stage, bytes_max),
            Input::Copied { task } => self.copied(context, task),
            Input::Near { from, team, note } => self.hear(context, from, &team, note),
            Input::NeighbourLost { gone } => self.lose_neighbour(context, gone),
            Input::Script => self.run_script(context),
            Input::AskToLeave => self.ask_to_leave(context),
            Input::LinkDialled { .. }
            | Input::Opened { .. }
            | Input::Body { .. }
            | Input::BodyCut { .. }
            | Input::Receipt { .. }
            | Input::Squares { .. }
            | Input::ProcessEnded { .. }
            | Input::Drain
            | Input::Answered { .. } => {}
        }
        self.settle(context);
    }

    fn poll_timeout(&self) -> Option<Time> {
        let near = self.neighbours.iter().chain(&self.former).filter_map(Neighbours::poll_timeout).min();
        [self.member.poll_timeout(), self.worker.poll_timeout(), near].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        self.ended.is_some() && self.script.done && self.worker.is_idle() && self.transport.open() == 0
    }

    fn describe(&self) -> String {
        let open = self.script.operations.values().filter(|operation| operation.outcome.is_none());
        let used = self.script.uses.values().filter(|used| used.outcome.is_none());
        let open: Vec<String> = open.map(ToString::to_string).chain(used.map(ToString::to_string)).collect();
        let (action, done) = (self.script.at, self.script.done);
        let (rank, open, exchanges) = (self.worker.rank().0, open.join("; "), self.transport.describe());
        format!("rank {rank:?}, action {action}, done {done}, unresolved {open}, exchanges {exchanges}")
    }
}
