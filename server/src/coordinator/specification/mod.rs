//! What a coordinator does, sentence by sentence. The files beside this one are its chapters; here is what they share.

use std::time::Duration;

use gradlane_core::error::{Claim, Error};
use gradlane_core::types::{
    Address, DType, Epoch, Incarnation, LinkId, MachineId, NodeId, PartId, Phase, Process, Role, Round, Scheme,
    TensorKey, TensorSpec, Time, View, WorkerId,
};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::{Health, Join, Names, Progress, Stall, Waiting, Waits};

use super::*;

mod checkpoints;
mod connections;
mod continuing;
mod controlling;
mod forming;
mod holding;
mod leaving;
mod losses;
mod outliving;
mod reforming;
mod replacing;
mod requests;
mod restoring;
mod robustness;
mod stepping;
mod storing;
mod terms;
mod ticking;

const SECOND: Duration = Duration::from_secs(1);
const SERVER: u64 = 100;
const TERM: u32 = 3;

/// A coordinator with what it said. Link and node of a member have one number; those of servers start at [`SERVER`].
struct Job {
    coordinator: Coordinator,
    now: Time,
    unread: Vec<(u64, Frame)>,
    closed: Vec<(u64, Error)>,
    events: Vec<Event>,
    journal: Vec<Record>,
    certified: Vec<u64>,
    given_the_key: Vec<u64>,
    disks: Vec<Disk>,
    /// What the coordinator itself is ordered to do.
    ordered: Vec<(u64, ControlCommand)>,
    /// Of the last work with files.
    number: u64,
}

impl Job {
    fn connect(&mut self, link: u64, node: u8) {
        let role = if u64::from(node) >= SERVER { Role::Server } else { Role::Worker };
        self.connect_as(link, node, role);
    }

    fn connect_as(&mut self, link: u64, node: u8, role: Role) {
        self.coordinator.handle_connected(LinkId(link), NodeId([node; 32]), role);
    }

    fn join(&mut self, link: u64, join: Join) {
        self.join_as(link, link as u8, join);
    }

    fn join_as(&mut self, link: u64, node: u8, join: Join) {
        self.connect_as(link, node, join.process.role);
        self.frame(link, Frame::Join(join));
    }

    fn frame(&mut self, link: u64, frame: Frame) {
        self.coordinator.handle_frame(self.now, LinkId(link), frame);
    }

    fn heartbeat(&mut self, link: u64) {
        self.frame(link, Frame::Heartbeat { sent: self.now, progress: Progress::default() });
    }

    fn disconnect(&mut self, link: u64) {
        let error = Error::Io { what: "receive".to_owned(), cause: "connection reset".to_owned() };
        self.coordinator.handle_disconnected(LinkId(link), error);
    }

    /// Lets time pass, with a timeout whenever one is due.
    fn pass(&mut self, until: u64) {
        while let Some(due) = self.coordinator.poll_timeout().filter(|due| *due <= at(until)) {
            self.now = due;
            self.coordinator.handle_timeout(due);
            self.drain();
        }
        self.now = at(until);
    }

    /// Lets time pass with a heartbeat a second from each of `links`.
    fn beat_until(&mut self, until: u64, links: &[u64]) {
        for second in self.now.0 / 1_000_000_000 + 1..=until {
            self.pass(second);
            links.iter().for_each(|link| self.heartbeat(*link));
        }
    }

    /// Takes all commands; sorts them for the questions below.
    fn drain(&mut self) -> Vec<Command> {
        let commands: Vec<Command> = std::iter::from_fn(|| self.coordinator.next_command()).collect();
        for command in commands.clone() {
            match command {
                Command::Send { link, frame } => self.unread.push((link.0, frame)),
                Command::Close { link, error } => self.closed.push((link.0, error)),
                Command::Certify { link } => self.certified.push(link.0),
                Command::ShareKey { link } => self.given_the_key.push(link.0),
                Command::Event(event) => self.events.push(event),
                Command::Journal(record) => self.journal.push(record),
                Command::Disk(disk) => self.disks.push(disk),
                Command::Obey { number, command } => self.ordered.push((number, command)),
            }
        }
        commands
    }

    /// What was sent to a link since the last question.
    fn received(&mut self, link: u64) -> Vec<Frame> {
        self.drain();
        let (asked, other) = std::mem::take(&mut self.unread).into_iter().partition(|(to, _)| *to == link);
        self.unread = other;
        Vec::into_iter(asked).map(|(_, frame)| frame).collect()
    }

    /// What a link was refused with; it is closed, too.
    fn refusal(&mut self, link: u64) -> Error {
        let frames = self.received(link);
        let Some(Frame::Refused(error)) = frames.last() else { panic!("{frames:?}") };
        assert_eq!(*error, self.closed(link));
        error.clone()
    }

    fn closed(&mut self, link: u64) -> Error {
        self.drain();
        self.closed.iter().find(|(closed, _)| *closed == link).expect("it was closed").1.clone()
    }

