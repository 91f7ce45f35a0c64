//! The coordinator under any sequence of events, from members, from further lives of them, and from strangers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gradlane_core::config::OnServerLoss;
use gradlane_core::error::Error;
use gradlane_core::metrics::{Histogram, Instance, METRICS, prometheus};
use gradlane_core::pipeline::LayoutConfig;
use gradlane_core::types::{
    Address, ClockKey, Control, ControlAnswer, ControlCommand, DType, Epoch, Incarnation, LinkId, Mode, NodeId, PartId,
    Phase, Process, Recipient, Role, Round, Scheme, ServerId, Squares, Stats, StepReport, StoreAsk, TensorKey,
    TensorSpec, Tick, Time, View, WorkerId,
};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{AckTimes, Join, Progress, Stall};
use gradlane_core::wire::limits::FRAME_BYTES_MAX;
use gradlane_server::coordinator::{
    Command, Coordinator, CoordinatorConfig, Disk, DiskTask, Event, Found, Policy, Record,
};

use super::input::Input;
use super::members::node_id;
use super::{Kind, Memory, Target, random_inputs};

pub(super) const COORDINATOR: Target = Target {
    name: "coordinator",
    kind: Kind::Machine,
    check: coordinator,
    seeds: || random_inputs(24, 300),
    // A tensor of as many parts as a job may have.
    memory: Memory { bytes: 256 << 20, times: 64 << 10 },
};

const SECOND: Duration = Duration::from_secs(1);
const WORKERS: u32 = 2;
const EVENTS_MAX: usize = 300;

fn coordinator(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    for _ in 0..EVENTS_MAX {
        if input.is_empty() {
            break;
        }
        world.event(&mut input);
        world.drain();
    }
    world.end();
}

