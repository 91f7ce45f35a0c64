//! Workers of several machines: those of one machine reduce among themselves, and each part goes over the network once a machine. The same
//! results and errors as if each worker pushed for itself.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::engine::{Engine, Submission};
use gradlane_core::types::{Op, Priority, WorkerId};
use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_server::{Embedded, EmbeddedOptions};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all, config};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::patience::eventually;
use gradlane_tests::processes::{Process, variables};

use crate::actors;

matrix! {
    [over_shm, over_quic]:
        the_network_carries_each_byte_once_a_machine_and_sums_are_exact,
        every_reduction_means_what_it_says,
        what_the_workers_of_one_machine_disagree_about_is_heard_by_all_at_once,
        an_owner_that_gives_up_is_named_at_once_to_those_who_wait_for_it,
        a_worker_that_leaves_is_named_to_those_who_go_on;
}

/// Two machines with two workers each; one with three and one with one; two with two whose ranks are mixed.
const SHAPES: [[&str; 4]; 3] = [["a", "a", "b", "b"], ["a", "a", "a", "b"], ["a", "b", "b", "a"]];

fn the_network_carries_each_byte_once_a_machine_and_sums_are_exact(over: Over) {
    for machines in SHAPES {
        let cluster = Cluster::on(over, &machines, 2, &SMALL_PARTS);
        let lengths = [1_000_000, 5, 0, 70_001];
        let carried = all(&cluster.workers, |engine| {
            for (index, len) in lengths.into_iter().enumerate() {
                let digit = 1_i32 << (2 * engine.rank().0);
                let mut tensor = Tensor::new(&format!("t{index}"), vec![digit; len]);
                for _ in 0..2 {
                    tensor.data.fill(digit);
                    tensor.reduce(engine, Op::Sum).unwrap();
                    assert!(tensor.data.iter().all(|sum| *sum == 0b0101_0101), "{machines:?}");
                }
            }
            let metrics = engine.metrics();
            [&metrics.push_bytes, &metrics.pull_bytes].map(|count| count.load(Ordering::Relaxed))
        });
        let bytes = 2 * 4 * lengths.iter().sum::<usize>() as u64;
        for machine in ["a", "b"] {
            let ranks = || (0..4).filter(|rank| machines[*rank] == machine);
            for direction in [0, 1] {
                let total: u64 = ranks().map(|rank| carried[rank][direction]).sum();
                assert_eq!(total, bytes, "{machines:?} {machine}");
            }
            // The parts of a tensor go round, so that nobody carries much more than its share.
            let share = bytes / ranks().count() as u64;
            assert!(ranks().all(|rank| carried[rank][0].abs_diff(share) < bytes / 10), "{machines:?}: {carried:?}");
        }
    }
}

fn every_reduction_means_what_it_says(over: Over) {
    let values = [8.0_f32, -16.0, 24.0, 40.0];
    let weights = [1.0, 0.0, 3.0, 4.0];
    let mut table =
        vec![(Op::Sum, 56.0), (Op::Mean, 14.0), (Op::Min, -16.0), (Op::Max, 40.0), (Op::WeightedMean, 30.0)];
    table.extend((0..4).map(|root| (Op::Broadcast { root: WorkerId(root) }, values[root as usize])));
    for machines in SHAPES {
        let cluster = Cluster::on(over, &machines, 2, &SMALL_PARTS);
        for (op, expected) in &table {
            let results = all(&cluster.workers, |engine| {
                let rank = engine.rank().0 as usize;
                let mut tensor = Tensor::new(&op.to_string(), vec![values[rank]; 50_000]);
                tensor.submit(engine, *op, weights[rank], Priority::default()).unwrap().wait(Some(PATIENCE)).unwrap();
                tensor.data
            });
            assert!(results.iter().flatten().all(|found| found == expected), "{op} on {machines:?}");
        }
    }
}

#[test]
fn a_machine_without_any_weight_adds_nothing_and_a_job_without_any_fails_on_all() {
    let cluster = Cluster::on(Over::Quic, &SHAPES[0], 1, &[]);
    let reduce = |name: &str, weights: [f64; 4]| {
        all(&cluster.workers, |engine| {
            let rank = engine.rank().0 as usize;
            let mut tensor = Tensor::new(name, vec![[1.0_f32, 2.0, 6.0, 8.0][rank]; 10]);
            let handle = tensor.submit(engine, Op::WeightedMean, weights[rank], Priority::default()).unwrap();
            handle.wait(Some(PATIENCE)).map(|()| tensor.data)
        })
    };
    assert_eq!(reduce("some", [0.0, 0.0, 1.0, 1.0]), vec![Ok(vec![7.0; 10]); 4]);
    for outcome in reduce("none", [0.0; 4]) {
        assert!(matches!(&outcome, Err(Error::TensorArgument { .. })), "{outcome:?}");
    }
}

