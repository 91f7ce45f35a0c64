//! Time, the queue of events, and the faults that happen to processes: pauses, deaths and restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::types::{NodeId, Time};

use super::checkers::{Concern, Violation, Witness};
use super::clock::Clock;
use super::coordinator::CoordinatorProcess;
use super::faults::{Fault, HEALED};
use super::intruder;
use super::log::Log;
use super::network::Network;
use super::process::Slot;
pub(super) use super::process::{Address, Input, Process, Who};
use super::server::ServerProcess;
use super::worker::{Boards, WorkerProcess};
use super::workload::{Plan, timing};
use crate::random::{Random, mix};

/// What the processes share: everything but themselves.
pub(super) struct Context {
    /// What the clock of the process that runs shows.
    pub(super) now: Time,
    /// The time of the world, which no process knows.
    pub(super) world: Time,
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
    clocks: BTreeMap<Who, Clock>,
    lives: BTreeMap<Who, u32>,
    gone: BTreeSet<Address>,
    /// The shared memory of the machines.
    pub(super) boards: Boards,
    /// What coordinators wrote down.
    pub(super) journal: Vec<Vec<u8>>,
    queue: BTreeMap<(Time, u64), Box<Event>>,
    posted: u64,
    /// How many servers may yet be killed while they answer.
    kills_left: u32,
    /// How often the process that runs has gone on since it was let run.
    turns: u32,
}

#[derive(Debug)]
enum Event {
    Input { to: Address, input: Input },
    Fault(Fault),
    Resume(Address),
    Start(Who),
}

/// A process that goes on so often without time passing does so for ever.
const TURNS_MAX: u32 = 100_000;
/// Longer than any world lasts.
const FOR_GOOD: Duration = Duration::from_secs(1 << 30);

/// A whole cluster.
pub(super) struct World {
    context: Context,
    coordinator: Slot<CoordinatorProcess>,
    servers: Vec<Slot<ServerProcess>>,
    workers: Vec<Slot<WorkerProcess>>,
}

/// After the faults are over, everything must end within this time. Each step may be held up by somebody who gave up: a step timeout until
/// a round may begin, one until it fails, a barrier, and a boundary; the end of the job by the loss of the coordinator.
fn patience(plan: &Plan) -> Duration {
    (timing::STEP * 2 + timing::BARRIER + timing::BOUNDARY) * (plan.steps as u32 + 1)
        + timing::CONTROL_LOST
        + timing::FORM
}

