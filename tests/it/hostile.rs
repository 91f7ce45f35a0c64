//! Bad input costs its sender, with an error that names it, and disturbs nobody else: the victims' sums travel over the transport that is
//! attacked. Here are QUIC and the control stream; [`shm`] attacks shared memory, and [`siege`] attacks ports with many connections. The table
//! of all attacks is in `tests/README.md`.

mod shm;
mod siege;

use std::cell::Cell;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use gradlane_core::Error;
use gradlane_core::engine::{Engine, Memory};
use gradlane_core::identity::Credentials;
use gradlane_core::mem::Copies;
use gradlane_core::transport::quic::{ControlEvent, ControlLink, vandal};
use gradlane_core::transport::router::Router;
use gradlane_core::transport::{Answer, Peer, Pull, Push, Transport};
use gradlane_core::types::{
    DType, Done, Epoch, ExchangeId, Incarnation, LinkId, Member, Op, PartId, Participants, Phase, Process, Role, Round,
    TensorKey, Time, View, Waited, WorkerId,
};
use gradlane_core::wire::frame::{Join, Progress, Stall};
use gradlane_core::wire::header::HEADER_BYTES;
use gradlane_core::wire::{
    About, Body, Contribute, Contribution, Contributors, Frame, Header, Hold, Request, Service, Sum, Target, VERSION,
    reject,
};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all, config, worker_over};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::random::mix;
use gradlane_tests::rounds;
use gradlane_tests::tap::{Fate, Tap};

matrix! {
    [over_shm, over_quic]:
        a_stranger_with_a_certificate_contributes_to_no_sum;
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let options = EmbeddedOptions { config: config(Over::Quic, &[("bind", &address)]), workers: 1, servers: 1 };
    let error = Embedded::start(options).err().expect("refused");
    assert!(matches!(&error, Error::Io { what, .. } if what.contains(&address)), "{error}");
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn garbage_on_the_ports_of_coordinator_and_servers_disturbs_no_sum() {
    let cluster = Cluster::start(Over::Quic, 2, 2);
    let ports: Vec<String> = std::iter::once(cluster.embedded.join_string().address.clone())
        .chain(cluster.embedded.servers().iter().map(|server| server.address().to_owned()))
        .collect();
    beside(&cluster, || {
        let vandal = UdpSocket::bind("127.0.0.1:0").unwrap();
        for port in &ports {
            for length in [0_usize, 1, 7, 20, 1200, 1472, 9000, 65_000] {
                for first in [0x00_u8, 0x40, 0xc3, 0xff, b'G'] {
                    let mut garbage = vec![first; length];
                    // Some of it claims to be QUIC, of this version and of others.
                    for (byte, value) in garbage.iter_mut().skip(1).zip([0, 0, 0, first & 1, 20]) {
                        *byte = value;
                    }
                    vandal.send_to(&garbage, port).unwrap();
                }
            }
        }
    });
}

#[test]
fn garbage_on_a_members_stream_to_a_server_ends_its_link_and_nothing_else() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let member = enrolled(&cluster);
    let server = cluster.embedded.servers()[0].address();
    let mut newer = Request::Contribute(push()).encode();
    newer[4] = VERSION + 1;
    beside(&cluster, || {
        for (bytes, names) in [
            (vec![0xaa; 64], "magic"),
            (b"GET / HTTP/1.1\r\nHost: gradlane\r\n\r\n".repeat(2), "magic"),
            (Request::Contribute(push()).encode()[..63].to_vec(), "header"),
            (sum().encode(), "kind"),
            (newer.to_vec(), "version"),
        ] {
            let error = vandal::write(server, &member, bytes, PATIENCE);
            assert!(matches!(error, Error::Protocol { .. } | Error::Incompatible { .. }), "{names}: {error}");
            assert!(error.to_string().contains(names), "{error}");
        }
    });
}