#[test]
fn tensors_that_share_parts_in_any_order_and_results_that_go_elsewhere_are_right() {
    let cluster = Cluster::on(Over::Quic, &SHAPES[1], 2, &[]);
    all(&cluster.workers, |engine| {
        let own = engine.rank().0 as f32;
        let mut tensors: Vec<(Tensor, Tensor)> = (1..200)
            .map(|len| [own, -1.0].map(|value| Tensor::new(&format!("t{len}"), vec![value; len])).into())
            .collect();
        let specs = tensors.iter().map(|(tensor, _)| tensor.spec.clone()).collect();
        engine.declare(specs, true, Some(PATIENCE)).unwrap();
        for round in 0..3 {
            if engine.rank().0 % 2 == 1 {
                tensors.reverse();
            }
            let submit = |(ours, mean): &mut (Tensor, Tensor)| {
                let destination = mean.submission(Op::Mean).destination;
                let priority = Priority(round * ours.data.len() as i32);
                let submission = Submission { destination, priority, ..ours.submission(Op::Mean) };
                engine.push_pull(submission, |_| {}).unwrap()
            };
            let handles: Vec<_> = tensors.iter_mut().map(submit).collect();
            handles.into_iter().for_each(|handle| handle.wait(Some(PATIENCE)).unwrap());
            for (ours, mean) in &tensors {
                assert!(mean.data.iter().all(|mean| *mean == 1.5), "{}", mean.spec.name);
                assert!(ours.data.iter().all(|value| *value == own), "the contribution stays");
            }
        }
    });
}

#[test]
fn unwilling_workers_push_for_themselves_whatever_other_machines_do() {
    let cluster = Cluster::on(Over::Quic, &SHAPES[0], 1, &[("local_reduce", "off")]);
    all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; 1000]);
        tensor.reduce(engine, Op::Sum).unwrap();
        assert_eq!(tensor.data, [4.0; 1000]);
        let metrics = engine.metrics();
        let counts = [&metrics.push_bytes, &metrics.local_sums].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [4000, 0]);
    });
}

#[test]
fn where_one_worker_has_no_socket_all_workers_of_the_machine_push_for_themselves() {
    // Where the system lets no socket be made.
    for (folder, [pushes, local_sums]) in [("/nowhere/at/all", ["3", "0"]), ("/tmp", ["0", "3"])] {
        let options = EmbeddedOptions { config: config(Over::Local, &[]), workers: 3, servers: 1 };
        let embedded = Embedded::start(options).unwrap();
        let start = |rank: u32| {
            let place = rank.to_string();
            let settings = Over::Local.with(&[("rank", &*place), ("size", "3")]);
            let mut variables = variables(embedded.join_string(), &settings);
            variables.extend((rank == 1).then(|| ("TMPDIR".to_owned(), folder.to_owned())));
            Process::start(Path::new(actors::ACTOR), &["puppet"], Path::new("/tmp"), &variables)
        };
        let mut puppets: Vec<Process> = (0..3).map(start).collect();
        let answers = |puppets: &mut [Process], line: &str| {
            order(puppets, line);
            puppets.iter_mut().map(Process::line).collect::<Vec<String>>()
        };
        assert_eq!(puppets.iter_mut().map(Process::line).collect::<Vec<_>>(), ["joined 0", "joined 1", "joined 2"]);
        for round in 0..3 {
            assert_eq!(answers(&mut puppets, &format!("sum weight {round}")), ["ok"; 3], "the sums are exact");
        }
        assert_eq!(answers(&mut puppets, "metric pushes"), [pushes; 3], "{folder}");
        assert_eq!(answers(&mut puppets, "metric local_sums"), [local_sums; 3], "{folder}");
    }
}

