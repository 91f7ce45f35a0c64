//! What the data path does beyond the promises of every transport, which `quic::tests` hold it to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use quinn_proto::{ConnectionHandle, Event};

use super::*;
use crate::local::Ended;
use crate::metrics::{Cell, Value, WorkerMetrics};
use crate::transport::contract::{self, SOON, Server, Worker, World, connect, connected, pattern, sum_of};
use crate::transport::quic::QuicTransport;
use crate::transport::quic::tests::Loopback;
use crate::transport::{Incoming, Outgoing, Peer, Transport};
use crate::types::{Done, ExchangeId, LinkLimit, NodeId, Role, ServerId};
use crate::wire::{Contribute, Request};

#[test]
fn a_network_that_loses_a_fifth_of_all_datagrams_loses_nothing() {
    for datagram_bytes_max in [1_452, 16_000] {
        let settings = Settings { datagram_bytes_max: Some(datagram_bytes_max), ..Settings::default() };
        let world = Trying { loss_percent: Arc::new(AtomicU64::new(20)), ..Trying::new(settings) };
        let (server, worker) = connected(&world);
        let _echo = server.echo();
        let mut memory: Vec<(Vec<u8>, Vec<u8>)> =
            (0..4).map(|seed| (pattern(500_000, seed), vec![0; 500_000])).collect();
        let mut sums = Vec::new();
        for (id, (pushed, pulled)) in (0..).zip(&mut memory) {
            worker.push(ExchangeId(id), pushed);
            sums.push(worker.pull(ExchangeId(id), pulled));
        }
        for sum in sums {
            sum_of(sum.soon());
        }
        assert!(memory.iter().all(|(pushed, pulled)| pushed == pulled));
    }
}

#[test]
fn what_the_owner_answers_to_an_event_is_carried_out_before_anything_is_sent() {
    let (commands, inbox) = commands::channel().unwrap();
    let settings = Settings::default();
    let wire = open(socket::bind_any(settings.socket_buffer_bytes).unwrap()).unwrap();
    let mut steps = Vec::new();
    let net = Net::new(wire, settings.endpoint(), None);
    let role = Answering { commands, due: net.now(), steps: &mut steps };
    driver::run(net, role, inbox).unwrap();
    assert_eq!(steps[..3], [Step::Event, Step::Command, Step::Settle]);
}

#[test]
fn what_is_urgent_does_not_wait_for_room_in_the_window_of_a_backlog() {
    // It outlives the transport, which has it until the end.
    let mut memory: Vec<Vec<u8>> = (0..8).map(|seed| pattern(4 << 20, seed)).collect();
    let mut urgent_memory = pattern(1 << 20, 9);
    let world = Trying::new(Settings::default());
    let (_server, worker) = connected(&world);
    // Nothing is acknowledged from now on.
    world.loss_percent.store(100, Ordering::Relaxed);
    let push = |id: u64, urgency: u8, body: &mut [u8]| {
        let header = Request::Contribute(Contribute { urgency, ..contract::contribute(body.len() as u64) });
        worker.push_with(ExchangeId(id), header, body)
    };
    let backlog: Vec<_> = (0..).zip(&mut memory).map(|(id, body)| push(id, 0, body)).collect();
    let urgent = push(9, 7, &mut urgent_memory);
    assert_eq!(urgent.soon(), Ok(()));
    assert!(backlog[7].0.try_recv().is_err(), "the backlog is longer than the window");
}

#[test]
fn loopback_is_used_in_its_full_width() {
    let world = Trying::new(Settings::default());
    let (server, worker) = connected(&world);
    server.still_serves(&worker);
    let _echo = server.echo();
    world.exchange(1, &worker, 1 << 20);
    assert!(world.largest.load(Ordering::Relaxed) > 65_000);
}

#[test]
fn no_datagram_is_larger_than_allowed() {
    let settings = Settings { datagram_bytes_max: Some(1_452), ..Settings::default() };
    let world = Trying::new(settings);
    let (server, worker) = connected(&world);
    let _echo = server.echo();
    world.exchange(1, &worker, 1 << 20);
    assert_eq!(world.largest.load(Ordering::Relaxed), 1_452);
}

