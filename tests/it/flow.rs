//! What goes first, how much may be under way, and that the job stays alive meanwhile.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use gradlane_core::engine::Submission;
use gradlane_core::types::{Op, Priority};
use gradlane_core::wire::frame::Health;
use gradlane_core::{Code, Error};
use gradlane_tests::cluster::{Cluster, PATIENCE, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::tap::{Fate, Tap};

matrix! {
    [over_shm, over_quic]:
        an_urgent_tensor_overtakes_a_large_one,
        a_server_short_of_memory_makes_workers_wait_and_nothing_else,
        everybody_is_heard_of_while_the_links_are_full;
    [locally, over_shm, over_quic]:
        a_producer_that_runs_ahead_is_held_back,
        a_tensor_larger_than_every_limit_still_passes,
        workers_that_submit_in_different_orders_do_not_wait_for_each_other,
        many_small_tensors_in_opposite_orders_do_not_wait_for_each_other;
}

const MIB: usize = 1 << 20;

fn an_urgent_tensor_overtakes_a_large_one(over: Over) {
    const BULK: usize = 64 * MIB;
    // Too long to be pushed by the thread that submits it, which has to open the gate.
    const URGENT: usize = MIB / 8;
    let settings = [("partition_bytes", "1 MiB"), ("fuse_bytes", "0"), ("credit_bytes", "2 MiB")];
    // Nothing leaves before both are submitted.
    let (open, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let hold = move |push| {
        if push == 1 {
            gate.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        }
        Fate::Stay
    };
    let Cluster { mut workers, embedded: _embedded } =
        Cluster::tapped(over, 1, 1, &settings, |transport| Arc::new(Tap::new(transport, hold.clone())));
    let engine = Arc::new(workers.remove(0));
    let mut bulk = Tensor::new("bulk", vec![1_f32; BULK / 4]);
    let mut urgent = Tensor::new("urgent", vec![1_f32; URGENT / 4]);
    engine.declare(vec![bulk.spec.clone(), urgent.spec.clone()], false, Some(PATIENCE)).unwrap();

    let (sender, came) = mpsc::channel();
    let observer = Arc::clone(&engine);
    let slow = bulk.submit(&engine, Op::Sum, 1.0, Priority(-10)).unwrap();
    let now = Submission { priority: Priority(0), ..urgent.submission(Op::Sum) };
    let then = move |_| sender.send(observer.metrics().pull_bytes.load(Relaxed)).unwrap();
    let fast = engine.push_pull(now, then).unwrap();
    open.send(()).unwrap();
    let before = came.recv_timeout(PATIENCE).unwrap();
    assert!(before <= (BULK / 10 + URGENT) as u64, "{before} of {BULK} bytes came before the urgent tensor");
    assert_eq!(fast.wait(None), Ok(()));
    assert_eq!(slow.wait(Some(PATIENCE)), Ok(()), "and the large one still ends");
}

fn a_producer_that_runs_ahead_is_held_back(over: Over) {
    let cluster = Cluster::with(over, 2, 1, &[("submit_bytes_max", "1 MiB"), ("credit_bytes", "1 MiB")]);
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

fn a_tensor_larger_than_every_limit_still_passes(over: Over) {
    let cluster = Cluster::with(over, 2, 1, &[("submit_bytes_max", "1 MiB"), ("credit_bytes", "1")]);
    let sums = all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; 2 * MIB]);
        tensor.reduce(engine, Op::Sum).unwrap();
        tensor.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 2.0));
}

fn workers_that_submit_in_different_orders_do_not_wait_for_each_other(over: Over) {
    let settings = [("partition_bytes", "1 MiB"), ("fuse_bytes", "0"), ("credit_bytes", "1 MiB")];
    let cluster = Cluster::with(over, 2, 1, &settings);
    all(&cluster.workers, |engine| {
        let mut tensors = ["a", "b"].map(|name| Tensor::new(name, vec![1_f32; MIB]));
        if engine.rank().0 == 1 {
            tensors.reverse();
        }
        let handles = tensors.each_mut().map(|tensor| tensor.push_pull(engine, Op::Sum).unwrap());
        handles.into_iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
        assert!(tensors.iter().flat_map(|tensor| &tensor.data).all(|sum| *sum == 2.0));
    });
}

fn many_small_tensors_in_opposite_orders_do_not_wait_for_each_other(over: Over) {
    // So many more than may be in flight at once on a worker that without lending, each would hold all it may with what the other
    // holds back.
    const TENSORS: usize = 2200;
    let cluster = Cluster::start(over, 2, 1);
    all(&cluster.workers, |engine| {
        let mut tensors: Vec<Tensor> =
            (0..TENSORS).map(|index| Tensor::new(&format!("t{index}"), vec![1_f32; 100])).collect();
        if engine.rank().0 == 1 {
            tensors.reverse();
        }
        for _ in 0..2 {
            let submit = |tensor: &mut Tensor| tensor.push_pull(engine, Op::Mean).unwrap();
            let handles: Vec<_> = tensors.iter_mut().map(submit).collect();
            handles.into_iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
        }
        assert!(tensors.iter().flat_map(|tensor| &tensor.data).all(|mean| *mean == 1.0));
    });
}

fn a_server_short_of_memory_makes_workers_wait_and_nothing_else(over: Over) {
    // The sums of 16 parts and, for each that is under way, two bodies.
    let settings = [("server_bytes_max", "20 MiB"), ("partition_bytes", "1 MiB"), ("fuse_bytes", "0")];
    let cluster = Cluster::with(over, 2, 1, &settings);
    let sums = all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; 4 * MIB]);
        tensor.reduce(engine, Op::Sum).unwrap();
        tensor.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 2.0));
}

fn everybody_is_heard_of_while_the_links_are_full(over: Over) {
    let cluster = Cluster::with(over, 2, 2, &[("heartbeat_interval", "50 ms")]);
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