#[test]
fn machines_that_want_different_reductions_all_learn_both() {
    let cluster = Cluster::on(Over::Quic, &SHAPES[0], 2, &[SMALL_PARTS[0]]);
    // Of one part, and of many: what one part fails of, all do.
    for len in [8, 1_000_000] {
        let name = format!("weight {len}");
        let errors = all(&cluster.workers, |engine| {
            let op = if engine.rank().0 < 2 { Op::Sum } else { Op::Max };
            Tensor::new(&name, vec![1_f32; len]).reduce(engine, op).unwrap_err()
        });
        for error in errors {
            let text = error.to_string();
            assert!(text.starts_with(&format!("tensor {name}: ")), "{text}");
            assert!(text.contains("has op max") && text.contains("has op sum"), "{text}");
        }
    }
    works(&cluster.workers);
}

fn what_the_workers_of_one_machine_disagree_about_is_heard_by_all_at_once(over: Over) {
    // Nothing but the disagreement itself ends the wait: this step takes an hour at most.
    let cluster = Cluster::on(over, &SHAPES[0], 2, &[("step_timeout", "1 h"), SMALL_PARTS[0]]);
    for (name, len) in [("bias", 8), ("weight", 300_000)] {
        let errors = all(&cluster.workers, |engine| {
            let op = if engine.rank().0 == 1 { Op::Max } else { Op::Sum };
            Tensor::new(name, vec![1_f32; len]).reduce(engine, op).unwrap_err()
        });
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Mismatch { .. }) && text.starts_with(&format!("tensor {name}: ")), "{text}");
            assert!(text.contains("worker 1 has op max") && text.contains("worker 0 has op sum"), "{text}");
        }
        all(&cluster.workers, |engine| {
            let mut tensor = Tensor::new(name, vec![1_f32; len]);
            tensor.reduce(engine, Op::Sum).unwrap();
            assert!(tensor.data.iter().all(|sum| *sum == 4.0), "the next round is whole");
        });
    }
}

#[test]
fn a_worker_that_does_not_come_is_named_to_those_who_wait() {
    let cluster = Cluster::on(Over::Quic, &SHAPES[0], 1, &[("step_timeout", "500 ms"), ("stall_warn", "100 ms")]);
    let errors = all(&cluster.workers, |engine| {
        (engine.rank().0 != 3).then(|| Tensor::new("a", vec![1_f32; 8]).reduce(engine, Op::Sum).unwrap_err())
    });
    let missing = |error: &Error| match error {
        Error::Stalled { tensor, missing, .. } if *tensor == "a".into() => missing.clone(),
        other => panic!("{other}"),
    };
    let missing: Vec<Vec<WorkerId>> = errors.iter().flatten().map(missing).collect();
    assert_eq!(missing, [vec![WorkerId(2), WorkerId(3)], vec![WorkerId(2), WorkerId(3)], vec![WorkerId(3)]]);
}

#[test]
fn whoever_gives_up_what_another_brings_disturbs_nobody() {
    let cluster = Cluster::on(Over::Quic, &SHAPES[0], 1, &[]);
    let (_, member) = roles(&cluster.workers);
    let mut tensors: Vec<Tensor> = (0..4).map(|_| Tensor::new("a", vec![1_f32; 1000])).collect();
    let begun: Vec<_> = (0..2).map(|rank| tensors[rank].push_pull(&cluster.workers[rank], Op::Sum).unwrap()).collect();
    reduced_here(&cluster.workers[..2]);
    begun[member].cancel();
    assert_eq!(begun[member].wait(Some(PATIENCE)), Err(Error::Cancelled), "before the other machine comes");
    tensors[member].data.fill(7.0);
    let later: Vec<_> = (2..4).map(|rank| tensors[rank].push_pull(&cluster.workers[rank], Op::Sum).unwrap()).collect();
    for handle in begun.iter().enumerate().filter(|(rank, _)| *rank != member).map(|(_, handle)| handle).chain(&later) {
        assert_eq!(handle.wait(Some(PATIENCE)), Ok(()));
    }
    for (rank, tensor) in tensors.iter().enumerate() {
        let expected = if rank == member { 7.0 } else { 4.0 };
        assert!(tensor.data.iter().all(|value| *value == expected), "worker {rank}");
    }
    works(&cluster.workers);
}