#[test]
fn a_request_for_an_unknown_service_is_refused_whatever_its_bytes_are_and_the_link_lives_over_quic() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let member = enrolled(&cluster);
    let server = cluster.embedded.servers()[0].address();
    let head = Request::Contribute(push()).encode()[..5].to_vec();
    let random = |seed: u64, bytes: usize| (0..bytes as u64).map(move |at| mix(seed + at) as u8);
    let mut pieces: Vec<Vec<u8>> = vec![[&head[..], &[200]].concat()];
    pieces.extend(
        [&[0_u8][..], &[0xff; 57], &[0xff; 3000], &[0; 58], &[0; 100_000]]
            .map(|rest| [&head[..], &[200], rest].concat()),
    );
    pieces.extend(
        (0..50)
            .map(|seed| head.iter().copied().chain([4 + seed as u8]).chain(random(seed, 10 << (seed % 12))).collect()),
    );
    let asked = pieces.len();
    beside(&cluster, || {
        let answers = vandal::ask(server, &member, pieces.clone(), PATIENCE).unwrap();
        assert_eq!(answers.len(), asked);
        for answer in answers {
            let reject = Header::decode(&answer[..HEADER_BYTES], "the server").unwrap();
            assert!(matches!(reject, Header::Reject(_)), "{reject:?}");
            let error = reject::from_body(&answer[HEADER_BYTES..], "the server").unwrap();
            assert!(matches!(&error, Error::Incompatible { field, .. } if field == "service"), "{error}");
        }
    });
}

fn a_stranger_with_a_certificate_contributes_to_no_sum(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let stranger = Stranger::connect(over, &cluster);
    let received = cluster.embedded.servers()[0].stats().received_bytes();
    let other = |target| Request::Contribute(Contribute { target, ..push() });
    let epoch = Epoch { term: u32::MAX, number: u32::MAX };
    for header in [Request::Contribute(push()), other(Target { epoch, ..push().target })] {
        let error = stranger.is_refused(header);
        // Of an older epoch, of a later one.
        assert!(matches!(error, Error::Fenced { .. } | Error::Unavailable { .. }), "{error}");
    }
    let current = cluster.embedded.status().unwrap().view.epoch;
    let now = other(Target { epoch: current, ..push().target });
    let error = stranger.is_refused(now);
    assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("is no worker of epoch")), "{error}");
    let unknown = About { service: Service::Unknown(200), ..push().target.about() };
    let error = stranger.is_refused(Request::Unknown(unknown));
    assert!(matches!(&error, Error::Incompatible { field, .. } if field == "service"), "{error}");
    assert_eq!(cluster.embedded.servers()[0].stats().received_bytes(), received);
    beside(&cluster, || {});
}

#[test]
fn garbage_on_a_members_control_stream_ends_its_link_and_nothing_else() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let join = cluster.embedded.join_string();
    let member = enrolled(&cluster);
    beside(&cluster, || {
        for (bytes, names) in [
            (vec![VERSION + 1], "version"),
            ([&[VERSION][..], &u32::MAX.to_le_bytes()].concat(), "length"),
            ([&[VERSION][..], &4u32.to_le_bytes(), &[0xee; 4]].concat(), "version"),
            ([&[VERSION][..], &3u32.to_le_bytes(), &[VERSION, 0xee, 0]].concat(), "kind"),
        ] {
            let error = vandal::write(&join.address, &member, bytes, PATIENCE);
            assert!(matches!(error, Error::Protocol { .. } | Error::Incompatible { .. }), "{names}: {error}");
            assert!(error.to_string().contains(names), "{error}");
        }
    });
}

#[test]
fn frames_that_nobody_may_send_end_their_link_and_nothing_else() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let join = cluster.embedded.join_string();
    let member = enrolled(&cluster);
    let claim = Join {
        process: Process::new(Role::Coordinator, Incarnation(1)),
        requested: None,
        epoch: None,
        workers: 0,
        servers: 0,
    };
    let view = View::plain("mine", Epoch { term: 9, number: 9 }, Phase::Ended, vec![]);
    let stall = Stall {
        part: PartId { key: TensorKey(1), index: 0 },
        round: Round(0),
        missing: vec![WorkerId(0)],
        waited: Duration::ZERO,
    };
    beside(&cluster, || {
        for frame in [
            Frame::Join(claim.clone()),
            Frame::Heartbeat { sent: Time::ZERO, progress: Progress::default() },
            Frame::View(view.clone()),
            Frame::Stall(stall.clone()),
            Frame::Leave,
        ] {
            let (sender, events) = unbounded();
            let tell = Box::new(move |event| drop(sender.send(event)));
            let link = ControlLink::dial(&join.address, &member, PATIENCE, tell).unwrap();
            link.send(&frame);
            let reason = events.iter().find_map(|event| match event {
                ControlEvent::Closed(reason) => Some(reason),
                ControlEvent::Connected | ControlEvent::Frame(..) => None,
            });
            assert!(matches!(reason, Some(Error::Protocol { .. })), "{frame:?}: {reason:?}");
        }
    });
}

