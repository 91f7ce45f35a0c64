//! QUIC over real sockets of this host.

use std::collections::VecDeque;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;

use super::control::{Newcomers, WAITING_FRAMES_MAX};
use super::dial::{Dialed, Dialer};
use super::endpoint;
use super::*;
use crate::error::{Error, Result};
use crate::identity::{Authority, Credentials, Site, Validity, wall_clock};
use crate::transport::contract::{self, Due, SOON, Server, Worker, World, connect, connected};
use crate::transport::{Inbox, Incoming, Listener, Peer, Transport};
use crate::types::{Epoch, ExchangeId, LinkId, NodeId, Phase, Role, Scheme, Time, View};
use crate::wire::Frame;
use crate::wire::frame::{AckTimes, Progress, Status};

mod flood;
mod site;
mod versions;

contract::promises!(Loopback::new());

#[test]
fn a_newcomer_with_the_join_string_becomes_a_member() {
    let coordinator = Coordinator::new("resnet");
    let join = coordinator.join();
    let credentials = Credentials::enroll(&join, Role::Worker, SOON).unwrap();
    assert_eq!((credentials.identity().role, credentials.identity().job.as_str()), (Role::Worker, "resnet"));
    let (_link, events) = dial(&coordinator, &credentials);
    assert!(matches!(events.soon(), ControlEvent::Connected));
    match coordinator.events.soon() {
        ControlIncoming::Up { node, role, .. } => assert_eq!((node, role), (credentials.node(), Role::Worker)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wrong_secret_is_refused() {
    let coordinator = Coordinator::new("resnet");
    let mut join = coordinator.join();
    join.secret[0] ^= 1;
    let error = Credentials::enroll(&join, Role::Worker, SOON).unwrap_err();
    assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("secret")), "{error}");
}

#[test]
fn an_elastic_job_that_has_formed_enrols_by_an_invitation_and_not_by_its_own_secret() {
    let newcomers = Newcomers { after_forming: true, ..Newcomers::default() };
    let coordinator = Coordinator::bound("resnet", &Settings::default(), newcomers);
    let formed = Error::FailedPrecondition { what: "the job has formed".to_owned(), hint: String::new() };
    coordinator.listener.close_enrolment(formed.clone(), false);
    let own = coordinator.join();
    assert_eq!(Credentials::enroll(&own, Role::Worker, SOON).map(drop), Err(formed));
    let invited = coordinator.authority.invite_here(&own.address, Role::Worker, SOON).unwrap();
    Credentials::enroll(&invited, Role::Worker, SOON).unwrap();
    let error = Credentials::enroll(&invited, Role::Worker, SOON).unwrap_err();
    assert!(matches!(&error, Error::Token { problem, .. } if problem.contains("used up")), "{error}");
}

#[test]
fn a_coordinator_of_another_job_is_not_enrolled_with() {
    let coordinator = Coordinator::new("resnet");
    let mut join = coordinator.join();
    join.ca_hash = Authority::create("resnet").unwrap().join_string("a:1").ca_hash;
    let error = Credentials::enroll(&join, Role::Worker, SOON).unwrap_err();
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("join string")), "{error}");
}

#[test]
fn a_member_that_poses_as_the_coordinator_is_not_enrolled_with() {
    let authority = Authority::create("resnet").unwrap();
    let (address, _told) = versions::listening(
        &authority.credentials(Role::Server).unwrap(),
        super::tls::Admission::MembersAndNewcomers,
        vec![1],
    );
    let error = Credentials::enroll(&authority.join_string(&address), Role::Worker, SOON).unwrap_err();
    assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("acts as a coordinator")), "{error}");
}

#[test]
fn a_process_without_a_certificate_may_only_enrol() {
    let coordinator = Coordinator::new("resnet");
    let tls = tls::without_certificate(coordinator.join().ca_hash, tls::ALPN).unwrap();
    let error = raw(tls, coordinator.listener.address(), |_| async {}).soon().unwrap_err();
    assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("no certificate")), "{error}");
}

