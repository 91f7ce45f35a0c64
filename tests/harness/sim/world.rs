//! Time, the queue of events, and the processes: who gets what, when; who is paused, dead or started again.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::pipeline::Stage;
use gradlane_core::types::{ExchangeId, LinkId, NodeId, Span, TensorKey, Time, WorkerId};
use gradlane_server::node::command::{Receipt, SlotId};

use super::checkers::{Violation, Witness};
use super::coordinator::CoordinatorProcess;
use super::faults::{self, Fault, HEALED};
use super::log::Log;
use super::network::Network;
use super::server::ServerProcess;
use super::worker::WorkerProcess;
use super::workload::{Plan, timing};
use crate::random::Random;

/// A process of the world, whichever of its lives. The number of a worker or server is not its rank, which the coordinator gives it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Who {
    /// The one coordinator.
    Coordinator,
    /// A server, by number.
    Server(u32),
    /// A worker, by number.
    Worker(u32),
}

/// One life of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Address {
    /// Which process.
    pub(super) who: Who,
    /// Counts its starts.
    pub(super) life: u32,
}

/// Something that reaches a process. A connection or exchange that is over by then is ignored by it.
#[derive(Clone, Debug)]
pub(super) enum Input {
    /// A machine wants to be told the time.
    Timer,
    /// A member dialled the coordinator.
    ControlDialled { control: u64, from: Address },
    /// The coordinator was reached.
    ControlUp { control: u64 },
    /// The coordinator was not reached in time.
    ControlFailed { control: u64 },
    /// The control connection ended.
    ControlClosed { control: u64, error: Error },
    /// A control frame.
    Frame { control: u64, bytes: Vec<u8> },
    /// A worker dialled a server.
    LinkDialled { link: LinkId, from: Address },
    /// The server was reached.
    LinkReady { link: LinkId },
    /// The server was not reached in time.
    LinkFailed { link: LinkId },
    /// The link ended.
    LinkLost { link: LinkId, error: Error },
    /// A contribution was handed over.
    Pushed { exchange: ExchangeId },
    /// A header came in at a server.
    Opened { exchange: ExchangeId },
    /// Some bytes of a body came in at a server.
    Body { exchange: ExchangeId, span: Span },
    /// A server's thread says what became of a contribution.
    Receipt { slot: SlotId, worker: WorkerId, exchange: ExchangeId, receipt: Receipt },
    /// All of a contribution was acknowledged: nothing refers to its memory any more.
    Returned { exchange: ExchangeId },
    /// An answer has come in at a worker so far; whether that is all.
    Answer { exchange: ExchangeId, bytes: usize, ended: bool },
    /// An answer was handed over.
    Answered { exchange: ExchangeId },
    /// A stream was reset.
    ExchangeTorn { exchange: ExchangeId, error: Error },
    /// A stage's bell rang.
    Bell { stage: Stage },
    /// The training loop may go on.
    Script,
}

/// What the processes share: everything but themselves.
pub(super) struct Context {
    /// The time.
    pub(super) now: Time,
    /// What the seed decided.
    pub(super) plan: Plan,
    /// What the seed still decides.
    pub(super) random: Random,
    /// What happened.
    pub(super) log: Log,
    /// What must hold.
    pub(super) witness: Witness,
    /// The connections.
    pub(super) network: Network,
    /// The coordinator's only life.
    pub(super) coordinator: Address,
    lives: BTreeMap<Who, u32>,
    queue: BTreeMap<(Time, u64), Box<Event>>,
    posted: u64,
}

#[derive(Debug)]
enum Event {
    Input { to: Address, input: Input },
    Fault(Fault),
    Resume(Address),
    Start(Who),
}

/// A process as the world drives it.
pub(super) trait Process {
    /// Something happened to it.
    fn handle(&mut self, context: &mut Context, input: Input);
    /// When it wants [`Input::Timer`].
    fn poll_timeout(&self) -> Option<Time>;
    /// Whether it has nothing left to do.
    fn is_finished(&self) -> bool;
    /// What it waits for.
    fn describe(&self) -> String;
}