#[test]
fn servers_of_a_small_sum_take_turns_in_small_batches() {
    let settings = Settings { datagram_bytes_max: Some(1_452), ..Settings::default() };
    let world = Trying::new(settings);
    let can_batch = world.wire("127.0.0.1:0").segments(1_452, usize::MAX) > 1;
    let (server, worker) = connected(&world);
    let (other, _lost) = connect(&*worker.transport, server.peer.clone());
    other.soon().unwrap();
    let _echo = server.echo();
    let largest_batch = |id: u64, bytes: usize| {
        world.exchange(id, &worker, bytes);
        world.largest_batch.load(Ordering::Relaxed)
    };
    let small = largest_batch(1, 1 << 20);
    assert!(small <= 24 << 10, "{small}");
    let large = largest_batch(2, 4 << 20);
    assert!(!can_batch || large > 24 << 10, "{large}");
}

#[test]
fn many_workers_are_served_by_one_thread() {
    let world = Loopback::new();
    let server = Server::new(&world);
    let workers: Vec<Worker> = (0..40).map(|_| server.connect(world.transport())).collect();
    let _echo = server.echo();
    let mut memory: Vec<(Vec<u8>, Vec<u8>)> = (0..40).map(|seed| (pattern(200_000, seed), vec![0; 200_000])).collect();
    let mut sums = Vec::new();
    for (worker, (pushed, pulled)) in workers.iter().zip(&mut memory) {
        worker.push(ExchangeId(1), pushed);
        sums.push(worker.pull(ExchangeId(1), pulled));
    }
    for sum in sums {
        sum_of(sum.soon());
    }
    assert!(memory.iter().all(|(pushed, pulled)| pushed == pulled));
}

