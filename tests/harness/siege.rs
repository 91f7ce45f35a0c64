//! Attacks on a job that trains over QUIC: the table of attacks, and what each costs the victims.
//!
//! Coordinator, server and workers are processes, so that their memory can be told from that of the attacker. All traffic stays on loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::after;
use gradlane_core::cluster::MemberConfig;
use gradlane_core::identity::{Authority, Credentials};
use gradlane_core::runtime::{Clock, Membership, MembershipOptions, process, status};
use gradlane_core::transport::quic::vandal::siege::{Manner, Pass, Plan, Siege, initials};
use gradlane_core::types::{
    Address, DType, Epoch, JoinString, Op, PartId, Participants, Role, Round, Scheme, TensorKey, Time, View, Waited,
};
use gradlane_core::wire::frame::Progress;
use gradlane_core::wire::{Body, Contribute, Contribution, Frame, Hold, Request, Target, VERSION};
use tempfile::TempDir;

use crate::cluster::{PATIENCE, config};
use crate::network::{CLEAR, Conditions, Loss, Relay};
use crate::over::Over;
use crate::patience::{elapsed, eventually};
use crate::processes::{Process, environment, variables};

/// An attack.
#[derive(Debug)]
pub struct Attack {
    /// What the attacker does.
    pub name: &'static str,
    /// Whom it attacks.
    pub on: Victim,
    /// How.
    pub means: Means,
}

/// Whom an attacker attacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// The port of the server.
    Server,
    /// The port of the coordinator.
    Coordinator,
}

/// How an attacker attacks.
#[derive(Clone, Copy, Debug)]
pub enum Means {
    /// First packets of handshakes from thousands of addresses that never answer: 10,000 a second.
    ForgedInitials,
    /// Bytes that are no QUIC, or look like it, from one address.
    Garbage,
    /// Connections from one address: who, what it does with them, how many at once, and attempts a second.
    Connections(Who, Doing, usize, u32),
    /// The same on a path that loses half of all datagrams, so that streams are full of gaps.
    GappedConnections(Who, Doing, usize, u32),
}

/// What an attacker shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// No certificate.
    Nobody,
    /// No certificate; it pretends to have a join string.
    Newcomer,
    /// A member of another job.
    OtherJob,
    /// It has enrolled in this job and is no member of it.
    NoMember,
    /// It has enrolled as an observer.
    Observer,
    /// It is a worker of the job, which takes part in no sum.
    Member,
}

/// What it does once it is let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Nothing.
    Nothing,
    /// Opens all streams and finishes none.
    Hoarding,
    /// A byte a second.
    Trickling,
    /// Sends without end and reads nothing.
    Pouring,
    /// Asks for the status without end, and reads the answers.
    Asking,
    /// Asks for the status without end, and reads nothing.
    AskingOnly,
    /// Opens streams and gives them up, without end.
    Churning,
    /// Claims to know the secret of the join string.
    Guessing,
    /// Begins a message, drops the connection and comes again.
    Flitting,
}