#[test]
fn members_of_another_job_refuse_each_other() {
    let (here, there) = (Loopback::new(), Loopback::new());
    let server = Server::new(&here);
    let error = connect(&*there.transport(), server.peer.clone()).0.soon().unwrap_err();
    assert!(matches!(&error, Error::Auth { hint, .. } if hint.contains("another job")), "{error}");
}

#[test]
fn an_expired_certificate_is_refused_with_both_times() {
    let world = Loopback::new();
    let server = Server::new(&world);
    let now = wall_clock();
    let hour = Duration::from_secs(3600);
    let past = Validity { from: now - 2 * hour, to: now - hour };
    let future = Validity { from: now + hour, to: now + 2 * hour };
    for (wrong, said, limit) in
        [(past, "expired: verification time", "not valid after"), (future, "not valid yet", "not valid before")]
    {
        let own = world.authority.credentials_for(Role::Worker, wrong).unwrap();
        let transport = QuicTransport::new(&own, &Settings::default()).unwrap();
        let error = connect(&transport, server.peer.clone()).0.soon().unwrap_err();
        let Error::CertExpired { holder, times, hint } = &error else { panic!("{error}") };
        assert_eq!(holder, "this process");
        // When the certificate is good, what the other side's clock shows, and what this one's does.
        assert!(times.starts_with(&format!("{}; server 0 says: ", own.validity())), "{times}");
        assert!(times.contains(said) && times.contains(limit), "{times}");
        assert!(times.contains("the clock of this process shows"), "{times}");
        assert!(hint.contains("clocks") && hint.contains("certificate_lifetime"), "{hint}");

        let theirs = world.authority.credentials_for(Role::Server, wrong).unwrap();
        let listener = bind("127.0.0.1:0", &theirs, &Settings::default(), Box::new(|_| {})).unwrap();
        let peer = Peer { addresses: listener.addresses.clone(), node: theirs.node(), ..server.peer.clone() };
        let error = connect(&*world.transport(), peer).0.soon().unwrap_err();
        let Error::CertExpired { holder, times, .. } = &error else { panic!("{error}") };
        assert_eq!(holder, "server 0");
        assert!(times.contains(said) && times.contains("the clock of this process shows"), "{times}");
    }
}

#[test]
fn a_renewed_certificate_counts_from_the_next_handshake_on_and_links_stay() {
    let world = Loopback::new();
    let now = wall_clock();
    let past = Validity { from: now - Duration::from_secs(7200), to: now - Duration::from_secs(1) };
    let [worker, server] =
        [Role::Worker, Role::Server].map(|role| world.authority.credentials_for(role, past).unwrap());
    let transport = QuicTransport::new(&worker, &Settings::default()).unwrap();
    let (sender, arrived) = channel();
    let arrived = Due(arrived);
    let inbox = Box::new(move |incoming| drop(sender.send(incoming)));
    let listener = bind("127.0.0.1:0", &server, &Settings::default(), inbox).unwrap();
    let peer = Peer { addresses: listener.addresses.clone(), node: server.node(), name: "server 0".to_owned() };
    let mut links = Vec::new();
    for (renewed, holder) in [(&server, Some("server 0")), (&worker, Some("this process")), (&worker, None)] {
        let (outcome, lost) = connect(&transport, peer.clone());
        match (outcome.soon(), holder) {
            (Err(Error::CertExpired { holder, .. }), Some(expected)) => assert_eq!(holder, expected),
            (Ok(link), None) => links.push((link, lost)),
            (other, _) => panic!("{other:?}"),
        }
        let next = world.authority.renew(&renewed.certificate()).unwrap();
        renewed.renew(next.to_vec()).unwrap();
        assert!(renewed.validity().to > now);
    }
    let Incoming::LinkUp { node, .. } = arrived.soon() else { panic!("a link") };
    assert_eq!(node, worker.node(), "key and identity stay");
    assert!(links[0].1.0.try_recv().is_err(), "the link outlives the certificate that it began with");
}

