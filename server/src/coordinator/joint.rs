//! One coordinator and five members over a network that loses connections: whatever it does, every request ends once, and all members
//! agree on how the job ended.
//!
//! Connections carry frames in order in both directions, with delays. A lost connection loses what was under way and both ends learn
//! of it later, each in its own time. The coordinator may be killed, and another one goes on with what it wrote down. All choices come from
//! a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::cluster::{Member, MemberCommand, MemberConfig, MemberEvent, Patience};
use gradlane_core::error::{Error, Result};
use gradlane_core::types::{
    Address, Answer, Ask, ClockKey, DType, Fate, Incarnation, LinkId, Mode, NodeId, Process, Role, Scheme, Setup,
    StoreAnswer, StoreAsk, TensorSpec, Tick, Time,
};
use gradlane_core::wire::Frame;

use super::*;
use elastic::Training;

mod elastic;

const WORKERS: usize = 3;
const SERVERS: usize = 2;
const SEEDS: u64 = 200;
/// How often each worker adds to a number of the store.
const ADDS: usize = 8;
/// Connections are lost only before. After, everything must resolve.
const STORM: Duration = Duration::from_secs(20);
const DEAD_TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn a_job_runs_to_its_end_over_a_network_that_loses_connections() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Policy::Abort);
        world.run();
        for node in &world.nodes {
            assert_eq!(node.end, Some(Ok(())), "seed {seed}: {}", node.name());
            assert!(
                node.outcomes.values().all(|outcomes| outcomes[..] == [Ok(())]),
                "seed {seed}: {:?}",
                node.outcomes
            );
            assert_eq!(node.outcomes.len(), if node.is_worker() { 4 } else { 0 }, "seed {seed}: {}", node.name());
        }
        let sums: Vec<i64> = (1..=(WORKERS * ADDS) as i64).collect();
        assert_eq!(world.sums(seed), sums, "seed {seed}: each addition was made once");
        assert_eq!(world.finished, Some(Ok(())), "seed {seed}");
        lost += world.connections_lost;
    }
    assert!(lost > SEEDS, "the network lost {lost} connections only");
}

#[test]
fn a_job_runs_to_its_end_though_its_coordinator_is_killed_again_and_again() {
    let (mut recovered, mut connections_lost) = (0, 0);
    for seed in 0..2 * SEEDS {
        let mut world = World::new(seed, if seed % 2 == 0 { Policy::Abort } else { Policy::CONTINUE });
        for _ in 0..3 {
            let at = Time::ZERO + Duration::from_millis(world.random(4_000));
            let away = Duration::from_millis(world.random(3_000));
            world.schedule(at, Happening::CoordinatorDies { away });
        }
        world.run();
        for node in &world.nodes {
            assert_eq!(node.end, Some(Ok(())), "seed {seed}: {}", node.name());
            let passed = node.outcomes.values().all(|outcomes| outcomes[..] == [Ok(())]);
            assert!(passed, "seed {seed}: {}: {:?}", node.name(), node.outcomes);
        }
        let sums: Vec<i64> = (1..=(WORKERS * ADDS) as i64).collect();
        assert_eq!(world.sums(seed), sums, "seed {seed}: each addition was made once");
        assert_eq!(world.finished, Some(Ok(())), "seed {seed}");
        (recovered, connections_lost) = (recovered + world.recovered, connections_lost + world.connections_lost);
    }
    assert!(recovered > 3 * SEEDS && connections_lost > SEEDS, "{recovered} of {} times", 6 * SEEDS);
}

#[test]
fn a_death_reaches_everybody_with_one_cause_within_a_bounded_time() {
    let mut deaths = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Policy::Abort);
        let victim = world.random(world.nodes.len() as u64) as usize;
        let at = Time::ZERO + Duration::from_millis(world.random(3_000));
        let is_seen = world.random(2) == 0;
        world.schedule(at, Happening::Crash { victim, is_seen });
        world.run();
        let Some(finished) = world.finished.clone() else { panic!("seed {seed}: the coordinator goes on") };
        for node in world.nodes.iter().filter(|node| !node.crashed) {
            let end = node.end.clone().unwrap_or_else(|| panic!("seed {seed}: {} goes on", node.name()));
            assert_eq!(end, finished, "seed {seed}: {}", node.name());
            assert!(node.outcomes.values().all(|outcomes| outcomes.len() == 1), "seed {seed}: {:?}", node.outcomes);
        }
        match finished {
            // It had left, or the job was over.
            Ok(()) => {}
            Err(Error::PeerLost { host, .. }) => {
                assert_eq!(host, format!("n{victim} (pid {victim})"), "seed {seed}");
                let bound = at + DEAD_TIMEOUT + Duration::from_secs(5);
                assert!(world.last_end <= bound, "seed {seed}: {:?} after {at:?}", world.last_end);
                deaths.insert(victim);
            }
            // It died while the job formed.
            Err(Error::NotFormed { missing, .. }) => assert_eq!(missing.len(), 1, "seed {seed}"),
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert_eq!(deaths.len(), WORKERS + SERVERS, "each of them died in some run");
}

