//! What a caller may do with a handle: wait, look, give up; and what the memory behind it may look like meanwhile.

use std::cell::Cell;
use std::sync::mpsc;
use std::time::Duration;

use gradlane_core::engine::{Engine, Submission};
use gradlane_core::types::{Op, Priority};
use gradlane_core::{Code, Error};
use gradlane_tests::cluster::{Cluster, PATIENCE, SMALL_PARTS, Tensor, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::random::Random;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

matrix! {
    [locally, over_shm, over_quic]:
        a_handle_is_unresolved_until_the_last_worker_came,
        a_deadline_gives_the_memory_back,
        after_shutdown_nothing_is_accepted_and_nothing_hangs,
        tensors_of_any_size_in_any_order_have_the_right_sums;
    [over_shm, over_quic]:
        whoever_waits_for_many_is_told_of_each_once,
        a_cancelled_tensor_belongs_to_its_caller_again,
        whoever_waits_for_what_a_caller_gives_up_hears_it_at_once,
        a_worker_that_leaves_says_first_what_it_will_not_contribute,
        a_tensor_that_will_never_share_its_part_is_missed_by_nobody;
}

fn a_handle_is_unresolved_until_the_last_worker_came(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let mut tensors = [Tensor::new("a", vec![1_f32; 1000]), Tensor::new("a", vec![2_f32; 1000])];
    let (first, second) = tensors.split_at_mut(1);
    let handle = first[0].push_pull(&cluster.workers[0], Op::Sum).unwrap();
    assert_eq!(handle.outcome(), None);
    let error = handle.wait(Some(Duration::from_millis(1))).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");

    second[0].reduce(&cluster.workers[1], Op::Sum).unwrap();
    assert_eq!(handle.wait(Some(PATIENCE)), Ok(()), "a wait that timed out gave nothing up");
    assert_eq!(handle.outcome(), Some(Ok(())));
    assert!(tensors.iter().flat_map(|tensor| &tensor.data).all(|sum| *sum == 3.0));
}

fn whoever_waits_for_many_is_told_of_each_once(over: Over) {
    let cluster = Cluster::start(over, 1, 1);
    let mut tensors: Vec<Tensor> = (0..20).map(|index| Tensor::new(&format!("t{index}"), vec![1.0; 10])).collect();
    let (told, tidings) = mpsc::channel();
    let submit = |tensor: &mut Tensor| {
        let told = told.clone();
        cluster.workers[0].push_pull(tensor.submission(Op::Sum), move |id| told.send(id).unwrap()).unwrap()
    };
    let handles: Vec<_> = tensors.iter_mut().map(submit).collect();
    let mut ids: Vec<u64> = (0..20).map(|_| tidings.recv_timeout(PATIENCE).unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, handles.iter().map(|handle| handle.id()).collect::<Vec<_>>());
    assert!(handles.iter().all(|handle| handle.outcome() == Some(Ok(()))), "told after the outcome is there");
    drop(handles);
    assert!(tidings.try_recv().is_err());
}

fn a_cancelled_tensor_belongs_to_its_caller_again(over: Over) {
    const LEN: usize = 500_000;
    let cluster = Cluster::with(over, 2, 1, &[("step_timeout", "1 h")]);
    let [ours, theirs] = &cluster.workers[..] else { panic!("two workers") };
    let mut tensor = Tensor::new("a", vec![1_f32; LEN]);
    let handle = tensor.push_pull(ours, Op::Sum).unwrap();
    handle.cancel();
    assert_eq!(handle.wait(Some(PATIENCE)), Err(Error::Cancelled));
    handle.cancel();
    tensor.data.fill(-1.0);

    // The other worker gets its sum or hears why not, depending on how far the cancelled contribution had come; then everything about it
    // is over.
    let mut other = Tensor::new("a", vec![2_f32; LEN]);
    let outcome = reduce(theirs, other.submission(Op::Sum));
    assert!(matches!(outcome, Ok(()) | Err(Error::Stalled { .. })), "{outcome:?}");
    sum_of_one(&cluster.workers, "b");
    assert!(tensor.data.iter().all(|value| *value == -1.0), "written after it was given back");
}

fn whoever_waits_for_what_a_caller_gives_up_hears_it_at_once(over: Over) {
    // Nothing else would end the wait within the hour.
    let cluster = Cluster::with(over, 3, 2, &[("step_timeout", "1 h"), SMALL_PARTS[0]]);
    let [giver, before, after] = &cluster.workers[..] else { panic!("three workers") };
    let hears = |outcome: Result<(), Error>| match outcome.unwrap_err() {
        Error::Stalled { tensor, missing, detail, .. } => {
            assert_eq!((tensor, missing.as_slice()), ("a".into(), &[giver.rank()][..]));
            assert!(detail.contains("gave this round up"), "{detail}");
        }
        other => panic!("{other}"),
    };
    for timeout in [None, Some(Duration::from_millis(50))] {
        let mut tensors: Vec<Tensor> = (0..4).map(|_| Tensor::new("a", vec![1_f32; 100_000])).collect();
        let [first, second, early, late] = &mut tensors[..] else { panic!("four tensors") };
        // The second round is not pushed before the first is summed, for which the others are missing.
        let summed = first.push_pull(giver, Op::Sum).unwrap();
        let given_up = giver.push_pull(Submission { timeout, ..second.submission(Op::Sum) }, |_| {}).unwrap();
        if timeout.is_none() {
            given_up.cancel();
        }
        assert!(given_up.wait(Some(PATIENCE)).is_err());
        let waiting = early.push_pull(before, Op::Sum).unwrap();
        late.reduce(after, Op::Sum).unwrap();
        assert_eq!([summed, waiting].map(|handle| handle.wait(Some(PATIENCE))), [Ok(()), Ok(())]);
        assert!([&first.data, &early.data, &late.data].into_iter().flatten().all(|sum| *sum == 3.0));

        let waiting = early.push_pull(before, Op::Sum).unwrap();
        hears(waiting.wait(Some(PATIENCE)));
        hears(late.reduce(after, Op::Sum));
    }
    sum_of_one(&cluster.workers, "b");
}

fn a_worker_that_leaves_says_first_what_it_will_not_contribute(over: Over) {
    let cluster = Cluster::with(over, 2, 1, &[("step_timeout", "1 h")]);
    let [leaver, other] = &cluster.workers[..] else { panic!("two workers") };
    sum_of_one(&cluster.workers, "a");
    let mut tensors: Vec<Tensor> = (0..4).map(|_| Tensor::new("a", vec![1_f32; 100])).collect();
    let [first, second, early, late] = &mut tensors[..] else { panic!("four tensors") };
    // The second is not pushed before the first is summed, for which the other worker is missing.
    let pending = [first, second].map(|tensor| tensor.push_pull(leaver, Op::Sum).unwrap());
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| leaver.shutdown(PATIENCE));
        for handle in pending {
            assert!(matches!(handle.wait(Some(PATIENCE)), Err(Error::FailedPrecondition { .. })));
        }
        // The first may have been on its way.
        let outcome = early.reduce(other, Op::Sum);
        assert!(matches!(outcome, Ok(()) | Err(Error::Stalled { .. })), "{outcome:?}");
        let error = late.reduce(other, Op::Sum).unwrap_err();
        assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [leaver.rank()]), "{error}");
        other.shutdown(PATIENCE).unwrap();
        leaving.join().unwrap().unwrap();
    });
}