#[test]
fn only_a_certificate_of_the_same_key_and_role_takes_the_place_of_another() {
    let world = Loopback::new();
    let own = world.credentials(Role::Worker);
    let before = own.certificate();
    let key = Authority::create("resnet").unwrap();
    for other in [
        world.credentials(Role::Worker).certificate().to_vec(),
        key.credentials(Role::Worker).unwrap().certificate().to_vec(),
        vec![0x30],
    ] {
        assert!(matches!(own.renew(other), Err(Error::Auth { .. })));
    }
    assert_eq!(own.certificate(), before);
    assert!(matches!(key.renew(&before), Err(Error::Auth { .. })), "of another job");
}

#[test]
fn a_worker_is_known_by_the_identity_of_its_certificate() {
    let world = Loopback::new();
    let credentials = world.credentials(Role::Worker);
    let server = Server::new(&world);
    let transport = QuicTransport::new(&credentials, &Settings::default()).unwrap();
    connect(&transport, server.peer.clone()).0.soon().unwrap();
    assert!(matches!(server.next(), Incoming::LinkUp { node, .. } if node == credentials.node()));
}

#[test]
fn a_server_serves_workers_only_and_a_worker_pushes_to_servers_only() {
    let world = Loopback::new();
    let server = Server::new(&world);
    for role in [Role::Server, Role::Coordinator, Role::Observer] {
        let transport = QuicTransport::new(&world.credentials(role), &Settings::default()).unwrap();
        let error = connect(&transport, server.peer.clone()).0.soon().unwrap_err();
        let said = format!("acts as a worker, but its certificate is that of a {role}");
        assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains(&said)), "{error}");
    }
    let impostor = world.credentials(Role::Worker);
    let listener = bind("127.0.0.1:0", &impostor, &Settings::default(), Box::new(|_| {})).unwrap();
    let peer = Peer { addresses: listener.addresses.clone(), node: impostor.node(), ..server.peer.clone() };
    let error = connect(&*world.transport(), peer).0.soon().unwrap_err();
    assert!(matches!(&error, Error::Auth { problem, .. } if problem.contains("acts as a server")), "{error}");
}

#[test]
fn garbage_on_the_port_disturbs_nobody() {
    let (server, worker) = connected(&Loopback::new());
    let vandal = UdpSocket::bind("127.0.0.1:0").unwrap();
    for len in [0usize, 1, 7, 20, 1200, 1472, 9000, 65_000] {
        for first in [0x00u8, 0x40, 0xc0, 0xff, b'G'] {
            let garbage = vec![first; len];
            vandal.send_to(&garbage, server.peer.at(Scheme::Quic).unwrap()).unwrap();
        }
    }
    server.still_serves(&worker);
}

#[test]
fn a_member_learns_at_once_that_its_coordinator_was_killed_and_resumes_the_job() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("job");
    let listen = |address: &str, authority: Authority| {
        ControlListener::bind(
            address,
            Arc::new(authority),
            &Settings::default(),
            Newcomers::default(),
            Box::new(|_| {}),
        )
        .unwrap()
    };
    let authority = Authority::begin(&dir, "resnet").unwrap();
    let credentials = authority.credentials(Role::Worker).unwrap();
    let killed = listen("127.0.0.1:0", authority);
    let address = killed.address().to_owned();
    let (events, sender) = events();
    let link = ControlLink::dial(&address, &credentials, SOON, sender).unwrap();
    assert!(matches!(events.soon(), ControlEvent::Connected));
    killed.vanish();
    let _resumed = listen(&address, Authority::resume(&dir, "resnet").unwrap());
    link.send(&heartbeat(1));
    let ControlEvent::Closed(reason) = events.soon() else { panic!("nobody answers") };
    assert!(reason.to_string().contains("it restarted"), "and not after a silence: {reason}");
}

