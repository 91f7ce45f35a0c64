//! Tensors in memory of devices, with whole engines, over a device whose memory is this process's.

use std::sync::Arc;
use std::time::Duration;

use gradlane_core::Error;
use gradlane_core::device::Device;
use gradlane_core::engine::{Batch, BatchSubmission, Engine, Handle, Member, Memory, Submission};
use gradlane_core::mem::Ordinal;
use gradlane_core::types::{Op, Priority, TensorSpec, WorkerId};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::element::Element;
use gradlane_tests::gated_device::{Direction, TestDevice};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::random::Random;
use half::bf16;

matrix! {
    [over_shm, over_quic]:
        every_reduction_is_bit_by_bit_that_of_host_memory,
        small_tensors_of_a_device_share_parts,
        one_worker_may_have_a_device_and_the_other_none,
        a_short_tensor_is_copied_by_the_thread_that_submits_it,
        tensors_that_share_a_part_and_lie_apart_are_named_to_all_workers,
        what_is_given_up_while_it_is_copied_ends_when_the_copy_has_ended_and_the_others_hear_of_it,
        a_sum_that_nobody_wants_any_more_is_not_seen_to_the_end_before_its_copy,
        a_device_that_fails_fails_the_handle_and_who_waits_for_the_contribution_hears_of_it,
        a_model_may_be_larger_than_the_credit,
        the_most_urgent_is_copied_next,
        an_engine_ends_with_copies_under_way;
}

const OPS: [Op; 6] = [Op::Sum, Op::Mean, Op::Min, Op::Max, Op::WeightedMean, Op::Broadcast { root: WorkerId(1) }];
/// Many parts, the last one shorter.
const LEN: usize = 100_003;

fn every_reduction_is_bit_by_bit_that_of_host_memory(over: Over) {
    // With `continue` sums land beside what is staged.
    for on_worker_loss in ["abort", "continue"] {
        let settings = [&SMALL_PARTS[..], &[("on_worker_loss", on_worker_loss)]].concat();
        let (cluster, _) = two_with_devices(over, &settings);
        as_on_the_host::<f32>(&cluster);
        as_on_the_host::<bf16>(&cluster);
        as_on_the_host::<i32>(&cluster);
    }
}

fn as_on_the_host<T: Element>(cluster: &Cluster) {
    for op in OPS {
        if op.check(T::DTYPE).is_err() {
            continue;
        }
        let weight = |engine: &Engine| if op == Op::WeightedMean { 1.0 + f64::from(engine.rank().0) } else { 1.0 };
        all(&cluster.workers, |engine| {
            let mut random = Random::new(u64::from(engine.rank().0));
            let values: Vec<T> = (0..LEN).map(|_| T::of((random.below(2001) as f64 - 1000.0) / 8.0)).collect();
            let [mut host, mut within, mut from, mut to] = ["host", "within", "from", "from"]
                .map(|name| Tensor::new(&format!("{name} {op} {}", T::DTYPE), values.clone()));
            let before = metric(engine, "d2h_bytes");
            let reduced = |submission: Submission| {
                engine.push_pull(Submission { weight: weight(engine), ..submission }, |_| {}).unwrap()
            };
            let out_of_place = Submission { destination: to.memory_of(Ordinal(0)), ..from.on_device(op) };
            let handles = [reduced(host.submission(op)), reduced(within.on_device(op)), reduced(out_of_place)];
            for handle in handles {
                handle.wait(Some(PATIENCE)).unwrap();
            }
            assert_eq!(within.data, host.data, "{op} in place");
            assert_eq!(to.data, host.data, "{op} out of place");
            assert_eq!(from.data, values, "what was contributed is still there");
            let sends = !matches!(op, Op::Broadcast { root } if root != engine.rank());
            let copied = if sends { 2 * (LEN * size_of::<T>()) as u64 } else { 0 };
            assert_eq!(metric(engine, "d2h_bytes") - before, copied, "{op}: host memory is not copied");
        });
    }
}

fn small_tensors_of_a_device_share_parts(over: Over) {
    let (cluster, devices) = two_with_devices(over, &[]);
    all(&cluster.workers, |engine| {
        let mut tensors: Vec<Tensor> =
            (0..50).map(|index| Tensor::new(&format!("small {index}"), vec![index as f32; 1 + index])).collect();
        let batch = Batch::new(tensors.iter().map(|tensor| tensor.spec.clone()).collect()).unwrap();
        for _ in 0..2 {
            push_pull_all(engine, &batch, tensors.iter_mut().map(|tensor| tensor.on_device(Op::Sum)))
                .wait(Some(PATIENCE))
                .unwrap();
        }
        for (index, tensor) in tensors.iter().enumerate() {
            assert_eq!(tensor.data, vec![4.0 * index as f32; 1 + index]);
        }
    });
    assert!(devices[0].asked(Direction::Out, 2).len() < 2 * 50, "a copy for each tensor");
}

