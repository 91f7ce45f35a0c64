//! Bytes of tensors are not copied on their way, and a copy that somebody makes all the same is seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gradlane_core::device::Device;
use gradlane_core::engine::{Engine, EngineOptions};
use gradlane_core::identity::Credentials;
use gradlane_core::local::Progress;
use gradlane_core::mem::{Copies, Region};
use gradlane_core::runtime::process;
use gradlane_core::transport::quic::{QuicTransport, Settings};
use gradlane_core::transport::{Answer, LinkLost, Peer, Push, Torn, Transport};
use gradlane_core::types::{Done, ExchangeId, LinkId, Op, Role};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all, config};
use gradlane_tests::gated_device::TestDevice;
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

matrix! {
    [over_shm, over_quic]:
        a_server_adds_bodies_where_they_were_received_and_keeps_two_rounds_of_sums,
        in_rank_order_a_server_copies_what_comes_before_its_turn_and_no_more;
}

const LEN: usize = 100_000;

#[test]
fn a_worker_copies_nothing_over_a_network() {
    let cluster = Cluster::start(Over::Quic, 1, 1);
    let engine = &cluster.workers[0];
    Tensor::new("a", vec![1_f32; LEN]).reduce(engine, Op::Sum).unwrap();
    assert_eq!(engine.metrics().copied_bytes(), 0);
}

#[test]
fn a_worker_copies_its_contribution_once_into_shared_memory() {
    let cluster = Cluster::start(Over::Shm, 1, 1);
    let engine = &cluster.workers[0];
    // A server that has not heard of the members yet refuses what comes, and then it comes again.
    Tensor::new("first", vec![1_f32]).reduce(engine, Op::Sum).unwrap();
    let before = engine.metrics().copied_bytes();
    Tensor::new("a", vec![1_f32; LEN]).reduce(engine, Op::Sum).unwrap();
    assert_eq!(engine.metrics().copied_bytes() - before, 4 * LEN as u64);
}

#[test]
fn what_is_staged_for_a_device_is_added_where_it_lies_by_a_server_of_the_machine() {
    let devices = |_| Some(TestDevice::start() as Arc<dyn Device>);
    let cluster = Cluster::with_devices(Over::Shm, 2, 1, &[], devices);
    all(&cluster.workers, |engine| {
        for round in 1..=3_u32 {
            let mut tensor = Tensor::new("a", (0..LEN).map(|at| (at as u32 * round) as f32).collect());
            engine.reduce(tensor.on_device(Op::Sum), Some(PATIENCE)).unwrap();
            assert!((0..LEN).all(|at| tensor.data[at] == 2.0 * (at as u32 * round) as f32), "round {round}");
        }
        assert_eq!(engine.metrics().copied_bytes(), 0);
    });
}

fn a_server_adds_bodies_where_they_were_received_and_keeps_two_rounds_of_sums(over: Over) {
    const BYTES: usize = 16 << 20;
    let cluster = Cluster::start(over, 2, 1);
    for _ in 0..4 {
        all(&cluster.workers, |engine| Tensor::new("a", vec![1_f32; BYTES / 4]).reduce(engine, Op::Mean).unwrap());
    }
    let server = &cluster.embedded.servers()[0];
    assert_eq!(server.stats().copied_bytes(), 0);
    let (_, held) = server.memory_bytes();
    assert!(held <= 2 * BYTES as u64, "{held} bytes for two rounds of {BYTES}");
}

fn in_rank_order_a_server_copies_what_comes_before_its_turn_and_no_more(over: Over) {
    let cluster = Cluster::with(over, 2, 1, &[("deterministic", "true")]);
    let sums = all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; LEN]);
        tensor.reduce(engine, Op::Sum).unwrap();
        tensor.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 2.0));
    let copied = cluster.embedded.servers()[0].stats().copied_bytes();
    assert!(copied <= 4 * LEN as u64, "{copied} bytes, more than the second rank sent");
}

#[test]
fn a_body_that_is_staged_shows_in_the_metrics() {
    let config = config(Over::Quic, &[]);
    let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers: 1, servers: 1 }).unwrap();
    let join = embedded.join_string();
    let credentials = Arc::new(Credentials::enroll(join, Role::Worker, PATIENCE).unwrap());
    let (copies, staged) = (Copies::default(), Arc::new(AtomicU64::new(0)));
    let inner = QuicTransport::new(&credentials, &Settings::from_config(&config)).unwrap();
    let engine = Engine::start(EngineOptions {
        member: process::member(Role::Worker, &config),
        config,
        coordinator: join.address.clone(),
        credentials,
        transport: Arc::new(Staging { inner, copies: copies.clone(), staged: Arc::clone(&staged) }),
        copies,
        device: None,
    })
    .unwrap();
    for round in 1..=2 {
        Tensor::new("a", vec![1_f32; LEN]).reduce(&engine, Op::Sum).unwrap();
        // More than once a round if the connection broke.
        let staged = staged.load(Ordering::Relaxed);
        assert!(staged >= round * 4 * LEN as u64, "{staged}");
        assert_eq!(engine.metrics().copied_bytes(), staged);
        assert_eq!(engine.metrics().instance(0).number("copied_bytes"), Some(staged));
    }
}

/// Looks at every body in a buffer of its own.
struct Staging {
    inner: QuicTransport,
    copies: Copies,
    /// Bytes of the bodies that it looked at.
    staged: Arc<AtomicU64>,
}

impl Progress for Staging {}

impl Transport for Staging {
    #[expect(unsafe_code, reason = "reads a contribution before it is lent")]
    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        for region in &push.body {
            // SAFETY: nothing lands before the body was handed on, below.
            drop(self.copies.to_vec(unsafe { region.as_slice() }));
            self.staged.fetch_add(region.len() as u64, Ordering::Relaxed);
        }
        self.inner.push(link, exchange, push, done);
    }

    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        self.inner.connect(peer, patience, lost, done);
    }

    fn pull(&self, link: LinkId, exchange: ExchangeId, into: Vec<Region>, done: Done<Answer, Torn>) {
        self.inner.pull(link, exchange, into, done);
    }

    fn abandon(&self, link: LinkId, exchange: ExchangeId) {
        self.inner.abandon(link, exchange);
    }

    fn disconnect(&self, link: LinkId) {
        self.inner.disconnect(link);
    }

    fn shutdown(&self, patience: Duration) {
        self.inner.shutdown(patience);
    }
}