#[test]
fn a_worker_that_falls_silent_is_torn_and_then_gone() {
    let mut world = Loopback::new();
    let idle_timeout = Duration::from_millis(500);
    world.settings = Settings { idle_timeout, keep_alive: idle_timeout / 4, ..Settings::default() };
    let (server, worker) = connected(&world);
    let mut memory = pattern(1000, 1);
    // Its thread stops where it is, as that of a process that was killed or suspended.
    let (release, stuck) = channel::<()>();
    let push = contract::push_of(contract::header(1000), &mut memory);
    let stop = Done::new(move |_| {
        let _ = stuck.recv();
    });
    worker.transport.push(worker.link, ExchangeId(1), push, stop);
    // The server hears the push only if it was sent before the thread stopped.
    let reason = loop {
        match server.next() {
            Incoming::LinkDown { reason, .. } => break reason,
            Incoming::Opened { .. } | Incoming::Torn { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(reason.to_string().contains("stopped answering"), "{reason}");
    drop(release);
}

#[test]
fn a_server_is_found_by_its_name() {
    let world = Loopback::new();
    let server = Server::new(&world);
    let port = server.peer.at(Scheme::Quic).unwrap().rsplit_once(':').unwrap().1;
    let named = Peer { addresses: at(&format!("localhost:{port}")), ..server.peer.clone() };
    let transport = world.transport();
    connect(&*transport, named).0.soon().unwrap();
    let nowhere = Peer { addresses: at("host.invalid:1"), ..server.peer.clone() };
    let (sender, refused) = channel();
    let done = Done::new(move |outcome| drop(sender.send(outcome)));
    transport.connect(nowhere, Duration::from_millis(1), Box::new(|_, _| {}), done);
    let error = refused.recv_timeout(SOON).unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

#[test]
fn a_driver_whose_socket_fails_says_so_and_answers_every_call() {
    let world = Trying::new(Settings::default());
    let (listener, node) = world.listen(Box::new(|_| {}));
    let transport = world.transport();
    let (heard_here, heard_there) = (watched(|ended| transport.watch(ended)), watched(|ended| (listener.watch)(ended)));
    world.has_failed.store(true, Ordering::Relaxed);
    let peer = Peer { addresses: listener.addresses.clone(), node, name: "server 0".to_owned() };
    let (connected, _lost) = connect(&*transport, peer);
    assert!(connected.soon().is_err());
    (listener.outbox)(Outgoing::Accept { exchange: ExchangeId(1) });
    for heard in [heard_here, heard_there] {
        let error = heard.recv_timeout(SOON).unwrap();
        assert!(matches!(&error, Error::Io { cause, .. } if cause == "planted"), "{error}");
    }
}

#[test]
fn a_driver_whose_thread_panics_says_so() {
    let world = Loopback::new();
    let (listener, node) = world.listen(Box::new(|_| panic!("planted")));
    let heard = watched(|ended| (listener.watch)(ended));
    let peer = Peer { addresses: listener.addresses.clone(), node, name: "server 0".to_owned() };
    let transport = world.transport();
    let _connected = connect(&*transport, peer);
    let error = heard.recv_timeout(SOON).unwrap();
    assert!(matches!(&error, Error::Internal { what } if what.ends_with("panicked: planted")), "{error}");
    let (sender, late) = channel();
    (listener.watch)(Arc::new(move |cause| drop(sender.send(cause))));
    assert_eq!(late.try_recv(), Ok(error), "who asks later is told at once");
}

fn at(place: &str) -> Vec<Address> {
    vec![Address::new(Scheme::Quic, place)]
}

/// What `watch` tells.
fn watched(watch: impl FnOnce(Ended)) -> Receiver<Error> {
    let (sender, heard) = channel();
    watch(Arc::new(move |cause| drop(sender.send(cause))));
    heard
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Event,
    Command,
    Settle,
}

/// Answers the first event by a command, and ends with the turn in which that was carried out.
struct Answering<'a> {
    commands: Commands<Step>,
    due: Instant,
    steps: &'a mut Vec<Step>,
}

impl driver::Role for Answering<'_> {
    type Command = Step;
    const GOODBYE: Duration = Duration::ZERO;

    fn command(&mut self, _net: &mut Net, command: Step) -> Option<Duration> {
        self.steps.push(command);
        (command == Step::Settle).then_some(Duration::ZERO)
    }

    fn settle(&mut self, _net: &mut Net) {
        self.steps.push(Step::Settle);
        if self.steps.contains(&Step::Command) {
            self.commands.send(Step::Settle).unwrap();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.due).filter(|_| self.steps.is_empty())
    }

    fn expire(&mut self, _net: &mut Net) {
        self.steps.push(Step::Event);
        self.commands.send(Step::Command).unwrap();
    }

    fn refuse(&mut self, _command: Step) {}
    fn new_connection(&mut self, _net: &mut Net, _incoming: quinn_proto::Incoming) {}
    fn event(&mut self, _net: &mut Net, _connection: ConnectionHandle, _event: Event) {}
    fn sent(&mut self, _connection: ConnectionHandle, _bytes: usize) {}
    fn end(&mut self, _net: &mut Net, _reason: &Error) {}

    fn share(&self, _connection: ConnectionHandle) -> turns::Share {
        turns::Share::default()
    }

    fn is_waiting(&self) -> bool {
        true
    }
}

#[test]
fn what_goes_over_a_link_is_counted_while_it_is_up_and_when_it_ends() {
    let world = Trying::new(Settings { datagram_bytes_max: Some(1_452), ..Settings::default() });
    let (server, worker) = connected(&world);
    let metrics = measured(&worker);
    let _echo = server.echo();
    world.exchange(1, &worker, 1 << 20);
    until(|| numbers(&metrics, "link_sent_bytes") > 1 << 20);
    for name in ["link_rtt_nanoseconds", "link_cwnd_bytes", "link_mtu_bytes"] {
        assert!(numbers(&metrics, name) > 0, "{name}");
    }
    world.exchange(2, &worker, 1 << 20);
    worker.transport.disconnect(worker.link);
    drop(worker.lost.soon());
    for (name, at_least) in
        [("link_sent_bytes", 2 << 20), ("link_received_bytes", 2 << 20), ("link_sent_packets", (2 << 20) / 1_452)]
    {
        let number = numbers(&metrics, name);
        assert!((at_least..2 * at_least).contains(&number), "{name}: {number}");
    }
    assert!(held(&metrics, LinkLimit::App) > 0);
    assert_eq!((numbers(&metrics, "link_connects"), numbers(&metrics, "link_rtt_nanoseconds")), (1, 0));
}

#[test]
fn packets_that_a_network_loses_are_counted() {
    let settings = Settings { datagram_bytes_max: Some(1_452), ..Settings::default() };
    let world = Trying { loss_percent: Arc::new(AtomicU64::new(20)), ..Trying::new(settings) };
    let (server, worker) = connected(&world);
    let metrics = measured(&worker);
    let _echo = server.echo();
    world.exchange(1, &worker, 1 << 20);
    until(|| numbers(&metrics, "link_lost_packets") > 0 && numbers(&metrics, "link_congestion_events") > 0);
    assert!(numbers(&metrics, "link_lost_packets") < numbers(&metrics, "link_sent_packets"));
}

#[test]
fn a_path_that_acknowledges_nothing_holds_a_link_by_its_window() {
    let mut memory: Vec<Vec<u8>> = (0..8).map(|seed| pattern(4 << 20, seed)).collect();
    let world = Trying::new(Settings::default());
    let (_server, worker) = connected(&world);
    let metrics = measured(&worker);
    world.loss_percent.store(100, Ordering::Relaxed);
    let _pushes: Vec<_> = (0..).zip(&mut memory).map(|(id, body)| worker.push(ExchangeId(id), body)).collect();
    until(|| held(&metrics, LinkLimit::Cwnd) > 300_000_000);
    assert_eq!(held(&metrics, LinkLimit::Flow), 0);
}

#[test]
fn a_server_that_reads_nothing_holds_a_link_by_flow_control() {
    let mut memory = pattern(2 << 20, 1);
    let world = Trying::new(Settings::default().for_server());
    let (_server, worker) = connected(&world);
    let metrics = measured(&worker);
    let _push = worker.push(ExchangeId(1), &mut memory);
    until(|| held(&metrics, LinkLimit::Flow) > 300_000_000);
}

#[test]
fn a_link_with_nothing_to_send_while_credit_is_missing_is_held_by_the_credit() {
    let world = Trying::new(Settings::default());
    let (server, worker) = connected(&world);
    let metrics = measured(&worker);
    WorkerMetrics::set(&metrics.starved, 1);
    let _echo = server.echo();
    world.exchange(1, &worker, 1000);
    until(|| held(&metrics, LinkLimit::Credit) > 300_000_000);
}

/// The metrics of the link of a worker from now on.
fn measured(worker: &Worker) -> WorkerMetrics {
    let metrics = WorkerMetrics::default();
    worker.transport.measure(worker.link, Arc::new(metrics.link(ServerId(0))));
    metrics
}

fn held(metrics: &WorkerMetrics, by: LinkLimit) -> u64 {
    let Value::Family(times) = metrics.link_limited_nanoseconds.value() else { panic!("a family") };
    times.into_iter().filter(|(labels, _)| labels[1] == by.name()).map(|(_, time)| time).sum()
}

fn numbers(metrics: &WorkerMetrics, name: &str) -> u64 {
    match metrics.instance(0).value(name) {
        Some(Value::Family(numbers)) => numbers.iter().map(|(_, number)| number).sum(),
        other => panic!("{name}: {other:?}"),
    }
}

/// Waits for what the transport's thread does, which it tells nobody.
fn until(is_so: impl Fn() -> bool) {
    #[expect(clippy::disallowed_methods, reason = "the bound of a wait of a test")]
    let now = Instant::now;
    let end = now() + SOON;
    while !is_so() {
        assert!(now() < end, "it does not happen");
        std::thread::yield_now();
    }
}

/// A job whose sockets a test listens at.
struct Trying {
    world: Loopback,
    has_failed: Arc<AtomicBool>,
    loss_percent: Arc<AtomicU64>,
    largest: Arc<AtomicUsize>,
    largest_batch: Arc<AtomicUsize>,
}

impl Trying {
    fn new(settings: Settings) -> Self {
        let mut world = Loopback::new();
        world.settings = settings;
        let (has_failed, loss_percent) = (Arc::default(), Arc::default());
        Self { world, has_failed, loss_percent, largest: Arc::default(), largest_batch: Arc::default() }
    }

    fn wire(&self, address: &str) -> Wire {
        let mut wire = open(socket::bind(address.parse().unwrap(), 1 << 20).unwrap()).unwrap();
        (wire.trial.loss_percent, wire.trial.largest) = (Arc::clone(&self.loss_percent), Arc::clone(&self.largest));
        wire.trial.largest_batch = Arc::clone(&self.largest_batch);
        wire.trial.has_failed = Arc::clone(&self.has_failed);
        wire
    }

    fn exchange(&self, id: u64, worker: &Worker, bytes: usize) {
        let (mut pushed, mut pulled) = (pattern(bytes, 1), vec![0; bytes]);
        worker.push(ExchangeId(id), &mut pushed);
        sum_of(worker.pull(ExchangeId(id), &mut pulled).soon());
        assert!(pushed == pulled);
    }
}

impl World for Trying {
    fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
        let credentials = self.world.credentials(Role::Server);
        let listener = listen_on(self.wire("127.0.0.1:0"), &credentials, &self.world.settings, inbox).unwrap();
        (listener, credentials.node())
    }

    fn transport(&self) -> Arc<dyn Transport> {
        let credentials = self.world.credentials(Role::Worker);
        Arc::new(QuicTransport::driven(connect_on(self.wire("0.0.0.0:0"), &credentials, &self.world.settings).unwrap()))
    }
}
