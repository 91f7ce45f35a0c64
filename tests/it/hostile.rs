//! Bad input costs its sender, with an error that names it, and disturbs nobody else.

use std::net::UdpSocket;
use std::time::Duration;

use crossbeam_channel::unbounded;
use gradlane_core::Error;
use gradlane_core::transport::identity::Credentials;
use gradlane_core::transport::quic::{ControlEvent, ControlLink, vandal};
use gradlane_core::types::{DType, Incarnation, Op, PartId, Process, Round, TensorKey, Time, WorkerId};
use gradlane_core::types::{Epoch, Phase, Role, View};
use gradlane_core::wire::frame::{Join, Progress, Stall};
use gradlane_core::wire::{
    Body, Contribute, Contribution, Contributors, Frame, Header, Reply, Request, Service, Sum, Target, VERSION, reject,
};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, all, config};
use gradlane_tests::rounds;

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let options = EmbeddedOptions { config: config(&[("bind", &address)]), workers: 1, servers: 1 };
    let error = Embedded::start(options).err().expect("refused");
    assert!(matches!(&error, Error::Io { what, .. } if what.contains(&address)), "{error}");
    assert!(error.to_string().contains("in use"), "{error}");
}

#[test]
fn garbage_on_the_ports_of_coordinator_and_servers_disturbs_no_sum() {
    let cluster = Cluster::start(2, 2);
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
    let cluster = Cluster::start(2, 1);
    let member = Credentials::enroll(cluster.embedded.join_string(), Role::Worker, PATIENCE).unwrap();
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
fn a_stranger_with_a_certificate_contributes_to_no_sum() {
    let cluster = Cluster::start(2, 1);
    // Enrolled, but not in the view: it holds the join string and no rank.
    let stranger = Credentials::enroll(cluster.embedded.join_string(), Role::Worker, PATIENCE).unwrap();
    let server = cluster.embedded.servers()[0].address();
    let received = cluster.embedded.servers()[0].stats().received_bytes();
    let other = |target| Contribute { target, ..push() };
    let epoch = Epoch { term: u32::MAX, number: u32::MAX };
    for header in [push(), other(Target { epoch, ..push().target })] {
        let error = rejected(vandal::ask(server, &stranger, Request::Contribute(header).encode().to_vec(), PATIENCE));
        // Of an older epoch, of a later one.
        assert!(matches!(error, Error::Fenced { .. } | Error::Unavailable { .. }), "{error}");
    }
    let current = cluster.embedded.status().unwrap().view.epoch;
    let now = other(Target { epoch: current, ..push().target });
    let error = rejected(vandal::ask(server, &stranger, Request::Contribute(now).encode().to_vec(), PATIENCE));
    assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("is no worker of epoch")), "{error}");
    let unknown = other(Target { service: Service::Unknown(200), ..push().target });
    let error = rejected(vandal::ask(server, &stranger, Request::Contribute(unknown).encode().to_vec(), PATIENCE));
    assert!(matches!(&error, Error::Incompatible { field, .. } if field == "service"), "{error}");
    assert_eq!(cluster.embedded.servers()[0].stats().received_bytes(), received);
    beside(&cluster, || {});
}

#[test]
fn garbage_on_a_members_control_stream_ends_its_link_and_nothing_else() {
    let cluster = Cluster::start(2, 1);
    let join = cluster.embedded.join_string();
    let member = Credentials::enroll(join, Role::Worker, PATIENCE).unwrap();
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
    let cluster = Cluster::start(2, 1);
    let join = cluster.embedded.join_string();
    let member = Credentials::enroll(join, Role::Worker, PATIENCE).unwrap();
    let claim = Join {
        process: Process::new(Role::Coordinator, Incarnation(1)),
        requested: None,
        epoch: None,
        workers: 0,
        servers: 0,
    };
    let view =
        View { job: "mine".to_owned(), epoch: Epoch { term: 9, number: 9 }, phase: Phase::Ended, members: vec![] };
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
                ControlEvent::Connected | ControlEvent::Frame(_) => None,
            });
            assert!(matches!(reason, Some(Error::Protocol { .. })), "{frame:?}: {reason:?}");
        }
    });
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

/// The error with which a server answered.
fn rejected(answer: gradlane_core::Result<Vec<u8>>) -> Error {
    let answer = answer.expect("an answer");
    let (header, body) = answer.split_at(64);
    match Header::decode(header, "server 0").and_then(|header| header.into_reply("server 0")) {
        Ok(Reply::Reject(_)) => reject::from_body(body, "server 0").expect("an error"),
        other => panic!("{other:?}"),
    }
}

fn push() -> Contribute {
    Contribute {
        target: Target {
            service: Service::DenseSum,
            epoch: Epoch { term: 1, number: 1 },
            part: PartId { key: TensorKey(7), index: 0 },
            round: Round(0),
            attempt: 0,
        },
        dtype: DType::F32,
        op: Op::Sum,
        weight: 1.0,
        urgency: 0,
        part_bytes: 4,
        contribution: Contribution::First { body: Body::plain(4), checksum: None },
    }
}

fn sum() -> Sum {
    Sum {
        target: push().target,
        part_bytes: 4,
        body: Body::plain(4),
        divisor: 1.0,
        contributors: Contributors::Due,
        early: false,
        checksum: false,
    }
}