#[test]
fn a_job_that_continues_ends_in_order_for_every_worker_that_is_left() {
    let (mut went_on, mut losses) = (0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed, Policy::CONTINUE);
        let victim = world.random(WORKERS as u64) as usize;
        let at = Time::ZERO + Duration::from_millis(world.random(3_000));
        let is_seen = world.random(2) == 0;
        world.schedule(at, Happening::Crash { victim, is_seen });
        world.run();
        let finished = world.finished.clone().unwrap_or_else(|| panic!("seed {seed}: the coordinator goes on"));
        for node in world.nodes.iter().filter(|node| !node.crashed) {
            assert_eq!(node.end, Some(finished.clone()), "seed {seed}: {}", node.name());
        }
        match finished {
            Ok(()) => {
                let left = world.nodes.iter().filter(|node| !node.crashed && node.is_worker());
                for node in left {
                    let passed = node.outcomes.values().all(|outcomes| outcomes[..] == [Ok(())]);
                    assert!(passed && node.outcomes.len() == 4, "seed {seed}: {}: {:?}", node.name(), node.outcomes);
                }
                let sums = world.sums(seed);
                assert!(
                    sums.is_sorted_by(|one, other| one < other),
                    "seed {seed}: no addition was made twice: {sums:?}"
                );
                went_on += u32::from(world.coordinator.view().epoch.number > 2);
            }
            // It died while the job formed.
            Err(Error::NotFormed { missing, .. }) => assert_eq!(missing.len(), 1, "seed {seed}"),
            Err(error) => panic!("seed {seed}: {error}"),
        }
        losses += 1;
    }
    assert!(went_on > losses / 4, "{went_on} of {losses} jobs went on without a worker");
}

/// What happens at a moment.
#[derive(Debug)]
enum Happening {
    AtCoordinator(LinkId, Delivery),
    AtMember(usize, LinkId, Delivery),
    /// A process ends without a word; `is_seen` by a launcher.
    Crash {
        victim: usize,
        is_seen: bool,
    },
    /// The coordinator is killed, once it has written down its next input, and another one starts after this time.
    CoordinatorDies {
        away: Duration,
    },
    CoordinatorStarts,
    /// A process joins an elastic job, perhaps again.
    Comes(usize),
    /// A worker has ended a step.
    Trains(usize),
}

#[derive(Debug)]
enum Delivery {
    Up,
    Frame(Frame),
    Down(Error),
}

struct World {
    now: Time,
    coordinator: Coordinator,
    config: CoordinatorConfig,
    /// What was written down.
    journal: Vec<Vec<u8>>,
    /// When the present coordinator started, and what its clock showed then.
    started: (Time, Time),
    /// For how long the coordinator is to be away once it has handled its next input.
    dies: Option<Duration>,
    is_away: bool,
    /// How often a coordinator went on with the job.
    recovered: u64,
    finished: Option<Result<()>>,
    nodes: Vec<Node>,
    agenda: BTreeMap<(Time, u64), Happening>,
    links: BTreeMap<LinkId, Wire>,
    connections_lost: u64,
    last_end: Time,
    /// The steps that all workers had done when an elastic job formed again.
    agreed: u64,
    state: u64,
    serial: u64,
}

#[derive(Clone)]
struct Wire {
    node: usize,
    /// Nothing but its end is delivered any more.
    is_broken: bool,
    /// Deliveries in each direction keep their order.
    last_at_coordinator: Time,
    last_at_member: Time,
}