    /// The incarnations of the workers by rank; that of `worker(n)` is n.
    fn ranks(&self) -> Vec<u128> {
        let View { phase, members, .. } = self.coordinator.view();
        assert_eq!(phase, Phase::Running);
        let workers = members.into_iter().filter(|member| member.process.role == Role::Worker);
        workers.map(|member| member.process.incarnation.0).collect()
    }
}

fn config(workers: u32) -> CoordinatorConfig {
    CoordinatorConfig {
        job: "test".to_owned(),
        workers,
        servers: 1,
        form_timeout: 30 * SECOND,
        suspect_timeout: 2 * SECOND,
        dead_timeout: 5 * SECOND,
        boundary_timeout: 20 * SECOND,
        workers_max: None,
        reform_timeout: 10 * SECOND,
        leave_grace: 15 * SECOND,
        end_grace: 3 * SECOND,
        stall_interval: 10 * SECOND,
        policy: Policy::Abort,
        layout: LayoutConfig::default(),
        journals: false,
        defect: None,
    }
}

/// A job of `workers` workers and one server that has no member yet.
fn job(workers: u32) -> Job {
    job_of(config(workers))
}

fn job_of(config: CoordinatorConfig) -> Job {
    let coordinator = Coordinator::new(config, TERM, at(0));
    Job {
        coordinator,
        now: at(0),
        unread: Vec::new(),
        closed: Vec::new(),
        events: Vec::new(),
        journal: Vec::new(),
        certified: Vec::new(),
        given_the_key: Vec::new(),
        disks: Vec::new(),
        ordered: Vec::new(),
        number: 0,
    }
}

/// A job that runs, with nothing unread. The rank of a worker is its link.
fn formed(workers: u32) -> Job {
    form(job(workers), workers)
}

#[cfg(feature = "testing")]
fn formed_with(workers: u32, defect: Defect) -> Job {
    form(job_of(CoordinatorConfig { defect: Some(defect), ..config(workers) }), workers)
}

fn form(mut job: Job, workers: u32) -> Job {
    job.join(SERVER, server(0));
    (0..u64::from(workers)).for_each(|link| job.join(link, worker(link as u32)));
    job.drain();
    job.unread.clear();
    job.events.clear();
    job
}

/// Another coordinator has gone on with the job, to which workers 0 and 1 and the server have come back, by the links 30, 31 and 32.
fn taken_up(mut job: Job, config: CoordinatorConfig) -> Job {
    job.drain();
    let (coordinator, now) = Coordinator::recover(config, std::mem::take(&mut job.journal)).unwrap();
    let mut job = Job { coordinator, now, ..job };
    job.join_as(30, 0, worker(0));
    job.join_as(31, 1, worker(1));
    job.join_as(32, SERVER as u8, server(0));
    job
}

fn worker(number: u32) -> Join {
    let process = Process {
        host: format!("n{number}"),
        pid: 10 + number,
        ..Process::new(Role::Worker, Incarnation(u128::from(number)))
    };
    Join { process, requested: None, epoch: None, workers: 0, servers: 0 }
}

fn server(number: u32) -> Join {
    let process = Process {
        host: format!("s{number}"),
        pid: 10 + number,
        addresses: vec![Address::new(Scheme::Quic, format!("s{number}:7000"))],
        ..Process::new(Role::Server, Incarnation(1000 + u128::from(number)))
    };
    Join { process, ..worker(number) }
}

fn on_host(host: &str, pid: u32, join: Join) -> Join {
    Join { process: Process { host: host.to_owned(), pid, ..join.process }, ..join }
}

fn on_machine(machine: u64, join: Join) -> Join {
    Join { process: Process { machine: MachineId(machine), ..join.process }, ..join }
}

fn in_life(incarnation: u128, join: Join) -> Join {
    Join { process: Process { incarnation: Incarnation(incarnation), ..join.process }, ..join }
}

fn without_address(join: Join) -> Join {
    Join { process: Process { addresses: Vec::new(), ..join.process }, ..join }
}

fn barrier(request: u64) -> Frame {
    Frame::Barrier { request, name: "epoch".to_owned(), timeout: 10 * SECOND }
}

fn is_barrier_done(frame: &Frame) -> bool {
    matches!(frame, Frame::BarrierDone { .. })
}

fn declare(request: u64, shape: &[u64]) -> Frame {
    let tensor = TensorSpec::new("a", DType::F32, shape.to_vec());
    Frame::Declare { request, tensors: vec![tensor], fuse: false }
}

fn a_stall() -> Stall {
    Stall {
        part: PartId { key: TensorKey::of("a"), index: 0 },
        round: Round(7),
        missing: vec![WorkerId(1), WorkerId(2)],
        waited: 10 * SECOND,
    }
}

fn lost(worker: u32, cause: &str) -> Error {
    Error::PeerLost {
        member: format!("worker {worker}"),
        host: format!("n{worker} (pid {})", 10 + worker),
        cause: cause.to_owned(),
    }
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}