#[test]
fn who_claims_the_rank_of_a_worker_takes_no_place() {
    let cluster = Cluster::start(Over::Quic, 2, 1);
    let join = cluster.embedded.join_string();
    let stranger = enrolled(&cluster);
    let before = cluster.embedded.status().unwrap().view;
    let worker = before.workers().next().unwrap().process.clone();
    beside(&cluster, || {
        // As somebody else of its rank, and as the very process that has it: only the connection tells who it is.
        for process in [Process::new(Role::Worker, Incarnation(1)), worker] {
            let (sender, events) = unbounded();
            let tell = Box::new(move |event| drop(sender.send(event)));
            let link = ControlLink::dial(&join.address, &stranger, PATIENCE, tell).unwrap();
            link.send(&Frame::Join(Join {
                process,
                requested: Some(0),
                epoch: Some(before.epoch),
                workers: 2,
                servers: 1,
            }));
            let answer = events.iter().find_map(|event| match event {
                ControlEvent::Frame(frame, _) => Some(frame),
                ControlEvent::Connected | ControlEvent::Closed(_) => None,
            });
            let Some(Frame::Refused(error)) = &answer else { panic!("{answer:?}") };
            assert!(error.to_string().contains("worker 0 is taken"), "{error}");
        }
    });
    assert_eq!(cluster.embedded.status().unwrap().view, before);
}

#[test]
fn who_reads_no_sum_keeps_nobody_from_theirs_over_quic() {
    let (embedded, workers) = with_a_deaf_worker(&[]);
    let sums = all(&workers, begin_unread);
    assert!(sums.iter().all(|(outcomes, _unread)| outcomes.iter().all(Result::is_ok)));
    let server = &embedded.servers()[0];
    let bytes = (2 * UNREAD_LEN * size_of::<f32>()) as u64;
    eventually("the server keeps the sums and nothing else", || (server.memory_bytes().0 <= bytes).then_some(()));
}

#[test]
fn who_reads_no_sum_is_given_up_after_the_step_timeout_over_quic() {
    // The deaf worker finds out by itself that it hears nothing, but only after `step_timeout` and twice `dead_timeout`.
    let (embedded, workers) = with_a_deaf_worker(&[("step_timeout", "6 s"), ("dead_timeout", "60 s")]);
    let sums = all(&workers, begin_unread);
    assert!(sums.iter().all(|(outcomes, _unread)| outcomes.iter().all(Result::is_ok)));
    let server = &embedded.servers()[0];
    eventually("the server frees the sums that nobody reads", || (server.memory_bytes().0 == 0).then_some(()));
    let next = all(&workers[..2], |engine| rounds::begin(engine, "a", 1, UNREAD_LEN)?.check());
    for outcome in next {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [WorkerId(2)]), "{error}");
    }
}

/// Longer than what a connection takes without being read.
const UNREAD_LEN: usize = 2 << 20;

/// A job of three workers over QUIC, of which the last reads no sums.
fn with_a_deaf_worker(settings: &[(&str, &str)]) -> (Embedded, Vec<Engine>) {
    let config = config(Over::Quic, &[&[("partition_bytes", "8 MiB")], settings].concat());
    let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers: 3, servers: 1 }).unwrap();
    let start = |rank| {
        worker_over(&config, embedded.join_string(), Some(rank), 3, |credentials, copies| {
            let tap = Tap::new(Arc::new(Router::new(&config, credentials, copies)?), |_| Fate::Stay);
            Ok(Arc::new(if rank == 2 { tap.deaf() } else { tap }))
        })
        .unwrap()
    };
    let workers = std::thread::scope(|scope| {
        let starting = [0, 1, 2].map(|rank| scope.spawn(move || start(rank)));
        starting.map(|worker| worker.join().unwrap())
    });
    (embedded, workers.into())
}