/// All attacks on ports. `tests/README.md` lists what else was tried, and where.
pub const ATTACKS: [Attack; 21] = [
    on(Victim::Server, "forged Initials, 10,000/s", Means::ForgedInitials),
    on(Victim::Coordinator, "forged Initials, 10,000/s", Means::ForgedInitials),
    on(Victim::Server, "handshakes without certificate", flood(Who::Nobody)),
    on(Victim::Coordinator, "handshakes without certificate", flood(Who::Nobody)),
    on(Victim::Server, "another job's certificate", flood(Who::OtherJob)),
    on(
        Victim::Coordinator,
        "5,000 half-open newcomers",
        Means::Connections(Who::Newcomer, Doing::Nothing, 5_000, 2_000),
    ),
    on(Victim::Server, "connections of no member", Means::Connections(Who::NoMember, Doing::Nothing, 64, 100)),
    on(Victim::Server, "streams that never end", Means::Connections(Who::NoMember, Doing::Hoarding, 4, 10)),
    on(Victim::Coordinator, "streams that never end", Means::Connections(Who::NoMember, Doing::Hoarding, 4, 10)),
    on(Victim::Server, "a byte a second", Means::Connections(Who::NoMember, Doing::Trickling, 64, 100)),
    on(Victim::Coordinator, "a byte a second", Means::Connections(Who::NoMember, Doing::Trickling, 64, 100)),
    on(Victim::Server, "streams with gaps", Means::GappedConnections(Who::NoMember, Doing::Pouring, 8, 100)),
    on(Victim::Server, "garbage and HTTP", Means::Garbage),
    on(Victim::Coordinator, "status requests without end", Means::Connections(Who::Observer, Doing::Asking, 64, 200)),
    on(Victim::Coordinator, "answers that nobody reads", Means::Connections(Who::Observer, Doing::AskingOnly, 64, 200)),
    on(Victim::Coordinator, "thousands of observers", Means::Connections(Who::Observer, Doing::Nothing, 5_000, 2_000)),
    on(Victim::Coordinator, "wrong secrets", Means::Connections(Who::Newcomer, Doing::Guessing, 2_000, 2_000)),
    on(Victim::Coordinator, "a member's byte a second", Means::Connections(Who::Member, Doing::Trickling, 64, 100)),
    on(Victim::Coordinator, "links that come and go", Means::Connections(Who::NoMember, Doing::Flitting, 64, 1_000)),
    on(
        Victim::Server,
        "links of a member that come and go",
        Means::Connections(Who::Member, Doing::Flitting, 64, 1_000),
    ),
    // One connection, because a server knows only the newest one of a member.
    on(Victim::Server, "100,000 streams of a member", Means::Connections(Who::Member, Doing::Churning, 1, 10)),
];

/// How long each part of an attack lasts.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Before the attack, during it, and at last.
    pub each: Duration,
    /// Between the end of the attack and the last part.
    pub pause: Duration,
}

/// What an attack cost.
#[derive(Debug)]
pub struct Cost {
    /// Steps a second before, during and after the attack. Every sum of every step was right.
    pub steps: [f64; 3],
    /// By how many bytes the memory of a victim grew at most.
    pub grown_bytes: u64,
    /// What the attacker sent: connections that it tried, or datagrams.
    pub attempts: u64,
    /// How many of its connections got a stream.
    pub admitted: u64,
    /// How many streams it opened and gave up.
    pub streams: u64,
    /// What should not have happened.
    pub faults: Vec<String>,
}

/// Attacks a job of two workers and a server, which are processes of the program `actor` (`tests/bin/actor.rs`).
///
/// # Panics
/// If a sum is wrong or does not come, or a worker ends.
pub fn endure(attack: &Attack, times: Times, actor: &Path) -> Cost {
    let mut job = Job::start(actor, attack.is_by_a_member());
    let before = job.train(times.each);
    let (view, memory) = (job.view(), job.memory());
    let attacker = Attacker::start(attack, &job);
    let during = job.train(times.each);
    let counts = attacker.end();
    job.train(times.pause);
    let after = job.train(times.each);
    let grown = job.peaks.iter().zip(memory).map(|(peak, before)| peak.saturating_sub(before)).max();
    let mut cost = Cost {
        steps: [before, during, after],
        grown_bytes: grown.unwrap_or_default(),
        attempts: counts.attempts,
        admitted: counts.admitted,
        streams: counts.streams,
        faults: Vec::new(),
    };
    if job.view() != view {
        cost.faults.push(format!("the view changed from {view:?} to {:?}", job.view()));
    }
    cost.faults.extend(job.end());
    cost
}

impl Attack {
    fn is_by_a_member(&self) -> bool {
        match self.means {
            Means::Connections(who, ..) | Means::GappedConnections(who, ..) => who == Who::Member,
            Means::ForgedInitials | Means::Garbage => false,
        }
    }
}

impl Cost {
    /// What is wrong, but for how fast the job was.
    pub fn faults(&self, attack: &Attack) -> Vec<String> {
        let has_no_pass = match attack.means {
            Means::Connections(who, ..) | Means::GappedConnections(who, ..) => {
                matches!(who, Who::Nobody | Who::OtherJob)
            }
            Means::ForgedInitials | Means::Garbage => true,
        };
        let mut faults = self.faults.clone();
        if self.attempts == 0 {
            faults.push("nobody attacked".to_owned());
        }
        if has_no_pass && self.admitted > 0 {
            faults.push(format!("{} strangers were let in", self.admitted));
        }
        if self.grown_bytes > GROWTH_BYTES_MAX {
            faults.push(format!("memory grew by {} MiB", self.grown_bytes >> 20));
        }
        faults
    }
}

