//! Workers of one machine reduce among themselves: the same results, errors and rights as through a server, and nothing is sent to one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::config::Config;
use gradlane_core::engine::{Engine, Submission};
use gradlane_core::types::{Op, Priority, WorkerId};
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all, config, worker};
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::processes::Process;

use crate::actors::Job;

#[test]
fn nothing_is_sent_to_a_server() {
    let cluster = Cluster::with(Over::Local, 3, 1, &SMALL_PARTS);
    all(&cluster.workers, |engine| {
        for (round, len) in [1_000_000, 5, 0, 70_001].into_iter().enumerate() {
            let mut tensor = Tensor::new(&format!("t{round}"), vec![1_i32 << (2 * engine.rank().0); len]);
            tensor.reduce(engine, Op::Sum).unwrap();
            assert!(tensor.data.iter().all(|sum| *sum == 0b01_0101));
        }
        let metrics = engine.metrics();
        let sent = [&metrics.pushes, &metrics.push_bytes, &metrics.header_bytes, &metrics.connections];
        assert_eq!(sent.map(|count| count.load(Ordering::Relaxed)), [0; 4]);
        assert_eq!(metrics.local_bytes.load(Ordering::Relaxed), 4 * (1_000_000 + 5 + 70_001));
        assert!(metrics.local_sums.load(Ordering::Relaxed) > 61);
    });
}

#[test]
fn one_unwilling_worker_is_enough_for_all_of_its_machine_to_push() {
    let settings = |rank| config(if rank == 1 { Over::Quic } else { Over::Local }, &[]);
    let embedded = Embedded::start(EmbeddedOptions { config: settings(0), workers: 3, servers: 1 }).unwrap();
    let workers = start(&embedded, 3, settings);
    all(&workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; 10]);
        tensor.reduce(engine, Op::Sum).unwrap();
        assert_eq!(tensor.data, [3.0; 10]);
        assert_eq!(engine.metrics().pushes.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn tensors_that_share_parts_and_tensors_in_any_order_have_the_right_sums() {
    let cluster = Cluster::start(Over::Local, 2, 1);
    all(&cluster.workers, |engine| {
        let mut tensors: Vec<Tensor> =
            (1..200).map(|len| Tensor::new(&format!("t{len}"), vec![len as f32; len])).collect();
        engine.declare(tensors.iter().map(|tensor| tensor.spec.clone()).collect(), true, Some(PATIENCE)).unwrap();
        for round in 0..3 {
            if engine.rank().0 == 1 {
                tensors.reverse();
            }
            let submit = |tensor: &mut Tensor| {
                let priority = Priority(round * tensor.data.len() as i32);
                tensor.submit(engine, Op::Mean, 1.0, priority).unwrap()
            };
            let handles: Vec<_> = tensors.iter_mut().map(submit).collect();
            handles.into_iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
            for tensor in &tensors {
                assert!(tensor.data.iter().all(|mean| *mean == tensor.data.len() as f32), "{}", tensor.spec.name);
            }
        }
        assert!(engine.metrics().local_sums.load(Ordering::Relaxed) < 3 * 199, "small neighbours share parts");
    });
}

#[test]
fn whoever_waits_for_room_does_not_keep_others_from_working() {
    let cluster = Cluster::with(Over::Local, 2, 1, &[("submit_bytes_max", "1 MiB"), ("credit_bytes", "1 MiB")]);
    all(&cluster.workers, |engine| {
        let mut bulk: Vec<Tensor> = (0..4).map(|n| Tensor::new(&format!("bulk {n}"), vec![1_f32; 1 << 16])).collect();
        let mut last = Tensor::new("last", vec![1_f32; 1 << 16]);
        for _ in 0..10 {
            // Nobody waits for these before the last one is under way, which must wait for room.
            let begin = |tensor: &mut Tensor| engine.push_pull(tensor.submission(Op::Mean), |_| {}).unwrap();
            let handles: Vec<_> = bulk.iter_mut().map(begin).collect();
            engine.reduce(last.submission(Op::Mean), Some(PATIENCE)).unwrap();
            handles.into_iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
        }
        assert!(bulk.iter().chain([&last]).flat_map(|tensor| &tensor.data).all(|mean| *mean == 1.0));
    });
}

#[test]
fn a_result_may_go_elsewhere() {
    let cluster = Cluster::start(Over::Local, 2, 1);
    all(&cluster.workers, |engine| {
        let mut ours = Tensor::new("a", vec![engine.rank().0 as f32 + 1.0; 100_000]);
        let mut sum = Tensor::new("a", vec![0_f32; 100_000]);
        let submission = Submission { destination: sum.submission(Op::Sum).destination, ..ours.submission(Op::Sum) };
        engine.push_pull(submission, |_| {}).unwrap().wait(Some(PATIENCE)).unwrap();
        assert!(sum.data.iter().all(|sum| *sum == 3.0));
        assert!(ours.data.iter().all(|own| *own == engine.rank().0 as f32 + 1.0), "the contribution stays");
    });
}

#[test]
fn workers_that_want_different_reductions_all_learn_both_and_by_name() {
    let cluster = Cluster::start(Over::Local, 3, 1);
    let errors = all(&cluster.workers, |engine| {
        let op = if engine.rank().0 == 2 { Op::Max } else { Op::Sum };
        Tensor::new("fc.weight", vec![1_f32; 8]).reduce(engine, op).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.starts_with("tensor fc.weight: "), "{text}");
        assert!(text.contains("worker 2 has op max") && text.contains("has op sum"), "{text}");
    }
}

#[test]
fn a_worker_that_does_not_come_is_named_to_those_who_wait() {
    let cluster = Cluster::with(Over::Local, 3, 1, &[("step_timeout", "300 ms"), ("stall_warn", "100 ms")]);
    let errors = all(&cluster.workers, |engine| {
        (engine.rank().0 != 0).then(|| Tensor::new("a", vec![1_f32; 8]).reduce(engine, Op::Sum).unwrap_err())
    });
    for error in errors.into_iter().flatten() {
        let Error::Stalled { tensor, missing, .. } = &error else { panic!("{error}") };
        assert_eq!(*tensor, "a".into());
        assert!(missing.contains(&WorkerId(0)), "{error}");
    }
}

#[test]
fn a_deadline_and_a_cancellation_give_the_memory_back() {
    // Twice somebody waits for so long.
    let cluster = Cluster::with(Over::Local, 2, 1, &[("step_timeout", "2s"), ("stall_warn", "1s")]);
    let [ours, theirs] = &cluster.workers[..] else { panic!("two workers") };
    let mut tensor = Tensor::new("a", vec![1_f32; 1000]);
    let handle = tensor.push_pull(ours, Op::Sum).unwrap();
    handle.cancel();
    assert_eq!(handle.wait(Some(PATIENCE)), Err(Error::Cancelled));
    tensor.data.fill(1.0);
    let submission = Submission { timeout: Some(Duration::from_millis(20)), ..tensor.submission(Op::Sum) };
    let error = ours.push_pull(submission, |_| {}).unwrap().wait(Some(PATIENCE)).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    tensor.data.fill(1.0);
    for _ in 0..2 {
        let error = Tensor::new("a", vec![1_f32; 1000]).reduce(theirs, Op::Sum).unwrap_err();
        assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [WorkerId(0)]), "{error}");
    }
    let sums = all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; 1000]);
        tensor.reduce(engine, Op::Sum).map(|()| tensor.data)
    });
    assert!(
        sums.into_iter().all(|sum| sum.unwrap() == [2.0; 1000]),
        "two rounds are over on both, and they agree about the third"
    );
}