struct Node {
    config: MemberConfig,
    member: Member,
    link: Option<LinkId>,
    crashed: bool,
    end: Option<Result<()>>,
    /// Of its declaration and barriers, by request.
    outcomes: BTreeMap<u64, Vec<Result<()>>>,
    /// Of its requests to the store, and of its tick.
    answers: BTreeMap<u64, Vec<Result<Answer>>>,
    is_elastic: bool,
    /// Of a worker of an elastic job.
    training: Option<Training>,
    /// Whether a server knows that its job forms again.
    forms_again: bool,
}

impl World {
    fn new(seed: u64, policy: Policy) -> Self {
        let nodes = (0..WORKERS + SERVERS).map(Node::new).collect();
        let config = CoordinatorConfig {
            job: "joint".to_owned(),
            workers: WORKERS as u32,
            servers: SERVERS as u32,
            form_timeout: Duration::from_secs(25),
            suspect_timeout: Duration::from_secs(2),
            dead_timeout: DEAD_TIMEOUT,
            boundary_timeout: Duration::from_secs(20),
            workers_max: None,
            reform_timeout: Duration::from_secs(10),
            leave_grace: Duration::from_secs(15),
            end_grace: Duration::from_secs(10),
            stall_interval: Duration::from_secs(10),
            policy,
            layout: LayoutConfig::default(),
            journals: true,
            defect: None,
        };
        Self {
            now: Time::ZERO,
            coordinator: Coordinator::new(config.clone(), 1, Time::ZERO),
            config,
            journal: Vec::new(),
            started: (Time::ZERO, Time::ZERO),
            dies: None,
            is_away: false,
            recovered: 0,
            finished: None,
            nodes,
            agenda: BTreeMap::new(),
            links: BTreeMap::new(),
            connections_lost: 0,
            last_end: Time::ZERO,
            agreed: 0,
            state: seed,
            serial: 0,
        }
    }

    /// The sums that workers got for their additions, in order. Everything that survivors asked the store was answered once.
    fn sums(&self, seed: u64) -> Vec<i64> {
        let mut sums = Vec::new();
        for node in self.nodes.iter().filter(|node| !node.crashed) {
            for answers in node.answers.values() {
                match &answers[..] {
                    [Ok(Answer::Store(StoreAnswer::Number(sum)))] => sums.push(*sum),
                    [Ok(Answer::Store(StoreAnswer::Done))] => {}
                    [Ok(Answer::Ticked(ticked))] => {
                        assert_eq!((ticked.round, ticked.fate), (1, Fate::Accepted), "seed {seed}")
                    }
                    [Ok(Answer::Store(StoreAnswer::Value(Some(value))))] => assert_eq!(value, b"v", "seed {seed}"),
                    answers => panic!("seed {seed}: {}: {answers:?}", node.name()),
                }
            }
        }
        sums.sort_unstable();
        sums
    }