#[test]
fn the_keys_of_a_job_are_those_of_its_authority_and_differ_from_each_other() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("job");
    let keys = |authority: &Authority| [authority.workers_key().0, authority.reset_key()];
    let begun = keys(&Authority::begin(&dir, "resnet").unwrap());
    assert_eq!(keys(&Authority::resume(&dir, "resnet").unwrap()), begun);
    let next = keys(&Authority::begin(&dir, "resnet").unwrap());
    let all: std::collections::BTreeSet<[u8; 32]> = begun.into_iter().chain(next).collect();
    assert_eq!(all.len(), 4);
}

#[test]
fn a_worker_sends_no_more_that_is_not_read_than_it_was_granted() {
    let mut world = Loopback::new();
    world.settings = Settings { bytes_in_flight_max: 64 << 10, ..Settings::default() };
    let server = Server::new(&world);
    let transport = world.transport();
    let (connected, lost) = connect(&*transport, server.peer.clone());
    let link = server.up();
    let worker = Worker { link: connected.soon().unwrap(), transport, lost };
    let other = server.connect(world.transport());
    let mut body = contract::pattern(1 << 20, 1);
    let sent = worker.push(ExchangeId(1), &mut body);
    server.opened();
    // A round trip, in which all could have been sent.
    server.still_serves(&other);
    assert!(sent.0.try_recv().is_err(), "more was sent than was granted");
    server.send(crate::transport::Outgoing::Grant { link, unread_bytes_max: 2 << 20 });
    assert_eq!(sent.soon(), Ok(()));
    worker.transport.shutdown(SOON);
}

#[test]
fn garbage_on_a_stream_costs_only_its_own_link() {
    let world = Loopback::new();
    let (server, worker) = connected(&world);
    for garbage in [vec![0xaa; 64], vec![0xaa; 63], contract::header(4).encode().repeat(2)] {
        let tls = tls::client(&world.credentials(Role::Worker)).unwrap();
        let told = raw(tls, server.peer.at(Scheme::Quic).unwrap(), |dialed| async move {
            let (mut sender, _receiver) = dialed.stream;
            sender.write_all(&garbage).await.unwrap();
            sender.finish().unwrap();
            closing::connection_error(&dialed.connection.closed().await, "server 0")
        });
        let vandal = server.up();
        if let Incoming::Opened { exchange, .. } = server.next_or_down(vandal) {
            // A header that is right, but a body that is longer than it says.
            server.send(crate::transport::Outgoing::Accept { exchange });
            server.torn(exchange);
            server.next_or_down(vandal);
        }
        assert!(matches!(told.soon().unwrap(), Error::Protocol { .. }), "the vandal is told what was wrong");
    }
    server.still_serves(&worker);
}

#[test]
fn a_server_that_breaks_the_protocol_costs_other_exchanges_a_repeat() {
    let (server, worker) = connected(&Loopback::new());
    let (mut memory, mut beside) = (contract::pattern(400, 1), contract::pattern(400, 2));
    let sent_beside = worker.push(ExchangeId(2), &mut beside);
    let sum_beside = worker.pull(ExchangeId(2), &mut beside);
    server.land();
    assert_eq!(sent_beside.soon(), Ok(()));
    let sent = worker.push(ExchangeId(1), &mut memory);
    let sum = worker.pull(ExchangeId(1), &mut memory);
    let (exchange, _) = server.land();
    server.answer((exchange, server.pool.lease(404)));
    assert_eq!(sent.soon(), Ok(()));
    let torn = sum.soon().expect_err("404 bytes do not fit");
    assert!(matches!(torn.error, Error::Protocol { .. }), "{torn:?}");
    let torn = sum_beside.soon().expect_err("its link was closed");
    assert!(torn.error.retryable(), "{torn:?}");
    assert!(matches!(worker.lost.soon().1, Error::Protocol { .. }));
}