fn a_tensor_that_will_never_share_its_part_is_missed_by_nobody(over: Over) {
    let cluster = Cluster::with(over, 2, 1, &[("step_timeout", "1 h")]);
    let [giver, other] = &cluster.workers[..] else { panic!("two workers") };
    all(&cluster.workers, |engine| {
        let specs = ["a", "b"].map(|name| Tensor::new(name, vec![1_f32; 10]).spec).to_vec();
        engine.declare(specs, true, Some(PATIENCE)).unwrap();
    });
    let [mut ours, mut theirs] = [(); 2].map(|()| ["a", "b"].map(|name| Tensor::new(name, vec![1_f32; 10])));
    let handle = ours[0].push_pull(giver, Op::Sum).unwrap();
    handle.cancel();
    assert_eq!(handle.wait(Some(PATIENCE)), Err(Error::Cancelled));
    assert!(ours[1].reduce(giver, Op::Sum).is_err());
    let waiting = theirs.each_mut().map(|tensor| tensor.push_pull(other, Op::Sum).unwrap());
    for handle in waiting {
        let error = handle.wait(Some(PATIENCE)).unwrap_err();
        assert!(matches!(&error, Error::Stalled { missing, .. } if *missing == [giver.rank()]), "{error}");
    }
}

fn a_deadline_gives_the_memory_back(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let mut tensor = Tensor::new("a", vec![1_f32; 1000]);
    let timeout = Some(Duration::from_millis(50));
    let error = reduce(&cluster.workers[0], Submission { timeout, ..tensor.submission(Op::Sum) }).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }) && error.to_string().contains("tensor a"), "{error}");
    tensor.data.fill(7.0);
    sum_of_one(&cluster.workers, "b");
    assert!(tensor.data.iter().all(|value| *value == 7.0));
}