    /// Until nothing can happen any more.
    fn run(&mut self) {
        const PATIENCE: Time = Time(300_000_000_000);
        self.drain();
        while let Some(next) = self.next_moment() {
            assert!(next <= PATIENCE, "somebody waits without end");
            self.now = self.now.max(next);
            while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let happening = entry.remove();
                self.happen(happening);
                self.drain();
            }
            if !self.is_away {
                self.coordinator.handle_timeout(self.clock());
            }
            for node in self.nodes.iter_mut().filter(|node| !node.crashed) {
                node.member.handle_timeout(self.now);
            }
            self.drain();
        }
    }

    fn next_moment(&self) -> Option<Time> {
        let members = self.nodes.iter().filter(|node| !node.crashed).filter_map(|node| node.member.poll_timeout());
        let agenda = self.agenda.keys().next().map(|(time, _)| *time);
        let (began, base) = self.started;
        let due = self.coordinator.poll_timeout().filter(|_| !self.is_away).map(|at| began + at.since(base));
        members.chain(due).chain(agenda).min()
    }

    /// What the clock of the coordinator shows.
    fn clock(&self) -> Time {
        let (began, base) = self.started;
        base + self.now.since(began)
    }

    fn happen(&mut self, happening: Happening) {
        let now = self.now;
        match happening {
            Happening::AtCoordinator(..) if self.is_away => {}
            Happening::AtCoordinator(link, Delivery::Up) if self.links[&link].is_broken => {}
            Happening::AtCoordinator(link, Delivery::Up) => {
                let node = NodeId([self.links[&link].node as u8; 32]);
                let role = self.nodes[self.links[&link].node].config.process.role;
                self.coordinator.handle_connected(link, node, role);
            }
            Happening::AtCoordinator(link, Delivery::Frame(frame)) if !self.links[&link].is_broken => {
                self.coordinator.handle_frame(self.clock(), link, frame);
                if let Some(away) = self.dies.take() {
                    self.kill_coordinator(away);
                }
            }
            Happening::AtCoordinator(link, Delivery::Down(error)) => self.coordinator.handle_disconnected(link, error),
            Happening::AtMember(node, link, delivery) => {
                let broken = self.links[&link].is_broken;
                let node = &mut self.nodes[node];
                match delivery {
                    // What is for a process that ended, or for a connection that is over for it.
                    _ if node.crashed || node.link != Some(link) => {}
                    Delivery::Up => node.member.handle_connected(now),
                    Delivery::Frame(frame) if !broken => node.member.handle_frame(now, frame),
                    Delivery::Frame(_) => {}
                    Delivery::Down(error) => {
                        node.link = None;
                        node.member.handle_disconnected(now, error);
                    }
                }
            }
            Happening::AtCoordinator(_, Delivery::Frame(_)) => {}
            Happening::Crash { victim, is_seen } => {
                let node = &mut self.nodes[victim];
                node.crashed = true;
                if is_seen {
                    let (pid, host) = (node.config.process.pid, node.config.process.host.clone());
                    self.coordinator.handle_death(now, pid, &host, "killed by signal 9".to_owned());
                }
            }
            Happening::CoordinatorDies { away } => self.dies = Some(away).filter(|_| self.finished.is_none()),
            Happening::CoordinatorStarts => self.start_coordinator(),
            Happening::Comes(node) => self.comes(node),
            Happening::Trains(node) => self.trains(node),
        }
    }

    /// What it has written down is kept, and nobody hears what it has not said yet.
    fn kill_coordinator(&mut self, away: Duration) {
        let commands = std::iter::from_fn(|| self.coordinator.next_command());
        self.journal.extend(commands.filter_map(|command| match command {
            Command::Journal(record) => Some(record.encode()),
            _ => None,
        }));
        self.is_away = true;
        for (link, wire) in self.links.clone() {
            if !std::mem::replace(&mut self.links.get_mut(&link).expect("a copy").is_broken, true) {
                let at = wire.last_at_member.max(self.now + self.delay() * 5);
                self.schedule(at, Happening::AtMember(wire.node, link, Delivery::Down(reset())));
            }
        }
        self.schedule(self.now + away, Happening::CoordinatorStarts);
    }

    fn start_coordinator(&mut self) {
        self.is_away = false;
        if self.journal.is_empty() {
            let term = self.coordinator.view().epoch.term + 1;
            self.coordinator = Coordinator::new(self.config.clone(), term, self.clock());
            return;
        }
        let records = self.journal.iter().map(|bytes| Record::decode(bytes).expect("it was written so"));
        let (coordinator, base) = Coordinator::recover(self.config.clone(), records).expect("it was written so");
        self.coordinator.wait_again(base);
        assert_eq!(coordinator.lasting(), self.coordinator.lasting());
        (self.coordinator, self.started) = (coordinator, (self.now, base));
        self.recovered += 1;
    }

    fn drain(&mut self) {
        while let Some(command) = self.coordinator.next_command() {
            match command {
                Command::Send { link, frame } => self.carry_to_member(link, Delivery::Frame(frame)),
                Command::Close { link, error } => self.carry_to_member(link, Delivery::Down(error)),
                Command::Certify { .. } => unreachable!("nobody asks for a certificate"),
                Command::ShareKey { .. } => {}
                Command::Disk(_) => unreachable!("nobody asks for a checkpoint"),
                Command::Obey { .. } => unreachable!("nobody gives orders"),
                Command::Journal(record) => self.journal.push(record.encode()),
                Command::Event(Event::Finished(_)) if self.coordinator.forms_again() => self.form_again(),
                Command::Event(Event::Finished(outcome)) => {
                    assert_eq!(self.finished.replace(outcome), None, "finished once");
                }
                Command::Event(_) => {}
            }
        }
        for node in 0..self.nodes.len() {
            while let Some(command) = self.nodes[node].member.next_command() {
                self.obey(node, command);
            }
        }
    }

    fn obey(&mut self, node: usize, command: MemberCommand) {
        match command {
            MemberCommand::Dial => {
                self.serial += 1;
                let link = LinkId(self.serial);
                let (last_at_coordinator, last_at_member) = (self.now, self.now);
                self.links.insert(link, Wire { node, is_broken: false, last_at_coordinator, last_at_member });
                self.nodes[node].link = Some(link);
                if self.finished.is_some() || self.is_away {
                    return self.carry_to_member(link, Delivery::Down(reset()));
                }
                self.carry_to_coordinator(link, Delivery::Up);
                self.carry_to_member(link, Delivery::Up);
            }
            MemberCommand::Send(frame) => {
                let link = self.nodes[node].link.expect("sent on a connection");
                self.carry_to_coordinator(link, Delivery::Frame(frame));
            }
            MemberCommand::Hangup => {
                if let Some(link) = self.nodes[node].link.take() {
                    self.carry_to_coordinator(link, Delivery::Down(reset()));
                }
            }
            MemberCommand::SayWhy { .. } => {}
            MemberCommand::Event(event) if self.nodes[node].is_elastic => self.tell_elastic(node, event),
            MemberCommand::Event(event) => self.nodes[node].hear(self.now, event, &mut self.last_end),
        }
    }

    fn carry_to_coordinator(&mut self, link: LinkId, delivery: Delivery) {
        self.perhaps_lose(link);
        let delay = self.delay();
        let wire = self.links.get_mut(&link).expect("links are kept");
        wire.last_at_coordinator = wire.last_at_coordinator.max(self.now + delay);
        let at = wire.last_at_coordinator;
        self.schedule(at, Happening::AtCoordinator(link, delivery));
    }

    fn carry_to_member(&mut self, link: LinkId, delivery: Delivery) {
        self.perhaps_lose(link);
        let delay = self.delay();
        let wire = self.links.get_mut(&link).expect("links are kept");
        wire.last_at_member = wire.last_at_member.max(self.now + delay);
        let (at, node) = (wire.last_at_member, wire.node);
        self.schedule(at, Happening::AtMember(node, link, delivery));
    }

    fn perhaps_lose(&mut self, link: LinkId) {
        if self.now.since(Time::ZERO) >= STORM || self.links[&link].is_broken || self.random(20) != 0 {
            return;
        }
        self.connections_lost += 1;
        let (coordinator_learns, member_learns) = (self.delay() * 5, self.delay() * 5);
        let wire = self.links.get_mut(&link).expect("links are kept");
        wire.is_broken = true;
        let coordinator_learns = wire.last_at_coordinator.max(self.now + coordinator_learns);
        let member_learns = wire.last_at_member.max(self.now + member_learns);
        let node = wire.node;
        self.schedule(coordinator_learns, Happening::AtCoordinator(link, Delivery::Down(reset())));
        self.schedule(member_learns, Happening::AtMember(node, link, Delivery::Down(reset())));
    }

    fn schedule(&mut self, at: Time, happening: Happening) {
        self.serial += 1;
        self.agenda.insert((at, self.serial), happening);
    }

    fn delay(&mut self) -> Duration {
        Duration::from_millis(1 + self.random(100))
    }

    fn random(&mut self, below: u64) -> u64 {
        // Knuth's MMIX generator; the high bits are the good ones.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % below
    }
}