/// A place where a process runs, or ran.
struct Slot<P> {
    process: Option<P>,
    address: Address,
    paused: bool,
    backlog: VecDeque<Input>,
    armed: Option<Time>,
}

/// A whole cluster.
pub(super) struct World {
    context: Context,
    coordinator: Slot<CoordinatorProcess>,
    servers: Vec<Slot<ServerProcess>>,
    workers: Vec<Slot<WorkerProcess>>,
}

/// After the faults are over, everything must end within this time. Each step may be held up by somebody who gave up: a step timeout until
/// a round may begin, one until it fails, and a barrier; the end of the job by the loss of the coordinator.
fn patience(plan: &Plan) -> Duration {
    (timing::STEP * 2 + timing::BARRIER) * (plan.steps as u32 + 1) + timing::CONTROL_LOST + timing::FORM
}

impl World {
    /// The world of `plan`, before its first event.
    pub(super) fn new(plan: Plan, verbose: bool) -> Self {
        let mut random = Random::new(plan.seed ^ 0x7769_7265);
        let schedule = faults::schedule(plan.classes, plan.workers, plan.servers, &mut random);
        let coordinator = Address { who: Who::Coordinator, life: 0 };
        let mut context = Context {
            now: Time::ZERO,
            witness: Witness::new(&plan),
            plan,
            random,
            log: Log::new(verbose),
            network: Network::default(),
            coordinator,
            lives: BTreeMap::new(),
            queue: BTreeMap::new(),
            posted: 0,
        };
        for (at, fault) in schedule {
            context.schedule(at, Event::Fault(fault));
        }
        let members = (0..context.plan.servers).map(Who::Server).chain((0..context.plan.workers).map(Who::Worker));
        for who in [Who::Coordinator].into_iter().chain(members) {
            let at = Time::ZERO + if who == Who::Coordinator { Duration::ZERO } else { context.random.millis(0, 500) };
            context.schedule(at, Event::Start(who));
        }
        let (servers, workers) = (context.plan.servers, context.plan.workers);
        Self {
            coordinator: Slot::new(Who::Coordinator),
            servers: (0..servers).map(|number| Slot::new(Who::Server(number))).collect(),
            workers: (0..workers).map(|number| Slot::new(Who::Worker(number))).collect(),
            context,
        }
    }

    /// Lets everything happen.
    ///
    /// # Errors
    /// What must not have happened.
    pub(super) fn run(mut self) -> Result<Log, Box<Violation>> {
        let until = HEALED + patience(&self.context.plan);
        while let Some(((at, _), event)) = self.context.queue.pop_first() {
            self.context.now = at;
            if at > until {
                self.context.witness.hang(at, self.unfinished());
            } else {
                self.happen(*event);
            }
            if let Some(violation) = self.context.witness.violation() {
                return Err(Box::new(violation));
            }
            // What is left in the queue then is of no interest: heartbeats and connections that time out.
            if self.context.healed() && self.is_finished() {
                break;
            }
        }
        let unfinished = self.unfinished();
        if !unfinished.is_empty() {
            self.context.witness.hang(self.context.now, unfinished);
        }
        self.inspect();
        match self.context.witness.violation() {
            Some(violation) => Err(Box::new(violation)),
            None => Ok(self.context.log),
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Input { to, input } => match to.who {
                Who::Coordinator => self.coordinator.deliver(&mut self.context, to.life, input),
                Who::Server(number) => self.servers[number as usize].deliver(&mut self.context, to.life, input),
                Who::Worker(number) => self.workers[number as usize].deliver(&mut self.context, to.life, input),
            },
            Event::Start(who) => self.start(who),
            Event::Resume(address) => match address.who {
                Who::Coordinator => self.coordinator.resume(&mut self.context, address),
                Who::Server(number) => self.servers[number as usize].resume(&mut self.context, address),
                Who::Worker(number) => self.workers[number as usize].resume(&mut self.context, address),
            },
            Event::Fault(fault) => self.fail(fault),
        }
    }