struct World {
    coordinator: Coordinator,
    config: CoordinatorConfig,
    journal: Vec<Record>,
    is_stopped: bool,
    policy: Policy,
    now: Time,
    links: BTreeMap<LinkId, (u8, Role)>,
    links_made: u64,
    /// It goes on as the coordinator of a later term when the job forms again.
    term: u32,
    /// By epoch number.
    views: BTreeMap<u32, View>,
    epoch: Epoch,
    finished: usize,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let waits =
            Policy::Continue { min_workers: WORKERS, rejoin: Some(3 * SECOND), on_server_loss: OnServerLoss::Abort };
        let restores = Policy::Continue { min_workers: 1, rejoin: None, on_server_loss: OnServerLoss::Restore };
        let policy = input.pick(&[Policy::Abort, Policy::CONTINUE, waits, restores]);
        let config = CoordinatorConfig {
            job: "fuzz".to_owned(),
            workers: WORKERS,
            servers: 1,
            form_timeout: 30 * SECOND,
            suspect_timeout: 2 * SECOND,
            dead_timeout: 5 * SECOND,
            boundary_timeout: Duration::from_secs(20),
            workers_max: None,
            reform_timeout: Duration::from_secs(10),
            leave_grace: Duration::from_secs(15),
            end_grace: 3 * SECOND,
            stall_interval: 10 * SECOND,
            policy,
            layout: LayoutConfig::default(),
            journals: true,
            defect: None,
        };
        let coordinator = Coordinator::new(config.clone(), TERM, Time(1));
        let epoch = coordinator.view().epoch;
        let mut world = Self {
            coordinator,
            config,
            journal: Vec::new(),
            is_stopped: false,
            policy,
            now: Time(1),
            links: BTreeMap::new(),
            links_made: 0,
            term: TERM,
            views: BTreeMap::new(),
            epoch,
            finished: 0,
        };
        // Half of the inputs begin with a job that runs.
        if input.byte() & 1 == 0 {
            for (number, role) in [(9, Role::Server), (0, Role::Worker), (1, Role::Worker)] {
                let link = world.connect(number, role);
                world.frame(link, Frame::Join(join(number, role)));
            }
            world.drain();
            assert_eq!(world.coordinator.view().phase, Phase::Running);
        }
        world
    }

    fn event(&mut self, input: &mut Input<'_>) {
        match input.below(22) {
            0 | 1 => {
                let (number, role) = who(input);
                self.connect(number, role);
            }
            2..=4 => {
                let (number, role) = who(input);
                let link = self.connect(number, role);
                let join = changed(join(number, role), input);
                self.frame(link, Frame::Join(join));
            }
            5 | 6 => {
                let progress = Progress {
                    last: Some((TensorKey(u64::from(input.byte())), Round(u64::from(input.byte())))),
                    pending: u32::from(input.byte()),
                    bytes_in_flight: input.word(),
                };
                self.said(input, Frame::Heartbeat { sent: Time(self.now.0), progress });
            }
            7 | 8 => {
                let tensors = (0..input.below(4)).map(|_| tensor(input)).collect();
                let fuse = input.byte() & 1 == 0;
                let request = u64::from(input.byte());
                self.said(input, Frame::Declare { request, tensors, fuse });
            }
            9 => {
                let (request, ask) = (u64::from(input.below(4)), store_ask(input));
                self.said(input, Frame::Store { request, ask });
            }
            10 => {
                let name = ["end", "begin", ""][usize::from(input.below(3))].to_owned();
                let timeout = Duration::from_nanos(input.pick(&[0, 1, 5_000_000_000, u64::MAX]));
                self.said(input, Frame::Barrier { request: 7, name, timeout });
            }
            11 => {
                let stall = Stall {
                    part: PartId { key: TensorKey(u64::from(input.byte())), index: 0 },
                    round: Round(u64::from(input.byte())),
                    missing: (0..input.below(4)).map(|_| WorkerId(u32::from(input.byte()))).collect(),
                    waited: Duration::from_nanos(input.word()),
                };
                self.said(input, Frame::Stall(stall));
            }
            12 => self.said(input, Frame::Leave),
            13 => {
                let frame = match input.pick(&[0, 1, 2, 3, 4]) {
                    0 => Frame::Fail { cause: "out of memory".to_owned() },
                    1 => Frame::StatusRequest,
                    2 | 3 => {
                        let names = (0..input.below(4)).map(|_| tensor(input).name).collect();
                        Frame::Undeclare { request: u64::from(input.byte()), names }
                    }
                    _ => Frame::HeartbeatAck { sent: Time(3), times: AckTimes::default() },
                };
                self.said(input, frame);
            }
            14 => {
                // Any frame that can be read.
                let bytes = [&[gradlane_core::wire::VERSION][..], input.short()].concat();
                if let Ok(frame) = Frame::decode(&bytes, "a peer") {
                    if let Frame::Metrics(stats) = &frame {
                        show(stats);
                    }
                    self.said(input, frame);
                }
            }
            15 => {
                if let Some(link) = self.link(input) {
                    self.links.remove(&link);
                    let cause = Error::Io { what: "receive".to_owned(), cause: "connection reset".to_owned() };
                    self.coordinator.handle_disconnected(link, cause);
                }
            }
            16 => {
                let number = input.below(3);
                let number = if input.below(4) == 0 { 9 + number } else { number };
                if input.below(2) == 0 {
                    self.coordinator.expect_replacement(pid(number), &host(number));
                }
                self.coordinator.handle_death(self.now, pid(number), &host(number), "killed".to_owned());
            }
            17 | 18 => {
                let until = self.now + Duration::from_millis(u64::from(input.byte()) * 40);
                self.pass(until);
            }
            19 => {
                let said = match input.below(3) {
                    0 => Frame::Steps(step_report(input)),
                    1 => Frame::Squares(squares(input)),
                    _ => Frame::Tick { request: u64::from(input.byte()), tick: tick(input) },
                };
                self.said(input, said);
            }
            20 => {
                let said = order(input);
                self.said(input, said);
            }
            _ => {
                if input.byte() == 0 {
                    self.coordinator.stop(self.now, Error::Cancelled);
                    self.is_stopped = true;
                }
            }
        }
    }

    fn connect(&mut self, number: u8, role: Role) -> LinkId {
        self.links_made += 1;
        let link = LinkId(self.links_made);
        self.links.insert(link, (number, role));
        self.coordinator.handle_connected(link, identity(number), role);
        link
    }

    fn link(&self, input: &mut Input<'_>) -> Option<LinkId> {
        let back = usize::from(input.below(8));
        self.links.keys().rev().nth(back % self.links.len().max(1)).copied()
    }

    fn said(&mut self, input: &mut Input<'_>, frame: Frame) {
        if let Some(link) = self.link(input) {
            self.frame(link, frame);
        }
    }

    /// As a connection reads it.
    fn frame(&mut self, link: LinkId, frame: Frame) {
        if let Ok(frame) = Frame::decode(&frame.encode(), "a peer") {
            self.coordinator.handle_frame(self.now, link, frame);
        }
    }

    fn pass(&mut self, until: Time) {
        let mut turns = 0;
        while let Some(due) = self.coordinator.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.coordinator.handle_timeout(self.now);
            self.drain();
            turns += 1;
            assert!(turns < 10_000, "a timeout that is due again at once");
        }
        self.now = until;
    }

    fn drain(&mut self) {
        while let Some(command) = self.coordinator.next_command() {
            match command {
                Command::Send { link, frame } => self.sent(link, &frame),
                Command::Close { link, .. } => {
                    assert!(self.links.remove(&link).is_some(), "{link:?} was closed before");
                }
                Command::Certify { link } => {
                    assert!(self.links.contains_key(&link), "a certificate for a connection that has ended");
                }
                Command::ShareKey { link } => {
                    let role = self.links.get(&link).map(|(_, role)| *role);
                    assert_eq!(role, Some(Role::Worker), "the key of the workers for another process");
                }
                Command::Obey { number, .. } => self.coordinator.handle_obeyed_here(number, Ok(ControlAnswer::Done)),
                Command::Disk(Disk { number, task }) => {
                    let outcome = match task {
                        DiskTask::Begin { .. } => Ok(Found::Begun { checkpoint: 1, directory: "c".to_owned() }),
                        DiskTask::Publish { .. } => Ok(Found::Published),
                        DiskTask::Find { .. } => Err(Error::Cancelled),
                        DiskTask::GiveUp | DiskTask::GoOn => continue,
                    };
                    self.coordinator.handle_disk(number, outcome);
                }
                Command::Journal(record) => {
                    let kept = Record::decode(&record.encode()).expect("what was written can be read");
                    assert_eq!(kept, record);
                    self.journal.push(kept);
                }
                Command::Event(Event::Finished(_)) if self.coordinator.forms_again() => {
                    self.term += 1;
                    self.views.clear();
                    self.journal.clear();
                    self.coordinator.form_again(self.term, self.now);
                    self.epoch = self.coordinator.view().epoch;
                }
                Command::Event(Event::Finished(_)) => self.finished += 1,
                Command::Event(_) => assert_eq!(self.finished, 0, "nothing is told after the end"),
            }
        }
        let epoch = self.coordinator.view().epoch;
        assert!(epoch >= self.epoch && epoch.term == self.term, "{epoch} after {}", self.epoch);
        self.epoch = epoch;
        assert!(self.finished <= 1, "the job ends once");
    }

    fn sent(&mut self, link: LinkId, frame: &Frame) {
        assert!(self.links.contains_key(&link), "{frame:?} for a connection that has ended");
        let bytes = frame.encode();
        assert!(bytes.len() <= FRAME_BYTES_MAX, "a frame of {} bytes", bytes.len());
        let read = Frame::decode(&bytes, "us").expect("its reader takes it");
        // The text of an error is escaped when it is read.
        assert!(read == *frame || read.encode().contains(&b'\\'), "{frame:?} is read as {read:?}");
        let Frame::View(view) = frame else { return };
        let seats: BTreeSet<(Role, u32)> =
            view.members.iter().map(|member| (member.process.role, member.index)).collect();
        assert_eq!(seats.len(), view.members.len(), "two members in one place: {view:?}");
        assert!(view.workers().all(|member| member.index < WORKERS), "a rank beyond the job: {view:?}");
        let shown = self.views.entry(view.epoch.number).or_insert_with(|| view.clone());
        assert_eq!(shown, view, "one epoch, two views");
        if let Some((_, before)) = self.views.range(..view.epoch.number).next_back() {
            let is_old = |member| before.members.contains(member);
            assert!(view.members.iter().all(is_old), "a stranger is in: {view:?} after {before:?}");
            let is_whole = before.members.len() == view.members.len();
            assert!(is_whole || self.policy != Policy::Abort, "a job that goes on without some: {view:?}");
        }
    }

    /// Whatever was, another coordinator can go on, and the job can be ended, and ends once.
    fn end(mut self) {
        // Who stops it tells it to forget the job, too.
        if !self.journal.is_empty() && !self.is_stopped {
            let records = std::mem::take(&mut self.journal);
            let (recovered, _) = Coordinator::recover(self.config.clone(), records).expect("it was written so");
            let [ours, theirs] = [&self.coordinator, &recovered].map(Coordinator::view);
            // What comes and goes while a job forms again is not written down, nor that it took too long.
            if theirs.phase != Phase::Forming {
                assert_eq!(ours, theirs);
            }
        }
        self.coordinator.stop(self.now, Error::Cancelled);
        self.drain();
        self.pass(self.now + 60 * SECOND);
        if self.finished == 0 {
            // It had ended to form again.
            self.coordinator.stop(self.now, Error::Cancelled);
            self.drain();
            self.pass(self.now + 60 * SECOND);
        }
        assert_eq!((self.finished, self.coordinator.poll_timeout()), (1, None));
    }
}