impl Node {
    fn new(number: usize) -> Self {
        Self::of(number, if number < WORKERS { Role::Worker } else { Role::Server })
    }

    fn of(number: usize, role: Role) -> Self {
        let config = MemberConfig {
            process: Process {
                host: format!("n{number}"),
                pid: number as u32,
                addresses: (role == Role::Server)
                    .then(|| Address::new(Scheme::Quic, format!("n{number}:7000")))
                    .into_iter()
                    .collect(),
                ..Process::new(role, Incarnation(number as u128))
            },
            requested: None,
            workers: WORKERS as u32,
            servers: 0,
            coordinator: "n0:6000".to_owned(),
            heartbeat_interval: Duration::from_millis(250),
            silence_max: Duration::from_secs(2),
            warn_after: Duration::from_secs(10),
            join_timeout: Duration::from_secs(60),
            control_lost_timeout: Duration::from_secs(120),
            contact: None,
            replaced_timeout: Duration::from_secs(10),
            redial_min: Duration::from_millis(100),
            redial_max: Duration::from_secs(1),
            setup: Setup::default(),
            defect: None,
        };
        let member = Member::new(config.clone(), Time::ZERO);
        Self {
            config,
            member,
            link: None,
            crashed: false,
            end: None,
            outcomes: BTreeMap::new(),
            answers: BTreeMap::new(),
            is_elastic: false,
            training: None,
            forms_again: false,
        }
    }