const fn on(on: Victim, name: &'static str, means: Means) -> Attack {
    Attack { name, on, means }
}

const fn flood(who: Who) -> Means {
    Means::Connections(who, Doing::Nothing, 2_000, 2_000)
}

/// The victims.
struct Job {
    workers: Vec<Process>,
    server: Process,
    coordinator: Process,
    join: JoinString,
    /// May ask for the state of the job.
    observer: Arc<Credentials>,
    /// Has enrolled as a worker. It did not join, or it is the worker of the attacker.
    stranger: Arc<Credentials>,
    /// Of the attacker's worker.
    membership: Option<Membership>,
    step: u64,
    _home: TempDir,
    /// The most memory of each process since it was asked for.
    peaks: Vec<u64>,
}

impl Job {
    /// A job of two workers; the attacker is a third one, or none.
    fn start(actor: &Path, attacker_joins: bool) -> Self {
        let home = tempfile::tempdir().expect("there is room");
        let size = if attacker_joins { "3" } else { "2" };
        let line = ["coordinator", "-n", size, "-s", "1", "--bind", "127.0.0.1:0"];
        let file = home.path().join("join");
        let to = [("join_file", file.to_str().expect("a temporary file has a plain name"))];
        let coordinator = Process::start(actor, &line, home.path(), &environment(&to));
        let join: JoinString = eventually("the coordinator listens", || {
            std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok())
        });
        let enrol = |role| Arc::new(Credentials::enroll(&join, role, PATIENCE).expect("the job has not formed"));
        let (observer, stranger) = (enrol(Role::Observer), enrol(Role::Worker));
        let membership = attacker_joins.then(|| joined(&join, &stranger));
        let start = |part: &str, settings: &[(&str, &str)]| {
            let settings = Over::Quic.with(&[settings, &[("bind", "127.0.0.1:0"), ("step_timeout", "20 s")]].concat());
            Process::start(actor, &[part], home.path(), &variables(&join, &settings))
        };
        let server = start("server", &[("server_index", "0")]);
        let mut workers = ["0", "1"].map(|rank| start("puppet", &[("rank", rank), ("size", size)]));
        for worker in &mut workers {
            assert!(worker.line().starts_with("joined"));
        }
        Self {
            workers: workers.into(),
            server,
            coordinator,
            join,
            observer,
            stranger,
            membership,
            step: 0,
            _home: home,
            peaks: Vec::new(),
        }
    }

    /// Takes steps for so long, and looks at the memory after each; returns how many a second.
    fn train(&mut self, lasts: Duration) -> f64 {
        let (clock, first) = (Clock::start(), self.step);
        while elapsed(clock) < lasts {
            let order = format!("pair weight {}", self.step);
            self.workers.iter_mut().for_each(|worker| worker.order(&order));
            for worker in &mut self.workers {
                assert_eq!(worker.line(), "ok", "step {}", self.step);
            }
            self.step += 1;
            let now: Vec<u64> = self.processes().map(resident).collect();
            self.peaks.iter_mut().zip(now).for_each(|(peak, now)| *peak = now.max(*peak));
        }
        (self.step - first) as f64 / elapsed(clock).as_secs_f64()
    }

    /// The memory of all processes now. Peaks are counted from here.
    fn memory(&mut self) -> Vec<u64> {
        self.peaks = self.processes().map(resident).collect();
        self.peaks.clone()
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.workers.iter().chain([&self.server, &self.coordinator])
    }

    fn view(&self) -> View {
        status(&self.join.address, &self.observer, PATIENCE).expect("the coordinator answers").view
    }

    fn address(&self, of: Victim) -> String {
        match of {
            Victim::Coordinator => self.join.address.clone(),
            Victim::Server => {
                let server = self.view().servers().next().expect("there is one").process.clone();
                Address::of(&server.addresses, Scheme::Quic).expect("it listens there").to_owned()
            }
        }
    }

    /// Ends the job in order, and returns what did not go well.
    fn end(mut self) -> Vec<String> {
        if let Some(membership) = &self.membership {
            membership.leave();
        }
        self.workers.iter_mut().for_each(|worker| worker.order("shutdown 20000"));
        let mut faults: Vec<String> =
            self.workers.iter_mut().map(Process::line).filter(|answer| answer != "ok").collect();
        for process in self.workers.iter_mut().chain([&mut self.server, &mut self.coordinator]) {
            let ended = process.end();
            if ended.code != Some(0) || ended.complaints.contains("panicked") {
                faults.push(format!("{ended:?}"));
            }
        }
        faults
    }
}