impl World {
    /// The world of `plan`, before its first event.
    pub(super) fn new(plan: Plan, verbose: bool) -> Self {
        let mut random = Random::new(plan.seed ^ 0x7769_7265);
        let members = (0..plan.servers).map(Who::Server).chain((0..plan.workers).map(Who::Worker));
        let everybody: Vec<Who> = [Who::Coordinator].into_iter().chain(members).collect();
        let mut clock =
            |who: &Who| (*who, if plan.classes.drift { Clock::draw(&mut random) } else { Clock::default() });
        let clocks = everybody.iter().map(&mut clock).collect();
        let kills_left = if plan.classes.outlives { plan.servers - 1 } else { 0 };
        let mut context = Context {
            now: Time::ZERO,
            world: Time::ZERO,
            witness: Witness::new(&plan),
            plan,
            random,
            log: Log::new(verbose),
            network: Network::default(),
            clocks,
            lives: BTreeMap::new(),
            gone: BTreeSet::new(),
            boards: Boards::new(),
            journal: Vec::new(),
            queue: BTreeMap::new(),
            posted: 0,
            kills_left,
            turns: 0,
        };
        for (at, fault) in context.plan.faults.clone() {
            context.schedule(at, Event::Fault(fault));
        }
        for who in everybody {
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
            self.context.turn_to(at);
            if at > until {
                self.context.witness.hang(self.unfinished());
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
            self.context.witness.hang(unfinished);
        }
        self.inspect();
        match self.context.witness.violation() {
            Some(violation) => Err(Box::new(violation)),
            None => Ok(self.context.log),
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Input { to, input } => {
                self.context.enter(to.who);
                match to.who {
                    Who::Coordinator => self.coordinator.deliver(&mut self.context, to.life, input),
                    Who::Server(number) => self.servers[number as usize].deliver(&mut self.context, to.life, input),
                    Who::Worker(number) => self.workers[number as usize].deliver(&mut self.context, to.life, input),
                }
            }
            Event::Start(who) => self.start(who),
            Event::Resume(address) => {
                self.context.enter(address.who);
                match address.who {
                    Who::Coordinator => self.coordinator.resume(&mut self.context, address),
                    Who::Server(number) => self.servers[number as usize].resume(&mut self.context, address),
                    Who::Worker(number) => self.workers[number as usize].resume(&mut self.context, address),
                }
            }
            Event::Fault(fault) => self.fail(fault),
        }
    }

    fn start(&mut self, who: Who) {
        let life = self.context.lives.entry(who).and_modify(|life| *life += 1).or_insert(0);
        let address = Address { who, life: *life };
        self.context.enter(who);
        self.context.witness.started(address, self.context.node_of(address));
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
            Fault::Lose { one: who, .. } | Fault::Block { from: who, .. } | Fault::Cut { from: who, .. } => who,
            Fault::Pause { who, .. } | Fault::Kill { who, .. } | Fault::Intrude { who } => who,
            Fault::Drain { who } => who,
            Fault::Succeed { .. } | Fault::Come { .. } | Fault::Go { .. } => Who::Coordinator,
        };
        context.log.note(context.now, who, "fault", &[], || format!("{fault:?}"));
        match fault {
            Fault::Lose { one, other } => {
                let silent = context.random.chance(50);
                context.lose(one, other, silent);
            }
            Fault::Block { from, to, length } => context.block(from, to, length),
            Fault::Cut { from, to } => context.block(from, to, FOR_GOOD),
            Fault::Intrude { who } => intruder::intrude(context, who),
            Fault::Drain { who } => {
                let Who::Server(number) = who else { unreachable!("servers drain") };
                context.enter(who);
                self.servers[number as usize].deliver_now(context, Input::Drain);
            }
            Fault::Pause { who, length } => {
                let paused = match who {
                    Who::Coordinator => self.coordinator.pause(),
                    Who::Server(number) => self.servers[number as usize].pause(),
                    Who::Worker(number) => self.workers[number as usize].pause(),
                };
                if let Some(address) = paused {
                    let (until, idle) = (context.world + length, context.plan.settings.idle_timeout);
                    context.witness.paused(who, context.world, until);
                    if who == Who::Coordinator {
                        context.witness.coordinator_is_away(context.world, until);
                    }
                    let lost = if length > idle { idle + timing::DIAL } else { Duration::ZERO };
                    context.witness.disturbed(Concern::Process(who), context.world, until + lost);
                    context.schedule(until, Event::Resume(address));
                    if length > idle {
                        context.lose_all(address);
                    }
                }
            }
            Fault::Kill { who, seen, restart_after } => self.kill(who, seen, restart_after),
            Fault::Succeed { after } => self.succeed(after),
            Fault::Come { number, goes_after } => {
                self.tell_coordinator(|process, context| process.take_newcomer(context, number));
                if let Some(after) = goes_after {
                    let at = self.context.world + after;
                    self.context.schedule(at, Event::Fault(Fault::Go { number }));
                }
            }
            Fault::Go { number } => self.tell_coordinator(|process, context| process.lose_newcomer(context, number)),
        }
    }

    /// Something happens at the coordinator, if there is one.
    fn tell_coordinator(&mut self, happens: impl FnOnce(&mut CoordinatorProcess, &mut Context)) {
        if let Some(process) = &mut self.coordinator.process {
            self.context.enter(Who::Coordinator);
            happens(process, &mut self.context);
            self.coordinator.arm(&mut self.context);
        }
    }