    /// A worker declares, adds to a number of the store, reads a key that every worker puts, and ticks a clock. When all of this was answered, it waits at
    /// a barrier, declares the name anew, waits at a barrier of the same name, and leaves.
    fn hear(&mut self, now: Time, event: MemberEvent, last_end: &mut Time) {
        match event {
            MemberEvent::Joined { .. } if self.is_worker() => {
                self.declare();
                let adds = vec![StoreAsk::Add { key: "n".to_owned(), amount: 1 }; ADDS];
                let get = StoreAsk::Get { key: "k".to_owned(), wait: Some(Duration::ZERO) };
                let put = StoreAsk::Put { key: "k".to_owned(), value: b"v".to_vec(), expected: None };
                let mode = Mode { clock: Some(ClockKey::of("c")), .."sync".parse().expect("a mode") };
                let tick = Tick {
                    clock: "c".to_owned(),
                    mode,
                    round: 1,
                    samples: 1,
                    leaves: false,
                    wait: Some(Duration::ZERO),
                };
                let asks = adds.into_iter().chain([get, put]).map(Ask::from).chain([Ask::Tick(tick)]);
                for ask in asks {
                    let request = self.member.ask_coordinator(now, ask, Patience::Named(Duration::from_secs(60)));
                    self.answers.insert(request, Vec::new());
                }
            }
            MemberEvent::Declared { request, outcome } => {
                let goes_on = self.settle(request, outcome.map(|parts| assert_eq!(parts.len(), 1)));
                if goes_on && self.has_all_answers() {
                    self.arrive(now);
                }
            }
            MemberEvent::Answered { request, outcome } => {
                self.answers.get_mut(&request).expect("it was asked").push(outcome);
                let is_declared =
                    self.outcomes.len() == 1 && self.outcomes.values().all(|outcomes| outcomes[..] == [Ok(())]);
                if is_declared && self.has_all_answers() {
                    self.arrive(now);
                }
            }
            MemberEvent::BarrierDone { request, outcome } => {
                let goes_on = self.settle(request, outcome);
                match self.outcomes.len() {
                    2 if goes_on => {
                        self.member.undeclare(vec!["a".to_owned()]);
                        self.declare();
                    }
                    _ if goes_on => self.member.leave(),
                    _ => {}
                }
            }
            MemberEvent::Failed(error) => self.end(now, Err(error), last_end),
            MemberEvent::Left => self.end(now, Ok(()), last_end),
            MemberEvent::Joined { .. }
            | MemberEvent::Renewed { .. }
            | MemberEvent::WorkersKey(_)
            | MemberEvent::View(_)
            | MemberEvent::Ended { .. }
            | MemberEvent::Close(_)
            | MemberEvent::Order(_)
            | MemberEvent::Command { .. }
            | MemberEvent::Forget { .. }
            | MemberEvent::Boundary { .. }
            | MemberEvent::Passed { .. }
            | MemberEvent::Restore { .. }
            | MemberEvent::Contact { .. }
            | MemberEvent::StallNotice { .. } => {}
        }
    }

    fn declare(&mut self) {
        let tensor = TensorSpec::new("a", DType::F32, vec![10]);
        let request = self.member.declare(vec![tensor], true);
        self.outcomes.insert(request, Vec::new());
    }

    fn arrive(&mut self, now: Time) {
        let request = self.member.barrier(now, "epoch".to_owned(), Patience::Named(Duration::from_secs(60)));
        self.outcomes.insert(request, Vec::new());
    }

    fn has_all_answers(&self) -> bool {
        self.answers.values().all(|answers| matches!(answers[..], [Ok(_)]))
    }

    fn settle(&mut self, request: u64, outcome: Result<()>) -> bool {
        let goes_on = outcome.is_ok();
        self.outcomes.get_mut(&request).expect("it was asked").push(outcome);
        goes_on
    }

    fn end(&mut self, now: Time, end: Result<()>, last_end: &mut Time) {
        assert_eq!(self.end.replace(end), None, "{} ends once", self.name());
        *last_end = now;
    }

    fn is_worker(&self) -> bool {
        self.config.process.role == Role::Worker
    }

    fn name(&self) -> &str {
        &self.config.process.host
    }
}

fn reset() -> Error {
    Error::Io { what: "receive".to_owned(), cause: "connection reset".to_owned() }
}