/// The resident memory of a process, in bytes: `VmRSS` of proc_pid_status(5).
fn resident(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

/// What an attacker tried, how often it was let in, and how many streams it gave up.
struct Counts {
    attempts: u64,
    admitted: u64,
    streams: u64,
}

/// An attack under way.
enum Attacker {
    Connections { siege: Siege, _path: Option<Relay> },
    Datagrams { over: Arc<AtomicBool>, sent: Arc<AtomicU64>, thread: JoinHandle<()> },
}

impl Attacker {
    fn start(attack: &Attack, job: &Job) -> Self {
        let address = job.address(attack.on);
        let attacker = match attack.means {
            Means::ForgedInitials => Self::send(address, initials(INITIALS).expect("they are made"), true),
            Means::Garbage => Self::send(address, garbage(), false),
            Means::Connections(who, doing, at_once, rate) => {
                let siege = besiege(job, attack.on, address, (who, doing, at_once, rate));
                Self::Connections { siege, _path: None }
            }
            Means::GappedConnections(who, doing, at_once, rate) => {
                let front = SocketAddr::from(([127, 0, 0, 1], 0));
                let path = Relay::start(front, address.parse().expect("an address"), 1);
                let half = Conditions { loss: Loss::Each(0.5), ..CLEAR };
                path.set(half, half);
                let siege = besiege(job, attack.on, path.address(), (who, doing, at_once, rate));
                Self::Connections { siege, _path: Some(path) }
            }
        };
        eventually("the attack begins", || (attacker.counts().attempts > 0).then_some(()));
        attacker
    }

    /// Sends these datagrams again and again, each from another address if the senders are `forged`.
    fn send(address: String, datagrams: Vec<Vec<u8>>, forged: bool) -> Self {
        let (over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ended, count) = (Arc::clone(&over), Arc::clone(&sent));
        let thread = thread::spawn(move || {
            let own = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a port");
            let (clock, mut due) = (Clock::start(), Time::ZERO);
            for (number, datagram) in (0_u32..).zip(datagrams.iter().cycle()) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                // From 127.1.0.0 on: nobody else uses these addresses of the host.
                let forger = Ipv4Addr::from_bits(0x7F01_0000 | (number % FORGED_ADDRESSES));
                let socket = if forged { UdpSocket::bind((forger, 0)) } else { own.try_clone() };
                let _ = socket.and_then(|socket| socket.send_to(datagram, &address));
                count.fetch_add(1, Ordering::Relaxed);
                due = due + Duration::from_micros(100);
                // Not after every datagram: a thread does not wake so often.
                if number % 50 == 0 {
                    let _ = after(due.since(clock.now())).recv();
                }
            }
        });
        Self::Datagrams { over, sent, thread }
    }

    fn counts(&self) -> Counts {
        match self {
            Self::Connections { siege, .. } => {
                Counts { attempts: siege.attempts(), admitted: siege.admitted(), streams: siege.streams() }
            }
            Self::Datagrams { sent, .. } => Counts { attempts: sent.load(Ordering::Relaxed), admitted: 0, streams: 0 },
        }
    }

    fn end(self) -> Counts {
        let counts = self.counts();
        if let Self::Datagrams { over, thread, .. } = self {
            over.store(true, Ordering::Relaxed);
            thread.join().expect("no panic");
        }
        counts
    }
}

