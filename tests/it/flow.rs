//! What goes first, how much may be under way, and that the job stays alive meanwhile.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use gradlane_core::engine::Submission;
use gradlane_core::types::{Op, Priority};
use gradlane_core::wire::frame::Health;
use gradlane_core::{Code, Error};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all};

const MIB: usize = 1 << 20;

#[test]
fn an_urgent_tensor_overtakes_a_large_one() {
    const BULK: usize = 64 * MIB;
    const URGENT: usize = MIB / 16;
    let settings = [("partition_bytes", "1 MiB"), ("fuse_bytes", "0"), ("credit_bytes", "2 MiB")];
    let cluster = Cluster::with(2, 1, &settings);
    let [ours, theirs] = &cluster.workers[..] else { panic!("two workers") };
    let tensors = || [Tensor::new("bulk", vec![1_f32; BULK / 4]), Tensor::new("urgent", vec![1_f32; URGENT / 4])];

    // The urgent tensor comes last, while the first parts of the large one wait for the other worker.
    let [mut bulk, mut urgent] = tensors();
    let slow = bulk.submit(ours, Op::Sum, 1.0, Priority(-10)).unwrap();
    let (sender, arrived) = mpsc::channel();
    let now = Submission { priority: Priority(0), ..urgent.submission(Op::Sum) };
    let metrics = std::sync::Arc::new(std::sync::OnceLock::new());
    let fast = std::thread::scope(|scope| {
        let pulled = || ours.metrics().pull_bytes.load(Relaxed);
        let fast = ours.push_pull(now, move |_| sender.send(()).unwrap()).unwrap();
        let watch = scope.spawn(move || {
            arrived.recv_timeout(PATIENCE).unwrap();
            pulled()
        });
        let [mut their_bulk, mut their_urgent] = tensors();
        let theirs = [
            their_urgent.submit(theirs, Op::Sum, 1.0, Priority(0)).unwrap(),
            their_bulk.submit(theirs, Op::Sum, 1.0, Priority(-10)).unwrap(),
        ];
        metrics.set(watch.join().unwrap()).unwrap();
        theirs.into_iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
        fast
    });
    fast.wait(Some(PATIENCE)).unwrap();
    slow.wait(Some(PATIENCE)).unwrap();
    let before = *metrics.get().unwrap();
    assert!(before <= (BULK / 10 + URGENT) as u64, "{before} bytes of {BULK} came before the urgent tensor");
    assert!(bulk.data.iter().chain(&urgent.data).all(|sum| *sum == 2.0), "and the large one still ends");
}

#[test]
fn a_producer_that_runs_ahead_is_held_back() {
    let cluster = Cluster::with(2, 1, &[("submit_bytes_max", "1 MiB")]);
    let [ours, theirs] = &cluster.workers[..] else { panic!("two workers") };
    let mut first = Tensor::new("first", vec![1_f32; MIB / 4]);
    let mut second = Tensor::new("second", vec![1_f32; 10]);
    let full = first.push_pull(ours, Op::Sum).unwrap();
    let impatient = Submission { timeout: Some(Duration::from_millis(20)), ..second.submission(Op::Sum) };
    let error = ours.push_pull(impatient, |_| {}).unwrap_err();
    assert!(matches!(error, Error::Exhausted { .. }) && error.code() == Code::ResourceExhausted, "{error}");

    std::thread::scope(|scope| {
        let patient = scope.spawn(|| second.reduce(ours, Op::Sum));
        assert_eq!(full.outcome(), None);
        for (name, len) in [("first", MIB / 4), ("second", 10)] {
            Tensor::new(name, vec![1_f32; len]).reduce(theirs, Op::Sum).unwrap();
        }
        assert_eq!(patient.join().unwrap(), Ok(()), "submitted as soon as there was room");
    });
    assert_eq!(full.wait(Some(PATIENCE)), Ok(()));
}

#[test]
fn a_tensor_larger_than_every_limit_still_passes() {
    let cluster = Cluster::with(2, 1, &[("submit_bytes_max", "1 MiB"), ("credit_bytes", "1")]);
    let sums = all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; 2 * MIB]);
        tensor.reduce(engine, Op::Sum).unwrap();
        tensor.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 2.0));
}

#[test]
fn a_server_short_of_memory_makes_workers_wait_and_nothing_else() {
    // A part of 1 MiB needs its accumulator and a body; with 4 MiB not all parts under way fit.
    let settings = [("server_bytes_max", "20 MiB"), ("partition_bytes", "1 MiB"), ("fuse_bytes", "0")];
    let cluster = Cluster::with(2, 1, &settings);
    let sums = all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; 4 * MIB]);
        tensor.reduce(engine, Op::Sum).unwrap();
        tensor.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 2.0));
}

#[test]
fn everybody_is_heard_of_while_the_links_are_full() {
    let cluster = Cluster::with(2, 2, &[("heartbeat_interval", "50 ms")]);
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            all(&cluster.workers, |engine| {
                for _ in 0..4 {
                    Tensor::new("a", vec![1_f32; 8 * MIB]).reduce(engine, Op::Sum).unwrap();
                }
            });
            sender.send(()).unwrap();
        });
        while done.try_recv().is_err() {
            let status = cluster.embedded.status().unwrap();
            let healths: Vec<Health> = status.members.iter().map(|member| member.health).collect();
            assert_eq!(healths, [Health::Alive; 4]);
            // The next look after the next heartbeat.
            let _ = cluster.embedded.servers()[0].join(Some(Duration::from_millis(50)));
        }
    });
}