/// Reduces two tensors. The deaf worker returns what it began.
fn begin_unread(engine: &Engine) -> (Vec<Result<(), Error>>, Option<[rounds::Reduction; 2]>) {
    let sums = ["a", "b"].map(|name| rounds::begin(engine, name, 0, UNREAD_LEN).unwrap());
    if engine.rank().0 == 2 { (vec![], Some(sums)) } else { (sums.map(rounds::Reduction::check).to_vec(), None) }
}

/// Does `harm` while the workers reduce, and expects every sum to be right.
fn beside(cluster: &Cluster, harm: impl FnOnce() + Send) {
    let (harmed, over) = unbounded::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _harmed = harmed;
            harm();
        });
        // Worker 0 decides when it is enough, so that all do the same rounds.
        let (last, lasts) = unbounded::<u64>();
        all(&cluster.workers, |engine| {
            let mut rounds_due = 0..;
            let mut until = None;
            while let Some(round) = rounds_due.next().filter(|round| until.is_none_or(|last| *round <= last)) {
                if engine.rank().0 == 0
                    && until.is_none()
                    && over.try_recv().is_err_and(|error| error.is_disconnected())
                {
                    until = Some(round + 1);
                    last.send(round + 1).unwrap();
                }
                rounds::begin(engine, "weight", round, 100_000).and_then(rounds::Reduction::check).unwrap();
                if engine.rank().0 != 0 && until.is_none() {
                    until = lasts.try_recv().ok();
                }
            }
        });
    });
}

/// A process that is enrolled and not in the view.
struct Stranger {
    transport: Router,
    link: LinkId,
    asked: Cell<u64>,
}

impl Stranger {
    /// Connects to the server of the job.
    fn connect(over: Over, cluster: &Cluster) -> Self {
        let Member { process, node, .. } = server(cluster);
        let credentials = enrolled(cluster);
        let transport = Router::new(&config(over, &[]), &credentials, &Copies::default()).unwrap();
        let name = "server 0".to_owned();
        let peer = Peer { addresses: process.addresses, node, name };
        let (sender, linked) = unbounded();
        let tell = Done::new(move |outcome| drop(sender.send(outcome)));
        transport.connect(peer, PATIENCE, Box::new(|_, _| ()), tell);
        let link = linked.recv_timeout(PATIENCE).unwrap().unwrap();
        Self { transport, link, asked: Cell::new(0) }
    }

    /// What the server answers to this request.
    fn is_refused(&self, header: Request) -> Error {
        let exchange = ExchangeId(self.asked.replace(self.asked.get() + 1));
        let mut tensor = Tensor::new("a", vec![1_f32]);
        let mut region = || match tensor.submission(Op::Sum).source {
            Memory::Host(region) => vec![region],
            Memory::Device { .. } => unreachable!("a vector lies in host memory"),
        };
        let body = if header.body_bytes() == 0 { Vec::new() } else { region() };
        let (sender, answered) = unbounded();
        let pull = Pull { into: region(), done: Done::new(move |outcome| drop(sender.send(outcome))) };
        self.transport.push(self.link, exchange, Push { header, body, pull: Some(pull), look: None }, Done::new(drop));
        match answered.recv_timeout(PATIENCE).unwrap() {
            Ok(Answer::Reject(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

/// The credentials of a process that enrolled and did not join.
fn enrolled(cluster: &Cluster) -> Credentials {
    cluster.embedded.coordinator().credentials(Role::Worker).unwrap()
}

/// The server of the job, as its members know it.
fn server(cluster: &Cluster) -> Member {
    cluster.embedded.status().unwrap().view.servers().next().unwrap().clone()
}

fn push() -> Contribute {
    Contribute {
        target: Target {
            epoch: Epoch { term: 1, number: 1 },
            part: PartId { key: TensorKey(7), index: 0 },
            round: Round(0),
        },
        dtype: DType::F32,
        op: Op::Sum,
        participants: Participants::ALL,
        weight: 1.0,
        urgency: 0,
        waited: Waited::default(),
        part_bytes: 4,
        hold: Hold::No,
        is_given: false,
        contribution: Contribution::First { body: Body::plain(4), checksum: None },
    }
}

fn sum() -> Sum {
    Sum {
        target: push().target,
        attempt: 0,
        part_bytes: 4,
        body: Body::plain(4),
        divisor: 1.0,
        contributors: Contributors::Due,
        early: false,
        checksum: false,
    }
}
