//! A worker process: a training loop over the engine's machines, and a transport in one struct. Checks every result, and that memory is
//! touched only while it is lent.

use std::collections::BTreeMap;

use gradlane_core::cluster::MemberEvent;
use gradlane_core::error::{Error, Result};
use gradlane_core::pipeline::{Registry, Stage};
use gradlane_core::sched::{Attempt, Outcome, Task};
use gradlane_core::types::{Epoch, LinkId, ServerId, Time, WorkerId};
use gradlane_core::wire::{Body, Contribute, Contribution, Contributors, Request, Service, Sum, Target, Withdraw};

use super::checkers::Checker;
use super::coordinator::TERM;
use super::engine::{Effect, Engine, LinkState, Region};
use super::member::MemberDriver;
use super::oracle;
use super::transport::{Ending, Transport};
use super::world::{Address, Context, Input, Process, Who};

mod training;

use training::{Operation, Script};

/// A running worker.
pub(super) struct WorkerProcess {
    me: Address,
    member: MemberDriver,
    engine: Engine,
    transport: Transport,
    memory: Vec<Buffer>,
    script: Script,
    /// Requests of the membership, and what they mean to the engine.
    declarations: BTreeMap<u64, u64>,
    barriers: BTreeMap<u64, String>,
    ended: Option<Result<()>>,
}

/// A tensor's memory.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Its content.
    pub(super) bytes: Vec<u8>,
    /// Whether the engine may touch it.
    pub(super) lent: bool,
}

impl WorkerProcess {
    /// A worker that joins.
    pub(super) fn new(context: &mut Context, me: Address) -> Self {
        let mut this = Self {
            me,
            member: MemberDriver::new(context, me),
            engine: Engine::new(&context.plan),
            transport: Transport::new(me),
            memory: Vec::new(),
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
        let Some(ended) = &self.ended else { return };
        for operation in self.script.operations.values() {
            let Operation { tensor, round, outcome } = operation;
            let what = format!("{}: tensor {tensor}, round {round}", self.me.who);
            match outcome {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    context.witness.submission_failed(now, self.me, *tensor, &what, error, [Some(ended), cause]);
                }
                None => context.witness.fail(now, Checker::Handle, format!("{what} never resolved")),
            }
        }
        let (credit, idle) = (self.engine.scheduler.credit_in_flight(), self.engine.scheduler.is_idle());
        if credit != 0 {
            context.witness.fail(now, Checker::Credit, format!("{}: {credit} bytes are still drawn", self.me.who));
        }
        let left = (self.engine.payloads.len(), self.engine.tickets.len(), self.transport.open());
        if !idle || left != (0, 0, 0) {
            let text = format!("{}: payloads, tickets and exchanges left are {left:?}, idle {idle}", self.me.who);
            context.witness.fail(now, Checker::Memory, text);
        }
    }

    /// Lets every machine have its way, until none wants anything.
    fn settle(&mut self, context: &mut Context) {
        loop {
            let events = self.member.drain(context);
            let effects = self.engine.effects(context.now);
            let endings = self.transport.endings();
            if events.is_empty() && effects.is_empty() && endings.is_empty() {
                return;
            }
            for event in events {
                self.follow(context, event);
            }
            for effect in effects {
                self.carry_out(context, effect);
            }
            for ending in endings {
                self.finish(context, ending);
            }
        }
    }

    fn follow(&mut self, context: &mut Context, event: MemberEvent) {
        let now = context.now;
        context.log.note(now, self.me.who, "member", &[], || format!("{event:?}"));
        match event {
            MemberEvent::Joined { index, view } => {
                self.engine.rank = WorkerId(index);
                self.engine.registry = Registry::new(self.engine.rank);
                self.engine.follow(now, view);
                self.script.running = true;
                self.wake(context);
            }
            MemberEvent::View(view) => self.engine.follow(now, view),
            MemberEvent::Declared { request, outcome } => {
                let engine_request = self.declarations.remove(&request).expect("asked once");
                self.engine.handle_declared(now, engine_request, outcome);
                self.wake_if_waiting(context, request);
            }
            MemberEvent::BarrierDone { request, outcome } => {
                let name = self.barriers.remove(&request).expect("asked once");
                context.witness.passes(now, self.me.who, &name, &outcome);
                self.wake_if_waiting(context, request);
            }
            MemberEvent::Forget { key, error } => self.engine.forget(now, key, &error),
            MemberEvent::StallNotice { .. } => {}
            MemberEvent::Failed(error) => {
                self.engine.end(now, &error);
                self.ended = Some(Err(error));
                self.script.done = true;
            }
            MemberEvent::Left => {
                self.ended = Some(Ok(()));
                self.script.done = true;
            }
        }
    }