    /// The coordinator is killed, and another one goes on with its job. To the members that is as a pause in which their connections are lost.
    fn succeed(&mut self, after: Duration) {
        if self.coordinator.is_finished() {
            return;
        }
        let Some(address) = self.coordinator.kill() else { return };
        let context = &mut self.context;
        let until = context.world + after;
        context.witness.coordinator_is_away(context.world, until);
        // It gives nobody up before twice the time.
        context.witness.paused(Who::Coordinator, context.world, until + timing::DEAD);
        let lost = context.plan.settings.idle_timeout + timing::DIAL;
        context.witness.disturbed(Concern::Process(Who::Coordinator), context.world, until + lost + timing::DEAD);
        context.lose_all(address);
        context.schedule(until, Event::Start(Who::Coordinator));
    }

    fn kill(&mut self, who: Who, seen: bool, restart_after: Option<Duration>) {
        let killed = match who {
            Who::Coordinator => self.coordinator.kill(),
            Who::Server(number) => self.servers[number as usize].kill(),
            Who::Worker(number) => self.workers[number as usize].kill(),
        };
        let Some(address) = killed else { return };
        let context = &mut self.context;
        context.witness.killed(address);
        context.lose_all(address);
        context.lose_neighbours(address);
        context.show_end(address);
        if seen {
            self.tell_coordinator(|process, context| process.report_death(context, who));
        }
        if let Some(after) = restart_after {
            let at = self.context.world + after;
            self.context.schedule(at, Event::Start(who));
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
        self.world >= HEALED
    }

    /// The clock of a process.
    pub(super) fn clock(&self, who: Who) -> Clock {
        self.clocks[&who]
    }

    /// What a life of a process proves to be when it connects.
    pub(super) fn node_of(&self, address: Address) -> NodeId {
        let life = if self.plan.classes.new_keys { u64::from(address.life) << 32 } else { 0 };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&mix(address.who.number() | life).to_le_bytes());
        NodeId(bytes)
    }

    /// Lets the world reach a time.
    fn turn_to(&mut self, world: Time) {
        self.world = world;
        self.log.turn_to(world);
        self.witness.turn_to(world);
    }

    /// Lets a process run, by its own clock.
    fn enter(&mut self, who: Who) {
        self.now = self.clock(who).local(self.world);
        self.turns = 0;
    }

    /// The process that runs goes on, because it is not at rest yet.
    ///
    /// # Panics
    /// If it never comes to rest.
    pub(super) fn go_on(&mut self) {
        self.turns += 1;
        assert!(self.turns < TURNS_MAX, "a process goes on for ever without time passing");
    }

    /// A server may be killed while its answers are on their way: some workers then have a sum, and others do not.
    pub(super) fn may_kill(&mut self, server: Who) {
        if self.kills_left == 0 || self.healed() || !self.random.chance(2) {
            return;
        }
        self.kills_left -= 1;
        let after = self.random.millis(0, self.plan.settings.latency_ms.1.max(1) * 2);
        let seen = self.random.chance(60);
        self.schedule(self.world + after, Event::Fault(Fault::Kill { who: server, seen, restart_after: None }));
    }

    /// The current life of a process.
    pub(super) fn address(&self, who: Who) -> Address {
        Address { who, life: self.lives.get(&who).copied().unwrap_or(0) }
    }

    /// Whether this life of a process is over.
    pub(super) fn is_gone(&self, address: Address) -> bool {
        self.gone.contains(&address)
    }

    /// The other workers on the machine of a process that is gone see it, and so does who starts there later.
    fn lose_neighbours(&mut self, gone: Address) {
        self.gone.insert(gone);
        let Who::Worker(number) = gone.who else { return };
        for other in self.plan.topology.neighbours(number) {
            let after = self.random.millis(0, 5);
            self.post(self.address(Who::Worker(other)), after, Input::NeighbourLost { gone });
        }
    }

    /// A server on the machine of a worker that is gone may see it.
    fn show_end(&mut self, gone: Address) {
        let Who::Worker(number) = gone.who else { return };
        for server in 0..self.plan.servers {
            let is_near = self.plan.topology.server_machine(server) == self.plan.topology.machine(number);
            if is_near && self.random.chance(50) {
                let after = self.random.millis(0, 5);
                self.post(self.address(Who::Server(server)), after, Input::ProcessEnded { gone });
            }
        }
    }

    /// Lets `input` reach `to` after a while.
    pub(super) fn post(&mut self, to: Address, after: Duration, input: Input) {
        self.post_at(to, self.world + after, input);
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