fn after_shutdown_nothing_is_accepted_and_nothing_hangs(over: Over) {
    let cluster = Cluster::start(over, 2, 1);
    let mut pending = Tensor::new("a", vec![1_f32; 1000]);
    let handle = pending.push_pull(&cluster.workers[0], Op::Sum).unwrap();
    let _ = cluster.workers[0].shutdown(Duration::ZERO);
    assert!(matches!(handle.wait(Some(PATIENCE)), Err(Error::FailedPrecondition { .. })));
    let late = Tensor::new("b", vec![1_f32; 10]).reduce(&cluster.workers[0], Op::Sum).unwrap_err();
    assert!(matches!(late, Error::FailedPrecondition { .. }), "{late}");
}

fn tensors_of_any_size_in_any_order_have_the_right_sums(over: Over) {
    let cluster = Cluster::with(over, 3, 2, &SMALL_PARTS);
    let lengths = prop_oneof![Just(0_usize), 1..100_usize, 1000..40_000_usize];
    let ops = prop_oneof![Just(Op::Sum), Just(Op::Min), Just(Op::Max), Just(Op::Mean)];
    let jobs = prop::collection::vec((lengths, ops, -3..3_i32), 1..12);
    let cases = Cell::new(0);
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 24, failure_persistence: None, ..Config::default() },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let property = |(jobs, seed): (Vec<Job>, u64)| {
        cases.set(cases.get() + 1);
        let outcomes = all(&cluster.workers, {
            let case = cases.get();
            move |engine| interleave(engine, case, &jobs, seed)
        });
        outcomes.into_iter().try_for_each(|outcome| outcome.map_err(TestCaseError::fail))
    };
    runner.run(&(jobs, any::<u64>()), property).unwrap();
}

/// Elements, operation, priority.
type Job = (usize, Op, i32);

/// Submits the jobs in an order of this worker's own, waits for them in another, and compares with what 3·x plus the rank sums to.
fn interleave(engine: &Engine, case: u32, jobs: &[Job], seed: u64) -> Result<(), String> {
    let rank = engine.rank().0;
    let mut random = Random::new(seed ^ u64::from(rank) << 32);
    let contribution = |index: usize, len: usize, rank: u32| {
        (0..len).map(move |element| ((element + index) % 1000) as f32 * 3.0 + rank as f32)
    };
    let mut tensors: Vec<Tensor> = jobs
        .iter()
        .enumerate()
        .map(|(index, (len, _, _))| Tensor::new(&format!("{case}/{index}"), contribution(index, *len, rank).collect()))
        .collect();
    let mut handles = vec![None; jobs.len()];
    for index in random.order(jobs.len()) {
        let (_, op, priority) = jobs[index];
        handles[index] =
            Some(tensors[index].submit(engine, op, 1.0, Priority(priority)).map_err(|error| error.to_string())?);
    }
    for index in random.order(jobs.len()) {
        let handle = handles[index].as_ref().expect("submitted above");
        handle.wait(Some(PATIENCE)).map_err(|error| error.to_string())?;
        let (len, op, _) = jobs[index];
        let (low, middle) = (contribution(index, len, 0), contribution(index, len, 1));
        let expected = low.zip(middle).map(|(low, middle)| match op {
            Op::Min => low,
            Op::Max => low + 2.0,
            Op::Sum => 3.0 * middle,
            Op::Mean | Op::WeightedMean | Op::Broadcast { .. } => middle,
        });
        if let Some(element) = expected.zip(&tensors[index].data).position(|(expected, found)| expected != *found) {
            return Err(format!("{op} of {len}, element {element} on worker {rank}"));
        }
    }
    Ok(())
}

fn reduce(engine: &Engine, submission: Submission) -> gradlane_core::Result<()> {
    engine.push_pull(submission, |_| {})?.wait(Some(PATIENCE))
}

/// The job still works.
fn sum_of_one(workers: &[Engine], name: &str) {
    let sums = all(workers, |engine| {
        let mut tensor = Tensor::new(name, vec![1_f32; 100]);
        tensor.reduce(engine, Op::Sum).unwrap();
        tensor.data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == workers.len() as f32));
}
