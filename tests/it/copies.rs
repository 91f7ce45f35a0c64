//! Bytes of tensors are not copied on their way, and a copy that somebody makes all the same is seen.

use std::sync::Arc;
use std::time::Duration;

use gradlane_core::engine::{Engine, EngineOptions, process};
use gradlane_core::mem::{Copies, Region};
use gradlane_core::transport::quic::{Credentials, QuicTransport, Settings};
use gradlane_core::transport::{LinkLost, Peer, Pulled, Push, Transport};
use gradlane_core::types::{Done, ExchangeId, LinkId, Op, Role};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, config};

const LEN: usize = 100_000;

#[test]
fn a_worker_copies_nothing_over_a_network() {
    let cluster = Cluster::start(1, 1);
    let engine = &cluster.workers[0];
    Tensor::new("a", vec![1_f32; LEN]).reduce(engine, Op::Sum).unwrap();
    assert_eq!(engine.metrics().copied_bytes(), 0);
}

#[test]
fn a_body_that_is_staged_shows_in_the_metrics() {
    let config = config(&[]);
    let embedded = Embedded::start(EmbeddedOptions { config: config.clone(), workers: 1, servers: 1 }).unwrap();
    let join = embedded.join_string();
    let credentials = Arc::new(Credentials::enroll(join, Role::Worker, PATIENCE).unwrap());
    let copies = Copies::default();
    let inner = QuicTransport::new(&credentials, &Settings::from_config(&config)).unwrap();
    let engine = Engine::start(EngineOptions {
        member: process::member(Role::Worker, &config),
        config,
        coordinator: join.address.clone(),
        credentials,
        transport: Arc::new(Staging { inner, copies: copies.clone() }),
        copies,
    })
    .unwrap();
    for round in 1..=2 {
        Tensor::new("a", vec![1_f32; LEN]).reduce(&engine, Op::Sum).unwrap();
        assert_eq!(engine.metrics().copied_bytes(), round * 4 * LEN as u64);
        assert!(engine.metrics().snapshot().contains(&("copied_bytes", round * 4 * LEN as u64)));
    }
}

/// Looks at every body in a buffer of its own.
struct Staging {
    inner: QuicTransport,
    copies: Copies,
}

impl Transport for Staging {
    #[expect(unsafe_code, reason = "reads a contribution before it is lent")]
    fn push(&self, link: LinkId, exchange: ExchangeId, push: Push, done: Done<()>) {
        for region in &push.body {
            // SAFETY: nothing lands before the body was handed on, below.
            drop(self.copies.to_vec(unsafe { region.as_slice() }));
        }
        self.inner.push(link, exchange, push, done);
    }

    fn connect(&self, peer: Peer, patience: Duration, lost: LinkLost, done: Done<LinkId>) {
        self.inner.connect(peer, patience, lost, done);
    }

    fn pull(&self, exchange: ExchangeId, into: Vec<Region>, done: Pulled) {
        self.inner.pull(exchange, into, done);
    }

    fn abandon(&self, exchange: ExchangeId) {
        self.inner.abandon(exchange);
    }

    fn disconnect(&self, link: LinkId) {
        self.inner.disconnect(link);
    }

    fn shutdown(&self, patience: Duration) {
        self.inner.shutdown(patience);
    }
}