fn one_worker_may_have_a_device_and_the_other_none(over: Over) {
    let device = TestDevice::start();
    let cluster = Cluster::with_devices(over, 2, 2, &SMALL_PARTS, |rank| (rank == 1).then(|| Arc::clone(&device) as _));
    all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("w", vec![1_f32; LEN]);
        let on_device = engine.rank() == WorkerId(1);
        let submission = if on_device { tensor.on_device(Op::Sum) } else { tensor.submission(Op::Sum) };
        engine.reduce(submission, Some(PATIENCE)).unwrap();
        assert!(tensor.data.iter().all(|sum| *sum == 2.0));
        assert_eq!(metric(engine, "h2d_bytes"), if on_device { 4 * LEN as u64 } else { 0 });
    });
}

/// Now and then the thread of the stage is awake and comes first.
fn a_short_tensor_is_copied_by_the_thread_that_submits_it(over: Over) {
    let (cluster, devices) = two_with_devices(over, &[]);
    all(&cluster.workers, |engine| {
        let device = &devices[engine.rank().0 as usize];
        let reduce = |len| {
            let mut tensor = Tensor::new(&format!("{len}"), vec![1_f32; len]);
            engine.reduce(tensor.on_device(Op::Sum), Some(PATIENCE)).unwrap();
            assert!(tensor.data.iter().all(|sum| *sum == 2.0));
        };
        (0..20).for_each(|_| reduce(LEN));
        assert!(device.submitters().len() <= 20, "the stage's thread copies all of its parts but one");
        (0..20).for_each(|_| reduce(100));
        assert!(device.submitters().contains(&std::thread::current().id()));
    });
}

#[test]
fn memory_that_cannot_be_reached_is_refused_at_once() {
    let device = TestDevice::start();
    let cluster = Cluster::with_devices(Over::Quic, 2, 1, &[], |rank| (rank == 1).then(|| Arc::clone(&device) as _));
    let refused = |engine: &Engine, submission| match engine.push_pull(submission, |_| {}).unwrap_err() {
        Error::InvalidArgument { what, .. } => what,
        other => panic!("{other}"),
    };
    let (mut tensor, mut other) = (Tensor::new("w", vec![1_f32; 4]), Tensor::new("w", vec![1_f32; 4]));
    let what = refused(&cluster.workers[0], tensor.on_device(Op::Sum));
    assert!(what.contains("memory of a device"), "{what}");
    assert!(cluster.workers[0].device().is_none());
    let mut apart =
        |destination: Memory| refused(&cluster.workers[1], Submission { destination, ..tensor.on_device(Op::Sum) });
    assert_eq!(apart(other.memory_of(Ordinal(1))), "tensor w: from memory of host:0 to memory of host:1");
    assert_eq!(apart(other.submission(Op::Sum).destination), "tensor w: from memory of host:0 to memory of the host");
}

fn tensors_that_share_a_part_and_lie_apart_are_named_to_all_workers(over: Over) {
    let (cluster, _) = two_with_devices(over, &[("step_timeout", "1 h")]);
    let outcomes = all(&cluster.workers, |engine| {
        let mut tensors = ["left", "right"].map(|name| Tensor::new(name, vec![1_f32; 4]));
        let batch = Batch::new(tensors.iter().map(|tensor| tensor.spec.clone()).collect()).unwrap();
        let [left, right] = &mut tensors;
        let apart = engine.rank() == WorkerId(1);
        let right = if apart { right.on(Ordinal(1), Op::Sum) } else { right.on_device(Op::Sum) };
        push_pull_all(engine, &batch, [left.on_device(Op::Sum), right].into_iter()).wait(Some(PATIENCE))
    });
    for outcome in outcomes {
        match outcome.unwrap_err() {
            Error::InvalidArgument { what, hint } => {
                assert!(what.contains("left and right") && what.contains("on worker 1"), "{what}");
                assert!(hint.contains("separate calls"), "{hint}");
            }
            other => panic!("{other}"),
        }
    }
    sum_of_one(&cluster, "after");
}