    fn carry_out(&mut self, context: &mut Context, effect: Effect) {
        match effect {
            Effect::Ring(stage) => {
                let after = context.random.millis(0, 2);
                context.post(self.me, after, Input::Bell { stage });
            }
            Effect::Abandon(exchange) => self.transport.abandon(context, exchange),
            Effect::Dial(server) => {
                let entry = self.engine.links.get_mut(&server).expect("a server of the view");
                let process = Who::Server(entry.address.parse().expect("the number of a server process"));
                entry.state = LinkState::Dialling(Some(context.dial_link(self.me, process)));
            }
            Effect::Resolve { ticket, source, destination, outcome } => {
                self.resolve(context, ticket, [source, destination], outcome);
            }
            Effect::ResolvedTwice(group) => {
                let text = format!("{} hears twice of {group:?}", self.me.who);
                context.witness.fail(context.now, Checker::Handle, text);
            }
        }
    }

    fn resolve(&mut self, context: &mut Context, ticket: u64, buffers: [usize; 2], outcome: Result<()>) {
        let now = context.now;
        let rank = self.engine.rank.0;
        let Operation { tensor, round, .. } = self.script.operations[&ticket];
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
        if let Err(error) = &outcome {
            context.witness.hears_why(now, rank, tensor, round, error);
        }
        if let Err(Error::Timeout { .. } | Error::Cancelled) = outcome {
            context.witness.excuse(context.plan.companions(tensor));
        }
        let operation = self.script.operations.get_mut(&ticket).expect("read above");
        if operation.outcome.replace(outcome).is_some() {
            context.witness.fail(now, Checker::Handle, format!("{what} resolves again"));
        }
        self.wake(context);
    }

    // Stages.

    fn run_stage(&mut self, context: &mut Context, stage: Stage) {
        while let Some(task) = self.engine.scheduler.take(context.now, stage) {
            match stage {
                Stage::Push => self.push(context, task),
                Stage::Pull => self.pull(context, task),
                _ => unreachable!("a host's pipeline pushes and pulls"),
            }
            // As the engine does: what the machines decided by this take is carried out before the next.
            self.settle(context);
        }
    }

    fn push(&mut self, context: &mut Context, task: Task) {
        let LinkState::Up(link) = self.engine.links[&task.server].state else {
            let error = Error::Unavailable { what: task.server.to_string(), cause: "not connected".to_owned() };
            let outcome = Outcome::Retry { error, landed: 0 };
            return self.engine.scheduler.finish(context.now, task.id, outcome);
        };
        if let Some(letter) = self.engine.payloads[&task.id].letter.clone() {
            return self.give_up(context, link, task, letter);
        }
        self.check_push(context, &task);
        let (epoch, rank) = (self.engine.epoch(), self.engine.rank);
        let payload = self.engine.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
        let plain = Body::plain(task.bytes);
        let mut body = Vec::new();
        if payload.part.op.sends_body(rank) {
            for Region { buffer, span } in &payload.source {
                body.extend_from_slice(&self.memory[*buffer].bytes[span.offset as usize..span.end() as usize]);
            }
        }
        let checked = context.plan.settings.checksum && !body.is_empty();
        let contribution = match (task.attempt, payload.part.op.sends_body(rank)) {
            (_, false) => Contribution::Nothing,
            (Attempt::Resumed { landed }, true) => Contribution::Resumed { body: plain, landed },
            (Attempt::First | Attempt::Again, true) => {
                Contribution::First { body: plain, checksum: checked.then(|| crc32c::crc32c(&body)) }
            }
        };
        let header = Contribute {
            target: target_of(epoch, &task),
            dtype: payload.part.layout.dtype,
            op: payload.part.op,
            weight: payload.part.weight,
            urgency: 0,
            part_bytes: task.bytes,
            contribution,
        };
        let regions = payload.source.iter().chain(&payload.destination).copied().collect();
        let exchange = self.transport.push(context, link, task.id, Request::Contribute(header), body, regions);
        payload.exchange = Some(exchange);
        context.log.note(context.now, self.me.who, "pushes", &[exchange.0, task.round.0], || {
            format!("part {} {:?}, doom {:?}", task.part, task.attempt, context.network.doom(exchange))
        });
        if context.plan.classes.replays && context.random.chance(10) {
            self.replay(context, link, header);
        }
    }