const TERM: u32 = 3;

fn who(input: &mut Input<'_>) -> (u8, Role) {
    let role = input.pick(&[Role::Worker, Role::Worker, Role::Worker, Role::Server, Role::Observer, Role::Admin]);
    let number = input.below(3);
    (if role == Role::Server { 9 + number } else { number }, role)
}

fn identity(number: u8) -> NodeId {
    node_id(number)
}

fn pid(number: u8) -> u32 {
    10 + u32::from(number)
}

fn host(number: u8) -> String {
    format!("n{number}")
}

fn join(number: u8, role: Role) -> Join {
    let role = if role.is_guest() { Role::Worker } else { role };
    let process = Process {
        host: host(number),
        pid: pid(number),
        addresses: (role == Role::Server)
            .then(|| Address::new(Scheme::Quic, format!("n{number}:7000")))
            .into_iter()
            .collect(),
        ..Process::new(role, Incarnation(u128::from(number)))
    };
    Join { process, requested: None, epoch: None, workers: 0, servers: 0 }
}

/// An order, or what a member says of one.
fn order(input: &mut Input<'_>) -> Frame {
    let number = u64::from(input.byte());
    if input.byte() & 3 == 0 {
        let outcome = if input.byte() & 1 == 0 { Ok(ControlAnswer::Done) } else { Err(Error::Cancelled) };
        return Frame::Commanded { number, outcome };
    }
    let index = u32::from(input.below(3));
    let recipient =
        input.pick(&[Recipient::Coordinator, Recipient::Worker(WorkerId(index)), Recipient::Server(ServerId(index))]);
    let tensor = ["a", "b", ""][usize::from(input.below(3))].to_owned();
    let step = (input.byte() & 1 == 0).then(|| u64::from(input.byte()));
    let command = match input.below(10) {
        0 => ControlCommand::Stats,
        1 => ControlCommand::Log { filter: "debug".to_owned() },
        2 => ControlCommand::Drain,
        3 => ControlCommand::Save { path: tensor, keep: None },
        4 => ControlCommand::SetRate { tensor, rate: f64::from_bits(input.word()), step },
        5 => {
            let wait = Duration::from_nanos(input.word());
            ControlCommand::Dump { tensor, round: input.word(), directory: "d".to_owned(), wait }
        }
        6 => ControlCommand::DumpRecorder { directory: "d".to_owned() },
        7 => ControlCommand::Timeline { directory: "d".to_owned(), from: input.word(), steps: step },
        8 => ControlCommand::StopTimeline,
        _ => ControlCommand::Unknown { code: input.byte().max(100), fields: input.short().to_vec() },
    };
    let wait = Duration::from_nanos(input.pick(&[0, 1, 5_000_000_000, u64::MAX]));
    Frame::Control { request: number, control: Control { recipient, wait, command } }
}

