//! A worker process: the production machine [`Worker`], a training loop as its user, and a transport in one struct. Keeps the memory that
//! the machine's ids stand for, checks every result, and that memory is touched only while it is lent.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::{Error, Result};
use gradlane_core::pipeline::Stage;
use gradlane_core::sched::{Attempt, SchedulerConfig, Task, TaskId};
use gradlane_core::types::{DeviceKind, Epoch, ExchangeId, LinkId, ServerId, Span, Time, WorkerId};
use gradlane_core::wire::{Contribute, Contribution, Contributors, Request, Sum, Target};
use gradlane_core::worker::{Action, Command, Dial, Exchanged, Held, Load, Piece, Step, Worker, WorkerSettings};

use super::checkers::Checker;
use super::coordinator::TERM;
use super::member::MemberDriver;
use super::oracle;
use super::transport::{Ending, Transport};
use super::workload::Plan;
use super::world::{Address, Context, Input, Process, Who};

mod training;

use training::{Awaited, Operation, Script};

/// A running worker.
pub(super) struct WorkerProcess {
    me: Address,
    member: MemberDriver,
    worker: Worker,
    transport: Transport,
    memory: Vec<Buffer>,
    /// By submission: the buffers of the contribution and of the result, which may be the same.
    lent: BTreeMap<u64, [usize; 2]>,
    payloads: BTreeMap<TaskId, Payload>,
    /// Links that were dialled and are not gone.
    links: BTreeMap<LinkId, Dialled>,
    /// The streams of the network that carry the machine's exchanges.
    streams: BTreeMap<ExchangeId, ExchangeId>,
    script: Script,
    /// Requests of the membership, and what they mean to the machine.
    declarations: BTreeMap<u64, u64>,
    barriers: BTreeMap<u64, String>,
    ended: Option<Result<()>>,
}

/// What a task moves.
#[derive(Debug)]
enum Payload {
    Pieces { source: Vec<Region>, destination: Vec<Region> },
    Message(Vec<u8>),
}

/// What a link was dialled for.
#[derive(Clone, Copy, Debug)]
struct Dialled {
    server: ServerId,
    attempt: u64,
    is_up: bool,
}

/// A run of bytes of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    /// Which buffer.
    pub(super) buffer: usize,
    /// Which of its bytes.
    pub(super) span: Span,
}