    /// Tells the server why this worker will not contribute.
    fn give_up(&mut self, context: &mut Context, link: LinkId, task: Task, letter: Vec<u8>) {
        let epoch = self.engine.epoch();
        let payload = self.engine.payloads.get_mut(&task.id).expect("a task has a payload until it is released");
        let header = Request::Withdraw(Withdraw {
            target: target_of(epoch, &task),
            dtype: payload.part.layout.dtype,
            op: payload.part.op,
            error_bytes: letter.len() as u64,
        });
        let exchange = self.transport.push(context, link, task.id, header, letter, Vec::new());
        payload.exchange = Some(exchange);
        context.log.note(context.now, self.me.who, "gives up", &[exchange.0, task.round.0], || {
            format!("part {}, doom {:?}", task.part, context.network.doom(exchange))
        });
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
    fn check_push(&self, context: &mut Context, task: &Task) {
        let now = context.now;
        let payload = &self.engine.payloads[&task.id];
        let earlier = |(_, other): (_, &super::engine::Payload)| {
            other.part.layout.part == task.part && other.part.round < task.round
        };
        if self.engine.payloads.iter().any(earlier) {
            let text = format!("{} pushes {} of part {} before its turn", self.me.who, task.round, task.part);
            context.witness.fail(now, Checker::Rounds, text);
        }
        if !payload.part.op.sends_body(self.engine.rank) {
            return;
        }
        // What the repeat says to be overwritten may be anything; all that follows is the caller's.
        let mut overwritten = if let Attempt::Resumed { landed } = task.attempt { landed as usize } else { 0 };
        for (Region { buffer, span }, ticket) in payload.source.iter().zip(&payload.part.tickets) {
            let Operation { tensor, round, .. } = self.script.operations[ticket];
            let due = oracle::contribution(&context.plan, tensor, round, self.engine.rank.0);
            let skipped = overwritten.min(span.bytes as usize);
            overwritten -= skipped;
            let run = span.offset as usize + skipped..span.end() as usize;
            if !self.memory[*buffer].lent || self.memory[*buffer].bytes[run.clone()] != due[run] {
                let text = format!("{} pushes other bytes than tensor {tensor}, round {round} had", self.me.who);
                context.witness.fail(now, Checker::Contribution, text);
            }
        }
    }

    fn pull(&mut self, context: &mut Context, task: Task) {
        let payload = &self.engine.payloads[&task.id];
        let exchange = payload.exchange.expect("a task is pulled after it was pushed");
        let into = payload.destination.clone();
        self.transport.pull(context, exchange, task.id, into, &mut self.memory);
    }

    fn finish(&mut self, context: &mut Context, ending: Ending) {
        context.log.note(context.now, self.me.who, "exchange", &[], || format!("{ending:?}"));
        let (task, outcome) = match ending {
            Ending::Pushed { task, outcome } => {
                let outcome = match outcome {
                    Ok(()) => Outcome::Done,
                    Err(Error::Cancelled) => Outcome::Failed(Error::Cancelled),
                    Err(error) => Outcome::Retry { error, landed: 0 },
                };
                (task, outcome)
            }
            Ending::Sum { task, header } => {
                self.check_header(context, task, &header);
                (task, Outcome::Done)
            }
            Ending::Rejected { task, error } => {
                let retry = |error| Outcome::Retry { error, landed: 0 };
                (task, if error.retryable() { retry(error) } else { Outcome::Failed(error) })
            }
            Ending::Torn { task, error: error @ (Error::Cancelled | Error::Protocol { .. }), .. } => {
                (task, Outcome::Failed(error))
            }
            Ending::Torn { task, error, landed } => (task, Outcome::Retry { error, landed }),
        };
        self.engine.scheduler.finish(context.now, task, outcome);
    }

    fn check_header(&self, context: &mut Context, task: gradlane_core::sched::TaskId, header: &Sum) {
        let payload = &self.engine.payloads[&task];
        let Operation { tensor, round, .. } = self.script.operations[&payload.part.tickets[0]];
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
        let of = |engine: &Engine, wanted: LinkState| -> Option<ServerId> {
            engine.links.iter().find(|(_, entry)| entry.state == wanted).map(|(server, _)| *server)
        };
        match input {
            Input::LinkReady { link } => match of(&self.engine, LinkState::Dialling(Some(link))) {
                Some(server) => self.engine.link_up(now, server, link),
                // Too late: it was given up.
                None => context.send_link(self.me, link, Input::LinkLost { link, error: Error::Cancelled }),
            },
            Input::LinkFailed { link } => {
                if let Some(server) = of(&self.engine, LinkState::Dialling(Some(link))) {
                    self.engine.link_down(now, server);
                }
            }
            Input::LinkLost { link, error } => {
                self.transport.lose(link, &error);
                let up = of(&self.engine, LinkState::Up(link));
                if let Some(server) = up.or_else(|| of(&self.engine, LinkState::Dialling(Some(link)))) {
                    self.engine.link_down(now, server);
                }
            }
            _ => {}
        }
    }
}

impl Process for WorkerProcess {
    fn handle(&mut self, context: &mut Context, input: Input) {
        match input {
            Input::Timer => {
                self.engine.handle_timeout(context.now);
                let progress = self.engine.progress();
                self.member.handle(context, Input::Timer, progress);
            }
            Input::ControlDialled { .. }
            | Input::ControlUp { .. }
            | Input::ControlFailed { .. }
            | Input::ControlClosed { .. }
            | Input::Frame { .. } => {
                let progress = self.engine.progress();
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
        [self.member.poll_timeout(), self.engine.poll_timeout()].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        self.ended.is_some() && self.engine.scheduler.is_idle() && self.transport.open() == 0
    }

    fn describe(&self) -> String {
        let open = self.script.operations.values().filter(|operation| operation.outcome.is_none());
        let open: Vec<String> = open.map(|Operation { tensor, round, .. }| format!("{tensor}/{round}")).collect();
        let (action, done) = (self.script.at, self.script.done);
        format!("rank {:?}, action {action}, done {done}, unresolved {}", self.engine.rank.0, open.join(" "))
    }
}

fn target_of(epoch: Epoch, task: &Task) -> Target {
    Target { service: Service::DenseSum, epoch, part: task.part, round: task.round, attempt: 0 }
}