fn an_owner_that_gives_up_is_named_at_once_to_those_who_wait_for_it(over: Over) {
    let cluster = Cluster::on(over, &SHAPES[0], 1, &[("step_timeout", "1 h")]);
    let (owner, member) = roles(&cluster.workers);
    let mut tensors: Vec<Tensor> = (0..2).map(|_| Tensor::new("a", vec![1_f32; 1000])).collect();
    let handles: Vec<_> =
        (0..2).map(|rank| tensors[rank].push_pull(&cluster.workers[rank], Op::Sum).unwrap()).collect();
    reduced_here(&cluster.workers[..2]);
    handles[owner].cancel();
    assert_eq!(handles[owner].wait(Some(PATIENCE)), Err(Error::Cancelled));
    // Sooner than any timeout of the job.
    let named = |error: Error| match &error {
        Error::Stalled { missing, .. } => assert_eq!(missing, &[WorkerId(owner as u32)], "{error}"),
        other => panic!("{other}"),
    };
    named(handles[member].wait(Some(PATIENCE)).unwrap_err());
    // The other machine hears the same within this hour, unless what the owner brought was at the server by then.
    let outcomes = all(&cluster.workers[2..], |engine| Tensor::new("a", vec![1_f32; 1000]).reduce(engine, Op::Sum));
    outcomes.into_iter().filter_map(Result::err).for_each(named);
    works(&cluster.workers);
}

fn a_worker_that_leaves_is_named_to_those_who_go_on(over: Over) {
    let cluster = Cluster::on(over, &SHAPES[0], 1, &[("step_timeout", "2 s"), ("stall_warn", "1 s")]);
    all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("a", vec![1_f32; 100_000]);
        tensor.reduce(engine, Op::Sum).unwrap();
        if engine.rank().0 == 0 {
            let _ = engine.shutdown(Duration::ZERO);
            return;
        }
        let error = tensor.reduce(engine, Op::Sum).unwrap_err();
        assert!(matches!(&error, Error::Stalled { missing, .. } if missing.contains(&WorkerId(0))), "{error}");
    });
}

#[test]
fn a_worker_or_a_server_that_is_killed_is_lost_to_all() {
    for lost in ["worker 0", "server 0"] {
        let settings = [("local_reduce", "auto"), ("suspect_timeout", "1s"), ("dead_timeout", "3s")];
        let config = config(Over::Quic, &settings);
        let coordinator = CoordinatorNode::start(CoordinatorConfig::from_config(&config, 4, 1), &config, None).unwrap();
        let join = coordinator.join_string();
        let server = actors::server(Over::Quic, join, 0, &settings);
        let start = |(rank, machine)| {
            actors::worker(
                Over::Quic,
                &["puppet"],
                join,
                Some(rank),
                4,
                &[&settings[..], &[("machine", machine)]].concat(),
            )
        };
        let mut puppets: Vec<Process> = (0..).zip(SHAPES[0]).map(start).collect();
        for (rank, puppet) in puppets.iter_mut().enumerate() {
            assert_eq!(puppet.line(), format!("joined {rank}"));
        }
        order(&mut puppets, "sum weight 0");
        assert!(puppets.iter_mut().all(|puppet| puppet.line() == "ok"));

        match lost {
            "worker 0" => {
                // The others wait for it in the middle of a sum.
                let victim = puppets.remove(0);
                order(&mut puppets, "sum weight 1");
                victim.signal("KILL");
            }
            _ => {
                server.signal("KILL");
                order(&mut puppets, "sum weight 1");
            }
        }
        for other in &mut puppets {
            let answer = other.line();
            assert!(answer.starts_with("failed Aborted lost ") && answer.contains(lost), "{answer}");
        }
    }
}

fn order(puppets: &mut [Process], order: &str) {
    puppets.iter_mut().for_each(|puppet| puppet.order(order));
}

/// The worker of the first machine that exchanges tensor `a`, and the other one.
fn roles(workers: &[Engine]) -> (usize, usize) {
    all(workers, |engine| Tensor::new("a", vec![1_f32; 1000]).reduce(engine, Op::Sum))
        .into_iter()
        .for_each(Result::unwrap);
    let pushes = |rank: usize| workers[rank].metrics().pushes.load(Ordering::Relaxed);
    assert_eq!(pushes(0) + pushes(1), 1);
    if pushes(0) == 1 { (0, 1) } else { (1, 0) }
}

/// Waits until these have reduced their second part among themselves.
fn reduced_here(workers: &[Engine]) {
    for engine in workers {
        let sums = || engine.metrics().local_sums.load(Ordering::Relaxed);
        eventually("they reduce", || (sums() == 2).then_some(()));
    }
}

fn works(workers: &[Engine]) {
    all(workers, |engine| {
        let mut tensor = Tensor::new("later", vec![1_f32; 10]);
        tensor.reduce(engine, Op::Sum).unwrap();
        assert_eq!(tensor.data, [workers.len() as f32; 10]);
    });
}