#[test]
fn a_server_that_falls_silent_tears_what_is_under_way() {
    let world = Loopback::new();
    let credentials = world.credentials(Role::Server);
    // Its thread stops where it is, as that of a process that was killed or suspended.
    let (release, stuck) = channel::<()>();
    let stuck = std::sync::Mutex::new(stuck);
    let stop = Box::new(move |event| {
        if matches!(event, Incoming::Opened { .. }) {
            let _ = stuck.lock().unwrap().recv();
        }
    });
    let listener = bind("127.0.0.1:0", &credentials, &Settings::default(), stop).unwrap();
    let idle_timeout = Duration::from_millis(500);
    let settings = Settings { idle_timeout, keep_alive: idle_timeout / 4, ..Settings::default() };
    let transport: Arc<dyn Transport> =
        Arc::new(QuicTransport::new(&world.credentials(Role::Worker), &settings).unwrap());
    let peer = Peer { addresses: listener.addresses.clone(), node: credentials.node(), name: "server 0".to_owned() };
    let (linked, lost) = connect(&*transport, peer);
    let worker = Worker { link: linked.soon().unwrap(), transport, lost };
    let mut memory = contract::pattern(1 << 20, 1);
    let sent = worker.push(ExchangeId(1), &mut memory);
    let sum = worker.pull(ExchangeId(1), &mut memory);
    assert_eq!(sent.soon(), Ok(()));
    let torn = sum.soon().unwrap_err();
    assert!(torn.error.retryable() && torn.error.to_string().contains("stopped answering"), "{torn:?}");
    assert_eq!(torn.landed, 0);
    assert!(worker.lost.soon().1.retryable());
    drop(release);
}

#[test]
fn an_unused_port_is_given_up_when_patience_ends() {
    let world = Loopback::new();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (events, sender) = events();
    let credentials = world.credentials(Role::Worker);
    let _link = ControlLink::dial(&free, &credentials, Duration::from_millis(200), sender).unwrap();
    assert!(matches!(events.soon(), ControlEvent::Closed(Error::Unavailable { .. })));
}

#[test]
fn frames_pass_both_ways_in_order() {
    let coordinator = Coordinator::new("resnet");
    let (link, events) = dial(&coordinator, &coordinator.authority.credentials(Role::Server).unwrap());
    assert!(matches!(events.soon(), ControlEvent::Connected));
    let id = coordinator.up();
    (0..100).for_each(|at| link.send(&heartbeat(at)));
    for at in 0..100 {
        assert!(matches!(coordinator.events.soon(), ControlIncoming::Frame { frame, .. } if frame == heartbeat(at)));
        coordinator.listener.send(id, Frame::HeartbeatAck { sent: Time(at), times: AckTimes::default() });
    }
    for at in 0..100 {
        assert!(matches!(events.soon(), ControlEvent::Frame(Frame::HeartbeatAck { sent, .. }, _) if sent == Time(at)));
    }
}

#[test]
fn a_link_is_read_no_further_while_many_of_its_frames_wait() {
    const SENT: u64 = 1_000;
    let coordinator = Coordinator::new("resnet");
    let (link, _events) = dial(&coordinator, &coordinator.authority.credentials(Role::Worker).unwrap());
    (0..SENT).for_each(|at| link.send(&heartbeat(at)));
    coordinator.up();
    // Nobody handles them: they are kept.
    let mut waiting: VecDeque<_> = (0..WAITING_FRAMES_MAX).map(|_| coordinator.events.soon()).collect();
    assert!(coordinator.events.0.recv_timeout(Duration::from_millis(50)).is_err(), "the rest waits at the peer");
    for at in 0..SENT {
        // Makes room for the next one.
        let handled = waiting.pop_front();
        assert!(
            matches!(handled, Some(ControlIncoming::Frame { frame, waiting: _room, .. }) if frame == heartbeat(at))
        );
        if at + (WAITING_FRAMES_MAX as u64) < SENT {
            waiting.push_back(coordinator.events.soon());
        }
    }
}