fn what_is_given_up_while_it_is_copied_ends_when_the_copy_has_ended_and_the_others_hear_of_it(over: Over) {
    let (cluster, devices) = two_with_devices(over, &[("step_timeout", "1 h")]);
    let [giver, other] = &cluster.workers[..] else { panic!("two workers") };
    for (timeout, expected) in [(None, "cancelled by the caller"), (Some(Duration::from_millis(10)), "not done after")]
    {
        let (mut given_up, mut waiting) = (Tensor::new("w", vec![1_f32; 100]), Tensor::new("w", vec![1_f32; 100]));
        giver.declare(vec![given_up.spec.clone()], false, Some(PATIENCE)).unwrap();
        devices[0].forget();
        devices[0].close(Direction::Out);
        let given_up = giver.push_pull(Submission { timeout, ..given_up.on_device(Op::Sum) }, |_| {}).unwrap();
        devices[0].asked(Direction::Out, 1);
        if timeout.is_none() {
            given_up.cancel();
        }
        let early = given_up.wait(Some(Duration::from_millis(100)));
        assert!(
            matches!(early, Err(Error::StillRunning { .. })) && given_up.outcome().is_none(),
            "its memory is in use"
        );
        devices[0].open();
        let error = given_up.wait(Some(PATIENCE)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let error = other.reduce(waiting.on_device(Op::Sum), Some(PATIENCE)).unwrap_err();
        assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [giver.rank()]), "{error}");
        sum_of_one(&cluster, "after");
    }
}

fn a_sum_that_nobody_wants_any_more_is_not_seen_to_the_end_before_its_copy(over: Over) {
    let (cluster, devices) = two_with_devices(over, &[]);
    let [giver, other] = &cluster.workers[..] else { panic!("two workers") };
    let (mut ours, mut theirs) = (Tensor::new("w", vec![1_f32; 100]), Tensor::new("w", vec![1_f32; 100]));
    devices[0].close(Direction::In);
    let given_up = giver.push_pull(ours.on_device(Op::Sum), |_| {}).unwrap();
    other.reduce(theirs.on_device(Op::Sum), Some(PATIENCE)).unwrap();
    devices[0].asked(Direction::In, 1);
    given_up.cancel();
    assert_eq!(given_up.outcome(), None, "its memory is in use");
    devices[0].open();
    assert_eq!(given_up.wait(Some(PATIENCE)), Err(Error::Cancelled));
    assert_eq!(theirs.data, [2_f32; 100], "the others have it");
    sum_of_one(&cluster, "after");
}

fn a_device_that_fails_fails_the_handle_and_who_waits_for_the_contribution_hears_of_it(over: Over) {
    let (cluster, devices) = two_with_devices(over, &[("step_timeout", "1 h")]);
    let [faulty, other] = &cluster.workers[..] else { panic!("two workers") };
    for direction in [Direction::Out, Direction::In] {
        let (mut ours, mut theirs) = (Tensor::new("w", vec![1_f32; 100]), Tensor::new("w", vec![1_f32; 100]));
        devices[0].fail(direction);
        let handle = faulty.push_pull(ours.on_device(Op::Sum), |_| {}).unwrap();
        let outcome = other.reduce(theirs.on_device(Op::Sum), Some(PATIENCE));
        let error = handle.wait(Some(PATIENCE)).unwrap_err();
        assert!(matches!(&error, Error::Device { device, .. } if device == "host:0"), "{error}");
        match (direction, outcome) {
            (Direction::Out, Err(Error::Stalled { missing, detail, .. })) => {
                assert_eq!(missing, [faulty.rank()]);
                assert!(detail.contains("it was told to fail"), "{detail}");
            }
            (Direction::In, Ok(())) => assert_eq!(theirs.data, [2_f32; 100]),
            (_, outcome) => panic!("{direction:?}: {outcome:?}"),
        }
        sum_of_one(&cluster, "after");
    }
}

fn a_model_may_be_larger_than_the_credit(over: Over) {
    let (cluster, _) = two_with_devices(over, &[("credit_bytes", "128 KiB"), SMALL_PARTS[0]]);
    all(&cluster.workers, |engine| {
        let mut tensors: Vec<Tensor> = (0..8).map(|index| Tensor::new(&format!("{index}"), vec![1_f32; LEN])).collect();
        // In different orders, and some of them in host memory.
        let reversed = engine.rank() == WorkerId(1);
        let order = |index: usize| if reversed { 7 - index } else { index };
        let addresses: Vec<Submission> = tensors
            .iter_mut()
            .enumerate()
            .map(|(index, tensor)| if index % 3 == 2 { tensor.submission(Op::Sum) } else { tensor.on_device(Op::Sum) })
            .collect();
        let mut submissions: Vec<Option<Submission>> = addresses.into_iter().map(Some).collect();
        let handles: Vec<Handle> =
            (0..8).map(|index| engine.push_pull(submissions[order(index)].take().unwrap(), |_| {}).unwrap()).collect();
        for handle in handles {
            handle.wait(Some(PATIENCE)).unwrap();
        }
        assert!(tensors.iter().flat_map(|tensor| &tensor.data).all(|sum| *sum == 2.0));
    });
}