    fn start(&mut self, who: Who) {
        let life = self.context.lives.entry(who).and_modify(|life| *life += 1).or_insert(0);
        let address = Address { who, life: *life };
        self.context.log.note(self.context.now, who, "start", &[u64::from(address.life)], String::new);
        match who {
            Who::Coordinator => self.coordinator.start(&mut self.context, address, CoordinatorProcess::new),
            Who::Server(number) => {
                self.servers[number as usize].start(&mut self.context, address, ServerProcess::new);
            }
            Who::Worker(number) => {
                self.workers[number as usize].start(&mut self.context, address, WorkerProcess::new);
            }
        }
    }

    fn fail(&mut self, fault: Fault) {
        let context = &mut self.context;
        let who = match fault {
            Fault::Lose { one: who, .. } | Fault::Block { from: who, .. } => who,
            Fault::Pause { who, .. } | Fault::Kill { who, .. } => who,
        };
        context.log.note(context.now, who, "fault", &[], || format!("{fault:?}"));
        match fault {
            Fault::Lose { one, other } => {
                let silent = context.random.chance(50);
                context.lose(one, other, silent);
            }
            Fault::Block { from, to, length } => context.block(from, to, length),
            Fault::Pause { who, length } => {
                let paused = match who {
                    Who::Coordinator => self.coordinator.pause(),
                    Who::Server(number) => self.servers[number as usize].pause(),
                    Who::Worker(number) => self.workers[number as usize].pause(),
                };
                if let Some(address) = paused {
                    let (until, idle) = (context.now + length, context.plan.settings.idle_timeout);
                    context.witness.disturbed(context.now, until + idle, &[who]);
                    context.schedule(until, Event::Resume(address));
                    if length > idle {
                        context.lose_all(address);
                    }
                }
            }
            Fault::Kill { who, seen, restart_after } => self.kill(who, seen, restart_after),
        }
    }

    fn kill(&mut self, who: Who, seen: bool, restart_after: Option<Duration>) {
        let killed = match who {
            Who::Coordinator => self.coordinator.kill(),
            Who::Server(number) => self.servers[number as usize].kill(),
            Who::Worker(number) => self.workers[number as usize].kill(),
        };
        let Some(address) = killed else { return };
        let context = &mut self.context;
        context.witness.killed(context.now, who);
        context.lose_all(address);
        if let (true, Some(process)) = (seen, &mut self.coordinator.process) {
            process.report_death(context, who);
            self.coordinator.arm(context);
        }
        // A coordinator keeps nothing over its death: another one would be another job.
        if let Some(after) = restart_after.filter(|_| who != Who::Coordinator) {
            let at = context.now + after;
            context.schedule(at, Event::Start(who));
        }
    }

    fn is_finished(&self) -> bool {
        self.workers.iter().all(Slot::is_finished)
            && self.servers.iter().all(Slot::is_finished)
            && self.coordinator.is_finished()
    }

    /// Who has not ended, and what it waits for.
    fn unfinished(&self) -> Vec<(Who, String)> {
        let mut unfinished = Vec::new();
        unfinished.extend(self.coordinator.unfinished());
        unfinished.extend(self.servers.iter().filter_map(Slot::unfinished));
        unfinished.extend(self.workers.iter().filter_map(Slot::unfinished));
        unfinished
    }

    /// What must hold at the end.
    fn inspect(&mut self) {
        let context = &mut self.context;
        let cause = self.coordinator.process.as_ref().and_then(CoordinatorProcess::outcome).cloned();
        for server in self.servers.iter().filter_map(|slot| slot.process.as_ref()) {
            server.inspect(context, cause.as_ref());
        }
        for worker in self.workers.iter().filter_map(|slot| slot.process.as_ref()) {
            worker.inspect(context, cause.as_ref());
        }
    }
}