/// A tensor's memory.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Its content.
    pub(super) bytes: Vec<u8>,
    /// Whether the worker may touch it.
    pub(super) lent: bool,
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
            links: BTreeMap::new(),
            streams: BTreeMap::new(),
            script: Script::default(),
            declarations: BTreeMap::new(),
            barriers: BTreeMap::new(),
            ended: None,
        };
        this.settle(context);
        this
    }

    /// What must hold at the end.
    pub(super) fn inspect(&self, context: &mut Context, cause: Option<&Result<()>>) {
        let now = context.now;
        context.witness.process_ended(now, self.me, self.ended.as_ref(), cause);
        if self.ended.is_none() {
            return;
        }
        for operation in self.script.operations.values() {
            let Operation { tensor, round, outcome } = operation;
            let what = format!("{}: tensor {tensor}, round {round}", self.me.who);
            match outcome {
                Some(_) => {}
                None => context.witness.fail(now, Checker::Handle, format!("{what} never resolved")),
            }
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
            let events = self.member.drain(context);
            let commands: Vec<Command> = std::iter::from_fn(|| self.worker.next_command(context.now)).collect();
            let endings = self.transport.endings();
            if events.is_empty() && commands.is_empty() && endings.is_empty() {
                return;
            }
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
            MemberEvent::Declared { request, outcome } => {
                let asked = self.declarations.remove(&request).expect("asked once");
                self.worker.handle_declared(now, asked, outcome);
                self.wake_if_waiting(context, Awaited::Declaration(asked));
            }
            MemberEvent::BarrierDone { request, outcome } => {
                let name = self.barriers.remove(&request).expect("asked once");
                context.witness.passes(now, self.me.who, &name, &outcome);
                self.wake_if_waiting(context, Awaited::Barrier(request));
            }
            MemberEvent::Forget { key, error } => self.worker.handle_forget(now, key, &error),
            MemberEvent::StallNotice { .. } => {}
            MemberEvent::Failed(error) => {
                self.worker.handle_failed(now, error.clone());
                self.ended = Some(Err(error));
                self.script.done = true;
            }
            MemberEvent::Left => {
                self.ended = Some(Ok(()));
                self.script.done = true;
            }
        }
    }

    fn carry_out(&mut self, context: &mut Context, command: Command) {
        match command {
            Command::Wake(stage) => {
                let after = context.random.millis(0, 2);
                context.post(self.me, after, Input::Bell { stage });
            }
            Command::Carry { task, load } => {
                let payload = match load {
                    Load::Message(bytes) => Payload::Message(bytes),
                    Load::Pieces => self.pieces(task),
                };
                self.payloads.insert(task, payload);
            }
            Command::Release(task) => drop(self.payloads.remove(&task)),
            Command::Abandon(Held::Exchange(exchange)) => {
                if let Some(stream) = self.streams.get(&exchange) {
                    self.transport.abandon(context, *stream);
                }
            }
            Command::Dial(Dial { server, attempt, to, .. }) => {
                let process = Who::Server(to.address.parse().expect("the number of a server process"));
                let link = context.dial_link(self.me, process);
                self.links.insert(link, Dialled { server, attempt, is_up: false });
            }
            Command::Disconnect(link) => {
                let error = Error::Cancelled;
                self.links.remove(&link);
                self.transport.lose(link, &error);
                context.send_link(self.me, link, Input::LinkLost { link, error });
            }
            Command::Resolve { submission, outcome, .. } => self.resolve(context, submission, outcome),
            Command::Declare { request, tensors, fuse } => {
                let number = self.member.member.declare(tensors, fuse);
                self.declarations.insert(number, request);
            }
            Command::Leave => self.member.member.leave(),
            Command::Warn(_) | Command::Abort(_) => {}
            Command::Abandon(Held::Operation(_)) | Command::Finished { .. } => {
                unreachable!("these workers share no machine, and nothing is traced")
            }
        }
    }

    /// What a new task moves.
    fn pieces(&self, task: TaskId) -> Payload {
        let region = |place: usize| {
            move |Piece { submission, span, .. }: Piece| Region { buffer: self.lent[&submission][place], span }
        };
        let [source, destination] = [0, 1].map(|place| self.worker.pieces(task).map(region(place)).collect());
        Payload::Pieces { source, destination }
    }

    fn resolve(&mut self, context: &mut Context, submission: u64, outcome: Result<()>) {
        let now = context.now;
        let rank = self.worker.rank().0;
        let Some(buffers) = self.lent.remove(&submission) else {
            let text = format!("{} hears twice of submission {submission}", self.me.who);
            return context.witness.fail(now, Checker::Handle, text);
        };
        let Operation { tensor, round, .. } = self.script.operations[&submission];
        context.log.note(now, self.me.who, "resolves", &[tensor as u64, round, u64::from(outcome.is_ok())], || {
            format!("{outcome:?}")
        });
        let what = format!("{}: tensor {tensor}, round {round}", self.me.who);
        if buffers.iter().any(|buffer| self.transport.holds(*buffer)) {
            context.witness.fail(now, Checker::Memory, format!("{what} resolves while an exchange has its memory"));
        }
        buffers.iter().for_each(|buffer| self.memory[*buffer].lent = false);
        let [source, destination] = buffers;
        if outcome.is_ok() {
            let got = &self.memory[destination].bytes;
            if *got != oracle::result(&context.plan, tensor, round) {
                let why = oracle::explain(&context.plan, tensor, round, got);
                context.witness.fail(now, Checker::Sum, format!("{what}, {}: {why}", context.plan.op(tensor, round)));
            }
        }
        if source != destination
            && self.memory[source].bytes != oracle::contribution(&context.plan, tensor, round, rank)
        {
            context.witness.fail(now, Checker::Contribution, format!("{what}: the contribution was overwritten"));
        }
        context.witness.resolves(self.me, tensor, round, &outcome);
        let operation = self.script.operations.get_mut(&submission).expect("read above");
        if operation.outcome.replace(outcome).is_some() {
            context.witness.fail(now, Checker::Handle, format!("{what} resolves again"));
        }
        self.wake(context);
    }

    // Stages.

    fn run_stage(&mut self, context: &mut Context, stage: Stage) {
        while let Some(Step { task, action, .. }) = self.worker.take(context.now, stage) {
            // As the engine does: what the machine decided by this take is carried out before the step.
            self.obey(context);
            match action {
                Action::Push { link, exchange, header } => self.push(context, task, (link, exchange), header),
                Action::Pull { exchange } => self.pull(context, task, exchange),
                Action::CopyToHost { .. } | Action::CopyToDevice | Action::Meet(_) => {
                    unreachable!("a host's pipeline pushes and pulls")
                }
            }
            self.settle(context);
        }
        self.settle(context);
    }

    fn push(&mut self, context: &mut Context, task: Task, (link, exchange): (LinkId, ExchangeId), mut header: Request) {
        let mut bytes = Vec::new();
        let mut regions = Vec::new();
        match (&self.payloads[&task.id], &mut header) {
            (Payload::Message(message), Request::Withdraw(_)) => bytes.extend_from_slice(message),
            (Payload::Pieces { source, destination }, Request::Contribute(header)) => {
                let sends_body = header.contribution != Contribution::Nothing;
                self.check_push(context, &task, sends_body, source);
                for Region { buffer, span } in source.iter().filter(|_| sends_body) {
                    let run = span.offset as usize..span.end() as usize;
                    bytes.extend_from_slice(&self.memory[*buffer].bytes[run]);
                }
                let is_checked = context.plan.settings.checksum && !bytes.is_empty();
                if let Contribution::First { checksum, .. } = &mut header.contribution {
                    *checksum = is_checked.then(|| crc32c::crc32c(&bytes));
                }
                regions = source.iter().chain(destination).copied().collect();
            }
            (payload, header) => unreachable!("{header:?} of {payload:?}"),
        }
        let stream = self.transport.push(context, link, task.id, header, bytes, regions);
        self.streams.insert(exchange, stream);
        context.log.note(context.now, self.me.who, "pushes", &[stream.0, task.round.0], || {
            format!("part {} {:?}, {header:?}, doom {:?}", task.part, task.attempt, context.network.doom(stream))
        });
        if let Request::Contribute(header) = header
            && context.plan.classes.replays
            && context.random.chance(10)
        {
            self.replay(context, link, header);
        }
    }

    /// A push of a membership before the present one turns up, as a network or a process that slept for long may hold it back.
    fn replay(&self, context: &mut Context, link: LinkId, header: Contribute) {
        let target = Target { epoch: Epoch { term: TERM - 1, number: 1 }, ..header.target };
        let junk = vec![oracle::JUNK; header.body_bytes() as usize];
        let contribution = match header.contribution {
            Contribution::First { body, checksum: Some(_) } => {
                Contribution::First { body, checksum: Some(crc32c::crc32c(&junk)) }
            }
            Contribution::Nothing | Contribution::First { .. } | Contribution::Resumed { .. } => header.contribution,
        };
        let header = Request::Contribute(Contribute { target, contribution, ..header });
        context.open_exchange(self.me, link, &header, junk, true);
    }

    /// What is sent must be the caller's own contribution, and the sum of the round before must have come.
    fn check_push(&self, context: &mut Context, task: &Task, sends_body: bool, source: &[Region]) {
        let now = context.now;
        let earlier = |other: TaskId| {
            let part = self.worker.part(other);
            part.layout.part == task.part && part.round < task.round
        };
        if self.worker.tasks().any(earlier) {
            let text = format!("{} pushes {} of part {} before its turn", self.me.who, task.round, task.part);
            context.witness.fail(now, Checker::Rounds, text);
        }
        if !sends_body {
            return;
        }
        // What the repeat says to be overwritten may be anything; all that follows is the caller's.
        let mut overwritten = if let Attempt::Resumed { landed } = task.attempt { landed as usize } else { 0 };
        for (Region { buffer, span }, piece) in source.iter().zip(self.worker.pieces(task.id)) {
            let Operation { tensor, round, .. } = self.script.operations[&piece.submission];
            let due = oracle::contribution(&context.plan, tensor, round, self.worker.rank().0);
            let skipped = overwritten.min(span.bytes as usize);
            overwritten -= skipped;
            let run = span.offset as usize + skipped..span.end() as usize;
            if !self.memory[*buffer].lent || self.memory[*buffer].bytes[run.clone()] != due[run] {
                let text = format!("{} pushes other bytes than tensor {tensor}, round {round} had", self.me.who);
                context.witness.fail(now, Checker::Contribution, text);
            }
        }
    }

    fn pull(&mut self, context: &mut Context, task: Task, exchange: ExchangeId) {
        let into = match &self.payloads[&task.id] {
            Payload::Pieces { destination, .. } => destination.clone(),
            Payload::Message(_) => Vec::new(),
        };
        self.transport.pull(context, self.streams[&exchange], task.id, into, &mut self.memory);
    }

    fn finish(&mut self, context: &mut Context, ending: Ending) {
        let now = context.now;
        context.log.note(now, self.me.who, "exchange", &[], || format!("{ending:?}"));
        match ending {
            Ending::Pushed { task, outcome } => self.worker.handle_pushed(now, task, outcome),
            Ending::Sum { task, header } => {
                self.check_header(context, task, &header);
                self.worker.handle_pulled(now, task, Exchanged::Sum);
            }
            Ending::Rejected { task, error } => self.worker.handle_pulled(now, task, Exchanged::Rejected(error)),
            Ending::Torn { task, error, landed } => {
                self.worker.handle_pulled(now, task, Exchanged::Torn { error, landed });
            }
        }
    }

    fn check_header(&self, context: &mut Context, task: TaskId, header: &Sum) {
        let submission = self.worker.part(task).tickets[0];
        let Operation { tensor, round, .. } = self.script.operations[&submission];
        // Nobody may leave this job, so every worker due is in every sum.
        let due = (oracle::divisor(&context.plan, tensor, round), Contributors::Due);
        let got = (header.divisor, header.contributors.clone());
        if got != due {
            let text = format!("tensor {tensor}, round {round}: the sum is of {got:?}, not of {due:?}");
            context.witness.fail(context.now, Checker::Contributors, text);
        }
    }

    fn handle_link(&mut self, context: &mut Context, input: Input) {
        let now = context.now;
        match input {
            Input::LinkReady { link } => match self.links.get_mut(&link) {
                Some(Dialled { server, attempt, is_up }) => {
                    *is_up = true;
                    let (server, attempt) = (*server, *attempt);
                    self.worker.handle_dialled(now, server, attempt, Ok(link));
                }
                // Too late: the attempt has failed.
                None => context.send_link(self.me, link, Input::LinkLost { link, error: Error::Cancelled }),
            },
            Input::LinkFailed { link } => {
                // The attempt may have succeeded; its own timeout finds nothing to do.
                if let Some(Dialled { server, attempt, is_up: false }) = self.links.get(&link).copied() {
                    self.links.remove(&link);
                    let error = Error::Unavailable { what: server.to_string(), cause: "no answer".to_owned() };
                    self.worker.handle_dialled(now, server, attempt, Err(error));
                }
            }
            Input::LinkLost { link, error } => {
                self.transport.lose(link, &error);
                if let Some(Dialled { server, attempt, .. }) = self.links.remove(&link) {
                    self.worker.handle_link_lost(now, server, attempt);
                }
            }
            _ => {}
        }
    }
}