#[test]
fn a_request_for_the_status_waits_until_the_one_before_is_answered() {
    let coordinator = Coordinator::new("resnet");
    let (link, events) = dial(&coordinator, &coordinator.authority.credentials(Role::Observer).unwrap());
    assert!(matches!(events.soon(), ControlEvent::Connected));
    (0..3).for_each(|_| link.send(&Frame::StatusRequest));
    let id = coordinator.up();
    for _ in 0..3 {
        assert!(matches!(coordinator.events.soon(), ControlIncoming::Frame { frame: Frame::StatusRequest, .. }));
        assert!(coordinator.events.0.recv_timeout(Duration::from_millis(50)).is_err(), "not before it is answered");
        coordinator.listener.send(id, Frame::Status(status()));
        assert!(matches!(events.soon(), ControlEvent::Frame(Frame::Status(_), _)));
    }
}

#[test]
fn who_has_not_joined_sends_short_frames_only() {
    let coordinator = Coordinator::new("resnet");
    let (link, events) = dial(&coordinator, &coordinator.authority.credentials(Role::Worker).unwrap());
    assert!(matches!(events.soon(), ControlEvent::Connected));
    link.send(&Frame::StatusRequest);
    let names = (0..1_000).map(|number| format!("a name that is not short, {number}")).collect();
    link.send(&Frame::Undeclare { request: 0, names });
    let ControlEvent::Closed(error) = events.soon() else { panic!("it is closed") };
    assert!(matches!(&error, Error::Protocol { field, .. } if field == "length"), "{error}");
}

#[test]
fn frames_that_wait_when_their_node_leaves_are_heard_out() {
    let coordinator = Coordinator::new("resnet");
    let (link, events) = dial(&coordinator, &coordinator.authority.credentials(Role::Worker).unwrap());
    assert!(matches!(events.soon(), ControlEvent::Connected));
    (0..3 * WAITING_FRAMES_MAX as u64).for_each(|at| link.send(&heartbeat(at)));
    link.send(&Frame::Leave);
    drop(link);
    coordinator.up();
    for at in 0..3 * WAITING_FRAMES_MAX as u64 {
        assert!(matches!(coordinator.events.soon(), ControlIncoming::Frame { frame, .. } if frame == heartbeat(at)));
    }
    assert!(matches!(coordinator.events.soon(), ControlIncoming::Frame { frame: Frame::Leave, .. }));
    assert!(matches!(coordinator.events.soon(), ControlIncoming::Down { .. }));
}

#[test]
fn who_is_sent_away_hears_the_last_frame_and_the_reason() {
    let coordinator = Coordinator::new("resnet");
    let (link, events) = dial(&coordinator, &coordinator.authority.credentials(Role::Worker).unwrap());
    assert!(matches!(events.soon(), ControlEvent::Connected));
    link.send(&Frame::Leave);
    let id = coordinator.up();
    assert!(matches!(coordinator.events.soon(), ControlIncoming::Frame { frame: Frame::Leave, .. }));
    let reason = Error::DuplicateRank { member: "worker 1".to_owned(), holder: "host-a (pid 7)".to_owned() };
    coordinator.listener.send(id, Frame::Refused(reason.clone()));
    coordinator.listener.close(id, reason.clone());
    assert!(matches!(events.soon(), ControlEvent::Frame(Frame::Refused(told), _) if told == reason));
    match events.soon() {
        ControlEvent::Closed(told) => assert_eq!(told, reason),
        other => panic!("{other:?}"),
    }
    assert!(matches!(coordinator.events.soon(), ControlIncoming::Down { link, .. } if link == id));
}