impl Context {
    /// Whether the faults are over.
    pub(super) fn healed(&self) -> bool {
        self.now >= HEALED
    }

    /// The current life of a process.
    pub(super) fn address(&self, who: Who) -> Address {
        Address { who, life: self.lives.get(&who).copied().unwrap_or(0) }
    }

    /// A contribution to a tensor was damaged on its way: it, and those that share parts with it, may fail.
    pub(super) fn spoil(&mut self, key: TensorKey) {
        let spoiled = self.plan.tensors.iter().position(|tensor| tensor.spec.key() == key);
        self.witness.excuse(spoiled.map(|tensor| self.plan.companions(tensor)).unwrap_or_default());
    }

    /// Lets `input` reach `to` after a while.
    pub(super) fn post(&mut self, to: Address, after: Duration, input: Input) {
        self.post_at(to, self.now + after, input);
    }

    /// Lets `input` reach `to` at a time.
    pub(super) fn post_at(&mut self, to: Address, at: Time, input: Input) {
        self.schedule(at, Event::Input { to, input });
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.posted += 1;
        self.queue.insert((at, self.posted), Box::new(event));
    }
}

impl<P: Process> Slot<P> {
    fn new(who: Who) -> Self {
        let address = Address { who, life: 0 };
        Self { process: None, address, paused: false, backlog: VecDeque::new(), armed: None }
    }

    fn start(&mut self, context: &mut Context, address: Address, new: impl FnOnce(&mut Context, Address) -> P) {
        *self = Self { address, ..Self::new(address.who) };
        self.process = Some(new(context, address));
        self.arm(context);
    }

    fn deliver(&mut self, context: &mut Context, life: u32, input: Input) {
        if life != self.address.life {
            return;
        }
        if self.paused {
            return self.backlog.push_back(input);
        }
        let Some(process) = &mut self.process else { return };
        if let Input::Timer = input {
            self.armed = self.armed.filter(|at| *at > context.now);
            if process.poll_timeout().is_none_or(|due| due > context.now) {
                return self.arm(context);
            }
        }
        process.handle(context, input);
        self.arm(context);
    }

    /// Wakes the process when it wants to be woken, a little late as threads are.
    fn arm(&mut self, context: &mut Context) {
        let Some(due) = self.process.as_ref().and_then(Process::poll_timeout) else { return };
        if self.armed.is_none_or(|armed| due < armed) {
            let at = due.max(context.now) + Duration::from_micros(context.random.below(500));
            self.armed = Some(at);
            context.post_at(self.address, at, Input::Timer);
        }
    }

    fn pause(&mut self) -> Option<Address> {
        let runs = self.process.is_some() && !std::mem::replace(&mut self.paused, true);
        runs.then_some(self.address)
    }

    fn resume(&mut self, context: &mut Context, address: Address) {
        if address != self.address {
            return;
        }
        self.paused = false;
        while let Some(input) = self.backlog.pop_front() {
            self.deliver(context, address.life, input);
        }
    }

    fn kill(&mut self) -> Option<Address> {
        self.process.take().map(|_| self.address)
    }

    fn is_finished(&self) -> bool {
        self.process.as_ref().is_none_or(Process::is_finished)
    }

    fn unfinished(&self) -> Option<(Who, String)> {
        let process = self.process.as_ref().filter(|process| !process.is_finished())?;
        Some((self.address.who, process.describe()))
    }
}

impl Who {
    /// A number that no other process has.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Coordinator => 0,
            Self::Server(number) => 100 + u64::from(number),
            Self::Worker(number) => 200 + u64::from(number),
        }
    }

    /// Its identity.
    pub(super) fn node(self) -> NodeId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&crate::random::mix(self.number()).to_le_bytes());
        NodeId(bytes)
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.pad("coordinator"),
            Self::Server(number) => f.pad(&format!("server#{number}")),
            Self::Worker(number) => f.pad(&format!("worker#{number}")),
        }
    }
}