/// The settings of the machine.
fn settings(plan: &Plan) -> WorkerSettings {
    let scheduler =
        SchedulerConfig { credit_bytes: plan.settings.credit_bytes, defect: plan.defect, ..SchedulerConfig::default() };
    WorkerSettings { scheduler, stall_warn: Duration::from_secs(10), device: DeviceKind::Host }
}

impl Process for WorkerProcess {
    fn handle(&mut self, context: &mut Context, input: Input) {
        match input {
            Input::Timer => {
                self.worker.handle_timeout(context.now);
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
            Input::Returned { exchange } => self.transport.returned(context, exchange, &mut self.memory),
            Input::Answer { exchange, bytes, ended } => {
                self.transport.arrived(context, exchange, bytes, ended, &mut self.memory);
            }
            Input::ExchangeTorn { exchange, error } => self.transport.torn(exchange, error),
            Input::Bell { stage } => self.run_stage(context, stage),
            Input::Script => self.run_script(context),
            Input::LinkDialled { .. }
            | Input::Opened { .. }
            | Input::Body { .. }
            | Input::Receipt { .. }
            | Input::Answered { .. } => {}
        }
        self.settle(context);
    }

    fn poll_timeout(&self) -> Option<Time> {
        [self.member.poll_timeout(), self.worker.poll_timeout()].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        self.ended.is_some() && self.worker.is_idle() && self.transport.open() == 0
    }

    fn describe(&self) -> String {
        let open = self.script.operations.values().filter(|operation| operation.outcome.is_none());
        let open: Vec<String> = open.map(|Operation { tensor, round, .. }| format!("{tensor}/{round}")).collect();
        let (action, done) = (self.script.at, self.script.done);
        format!("rank {:?}, action {action}, done {done}, unresolved {}", self.worker.rank().0, open.join(" "))
    }
}