#[test]
fn a_node_that_leaves_is_heard_out() {
    let coordinator = Coordinator::new("resnet");
    let (link, events) = dial(&coordinator, &coordinator.authority.credentials(Role::Worker).unwrap());
    assert!(matches!(events.soon(), ControlEvent::Connected));
    (0..50).for_each(|at| link.send(&heartbeat(at)));
    link.send(&Frame::Leave);
    drop(link);
    assert!(matches!(events.soon(), ControlEvent::Closed(Error::Cancelled)));
    coordinator.up();
    for at in 0..50 {
        assert!(matches!(coordinator.events.soon(), ControlIncoming::Frame { frame, .. } if frame == heartbeat(at)));
    }
    assert!(matches!(coordinator.events.soon(), ControlIncoming::Frame { frame: Frame::Leave, .. }));
    assert!(matches!(coordinator.events.soon(), ControlIncoming::Down { .. }));
}

#[test]
fn garbage_on_a_control_stream_costs_only_its_own_link() {
    let coordinator = Coordinator::new("resnet");
    let (link, events) = dial(&coordinator, &coordinator.authority.credentials(Role::Worker).unwrap());
    assert!(matches!(events.soon(), ControlEvent::Connected));
    coordinator.up();
    // A length that nobody may announce first, and a frame that is none.
    for garbage in [u32::MAX.to_le_bytes().to_vec(), [&4u32.to_le_bytes()[..], &[0xee; 4]].concat()] {
        let tls = tls::client(&coordinator.authority.credentials(Role::Worker).unwrap()).unwrap();
        let told = raw(tls, coordinator.listener.address(), |dialed| async move {
            let (mut sender, _receiver) = dialed.stream;
            sender.write_all(&[crate::wire::VERSION]).await.unwrap();
            sender.write_all(&garbage).await.unwrap();
            closing::connection_error(&dialed.connection.closed().await, "the coordinator")
        });
        assert!(told.soon().is_ok_and(|told| matches!(told, Error::Protocol { .. } | Error::Incompatible { .. })));
        coordinator.up();
        assert!(matches!(coordinator.events.soon(), ControlIncoming::Down { .. }));
    }
    link.send(&Frame::StatusRequest);
    assert!(matches!(coordinator.events.soon(), ControlIncoming::Frame { frame: Frame::StatusRequest, .. }));
}

#[test]
fn a_node_is_told_when_the_coordinator_stops() {
    let coordinator = Coordinator::new("resnet");
    let (_link, events) = dial(&coordinator, &coordinator.authority.credentials(Role::Worker).unwrap());
    assert!(matches!(events.soon(), ControlEvent::Connected));
    let id = coordinator.up();
    coordinator.listener.send(id, Frame::Leave);
    coordinator.listener.stop(SOON);
    assert!(matches!(events.soon(), ControlEvent::Frame(Frame::Leave, _)), "what was sent before is heard");
    assert!(matches!(events.soon(), ControlEvent::Closed(Error::Unavailable { .. })));
}

#[test]
fn a_worker_is_no_coordinator() {
    let world = Loopback::new();
    let server = Server::new(&world);
    let (events, sender) = events();
    let _link =
        ControlLink::dial(server.peer.at(Scheme::Quic).unwrap(), &world.credentials(Role::Worker), SOON, sender)
            .unwrap();
    assert!(
        matches!(events.soon(), ControlEvent::Closed(Error::Auth { problem, .. }) if problem.contains("is a server"))
    );
}

/// A job on this host.
pub(super) struct Loopback {
    authority: Authority,
    pub(super) settings: Settings,
}

impl Loopback {
    pub(super) fn new() -> Self {
        Self { authority: Authority::create("test").unwrap(), settings: Settings::default() }
    }

    pub(super) fn credentials(&self, role: Role) -> Credentials {
        self.authority.credentials(role).unwrap()
    }
}