fn changed(mut join: Join, input: &mut Input<'_>) -> Join {
    match input.below(12) {
        0 => join.process.incarnation = Incarnation(u128::from(input.byte())),
        1 => join.requested = Some(u32::from(input.byte())),
        2 => join.requested = Some(u32::MAX),
        3 => join.epoch = Some(Epoch { term: u32::from(input.below(5)), number: u32::from(input.byte()) }),
        4 => join.workers = u32::from(input.below(4)),
        5 => join.servers = u32::from(input.below(4)),
        6 => join.process.addresses = vec![Address::new(Scheme::from_code(input.byte()), "n9:1")],
        7 => join.process.host = "n0".to_owned(),
        8 => join.process.role = Role::Server,
        _ => {}
    }
    join
}

fn tensor(input: &mut Input<'_>) -> TensorSpec {
    let name = ["a", "b", "c", ""][usize::from(input.below(4))];
    let dtype = input.pick(&[DType::F32, DType::F32, DType::I64, DType::U8]);
    let sizes = [1, 10, 100_000, 0, 1 << 44, u64::MAX];
    let shape = (0..input.below(3)).map(|_| input.pick(&sizes)).collect();
    match input.below(4) {
        0 => {
            let rule = ["sgd", "sgd:clip_norm=1", "sgd:clip_norm=2"][usize::from(input.below(3))];
            let parameter = TensorSpec::parameter(name, dtype, shape);
            parameter.with_rule(rule.parse().expect("a rule")).with_mode(clocked(input).1)
        }
        _ => TensorSpec::new(name, dtype, shape),
    }
}