#[test]
fn a_worker_that_is_killed_in_the_middle_is_lost_to_all_at_once_and_leaves_nothing() {
    // So patient that silence cannot be what is heard of.
    for lost in [0, 2] {
        let mut job = Job::start(Over::Local, 3, 1, &[("dead_timeout", "1h")]);
        job.all_do("sum weight 0");
        let pids: Vec<u32> = job.puppets.iter().map(Process::pid).collect();
        assert!(pids.iter().all(|pid| maps_a_segment(*pid)), "they share memory");
        let pid = job.puppets[lost].pid();
        let others: Vec<usize> = (0..3).filter(|rank| *rank != lost).collect();
        for rank in &others {
            job.puppets[*rank].order("sum weight 1");
        }
        job.puppets[lost].signal("KILL");
        for rank in &others {
            let answer = job.puppets[*rank].line();
            assert!(answer.starts_with(&format!("failed Aborted lost worker {lost} on ")), "{answer}");
            assert!(answer.contains(&format!("(pid {pid})")), "{answer}");
            job.puppets[*rank].order("sum weight 2");
            assert!(job.puppets[*rank].line().starts_with("failed Aborted lost worker"), "whatever is asked later");
        }
        for rank in others {
            job.puppets[rank].signal("KILL");
        }
        eventually("no segment is left", || (!pids.iter().any(|pid| maps_a_segment(*pid))).then_some(()));
    }
}

#[test]
fn a_worker_that_leaves_first_is_named_to_those_who_go_on() {
    let cluster = Cluster::start(Over::Local, 2, 1);
    all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; 100_000]);
        tensor.reduce(engine, Op::Sum).unwrap();
        if engine.rank().0 == 0 {
            let _ = engine.shutdown(Duration::ZERO);
            return;
        }
        let error = tensor.reduce(engine, Op::Sum).unwrap_err();
        assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [WorkerId(0)]), "{error}");
    });
}

/// Workers of one job with settings of their own.
fn start(embedded: &Embedded, workers: u32, settings: impl Fn(u32) -> Config + Sync) -> Vec<Engine> {
    std::thread::scope(|scope| {
        let settings = &settings;
        let join = |rank| move || worker(&settings(rank), embedded.join_string(), Some(rank), workers).expect("joins");
        let joining: Vec<_> = (0..workers).map(|rank| scope.spawn(join(rank))).collect();
        joining.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    })
}

/// Whether a process maps a segment.
fn maps_a_segment(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("memfd:gradlane"))
}