impl World for Loopback {
    fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
        let credentials = self.credentials(Role::Server);
        (bind("127.0.0.1:0", &credentials, &self.settings, inbox).unwrap(), credentials.node())
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(QuicTransport::new(&self.credentials(Role::Worker), &self.settings).unwrap())
    }
}

struct Coordinator {
    authority: Arc<Authority>,
    listener: ControlListener,
    events: Due<ControlIncoming>,
}

impl Coordinator {
    fn new(job: &str) -> Self {
        Self::with(job, &Settings::default())
    }

    fn at(site: &Site) -> Self {
        Self::bound("resnet", &Settings::default(), Newcomers { site: Some(site), ..Newcomers::default() })
    }

    fn with(job: &str, settings: &Settings) -> Self {
        Self::bound(job, settings, Newcomers::default())
    }

    fn bound(job: &str, settings: &Settings, newcomers: Newcomers<'_>) -> Self {
        let authority = Arc::new(Authority::create(job).unwrap());
        let (sender, events) = channel();
        let tell = Box::new(move |event| drop(sender.send(event)));
        let listener = ControlListener::bind("127.0.0.1:0", Arc::clone(&authority), settings, newcomers, tell).unwrap();
        Self { authority, listener, events: Due(events) }
    }

    fn join(&self) -> crate::types::join::JoinString {
        self.authority.join_string(self.listener.address())
    }

    fn up(&self) -> LinkId {
        match self.events.soon() {
            ControlIncoming::Up { link, .. } => link,
            other => panic!("{other:?} where a node was to connect"),
        }
    }
}

impl Server {
    fn up(&self) -> LinkId {
        match self.next() {
            Incoming::LinkUp { link, .. } => link,
            other => panic!("{other:?} where a link was to come up"),
        }
    }

    /// The next event, which is the end of `link` or the beginning of an exchange.
    fn next_or_down(&self, link: LinkId) -> Incoming {
        let event = self.next();
        match &event {
            Incoming::LinkDown { link: down, reason: _ } => assert_eq!(*down, link),
            Incoming::Opened { .. } => {}
            other => panic!("{other:?}"),
        }
        event
    }
}

type Events = Box<dyn Fn(ControlEvent) + Send + Sync>;

fn events() -> (Due<ControlEvent>, Events) {
    let (sender, events) = channel();
    (Due(events), Box::new(move |event| drop(sender.send(event))))
}

fn dial(coordinator: &Coordinator, credentials: &Credentials) -> (ControlLink, Due<ControlEvent>) {
    let (events, sender) = events();
    let link = ControlLink::dial(coordinator.listener.address(), credentials, SOON, sender).unwrap();
    (link, events)
}

fn status() -> Status {
    let view = View::plain("resnet", Epoch::default(), Phase::Forming, Vec::new());
    Status { view, members: Vec::new(), imbalance_milli: 1_000, hold: None, waits: Box::default() }
}

fn heartbeat(at: u64) -> Frame {
    Frame::Heartbeat { sent: Time(at), progress: Progress::default() }
}

/// Connects to `address` and does there what no transport of ours would do.
fn raw<F, T>(
    tls: Arc<QuicClientConfig>,
    address: &str,
    act: impl FnOnce(Dialed) -> F + Send + 'static,
) -> Due<Result<T>>
where
    F: Future<Output = T> + Send,
    T: Send + 'static,
{
    let (sender, outcome) = channel();
    let (settings, address) = (Settings::default(), address.to_owned());
    let of_dialer = settings.clone();
    let serve = move |endpoint| async move {
        let dialer = Dialer { endpoint, tls, credentials: None, settings: of_dialer };
        let outcome = match dialer.dial(&address, "the victim", SOON).await {
            Ok(dialed) => Ok(act(dialed).await),
            Err(error) => Err(error),
        };
        sender.send(outcome).unwrap();
    };
    let socket = socket::bind_any(1 << 20).unwrap();
    endpoint::start("vandal", socket, settings.endpoint(), None, serve).unwrap();
    Due(outcome)
}