fn besiege(job: &Job, on: Victim, address: String, how: (Who, Doing, usize, u32)) -> Siege {
    let (who, doing, at_once, rate) = how;
    let pass = match who {
        Who::Nobody => Pass::Nothing(job.join.ca_hash),
        Who::Newcomer => Pass::Newcomer(job.join.ca_hash),
        Who::OtherJob => {
            let other = Authority::create("another").and_then(|other| other.credentials(Role::Worker));
            Pass::Certificate(Arc::new(other.expect("it certifies anybody")))
        }
        Who::NoMember | Who::Member => Pass::Certificate(Arc::clone(&job.stranger)),
        Who::Observer => Pass::Certificate(Arc::clone(&job.observer)),
    };
    // The beginning of what a member would send.
    let bytes = match on {
        Victim::Coordinator => vec![VERSION, 0, 1, 0, 0, 7, 7, 7],
        Victim::Server => contribution(),
    };
    let begun = bytes[..bytes.len() - 1].to_vec();
    let manner = match doing {
        Doing::Nothing => Manner::Idle,
        Doing::Hoarding => Manner::Hoard(begun),
        Doing::Trickling => Manner::Trickle(begun),
        Doing::Pouring => Manner::Pour { first: Vec::new(), again: [bytes, vec![0; 64 << 10]].concat(), reads: false },
        Doing::Asking | Doing::AskingOnly => {
            let request = Frame::StatusRequest.encode();
            let length = u32::try_from(request.len()).expect("it is short");
            let again = [&length.to_le_bytes(), &request[..]].concat().repeat(1_000);
            Manner::Pour { first: vec![VERSION], again, reads: doing == Doing::Asking }
        }
        Doing::Churning => Manner::Churn(bytes),
        Doing::Flitting => Manner::Flit(begun),
        // Version, role, a proof that is none, and no signing request: the proof is looked at first.
        Doing::Guessing => Manner::Say([vec![1, Role::Worker as u8], vec![0x55; 32]].concat()),
    };
    Siege::start(Plan { address, from: ATTACKER, pass, manner, at_once, rate }).expect("it has a socket")
}

/// A worker of the job that does nothing but live.
fn joined(join: &JoinString, credentials: &Arc<Credentials>) -> Membership {
    let config = config(Over::Quic, &[("rank", "2"), ("size", "3")]);
    let member = MemberConfig { requested: Some(2), workers: 3, ..process::member(Role::Worker, &config) };
    let (coordinator, credentials) = (join.address.clone(), Arc::clone(credentials));
    let options = MembershipOptions { member, coordinator, credentials };
    Membership::start(options, Clock::start(), None, Progress::default, None, drop).expect("there is a thread")
}

/// The header of a contribution to a tensor that nobody declared.
fn contribution() -> Vec<u8> {
    let target =
        Target { epoch: Epoch { term: 1, number: 1 }, part: PartId { key: TensorKey(7), index: 0 }, round: Round(0) };
    let contribution = Contribution::First { body: Body::plain(1 << 22), checksum: None };
    let header = Contribute {
        target,
        dtype: DType::F32,
        op: Op::Sum,
        participants: Participants::ALL,
        weight: 1.0,
        urgency: 0,
        waited: Waited::default(),
        part_bytes: 1 << 22,
        hold: Hold::No,
        is_given: false,
        contribution,
    };
    Request::Contribute(header).encode()
}

/// Datagrams that are no QUIC, and some whose first bytes say that they are.
fn garbage() -> Vec<Vec<u8>> {
    let http = b"GET / HTTP/1.1\r\nHost: gradlane\r\n\r\n".to_vec();
    let lengths = [0, 1, 7, 20, 1_200, 1_472, 9_000, 65_000];
    let firsts = [0x00_u8, 0x40, 0xC3, 0xFF, b'G'];
    let of = |length: usize| firsts.map(|first| [vec![first], vec![0, 0, 0, 1, 20], vec![first; length]].concat());
    lengths.into_iter().flat_map(of).chain([http]).map(|bytes| bytes[..bytes.len().min(65_000)].to_vec()).collect()
}

/// An address of the host that no victim has.
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
/// How many handshakes begin differently, and from how many addresses.
const INITIALS: usize = 500;
const FORGED_ADDRESSES: u32 = 0xFFFF;
/// What an attack may cost a process.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