fn the_most_urgent_is_copied_next(over: Over) {
    let (cluster, devices) = two_with_devices(over, &SMALL_PARTS);
    let specs = [("backlog", LEN), ("urgent", 16_384)].map(|(name, len)| Tensor::new(name, vec![1_f32; len]).spec);
    all(&cluster.workers, |engine| engine.declare(specs.to_vec(), false, Some(PATIENCE)).unwrap());
    // A sum of each server has come, so that nothing waits for a connection.
    sum_of_one(&cluster, "before");
    devices[0].forget();
    devices[0].close(Direction::Out);
    all(&cluster.workers, |engine| {
        let tensors = specs
            .each_ref()
            .map(|TensorSpec { name, shape, .. }| Tensor::new(name, vec![1_f32; usize::try_from(shape[0]).unwrap()]));
        let [mut backlog, mut urgent] = tensors;
        let address = urgent.data.as_ptr() as u64;
        let low =
            engine.push_pull(Submission { priority: Priority(-9), ..backlog.on_device(Op::Sum) }, |_| {}).unwrap();
        if engine.rank() == WorkerId(0) {
            devices[0].asked(Direction::Out, 4);
        }
        let high = engine.push_pull(Submission { priority: Priority(9), ..urgent.on_device(Op::Sum) }, |_| {}).unwrap();
        if engine.rank() == WorkerId(0) {
            devices[0].let_one_through();
            assert_eq!(devices[0].asked(Direction::Out, 5)[4], address, "before the rest of the backlog");
            devices[0].open();
        }
        for handle in [high, low] {
            handle.wait(Some(PATIENCE)).unwrap();
        }
        assert!(backlog.data.iter().chain(&urgent.data).all(|sum| *sum == 2.0));
    });
}

fn an_engine_ends_with_copies_under_way(over: Over) {
    for direction in [Direction::Out, Direction::In] {
        let (cluster, devices) = two_with_devices(over, &SMALL_PARTS);
        let [leaver, other] = &cluster.workers[..] else { panic!("two workers") };
        let (mut ours, mut theirs) = (Tensor::new("w", vec![1_f32; LEN]), Tensor::new("w", vec![1_f32; LEN]));
        devices[0].close(direction);
        let pending = leaver.push_pull(ours.on_device(Op::Sum), |_| {}).unwrap();
        let waiting = other.push_pull(theirs.on_device(Op::Sum), |_| {}).unwrap();
        devices[0].asked(direction, 1);
        drop(leaver.shutdown(Duration::ZERO));
        let outcome = pending.outcome().expect("nothing is left behind");
        assert!(matches!(outcome, Err(Error::FailedPrecondition { .. })), "{outcome:?}");
        waiting.cancel();
    }
}

#[test]
fn the_workers_of_a_machine_hear_what_to_do_where_nothing_reduces_memory_of_devices_among_them() {
    let devices = [TestDevice::start(), TestDevice::start()];
    let device = |rank: u32| Some(Arc::clone(&devices[rank as usize]) as Arc<dyn Device>);
    let cluster = Cluster::on_with_devices(Over::Quic, &["a", "a"], 1, &[("nccl_lib", "/nowhere/libnccl.so")], device);
    let errors = all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("w", vec![1_f32; 100]);
        engine.reduce(tensor.on_device(Op::Sum), Some(PATIENCE)).unwrap_err()
    });
    for error in errors {
        assert!(error.to_string().contains("local_reduce=off"), "{error}");
    }
    // Tensors in host memory are reduced all the same.
    all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new("after", vec![1_f32; 100]);
        tensor.reduce(engine, Op::Sum).unwrap();
        assert_eq!(tensor.data, [2_f32; 100]);
    });
}

/// Two workers with a device each, two servers.
fn two_with_devices(over: Over, settings: &[(&str, &str)]) -> (Cluster, [Arc<TestDevice>; 2]) {
    let devices = [TestDevice::start(), TestDevice::start()];
    let device = |rank: u32| Some(Arc::clone(&devices[rank as usize]) as Arc<dyn Device>);
    (Cluster::with_devices(over, 2, 2, settings, device), devices)
}

fn push_pull_all(engine: &Engine, batch: &Batch, submissions: impl Iterator<Item = Submission>) -> Handle {
    let member = |submission: Submission| Member {
        source: submission.source,
        destination: submission.destination,
        priority: submission.priority,
    };
    let members = submissions.map(member).collect();
    engine.push_pull_all(BatchSubmission { batch, members, op: Op::Sum, weight: 1.0, timeout: None }, |_| {}).unwrap()
}

fn sum_of_one(cluster: &Cluster, name: &str) {
    all(&cluster.workers, |engine| {
        let mut tensor = Tensor::new(name, vec![1_f32; 40_000]);
        engine.reduce(tensor.on_device(Op::Sum), Some(PATIENCE)).unwrap();
        assert!(tensor.data.iter().all(|sum| *sum == 2.0));
    });
}

fn metric(engine: &Engine, name: &str) -> u64 {
    engine.metrics().instance(0).number(name).expect("a metric")
}