fn step_report(input: &mut Input<'_>) -> StepReport {
    let flags = input.byte();
    let [stands, rests, leaves] = [1, 2, 4].map(|flag| flags & flag != 0);
    StepReport { begun: u64::from(input.below(4)), change: u64::from(input.below(4)), stands, rests, leaves }
}

fn tick(input: &mut Input<'_>) -> Tick {
    let (clock, mode) = clocked(input);
    let (round, leaves) = (u64::from(input.below(5)), input.below(8) == 0);
    let wait = input.pick(&[None, Some(Duration::ZERO), Some(Duration::from_secs(5)), Some(Duration::MAX)]);
    Tick { clock: clock.to_owned(), mode, round, samples: input.word(), leaves, wait }
}

/// A clock, and a mode that follows it.
fn clocked(input: &mut Input<'_>) -> (&'static str, Mode) {
    let clock = ["c", "d"][usize::from(input.below(2))];
    let mode: Mode =
        ["async", "ssp:bound=1", "sync", "k_of_n:k=2"][usize::from(input.below(4))].parse().expect("a mode");
    (clock, mode.with_clock(ClockKey::of(clock)))
}

fn squares(input: &mut Input<'_>) -> Squares {
    let clock = ClockKey::of(["c", "d"][usize::from(input.below(2))]);
    Squares { clock, round: u64::from(input.below(5)), sum: f64::from(input.byte()) }
}

/// What a member tells of itself is shown in as many lines as there are metrics and numbers, whatever it tells.
fn show(Stats { scope, label, values }: &Stats) {
    let Some(instance) = Instance::from_pairs(scope, label, values) else { return };
    let lines = prometheus(&[instance.of_member(scope, 0)]).lines().count();
    assert!(lines <= METRICS.len() * (Histogram::BUCKETS + 5) + values.len(), "{lines} lines of {}", values.len());
}

fn store_ask(input: &mut Input<'_>) -> StoreAsk {
    let key = ["a", "ab", "n", ""][usize::from(input.below(4))].to_owned();
    let waits = [None, Some(0), Some(5_000_000_000), Some(u64::MAX)];
    match input.below(6) {
        0 => {
            let expected = (input.below(2) == 0).then(Vec::new);
            StoreAsk::Put { key, value: input.short().to_vec(), expected }
        }
        1 => StoreAsk::Add { key, amount: input.word().cast_signed() },
        2 => StoreAsk::Append { key, value: input.short().to_vec() },
        3 => StoreAsk::Get { key, wait: input.pick(&waits).map(Duration::from_nanos) },
        4 => StoreAsk::Delete { key, is_prefix: input.below(2) == 0 },
        _ => StoreAsk::Dir { prefix: key },
    }
}
